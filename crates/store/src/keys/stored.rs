//! Keys of the settings that all processes of a root share.

use crate::error::Result;
use crate::keys::tuple::{TUPLE_STRING, behind, put_text, take_text, take_text_at, under, with_int};
use crate::keys::{KeyRange, RootKeys};

// Under the root.
const SETTINGS: u64 = 20;

impl RootKeys {
    /// Returns the key of the settings' state, which changes with each change of a setting.
    pub fn settings_state(&self) -> Vec<u8> {
        with_int(&self.prefix, SETTINGS)
    }

    /// Returns the range of the settings, without the key of their state, which precedes them.
    pub fn settings(&self) -> KeyRange {
        let KeyRange { mut begin, end } = under(&self.settings_state());
        begin.push(0);
        KeyRange { begin, end }
    }

    pub fn setting(&self, section: &str, key: &str) -> Vec<u8> {
        let mut out = self.settings_state();
        put_text(&mut out, TUPLE_STRING, section.as_bytes());
        put_text(&mut out, TUPLE_STRING, key.as_bytes());
        out
    }

    pub fn settings_of(&self, section: &str) -> KeyRange {
        let mut begin = self.settings_state();
        put_text(&mut begin, TUPLE_STRING, section.as_bytes());
        under(&begin)
    }

    /// Parses a key of [`RootKeys::settings`] into its section and key.
    pub fn split_setting(&self, key: &[u8]) -> Result<(String, String)> {
        let (section, rest) = take_text_at(behind(key, &self.settings_state()))?;
        Ok((section, take_text(rest)?))
    }
}
