//! The rules of commit subjects.

use std::path::Path;
use std::process::Command;

/// The longest subject, in characters.
pub const SUBJECT_CHARACTERS_MAX: usize = 72;

/// The number of commits that are checked.
const COMMITS: &str = "50";

/// Only commits since the creation of this file are checked.
const BEGIN: &str = "crates/tidy/src/commits.rs";

/// Returns the subjects of the last commits on `HEAD`, newest first, as `hash subject`; `None` without git, without a
/// repository, or with too short a history.
pub fn subjects(root: &Path) -> Option<Vec<String>> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let begin = git(&["log", "--diff-filter=A", "--format=%H", "--", BEGIN])?;
    let begin = begin.lines().last()?;
    let subjects = git(&["log", "--max-count", COMMITS, "--format=%h %s", &format!("{begin}..HEAD")])?;
    Some(subjects.lines().map(str::to_owned).collect())
}

/// Returns the defect of a commit given as `hash subject`.
pub fn broken(commit: &str) -> Option<String> {
    let (hash, subject) = commit.split_once(' ').unwrap_or((commit, ""));
    let characters = subject.chars().count();
    if characters > SUBJECT_CHARACTERS_MAX {
        return Some(format!("{hash}: the subject has {characters} characters of {SUBJECT_CHARACTERS_MAX}: {subject}"));
    }
    if subject.ends_with('.') {
        return Some(format!("{hash}: the subject ends with a full stop: {subject}"));
    }
    subject.is_empty().then(|| format!("{hash}: no subject"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_short_and_no_sentences() {
        assert_eq!(broken(&format!("abc {}", "é".repeat(72))), None);
        for subject in ["é".repeat(73), "Move it.".to_owned(), String::new()] {
            assert!(broken(&format!("abc {subject}")).is_some(), "{subject}");
        }
    }
}
