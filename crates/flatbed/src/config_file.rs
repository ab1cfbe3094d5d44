//! The configuration file: TOML with the settings' keys, and a table of administrators, whose plain passwords are
//! replaced in the file by their hashes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use flatbed_http::Cors;
use flatbed_service::configuration::Values;
use toml_edit::{DocumentMut, Item, TableLike, Value};

use crate::settings::{Layer, SETTINGS, SettingValue};

/// The files that are read if none is named: the first one that exists.
///
/// The first is in the working directory.
pub(crate) const DEFAULT_PATHS: [&str; 2] = ["flatbed.toml", "/etc/flatbed/flatbed.toml"];

const FILE_BYTES_MAX: u64 = 1 << 20;
const ADMINS: &str = "admins";
const CORS: &str = "cors";
const JWKS_FILE: &str = "jwks_file";
const LIMITS: &str = "limits";
const SYNCSTORAGE: &str = "syncstorage";
const WORKER: &str = "worker";

/// Settings that may be arrays.
const LISTS: [&str; 6] =
    ["listen", "proxy_protocol_from", "forwarded_from", "unlimited", "replication_allow", "worker_allow"];

/// A parsed configuration file that can be written back.
pub(crate) struct ConfigFile {
    path: PathBuf,
    document: DocumentMut,
    pub settings: Layer,
    /// Names with passwords or their hashes.
    pub admins: BTreeMap<String, String>,
    pub cors: Cors,
    /// Values of `_config`, by section and key.
    pub sections: BTreeMap<(String, String), String>,
}

/// The reason why a configuration file cannot be used. Each message stands alone and says what to change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {path:?} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file cannot be written back.
    #[error("the hashed passwords cannot be written back into {path:?} ({source}): make it and its directory writable")]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The command found the service's file, which this user may not read.
    #[error(
        "the configuration file {path:?} of the service cannot be read by this user: run the command as the service's \
         user (sudo -u flatbed), or with a flatbed.toml of your own, which may be empty, in the working directory"
    )]
    OfService {
        /// The file.
        path: PathBuf,
    },
    /// The file was not named, and another user may have put it there.
    #[error("the configuration file {path:?} belongs to another user: name it with --config to use it")]
    Owner {
        /// The file.
        path: PathBuf,
    },
    /// The file has more than 1 MB.
    #[error("the configuration file {path:?} is larger than 1 MB")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("the configuration file {path:?} is not TOML: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's message, on one line.
        reason: String,
    },
    #[error("the configuration file {path:?} has the unknown key {key:?}")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    #[error("the configuration file {path:?}: {key:?} must be {expected}")]
    Type {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        expected: &'static str,
    },
}

impl ConfigError {
    /// Returns true if this process may not write the file.
    pub(crate) fn is_no_permission(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self, ConfigError::Write { source, .. }
            if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
    }
}

