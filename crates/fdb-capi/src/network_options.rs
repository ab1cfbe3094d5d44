//! The network options of FoundationDB 7.3: their numbers, names and value formats.

use std::ffi::c_int;
use std::path::Path;

use fdb_embedded::{Error, Result};

use crate::error::FILE_NOT_FOUND;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OptionArgument {
    /// Anything, or nothing.
    Anything,
    /// No value, or an empty one.
    Nothing,
    /// A value, which may be empty.
    Value,
    /// A value that is not empty.
    Text,
    /// One of the listed words.
    Word(&'static [&'static str]),
    /// At most 50 letters, digits and `_`.
    Identifier,
    /// `name=value`.
    Assignment,
    /// The path of an existing file (1511 otherwise).
    File,
    /// A little-endian number of eight bytes within these bounds.
    Number(i64, i64),
}

/// An option: its FDBNetworkOption number, its name in the environment, and its value.
pub(crate) struct NetworkOption {
    pub(crate) code: c_int,
    /// The suffix of `FDB_NETWORK_OPTION_` in the environment. Empty if the environment may not set it.
    pub(crate) name: &'static str,
    pub(crate) takes: OptionArgument,
}

const fn option(code: c_int, name: &'static str, takes: OptionArgument) -> NetworkOption {
    NetworkOption { code, name, takes }
}

const LONGEST_IDENTIFIER: usize = 50;
const ANY_SIZE: OptionArgument = OptionArgument::Number(0, i64::MAX);
const PERCENT: OptionArgument = OptionArgument::Number(0, 100);

/// All options, ascending by number. 71 has two names.
pub(crate) const NETWORK_OPTIONS: &[NetworkOption] = &[
    option(10, "LOCAL_ADDRESS", OptionArgument::Anything),
    option(20, "CLUSTER_FILE", OptionArgument::Anything),
    option(30, "TRACE_ENABLE", OptionArgument::Anything),
    option(31, "TRACE_ROLL_SIZE", ANY_SIZE),
    option(32, "TRACE_MAX_LOGS_SIZE", ANY_SIZE),
    option(33, "TRACE_LOG_GROUP", OptionArgument::Anything),
    option(34, "TRACE_FORMAT", OptionArgument::Word(&["xml", "json"])),
    option(35, "TRACE_CLOCK_SOURCE", OptionArgument::Word(&["now", "realtime"])),
    option(36, "TRACE_FILE_IDENTIFIER", OptionArgument::Identifier),
    option(37, "TRACE_SHARE_AMONG_CLIENT_THREADS", OptionArgument::Nothing),
    option(38, "TRACE_INITIALIZE_ON_SETUP", OptionArgument::Anything),
    option(39, "TRACE_PARTIAL_FILE_SUFFIX", OptionArgument::Value),
    option(40, "KNOB", OptionArgument::Assignment),
    option(41, "TLS_PLUGIN", OptionArgument::Value),
    option(42, "TLS_CERT_BYTES", OptionArgument::Value),
    option(43, "TLS_CERT_PATH", OptionArgument::Value),
    option(45, "TLS_KEY_BYTES", OptionArgument::Value),
    option(46, "TLS_KEY_PATH", OptionArgument::Value),
    option(47, "TLS_VERIFY_PEERS", OptionArgument::Value),
    option(48, "BUGGIFY_ENABLE", OptionArgument::Anything),
    option(49, "BUGGIFY_DISABLE", OptionArgument::Anything),
    option(50, "BUGGIFY_SECTION_ACTIVATED_PROBABILITY", OptionArgument::Anything),
    option(51, "BUGGIFY_SECTION_FIRED_PROBABILITY", OptionArgument::Anything),
    option(52, "TLS_CA_BYTES", OptionArgument::Value),
    option(53, "TLS_CA_PATH", OptionArgument::Value),
    option(54, "TLS_PASSWORD", OptionArgument::Value),
    option(DISABLE_MULTI_VERSION_CLIENT_API, "DISABLE_MULTI_VERSION_CLIENT_API", OptionArgument::Nothing),
    option(CALLBACKS_ON_EXTERNAL_THREADS, "CALLBACKS_ON_EXTERNAL_THREADS", OptionArgument::Nothing),
    option(EXTERNAL_CLIENT_LIBRARY, "EXTERNAL_CLIENT_LIBRARY", OptionArgument::File),
    option(EXTERNAL_CLIENT_DIRECTORY, "EXTERNAL_CLIENT_DIRECTORY", OptionArgument::Text),
    option(DISABLE_LOCAL_CLIENT, "DISABLE_LOCAL_CLIENT", OptionArgument::Nothing),
    option(CLIENT_THREADS_PER_VERSION, "CLIENT_THREADS_PER_VERSION", OptionArgument::Number(1, 1024)),
    option(FUTURE_VERSION_CLIENT_LIBRARY, "FUTURE_VERSION_CLIENT_LIBRARY", OptionArgument::File),
    option(67, "RETAIN_CLIENT_LIBRARY_COPIES", OptionArgument::Nothing),
    option(68, "IGNORE_EXTERNAL_CLIENT_FAILURES", OptionArgument::Nothing),
    option(69, "FAIL_INCOMPATIBLE_CLIENT", OptionArgument::Nothing),
    option(70, "DISABLE_CLIENT_STATISTICS_LOGGING", OptionArgument::Nothing),
    option(71, "ENABLE_RUN_LOOP_PROFILING", OptionArgument::Anything),
    option(71, "ENABLE_SLOW_TASK_PROFILING", OptionArgument::Anything),
    option(72, "DISABLE_CLIENT_BYPASS", OptionArgument::Anything),
    option(CLIENT_BUGGIFY_ENABLE, "CLIENT_BUGGIFY_ENABLE", OptionArgument::Anything),
    option(CLIENT_BUGGIFY_DISABLE, "CLIENT_BUGGIFY_DISABLE", OptionArgument::Anything),
    option(CLIENT_BUGGIFY_ACTIVATED, "CLIENT_BUGGIFY_SECTION_ACTIVATED_PROBABILITY", PERCENT),
    option(CLIENT_BUGGIFY_FIRED, "CLIENT_BUGGIFY_SECTION_FIRED_PROBABILITY", PERCENT),
    option(90, "DISTRIBUTED_CLIENT_TRACER", OptionArgument::Value),
    option(91, "CLIENT_TMP_DIR", OptionArgument::Text),
    option(1000, "", OptionArgument::Value),
    option(1001, "", OptionArgument::Nothing),
    option(1002, "", OptionArgument::Value),
];

