//! The command line: its parser, its errors and its help texts.

use std::{ffi::OsString, path::PathBuf};

use lexopt::prelude::*;

use crate::account::Account;
use crate::import::options::{self, Import};
use crate::part::{self, MissingPart};
use crate::settings::{Layer, SETTINGS, Setting, SettingValue};
#[cfg(feature = "worker")]
use crate::worker_command::{self, WorkerCommand};

/// The command to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Print this text.
    Print(String),
    /// Serve HTTP until a signal.
    Serve(CommandSettings),
    CheckSyncstorage(CommandSettings),
    /// Check all that is stored.
    CheckAll {
        /// The directory for a copy of a running server's data.
        scratch: Option<PathBuf>,
        /// The settings, which name the storage.
        given: CommandSettings,
    },
    /// Check a database's keys.
    Check {
        /// The database's name.
        database: String,
        /// The settings, which name the storage.
        given: CommandSettings,
    },
    /// Copy the embedded engine's database.
    Backup {
        /// The directory to copy into.
        out: PathBuf,
        /// The settings, which name the storage.
        given: CommandSettings,
    },
    /// Restore such a copy.
    Restore {
        /// The directory that holds the copy.
        backup: PathBuf,
        /// The settings, which name the storage.
        given: CommandSettings,
    },
    /// Renew a store that was restored into a cluster.
    Renew(CommandSettings),
    /// Change administrators or users.
    Account {
        /// The change.
        what: Account,
        /// The server that makes the change, in place of the storage.
        url: Option<String>,
        /// The settings, which name the storage.
        given: CommandSettings,
    },
    /// Rotate the secret that signs sessions.
    RotateSecret(CommandSettings),
    /// Load documents.
    Load(Load),
    /// Dump documents.
    Dump(Dump),
    /// Copy the databases of another server.
    Import(Import),
    /// Run or import jobs of another server.
    #[cfg(feature = "worker")]
    Worker(WorkerCommand),
}

/// The settings on the command line, and the configuration file if it names one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandSettings {
    pub settings: Layer,
    /// `--config FILE`.
    pub config: Option<PathBuf>,
    /// `--ignore-stored-config`: ignore changes made by `_config`.
    pub ignore_stored_config: bool,
}

/// The options of `flatbed load`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// The database, which is created if it is missing.
    pub database: String,
    /// JSON Lines, or one array or object; `-` is stdin.
    pub files: Vec<PathBuf>,
    /// The server, if not `FLATBED_URL` or the default.
    pub url: Option<String>,
    pub run_bytes: Option<u32>,
    /// `shards` of a database that is created. The server checks the number.
    pub shards: Option<u32>,
    /// True if a database that is created is partitioned.
    pub partitioned: bool,
    /// True if `_rev` members are sent unchanged.
    pub keep_rev: bool,
}

/// The options of `flatbed dump`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dump {
    pub database: String,
    /// The server, if not `FLATBED_URL` or the default.
    pub url: Option<String>,
    /// Write only winners, without `_rev`.
    pub no_rev: bool,
    /// Write local documents too.
    pub local: bool,
    /// The administrators' port of Sync Gateway's API, which gives the sync function.
    pub admin_url: Option<String>,
}

/// An invalid command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// An unknown option, or an invalid value.
    #[error("{0} (flatbed --help lists what there is)")]
    Arguments(#[from] lexopt::Error),
    /// A missing or unknown command.
    #[error(
        "{0:?} is no command of flatbed: serve, load, dump, import, check, backup, restore, renew, secret, admin, user and worker are"
    )]
    Command(String),
    /// A command without its object.
    #[error("flatbed {command} needs {missing} (flatbed {command} --help)")]
    Missing {
        command: &'static str,
        /// The missing argument.
        missing: &'static str,
    },
    #[error(transparent)]
    Part(#[from] MissingPart),
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// [`UsageError`].
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(arguments);
    match parser.next()? {
        None | Some(Short('h') | Long("help")) => Ok(Command::Print(help())),
        Some(Short('V') | Long("version")) => Ok(Command::Print(format!("flatbed {}\n", env!("CARGO_PKG_VERSION")))),
        Some(Value(command)) => match command.to_str() {
            Some("serve") => serve(&mut parser),
            Some("check") => check(&mut parser),
            Some("backup") => backup(&mut parser),
            Some("restore") => restore(&mut parser),
            Some("renew") => renew(&mut parser),
            Some("secret") => secret(&mut parser),
            Some("admin") => account("admin", &mut parser),
            Some("user") => account("user", &mut parser),
            Some("load") => load(&mut parser),
            Some("dump") => dump(&mut parser),
            Some("import") => match options::parse(&mut parser)? {
                Some(import) => Ok(Command::Import(import)),
                None => Ok(Command::Print(options::HELP.to_owned())),
            },
            #[cfg(feature = "worker")]
            Some("worker") => worker_command::parse(&mut parser),
            #[cfg(not(feature = "worker"))]
            Some("worker") => Err(part::WORKER.not_built("flatbed worker").into()),
            Some("help") => match parser.next()? {
                None | Some(Short('h') | Long("help")) => Ok(Command::Print(help())),
                Some(Value(command)) => parse([command, "--help".into()]),
                Some(other) => Err(other.unexpected().into()),
            },
            _ => Err(UsageError::Command(command.to_string_lossy().into_owned())),
        },
        Some(other) => Err(other.unexpected().into()),
    }
}

