//! The signature of the collation that an index is sorted by.

use flatbed_flatten::json::Value;
use sha1::{Digest, Sha1};

use crate::collation::Collation;

/// The Unicode version of the collation data in `icu_collator_data` 2.4.
const UNICODE_MAJOR: u32 = 18;

/// The crate that creates the sort forms. Its version is pinned in Cargo.toml.
const LIBRARY: &str = "icu_collator 2.4.0";

/// Raised when forms change that are not the library's, and when another library or an older version replaces it: the
/// signature with the higher number is the newer one.
const FORMS: u32 = 1;

/// Strings whose forms a change of data or code is likely to affect: many scripts, marks, contractions, expansions,
/// ignorables, emoji, characters without a weight of their own, and the ends of Unicode's range.
const REFERENCES: [&str; 24] = [
    "",
    "\u{0}\u{ad}\u{200b}",
    " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$",
    "0123456789\u{bd}\u{2460}\u{663}\u{ff11}",
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "\u{e1}\u{e0}\u{e4}\u{e5}\u{e6}\u{f8}\u{df}\u{f1}\u{e7}\u{fe}\u{f0}\u{142}\u{131}\u{130}\u{17f}",
    "a\u{301}\u{323}e\u{302}\u{301}",
    "\u{3b1}\u{3ac}\u{3c9}\u{3a9}",
    "\u{430}\u{44f}\u{451}\u{42f}",
    "\u{5d0}\u{5e9}\u{5c1}",
    "\u{627}\u{644}\u{623}\u{fdfa}",
    "\u{915}\u{93f}\u{99c}\u{bae}",
    "\u{e40}\u{e01}\u{e44}\u{e97}\u{e22}\u{ec0}\u{e81}",
    "\u{3042}\u{30a2}\u{ff71}\u{30ac}\u{30fc}\u{309d}",
    "\u{ac00}\u{d7a3}\u{1100}\u{1161}\u{11a8}",
    "\u{4e00}\u{9fff}\u{3400}\u{20000}\u{31350}",
    "\u{10a0}\u{10d0}\u{1780}\u{f40}",
    "\u{1f600}\u{1f44d}\u{1f3fd}\u{2764}\u{fe0f}",
    "\u{20ac}\u{a3}\u{2211}\u{221e}\u{2192}",
    "\u{fb01}\u{1c6}\u{2122}\u{3392}",
    "\u{378}\u{e000}\u{f0000}",
    "\u{fff0}\u{fffd}\u{fffe}\u{ffff}\u{10ffff}",
    "Zwei z\u{fc}rnende B\u{e4}ren",
];

impl Collation {
    /// Returns the identity of the order: the library with its version, and a checksum of reference sort forms.
    /// Indexes with the same signature have the same order; another signature makes another index.
    pub fn signature(&self) -> String {
        let mut hash = Sha1::new();
        for text in REFERENCES {
            let form = self.whole_form(&Value::String(text.into()));
            hash.update((form.len() as u64).to_be_bytes());
            hash.update(form);
        }
        let sum: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name = if self.is_raw() { "raw" } else { LIBRARY };
        format!("{name} {FORMS} {sum}")
    }

    /// Returns whether the signature `newer` comes from a later program than `older`, so that indexes of the older one
    /// are rebuilt. At most one of two different signatures is the newer; neither is if they are not comparable.
    pub fn supersedes(newer: &str, older: &str) -> bool {
        let parts = |signature: &str| {
            let [name, version, forms, _sum] = signature.split(' ').collect::<Vec<_>>().try_into().ok()?;
            let version = version.split('.').map(|part: &str| part.parse().ok()).collect::<Option<Vec<u64>>>()?;
            Some((name.to_owned(), forms.parse::<u32>().ok()?, version))
        };
        let (Some(newer), Some(older)) = (parts(newer), parts(older)) else { return false };
        newer.1 > older.1 || newer.0 == older.0 && newer.1 == older.1 && newer.2 > older.2
    }

    /// Returns the entry of `collator_versions` in `_info` of a design document, as ICU would name a collator of this
    /// data: its runtime version, and the Unicode version times eight. CouchDB lists it for raw views too.
    pub fn version() -> String {
        format!("153.{}", UNICODE_MAJOR << 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails without a change of the library, existing indexes would be read in the wrong order: then
    /// [`FORMS`] must change. After an update of the library the signature changes by itself, and must be updated
    /// here.
    #[test]
    fn the_signatures() {
        assert_eq!(Collation::unicode().unwrap().signature(), "icu_collator 2.4.0 1 92b3dae4115cecd3");
        assert_eq!(Collation::raw().signature(), "raw 1 81f8c4f24004f673");
    }

    #[test]
    fn of_two_signatures_one_is_the_newer() {
        let own = Collation::unicode().unwrap().signature();
        for (older, newer) in [
            ("icu_collator 2.4.0 1 00", "icu_collator 2.4.1 1 00"),
            ("icu_collator 2.9.0 1 00", "icu_collator 2.10.0 1 00"),
            ("icu_collator 2.4.0 1 92b3dae4115cecd3", "icu_collator 2.4.0 2 92b3dae4115cecd3"),
            ("icu_collator 3.0.0 1 00", "icu_collator 2.4.0 2 00"),
            ("icu_collator 3.0.0 1 00", "another 0.1 2 00"),
            ("icu_collator 1.5.0 1 00", own.as_str()),
        ] {
            assert!(Collation::supersedes(newer, older) && !Collation::supersedes(older, newer), "{older} {newer}");
        }
        for (one, other) in [
            (own.as_str(), own.as_str()),
            ("icu_collator 2.4.0 1 00", "icu_collator 2.4.0 1 01"),
            ("icu_collator 2.4.0 1 00", "another 2.4.1 1 00"),
            ("icu_collator 2.4.0 1 00", "icu_collator 2.x 2 00"),
            (own.as_str(), "icu 1"),
            (own.as_str(), ""),
        ] {
            assert!(!Collation::supersedes(one, other) && !Collation::supersedes(other, one), "{one} {other}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_data() {
        assert_eq!(Collation::version(), "153.144");
    }

    #[test]
    fn the_library_is_the_pinned_one() {
        let manifest = include_str!("../Cargo.toml");
        let (name, version) = LIBRARY.split_once(' ').unwrap();
        assert!(manifest.contains(&format!("{name} = {{ version = \"={version}\"")));
    }
}