impl ConfigFile {
    /// Reads the file at `path`, at most 1 MB.
    ///
    /// # Errors
    /// [`ConfigError`]. An unknown key is an error, so that a misspelt setting does not silently have its default.
    pub(crate) fn read(path: &Path) -> Result<ConfigFile, ConfigError> {
        let file = File::open(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        ConfigFile::parse(path, file)
    }

    /// Reads the first file of [`DEFAULT_PATHS`] that exists. That of the working directory must belong to the user of
    /// this process, or to root: a file in a directory such as `/tmp`, which may name a library and a data directory,
    /// could be anyone's.
    ///
    /// # Errors
    /// As [`ConfigFile::read`], [`ConfigError::OfService`] and [`ConfigError::Owner`].
    pub(crate) fn find() -> Result<Option<ConfigFile>, ConfigError> {
        let [here, system] = DEFAULT_PATHS.map(Path::new);
        let Some(path) = first_there(&[here, system]) else { return Ok(None) };
        let failed = |source| ConfigError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied if path == system => ConfigError::OfService { path: path.clone() },
            _ => failed(source),
        })?;
        // SAFETY: the call has no precondition, and always succeeds.
        let user = unsafe { libc::geteuid() };
        let owner = file.metadata().map_err(failed)?.uid();
        if path == here && owner != user && owner != 0 {
            return Err(ConfigError::Owner { path });
        }
        ConfigFile::parse(&path, file).map(Some)
    }

    fn parse(path: &Path, file: File) -> Result<ConfigFile, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let reason = format!("line {line}: {}", error.message().replace('\n', ", "));
            ConfigError::Syntax { path: path.to_owned(), reason }
        })?;
        let mut file = ConfigFile {
            path: path.to_owned(),
            settings: Layer::new(),
            admins: BTreeMap::new(),
            cors: Cors::default(),
            sections: BTreeMap::new(),
            document: document.clone(),
        };
        for (key, item) in document.iter() {
            match (key, SETTINGS.iter().find(|setting| setting.key == key)) {
                (WORKER, _) if item.is_table_like() => file.read_table(WORKER, item)?,
                (_, Some(setting)) => {
                    let text = match item.as_value() {
                        Some(Value::String(text)) => text.value().clone(),
                        Some(Value::Integer(number)) => number.value().to_string(),
                        Some(Value::Boolean(flag)) => flag.value().to_string(),
                        Some(Value::Array(_)) if LISTS.contains(&key) => {
                            strings(item).ok_or_else(|| file.wrong_type(key, "an array of strings"))?.join(",")
                        }
                        _ if key == LIMITS => limits(item).ok_or_else(|| file.wrong_type(key, "a table of numbers"))?,
                        _ => return Err(file.wrong_type(key, "a string or a number")),
                    };
                    let origin = format!("{key} in {}", path.display());
                    let base = path.parent().map(Path::to_owned);
                    file.settings.insert(setting.key, SettingValue { text, origin, base });
                }
                (ADMINS, None) => file.read_admins(item)?,
                (CORS, None) => file.read_cors(item)?,
                (SYNCSTORAGE, None) => file.read_table(SYNCSTORAGE, item)?,
                (section, None) if item.is_table_like() && Values::is_section(section) => {
                    file.read_section(section, item)?;
                }
                (_, None) => return Err(ConfigError::UnknownKey { path: file.path, key: key.to_owned() }),
            }
        }
        Ok(file)
    }

    /// Returns the file's path from the root of the file system.
    pub(crate) fn absolute_path(&self) -> PathBuf {
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    fn read_admins(&mut self, item: &Item) -> Result<(), ConfigError> {
        let table = item.as_table_like().ok_or_else(|| self.wrong_type(ADMINS, "a table of names and passwords"))?;
        for (name, item) in table.iter() {
            match item.as_str() {
                Some(password) if !password.is_empty() => {
                    self.admins.insert(name.to_owned(), password.to_owned());
                }
                _ => return Err(self.wrong_type(&format!("{ADMINS}.{name}"), "a password, a string that is not empty")),
            }
        }
        Ok(())
    }

    fn read_cors(&mut self, item: &Item) -> Result<(), ConfigError> {
        let table = item.as_table_like().ok_or_else(|| self.wrong_type(CORS, "a table"))?;
        for (name, item) in table.iter() {
            let wrong = |expected| self.wrong_type(&format!("{CORS}.{name}"), expected);
            match name {
                "origins" => self.cors.origins = strings(item).ok_or_else(|| wrong("an array of strings"))?,
                "headers" => self.cors.headers = strings(item).ok_or_else(|| wrong("an array of strings"))?,
                "methods" => self.cors.methods = strings(item).ok_or_else(|| wrong("an array of strings"))?,
                "credentials" => self.cors.credentials = item.as_bool().ok_or_else(|| wrong("true or false"))?,
                "max_age_seconds" => {
                    let seconds = item.as_integer().and_then(|seconds| u32::try_from(seconds).ok());
                    self.cors.max_age_seconds = seconds.ok_or_else(|| wrong("a number of seconds"))?;
                }
                _ => {
                    let key = format!("{CORS}.{name}");
                    return Err(ConfigError::UnknownKey { path: self.path.clone(), key });
                }
            }
        }
        Ok(())
    }

    /// Reads a table: its keys are those of settings without the table's name and an underscore. `enabled` is the
    /// setting with the table's name alone.
    fn read_table(&mut self, of: &'static str, item: &Item) -> Result<(), ConfigError> {
        let expected = "a table of strings, numbers and arrays of strings";
        let table = item.as_table_like().ok_or_else(|| self.wrong_type(of, expected))?;
        for (name, item) in table.iter() {
            let key = format!("{of}.{name}");
            let is_it = |key: &str| match key.strip_prefix(of) {
                Some("") => name == "enabled",
                rest => rest.and_then(|rest| rest.strip_prefix('_')) == Some(name),
            };
            let Some(setting) = SETTINGS.iter().find(|setting| is_it(setting.key)) else {
                return Err(ConfigError::UnknownKey { path: self.path.clone(), key });
            };
            let text = match item.as_value() {
                Some(Value::String(text)) => text.value().clone(),
                Some(Value::Integer(number)) => number.value().to_string(),
                Some(Value::Boolean(flag)) => flag.value().to_string(),
                Some(Value::Array(_)) => {
                    strings(item).ok_or_else(|| self.wrong_type(&key, "an array of strings"))?.join(",")
                }
                _ if name == LIMITS => limits(item).ok_or_else(|| self.wrong_type(&key, "a table of numbers"))?,
                _ => return Err(self.wrong_type(&key, "a string, a number or an array of strings")),
            };
            let origin = format!("{key} in {}", self.path.display());
            let base = self.path.parent().map(Path::to_owned);
            self.settings.insert(setting.key, SettingValue { text, origin, base });
        }
        Ok(())
    }

    /// Reads a section of `_config`: texts, numbers, or true and false.
    fn read_section(&mut self, section: &str, item: &Item) -> Result<(), ConfigError> {
        for (key, item) in item.as_table_like().into_iter().flat_map(TableLike::iter) {
            let text = match item.as_value() {
                Some(Value::String(text)) => text.value().clone(),
                Some(Value::Integer(number)) => number.value().to_string(),
                Some(Value::Boolean(flag)) => flag.value().to_string(),
                Some(Value::Array(_)) => match strings(item) {
                    Some(strings) => strings.join(","),
                    None => return Err(self.wrong_type(&format!("{section}.{key}"), "an array of strings")),
                },
                _ => return Err(self.wrong_type(&format!("{section}.{key}"), "a string, a number, true or false")),
            };
            // Relative to the file, as all of its paths.
            let text = match self.path.parent().filter(|_| key == JWKS_FILE) {
                Some(base) => base.join(text).to_string_lossy().into_owned(),
                None => text,
            };
            self.sections.insert((section.to_owned(), key.to_owned()), text);
        }
        Ok(())
    }

    fn wrong_type(&self, key: &str, expected: &'static str) -> ConfigError {
        ConfigError::Type { path: self.path.clone(), key: key.to_owned(), expected }
    }

    /// Replaces the administrators' passwords by `hashes`, and writes the file. Everything else stays, including
    /// comments and the file's mode. The file is replaced by a rename, so it is never incomplete; of a symbolic link
    /// the target is replaced.
    ///
    /// # Errors
    /// [`ConfigError::Write`]; the file is then as it was.
    pub(crate) fn write_back(&mut self, hashes: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        if let Some(table) = self.document.get_mut(ADMINS).and_then(Item::as_table_like_mut) {
            replace(table, hashes);
        }
        let text = self.document.to_string();
        self.replace_file(text.as_bytes()).map_err(|source| ConfigError::Write { path: self.path.clone(), source })
    }

    fn replace_file(&self, text: &[u8]) -> io::Result<()> {
        let path = fs::canonicalize(&self.path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = directory.join(name);
        let written = write_new(&new, text, fs::metadata(&path)?.permissions()).and_then(|()| fs::rename(&new, &path));
        if written.is_err() {
            // The partial new file is useless; the first error is the one to report.
            let _ = fs::remove_file(&new);
        }
        written?;
        File::open(directory)?.sync_all()
    }
}

/// Returns the first of these files that exists. A file that may exist counts: reading it then fails with the reason.
fn first_there(paths: &[&Path]) -> Option<PathBuf> {
    paths.iter().find(|path| path.try_exists().unwrap_or(true)).map(|path| (*path).to_owned())
}

/// Formats names and numbers as on the command line.
fn limits(item: &Item) -> Option<String> {
    let limit = |(name, item): (&str, &Item)| Some(format!("{name}={}", item.as_integer()?));
    Some(item.as_table_like()?.iter().map(limit).collect::<Option<Vec<_>>>()?.join(","))
}

fn strings(item: &Item) -> Option<Vec<String>> {
    item.as_array()?.iter().map(|value| value.as_str().map(str::to_owned)).collect()
}

fn write_new(path: &Path, text: &[u8], permissions: fs::Permissions) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    // The mode is set first: the text has passwords or hashes.
    file.set_permissions(permissions)?;
    file.write_all(text)?;
    file.sync_all()
}