fn serve(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let mut given = CommandSettings::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(serve_help())),
            Long("ignore-stored-config") => given.ignore_stored_config = true,
            Long(flag) => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::All, parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Serve(given))
}

fn check(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let mut given = CommandSettings::default();
    let (mut database, mut is_syncstorage, mut is_all, mut scratch) = (None, false, false, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(check_help())),
            Long("syncstorage") => is_syncstorage = true,
            Long("all") => is_all = true,
            Long("scratch") => scratch = Some(PathBuf::from(parser.value()?)),
            Long(flag) => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::Storage, parser)?;
            }
            Value(value) if database.is_none() => database = Some(value.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    match (is_all, is_syncstorage, &database) {
        (true, false, None) => return Ok(Command::CheckAll { scratch, given }),
        (false, true, None) if scratch.is_none() => return Ok(Command::CheckSyncstorage(given)),
        _ => {}
    }
    let missing = "a database's name, --syncstorage, or --all";
    let is_one = !is_all && !is_syncstorage && scratch.is_none();
    let database = database.filter(|_| is_one).ok_or(UsageError::Missing { command: "check", missing })?;
    Ok(Command::Check { database, given })
}

fn backup(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let Some((out, given)) = directory(parser)? else { return Ok(Command::Print(backup_help())) };
    let out = out.ok_or(UsageError::Missing { command: "backup", missing: "a directory to copy into" })?;
    Ok(Command::Backup { out, given })
}

fn restore(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let Some((backup, given)) = directory(parser)? else { return Ok(Command::Print(restore_help())) };
    let backup = backup.ok_or(UsageError::Missing { command: "restore", missing: "the directory of a backup" })?;
    Ok(Command::Restore { backup, given })
}

fn renew(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let mut given = CommandSettings::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(renew_help())),
            Long(flag) => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::Storage, parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Renew(given))
}

fn account(command: &'static str, parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let (mut given, mut words, mut roles) = (CommandSettings::default(), Vec::new(), Vec::new());
    let mut url = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(account_help())),
            Long("role") if command == "user" => roles.push(parser.value()?.string()?),
            Long("url") => url = Some(parser.value()?.string()?),
            Long(flag) => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::Storage, parser)?;
            }
            Value(value) if words.len() < 2 => words.push(value.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let name = || words.get(1).cloned().ok_or(UsageError::Missing { command, missing: "a name" });
    let what = match (command, words.first().map(String::as_str)) {
        ("admin", Some("list")) => Account::ListAdmins,
        ("admin", Some("add")) => Account::AddAdmin(name()?),
        ("admin", Some("remove")) => Account::RemoveAdmin(name()?),
        ("user", Some("list")) => Account::ListUsers,
        ("user", Some("add")) => Account::AddUser(name()?, roles),
        ("user", Some("remove")) => Account::RemoveUser(name()?),
        ("user", Some("password")) => Account::Password(name()?),
        ("admin", _) => return Err(UsageError::Missing { command, missing: "what to do: add, remove or list" }),
        _ => return Err(UsageError::Missing { command, missing: "what to do: add, remove, list or password" }),
    };
    Ok(Command::Account { what, url, given })
}

fn secret(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let (mut given, mut rotate) = (CommandSettings::default(), false);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(secret_help())),
            Long(flag) => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::Storage, parser)?;
            }
            Value(value) if !rotate && value == "rotate" => rotate = true,
            other => return Err(other.unexpected().into()),
        }
    }
    if !rotate {
        return Err(UsageError::Missing { command: "secret", missing: "what to do: rotate" });
    }
    Ok(Command::RotateSecret(given))
}

