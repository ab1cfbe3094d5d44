//! Values as texts, by section and key, with their sources.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::{self, SettingError};

/// The source of a value; later variants take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Not set.
    Default,
    /// Stored for all processes, by `_config` or `flatbed admin`.
    Stored,
    /// Set for this process until it ends, by `_config` with `X-Couch-Persist: false`.
    Process,
    /// This process's configuration file.
    File,
    /// This process's environment.
    Environment,
    /// This process's command line.
    CommandLine,
}

impl Source {
    /// True if the source takes precedence over values that requests set.
    pub fn is_fixed(self) -> bool {
        self > Source::Process
    }

    /// The source's name in messages.
    pub fn words(self) -> &'static str {
        match self {
            Source::Default => "the default",
            Source::Stored => "the stored settings",
            Source::Process => "a request to this process",
            Source::File => "the configuration file",
            Source::Environment => "the environment",
            Source::CommandLine => "the command line",
        }
    }
}

/// A value and its source. Debug output omits the text, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    /// The text as CouchDB writes it.
    pub text: String,
    /// The source that sets it.
    pub source: Source,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The values that are set, by section and key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values(BTreeMap<String, BTreeMap<String, Value>>);

impl Values {
    /// Sets a value, unless one from a source of higher precedence is set.
    ///
    /// # Errors
    /// [`SettingError`]: the setting does not exist, or the text is invalid.
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

    /// True if a section of this name can contain settings.
    pub fn is_section(section: &str) -> bool {
        keys::is_known(section)
    }

    /// A set value.
    pub fn get(&self, section: &str, key: &str) -> Option<&Value> {
        self.0.get(section)?.get(key)
    }

    /// The set values of a section, by key.
    pub fn section(&self, section: &str) -> impl Iterator<Item = (&str, &Value)> {
        self.0.get(section).into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// All set values: section, key, value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.0
            .iter()
            .flat_map(|(section, keys)| keys.iter().map(move |(key, value)| (section.as_str(), key.as_str(), value)))
    }
}