fn replace(table: &mut dyn TableLike, hashes: &BTreeMap<String, String>) {
    for (name, hash) in hashes {
        if let Some(value) = table.get_mut(name).and_then(Item::as_value_mut) {
            let decor = value.decor().clone();
            *value = Value::from(hash.as_str());
            *value.decor_mut() = decor;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("flatbed.toml");
        fs::write(&path, text).unwrap();
        (directory, path)
    }

    #[test]
    fn the_first_file_that_exists() {
        let (directory, path) = written("");
        let missing = directory.path().join("missing.toml");
        assert_eq!(first_there(&[missing.as_path(), path.as_path()]), Some(path.clone()));
        assert_eq!(first_there(&[missing.as_path()]), None);
        assert!(ConfigFile::read(&path).unwrap().absolute_path().is_absolute());
    }

    #[test]
    fn settings_and_admins() {
        let (directory, path) = written("listen = \"a:1\"\ndata_dir = 'data'\n[admins]\nanna = \"secret\"\n");
        let file = ConfigFile::read(&path).unwrap();
        assert_eq!(file.settings["listen"].text, "a:1");
        assert_eq!(file.settings["data_dir"].base.as_deref(), Some(directory.path()));
        assert_eq!(file.admins["anna"], "secret");
        assert_eq!(file.cors, Cors::default());
    }

    #[test]
    fn files_in_the_documentation_have_known_keys() {
        let mut count = 0;
        for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap() {
            let page = fs::read_to_string(entry.unwrap().path()).unwrap();
            for text in page.split("\n```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next()) {
                let (_directory, path) = written(text);
                let error = ConfigFile::read(&path).err();
                assert!(error.is_none(), "{error:?}, in:\n{text}");
                count += 1;
            }
        }
        assert!(count > 4, "{count}");
    }

    #[test]
    fn a_file_of_keys_lies_beside_the_file() {
        let (directory, path) =
            written("[jwt_auth]\njwks_file = \"jwks.json\"\n[\"jwt_auth:b\"]\njwks_file = \"/a/b\"\n");
        let file = ConfigFile::read(&path).unwrap();
        let of = |section: &str| file.sections[&(section.to_owned(), JWKS_FILE.to_owned())].clone();
        assert_eq!(Path::new(&of("jwt_auth")), directory.path().join("jwks.json"));
        assert_eq!(of("jwt_auth:b"), "/a/b");
    }

    #[test]
    fn lists_and_limits() {
        let (_directory, path) = written(
            "listen = [\"a:1\", \"unix:b\"]\nreplication_allow = [\"10.0.0.0/8\", \"couch.internal\"]\n[limits]\nhead_seconds = 3\nbody_seconds = 4\n",
        );
        let file = ConfigFile::read(&path).unwrap();
        assert_eq!(file.settings["replication_allow"].text, "10.0.0.0/8,couch.internal");
        assert_eq!(file.settings["listen"].text, "a:1,unix:b");
        assert_eq!(file.settings["limits"].text, "head_seconds=3,body_seconds=4");
    }

    #[test]
    fn origins() {
        let (_directory, path) = written("[cors]\norigins = [\"https://a.example\"]\ncredentials = true\n");
        let cors = ConfigFile::read(&path).unwrap().cors;
        assert_eq!((cors.origins, cors.credentials), (vec!["https://a.example".to_owned()], true));
    }

    #[test]
    fn refused() {
        for (text, message) in [
            ("liten = \"a:1\"", "has the unknown key \"liten\""),
            ("listen = [5984]", ": \"listen\" must be an array of strings"),
            ("replication_allow = [10]", ": \"replication_allow\" must be an array of strings"),
            ("root = [\"a\"]", ": \"root\" must be a string or a number"),
            ("[limits]\nhead_seconds = \"x\"", ": \"limits\" must be a table of numbers"),
            ("[cors]\norigins = \"*\"", ": \"cors.origins\" must be an array of strings"),
            ("[cors]\norigin = []", "has the unknown key \"cors.origin\""),
            ("admins = 1", ": \"admins\" must be a table of names and passwords"),
            ("[admins]\nanna = \"\"", ": \"admins.anna\" must be a password, a string that is not empty"),
            ("a = 1\nb = = 2", " is not TOML: line 2: "),
        ] {
            let (_directory, path) = written(text);
            let error = ConfigFile::read(&path).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(message), "{text:?} gave {error:?}");
            assert!(!error.contains('\n'), "one line: {error:?}");
        }
    }

    #[test]
    fn passwords_are_replaced_in_place() {
        let text = "# who\nlisten = \"a:1\"   # where\n\n[admins]\nanna = \"secret\"  # the first\n'b c' = 'x'\n";
        let (directory, path) = written(text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = directory.path().join("link.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();

        let mut file = ConfigFile::read(&link).unwrap();
        file.write_back(&BTreeMap::from([("anna".to_owned(), "-hash-1".to_owned())])).unwrap();

        assert_eq!(fs::read_to_string(&path).unwrap(), text.replace("secret", "-hash-1"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no file is left over");
    }
}