/// Parses a directory and the settings; `None` if help is requested.
fn directory(parser: &mut lexopt::Parser) -> Result<Option<(Option<PathBuf>, CommandSettings)>, UsageError> {
    let mut given = CommandSettings::default();
    let mut directory = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long(flag) => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::Directory, parser)?;
            }
            Value(value) if directory.is_none() => directory = Some(value.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some((directory, given)))
}

fn load(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let mut load = Load::default();
    let mut database = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(LOAD_HELP.to_owned())),
            Long("url") => load.url = Some(parser.value()?.string()?),
            Long("run-bytes") => load.run_bytes = Some(parser.value()?.parse()?),
            Long("shards") => load.shards = Some(parser.value()?.parse()?),
            Long("partitioned") => load.partitioned = true,
            Long("keep-rev") => load.keep_rev = true,
            Value(value) if database.is_none() => database = Some(value.string()?),
            Value(value) => load.files.push(value.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    load.database = database.ok_or(UsageError::Missing { command: "load", missing: "a database's name" })?;
    if load.files.is_empty() {
        return Err(UsageError::Missing { command: "load", missing: "a file, or - for stdin" });
    }
    Ok(Command::Load(load))
}

fn dump(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let mut dump = Dump::default();
    let mut database = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(DUMP_HELP.to_owned())),
            Long("url") => dump.url = Some(parser.value()?.string()?),
            Long("no-rev") => dump.no_rev = true,
            Long("local") => dump.local = true,
            Long("admin-url") => dump.admin_url = Some(parser.value()?.string()?),
            Value(value) if database.is_none() => database = Some(value.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    dump.database = database.ok_or(UsageError::Missing { command: "dump", missing: "a database's name" })?;
    Ok(Command::Dump(dump))
}

/// The settings that a command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptedSettings {
    /// All of them.
    All,
    /// The settings of the storage.
    Storage,
    /// The settings of the storage's place.
    Directory,
    /// The settings of jobs in a process without a storage.
    #[cfg(feature = "worker")]
    Worker,
}

impl AcceptedSettings {
    fn settings(self) -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(move |setting| match self {
            AcceptedSettings::All => true,
            AcceptedSettings::Storage => setting.storage,
            AcceptedSettings::Directory => matches!(setting.key, "data_dir" | "cluster_file"),
            #[cfg(feature = "worker")]
            AcceptedSettings::Worker => matches!(
                setting.key,
                "worker_files"
                    | "worker_secrets"
                    | "worker_allow"
                    | "worker_jobs"
                    | "worker_memory_mb"
                    | "replication_ca"
                    | "log_format"
                    | "log_level"
                    | "redact"
            ),
        })
    }
}

impl CommandSettings {
    /// Parses an option with its value.
    ///
    /// # Errors
    /// [`UsageError`] for an option that the command does not accept, and for a missing value.
    pub(crate) fn take(
        &mut self,
        flag: &str,
        takes: AcceptedSettings,
        parser: &mut lexopt::Parser,
    ) -> Result<(), UsageError> {
        if flag == "config" {
            self.config = Some(parser.value()?.into());
            return Ok(());
        }
        let setting = takes.settings().find(|setting| setting.flag() == flag);
        let Some(setting) = setting else { return Err(Long(flag).unexpected().into()) };
        let text = match parser.optional_value() {
            Some(text) => text.string()?,
            // A switch has no value.
            None if setting.key == "worker" => "true".to_owned(),
            None => parser.value()?.string()?,
        };
        self.settings.insert(setting.key, SettingValue { text, origin: format!("--{flag}"), base: None });
        Ok(())
    }
}

