//! Values as texts, by section and key, each with where it came from.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::{self, SettingError};

/// Where a value came from, the most binding last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// It was set nowhere.
    Default,
    /// It is kept in the storage for all processes: what `_config` and `flatbed admin` change.
    Stored,
    /// The configuration file of this process.
    File,
    /// A variable of its environment.
    Environment,
    /// Its command line.
    CommandLine,
}

impl Source {
    /// Whether no stored value counts beside it.
    pub fn is_fixed(self) -> bool {
        self > Source::Stored
    }

    /// For messages.
    pub fn words(self) -> &'static str {
        match self {
            Source::Default => "the default",
            Source::Stored => "the stored settings",
            Source::File => "the configuration file",
            Source::Environment => "the environment",
            Source::CommandLine => "the command line",
        }
    }
}

/// A value and where it came from. Debug output is without the text, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    /// As CouchDB writes it.
    pub text: String,
    /// Where it came from.
    pub source: Source,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Values that are set, by section and key; defaults are not among them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values(BTreeMap<String, BTreeMap<String, Value>>);

impl Values {
    /// Sets a value, if none is set whose source is more binding.
    ///
    /// # Errors
    /// [`SettingError`]: there is no such setting, or the text does not fit it.
    pub fn insert(&mut self, section: &str, key: &str, text: &str, source: Source) -> Result<(), SettingError> {
        let (section, key) = keys::canonical(section, key);
        keys::check(section, key, text)?;
        self.insert_unchecked(section, key, text, source);
        Ok(())
    }

    pub(crate) fn insert_unchecked(&mut self, section: &str, key: &str, text: &str, source: Source) {
        let keys = self.0.entry(section.to_owned()).or_default();
        if keys.get(key).is_none_or(|value| value.source <= source) {
            keys.insert(key.to_owned(), Value { text: text.to_owned(), source });
        }
    }

    /// Whether settings can be in a section of this name that mean something.
    pub fn is_section(section: &str) -> bool {
        keys::is_known(section)
    }

    /// A value that is set.
    pub fn get(&self, section: &str, key: &str) -> Option<&Value> {
        self.0.get(section)?.get(key)
    }

    /// The values of a section that are set, by key.
    pub fn section(&self, section: &str) -> impl Iterator<Item = (&str, &Value)> {
        self.0.get(section).into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// All values that are set: section, key, value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.0
            .iter()
            .flat_map(|(section, keys)| keys.iter().map(move |(key, value)| (section.as_str(), key.as_str(), value)))
    }
}