pub(crate) const DISABLE_MULTI_VERSION_CLIENT_API: c_int = 60;
pub(crate) const CALLBACKS_ON_EXTERNAL_THREADS: c_int = 61;
pub(crate) const EXTERNAL_CLIENT_LIBRARY: c_int = 62;
pub(crate) const EXTERNAL_CLIENT_DIRECTORY: c_int = 63;
pub(crate) const DISABLE_LOCAL_CLIENT: c_int = 64;
pub(crate) const CLIENT_THREADS_PER_VERSION: c_int = 65;
pub(crate) const FUTURE_VERSION_CLIENT_LIBRARY: c_int = 66;
pub(crate) const CLIENT_BUGGIFY_ENABLE: c_int = 80;
pub(crate) const CLIENT_BUGGIFY_DISABLE: c_int = 81;
pub(crate) const CLIENT_BUGGIFY_ACTIVATED: c_int = 82;
pub(crate) const CLIENT_BUGGIFY_FIRED: c_int = 83;

/// Returns the option of a number; 2007 if 7.3 has none.
pub(crate) fn find(code: c_int) -> Result<&'static NetworkOption> {
    NETWORK_OPTIONS.iter().find(|option| option.code == code).ok_or(Error::INVALID_OPTION)
}

impl NetworkOption {
    /// Checks a value, and returns its number (0 for an option without a number). 2006 for a value of the wrong
    /// format, 1511 for a missing file.
    pub(crate) fn check(&self, value: Option<&[u8]>) -> Result<i64> {
        let is_right = match (self.takes, value) {
            (OptionArgument::Anything, _) | (OptionArgument::Nothing, None | Some([])) => true,
            (_, None) | (OptionArgument::Nothing, Some(_)) => false,
            (OptionArgument::Value, Some(_)) => true,
            (OptionArgument::Text, Some(value)) => !value.is_empty(),
            (OptionArgument::Word(words), Some(value)) => words.iter().any(|word| word.as_bytes() == value),
            (OptionArgument::Identifier, Some(value)) => {
                value.len() <= LONGEST_IDENTIFIER
                    && value.iter().all(|&byte| byte == b'_' || byte.is_ascii_alphanumeric())
            }
            (OptionArgument::Assignment, Some(value)) => value.contains(&b'='),
            (OptionArgument::File, Some([])) => false,
            (OptionArgument::File, Some(path)) => {
                let path = std::str::from_utf8(path).map(Path::new).map_err(|_| FILE_NOT_FOUND)?;
                if !path.is_file() {
                    return Err(FILE_NOT_FOUND);
                }
                true
            }
            (OptionArgument::Number(least, most), Some(value)) => {
                let number = value.try_into().map(i64::from_le_bytes).map_err(|_| Error::INVALID_OPTION_VALUE)?;
                return if (least..=most).contains(&number) { Ok(number) } else { Err(Error::INVALID_OPTION_VALUE) };
            }
        };
        if is_right { Ok(0) } else { Err(Error::INVALID_OPTION_VALUE) }
    }