fn help() -> String {
    "\
Flatbed: a document database with CouchDB's HTTP API on FoundationDB

  flatbed serve [OPTIONS]          serve HTTP, by default on the embedded engine in ./flatbed-data
  flatbed load DB FILE...          load documents from JSON Lines files into a running server
  flatbed dump DB                  write a running server's documents as JSON Lines
  flatbed import URL               copy the databases of a CouchDB or a Sync Gateway into a running server
  flatbed check DB [OPTIONS]       recompute a database's indexes and counters from its raw keys
  flatbed check --syncstorage      check all that is stored of Firefox Sync
  flatbed check --all [OPTIONS]    check all that is stored, also while it is being served
  flatbed backup OUT [OPTIONS]     copy the embedded engine's database, also while it is being served
  flatbed restore OUT [OPTIONS]    put such a copy into a new data directory
  flatbed renew [OPTIONS]          renew a cluster's data after fdbrestore, before it is served
  flatbed admin COMMAND [OPTIONS]  add, remove and list administrators
  flatbed user COMMAND [OPTIONS]   add, remove and list users, and set passwords
  flatbed worker --url URL         run jobs of a server's changes worker in a separate process
  flatbed worker import DIR        create jobs from the files of the Python worker
  flatbed secret rotate [OPTIONS]  rotate the secret that signs sessions, for instance when it has leaked
  flatbed COMMAND --help           list a command's options, as flatbed help COMMAND does
  flatbed --version
"
    .to_owned()
}

/// Returns the help lines of the settings, except those of parts that are not built.
pub(crate) fn setting_lines(takes: AcceptedSettings) -> String {
    let mut lines = String::new();
    for setting in takes.settings().filter(|setting| part::is_built(setting.key)) {
        let flag = format!("--{} {}", setting.flag(), setting.value);
        lines.push_str(&format!("  {flag:<22} {}\n", setting.help));
    }
    lines.push_str("  --config FILE          TOML file with the same settings, the dashes as underscores\n");
    lines.push_str("                         [flatbed.toml, else /etc/flatbed/flatbed.toml, if there is one]\n");
    lines.push_str("Each is also read from the environment: FLATBED_CLUSTER_FILE, FLATBED_CONFIG, and so on.\n");
    lines.push_str("The command line comes first, then the environment, then the file.\n");
    lines
}

fn serve_help() -> String {
    format!(
        "flatbed serve [OPTIONS]\n\n\
         Serves HTTP until SIGINT or SIGTERM. SIGHUP reloads the configuration.\n\
         Exit status: 0 ended by a signal, 2 not served.\n\n{}\n  \
         --ignore-stored-config  ignore changes made by _config, including administrators, to repair them\n",
        setting_lines(AcceptedSettings::All)
    )
}

fn check_help() -> String {
    format!(
        "flatbed check DB [OPTIONS]\n\
         flatbed check --syncstorage [OPTIONS]\n\
         flatbed check --all [--scratch DIR] [OPTIONS]\n\n\
         Checks the invariants of a database, of Firefox Sync's storage, or of all that is stored. --all checks the\n\
         pages and records of the embedded engine's file too, also while a server has it open: the databases are\n\
         then checked in a copy below DIR (the directory for temporary files), which is removed.\n\
         Exit status: 0 clean, 1 violations found, 2 not checked. Without --all the embedded engine's server must be\n\
         stopped.\n\n{}",
        setting_lines(AcceptedSettings::Storage)
    )
}

fn backup_help() -> String {
    format!(
        "flatbed backup OUT [OPTIONS]\n\n\
         Copies a consistent state of the embedded engine's database to OUT/data.mdb, also while a server has it open. OUT\n\
         is created, or must be empty. Run it as the server's user, in the server's container. Until it ends, the\n\
         server's file grows with each write. For a cluster use fdbbackup.\n\
         Exit status: 0 copied, 2 failed, and OUT is empty.\n\n{}",
        setting_lines(AcceptedSettings::Directory)
    )
}

fn restore_help() -> String {
    format!(
        "flatbed restore OUT [OPTIONS]\n\n\
         Copies the backup in OUT into a data directory that is new or empty, and overwrites nothing. Clients that follow\n\
         changes go on. OUT may be a data directory too.\n\
         Exit status: 0 restored, 2 failed, and the data directory has no database.\n\n{}",
        setting_lines(AcceptedSettings::Directory)
    )
}

fn renew_help() -> String {
    format!(
        "flatbed renew [OPTIONS]\n\n\
         Run it after every fdbrestore, with every Flatbed on the root stopped. It begins another epoch, so that new\n\
         changes sort after all old ones, and takes one transaction. Clients that follow changes go on. flatbed restore\n\
         includes it.\n\
         Exit status: 0 done, 2 failed.\n\n{}",
        setting_lines(AcceptedSettings::Storage)
    )
}

fn account_help() -> String {
    format!(
        "flatbed admin add|remove NAME [OPTIONS]\n\
         flatbed admin list [OPTIONS]\n\
         flatbed user add NAME [--role ROLE]... [OPTIONS]\n\
         flatbed user remove|password NAME [OPTIONS]\n\
         flatbed user list [OPTIONS]\n\n\
         Changes users, and the administrators of all servers, in the storage itself. A password is read from stdin, or\n\
         prompted for on a terminal. Running servers on a cluster notice within a second. If a server has the embedded\n\
         engine's directory open, that server makes the change. Administrators in a configuration file are not affected.\n\
         Exit status: 0 done, 2 failed.\n\n  \
         --url URL              make the change by this server, http://[name:password@]host:port, not in the storage\n{}",
        setting_lines(AcceptedSettings::Storage)
    )
}

fn secret_help() -> String {
    format!(
        "flatbed secret rotate [OPTIONS]\n\n\
         Makes another secret sign session cookies at all servers on the root, which may be running on a cluster. Sessions\n\
         signed with the old secret continue, get new cookies, and expire as before; the old secret is accepted until\n\
         then. A proxy that signs with it must use the new secret by then.\n\
         Exit status: 0 done, 2 failed.\n\n{}",
        setting_lines(AcceptedSettings::Storage)
    )
}

const LOAD_HELP: &str = "\
flatbed load DB FILE... [OPTIONS]

FILE holds JSON Lines, or one JSON array of objects, or one object; - is stdin. The database is created if it is missing.
Documents with _revisions, as flatbed dump writes them, are stored under these revisions, beside existing ones. A new
database gets _security, _revs_limit, partitions and channels from a dump that begins with them. A server that does not
accept connections yet has 10 s to start.
Exit status: 0 all loaded, 1 some documents failed (each is reported), 2 not loaded.

  --url URL        the server: http://[name:password@]host:port [FLATBED_URL, else http://127.0.0.1:5984]
  --run-bytes N    for a new database: pack fields into runs of about N bytes; 0 is one key a field
  --shards N       for a new database: spread the keys that every write changes over N places, 2 to 64; each server
                   writes to one
  --partitioned    for a new database: make it partitioned, with ids such as part:name
  --keep-rev       send _rev unchanged, to update documents; without it, _rev is left out and documents are created
";

const DUMP_HELP: &str = "\
flatbed dump DB [OPTIONS]