    /// Converts the environment's text to a value in bytes: numbers are decimal there.
    pub(crate) fn parse_text(&self, text: &str) -> Option<Vec<u8>> {
        match self.takes {
            OptionArgument::Number(..) => {
                text.trim_start().parse::<i64>().ok().map(|number| number.to_le_bytes().to_vec())
            }
            _ => Some(text.as_bytes().to_vec()),
        }
    }
}

/// Splits a variable of the environment into values. They are separated by `:`, and `\` escapes a `:` or `\` inside of
/// a value. `None` for a `\` before any other character.
pub(crate) fn values_of(variable: &str) -> Option<Vec<String>> {
    let mut values = vec![String::new()];
    let mut characters = variable.chars();
    while let Some(character) = characters.next() {
        let character = match character {
            ':' => {
                values.push(String::new());
                continue;
            }
            '\\' => characters.next().filter(|next| matches!(next, ':' | '\\'))?,
            other => other,
        };
        values.last_mut()?.push(character);
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: c_int, value: Option<&[u8]>) -> std::result::Result<i64, i32> {
        find(code).and_then(|option| option.check(value)).map_err(|error| error.0)
    }

    #[test]
    fn values_are_looked_at() {
        assert_eq!(check(44, None), Err(2007));
        assert_eq!(check(-1, None), Err(2007));
        assert_eq!((check(30, None), check(30, Some(b"/var/log"))), (Ok(0), Ok(0)));
        assert_eq!((check(60, Some(b"")), check(60, Some(b"x"))), (Ok(0), Err(2006)));
        assert_eq!(
            (check(34, Some(b"json")), check(34, Some(b"text")), check(34, None)),
            (Ok(0), Err(2006), Err(2006))
        );
        assert_eq!(
            (check(36, Some(b"a_1")), check(36, Some(b"a-1")), check(36, Some(&[b'a'; 51]))),
            (Ok(0), Err(2006), Err(2006))
        );
        assert_eq!((check(40, Some(b"a=1")), check(40, Some(b"a"))), (Ok(0), Err(2006)));
        assert_eq!((check(62, Some(b"")), check(62, Some(b"/none/libfdb_c.so"))), (Err(2006), Err(1511)));
        assert_eq!(check(65, Some(&1024i64.to_le_bytes())), Ok(1024));
        assert_eq!((check(65, Some(&0i64.to_le_bytes())), check(65, Some(b"1"))), (Err(2006), Err(2006)));
    }

    #[test]
    fn the_environment_may_give_several_values() {
        assert_eq!(values_of("a:b"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(values_of(r"a\:b\\"), Some(vec![r"a:b\".to_owned()]));
        assert_eq!(values_of(""), Some(vec![String::new()]));
        assert_eq!((values_of(r"a\b"), values_of(r"a\")), (None, None));
    }

    #[test]
    fn numbers_ascend() {
        assert!(NETWORK_OPTIONS.is_sorted_by_key(|option| option.code));
    }
}