Writes each leaf of each document to stdout, one on each line, including deleted and conflicting ones, with its
attachments and its history, for flatbed load. The first line holds _security, _revs_limit and whether the database is
partitioned, the last line says that the dump is complete. Large attachments follow their document on lines of their own.
The dump has no users and roles of channels and no expiry of documents (_exp); stderr warns.
A revision of more than 64 MB without its attachments, or one that the server refuses to read, is left out and reported.
Exit status: 0 complete, 1 revisions left out, 2 not complete.

  --url URL        the server: http://[name:password@]host:port [FLATBED_URL, else http://127.0.0.1:5984]
  --no-rev         write documents as new ones, ordered by _id: the winners alone, without _rev, with their attachments,
                   without the first and last line
  --local          write local documents too, among them checkpoints of replications
  --admin-url URL  of a database with channels: the administrators' port, which gives the sync function
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn commands() {
        let Ok(Command::Serve(given)) = parsed("serve --listen a:1 --data-dir=d --config c") else {
            panic!("serve");
        };
        assert_eq!(given.settings["listen"].text, "a:1");
        assert_eq!(given.settings["data_dir"].text, "d");
        assert_eq!(given.settings["data_dir"].origin, "--data-dir");
        assert_eq!((given.config, given.ignore_stored_config), (Some("c".into()), false));
        let Ok(Command::Serve(given)) = parsed("serve --ignore-stored-config") else { panic!("serve") };
        assert!(given.ignore_stored_config);

        let Ok(Command::Load(load)) = parsed("load --run-bytes 0 db --shards 4 - --partitioned --keep-rev f.jsonl")
        else {
            panic!("load")
        };
        assert_eq!((load.database.as_str(), load.run_bytes, load.keep_rev), ("db", Some(0), true));
        assert_eq!((load.shards, load.partitioned), (Some(4), true));
        assert_eq!(load.files, [PathBuf::from("-"), PathBuf::from("f.jsonl")]);

        let Ok(Command::Backup { out, given }) = parsed("backup --data-dir d o") else { panic!("backup") };
        assert_eq!((out, given.settings["data_dir"].text.as_str()), (PathBuf::from("o"), "d"));
        let Ok(Command::Restore { backup, given }) = parsed("restore o --cluster-file c") else { panic!("restore") };
        assert_eq!((backup, given.settings["cluster_file"].text.as_str()), (PathBuf::from("o"), "c"));

        let Ok(Command::CheckSyncstorage(given)) = parsed("check --syncstorage --data-dir d") else { panic!("check") };
        assert_eq!(given.settings["data_dir"].text, "d");
        let Ok(Command::CheckAll { scratch, .. }) = parsed("check --all --scratch s") else { panic!("check") };
        assert_eq!(scratch, Some(PathBuf::from("s")));

        let Ok(Command::Renew(given)) = parsed("renew --cluster-file c --root r") else { panic!("renew") };
        assert_eq!((given.settings["cluster_file"].text.as_str(), given.settings["root"].text.as_str()), ("c", "r"));

        let dump = Dump { database: "db".into(), url: Some("u".into()), no_rev: true, local: false, admin_url: None };
        assert_eq!(parsed("dump db --url u --no-rev"), Ok(Command::Dump(dump)));
    }

    #[test]
    fn refused() {
        const CHECK: &str = "flatbed check needs a database's name, --syncstorage, or --all (flatbed check --help)";
        for (line, message) in [
            (
                "start",
                "\"start\" is no command of flatbed: serve, load, dump, import, check, backup, restore, renew, secret, admin, user and worker are",
            ),
            ("serve --liten a", "invalid option '--liten' (flatbed --help lists what there is)"),
            ("serve db", "unexpected argument \"db\" (flatbed --help lists what there is)"),
            ("check --data-dir d", CHECK),
            ("check db --syncstorage", CHECK),
            ("check db --all", CHECK),
            ("check --all --syncstorage", CHECK),
            ("check db --scratch s", CHECK),
            ("check db --listen a:1", "invalid option '--listen' (flatbed --help lists what there is)"),
            ("backup", "flatbed backup needs a directory to copy into (flatbed backup --help)"),
            ("backup o --root r", "invalid option '--root' (flatbed --help lists what there is)"),
            ("restore --data-dir d", "flatbed restore needs the directory of a backup (flatbed restore --help)"),
            ("restore o p", "unexpected argument \"p\" (flatbed --help lists what there is)"),
            ("admin", "flatbed admin needs what to do: add, remove or list (flatbed admin --help)"),
            ("user add", "flatbed user needs a name (flatbed user --help)"),
            ("admin add anna --role x", "invalid option '--role' (flatbed --help lists what there is)"),
            ("secret", "flatbed secret needs what to do: rotate (flatbed secret --help)"),
            ("renew db", "unexpected argument \"db\" (flatbed --help lists what there is)"),
            ("load db", "flatbed load needs a file, or - for stdin (flatbed load --help)"),
        ] {
            assert_eq!(parsed(line), Err(message.to_owned()), "{line}");
        }
    }

    #[test]
    fn each_command_is_in_the_help_and_on_the_page_of_commands() {
        let page = include_str!("../../../docs/operations.md");
        let Ok(Command::Print(all)) = parsed("help") else { panic!("help") };
        let listed = parsed("none").expect_err("no command");
        let names = listed.split(": ").nth(1).and_then(|names| names.strip_suffix(" are")).expect("their names");
        let names: Vec<&str> = names.split(", ").flat_map(|name| name.split(" and ")).collect();
        assert!(names.len() == 12 && parsed("help none").is_err());
        for name in names.into_iter().filter(|name| cfg!(feature = "worker") || *name != "worker") {
            assert!(all.lines().any(|line| line.starts_with(&format!("  flatbed {name} "))), "{name}");
            assert!(page.contains(&format!("| `flatbed {name}")), "{name}");
            let Ok(Command::Print(help)) = parsed(&format!("{name} --help")) else { panic!("{name}") };
            assert!(help.contains("Exit status: 0 "), "{name}: {help}");
            assert_eq!(parsed(&format!("help {name}")), Ok(Command::Print(help)));
        }
    }

    #[test]
    fn help_names_every_setting_of_what_is_built() {
        let Ok(Command::Print(help)) = parsed("serve --help") else { panic!("help") };
        for setting in SETTINGS {
            let is_named = help.contains(&format!("--{} ", setting.flag()));
            assert_eq!(is_named, part::is_built(setting.key), "{}", setting.key);
        }
    }

    #[cfg(not(feature = "worker"))]
    #[test]
    fn the_worker_is_not_built() {
        let message = "flatbed worker: this flatbed was built without the changes worker (cargo feature \"worker\")";
        assert_eq!(parsed("worker --url http://h"), Err(message.to_owned()));
    }
}
