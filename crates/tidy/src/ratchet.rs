//! Lists of allowed findings, which may only become shorter.
//!
//! A list has a line `name count` for each crate or directory with findings. More findings than the list allows break the
//! rule, and so do fewer: then the list has to be written anew.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the differences between a list and the counted findings. A name with too many is followed by its `details`.
pub fn differences(
    list: &str,
    found: &BTreeMap<String, usize>,
    details: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let allowed: BTreeMap<&str, usize> = list
        .lines()
        .filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name, count.parse::<usize>().ok()?))
        })
        .collect();
    let names: BTreeSet<&str> = allowed.keys().copied().chain(found.keys().map(String::as_str)).collect();
    let mut differences = Vec::new();
    for name in names {
        let allowed = allowed.get(name).copied().unwrap_or_default();
        let found = found.get(name).copied().unwrap_or_default();
        match found.cmp(&allowed) {
            Ordering::Greater => {
                differences.push(format!("{name}: {found}, more than the allowed {allowed}"));
                differences.extend(details.get(name).into_iter().flatten().map(|detail| format!("    {detail}")));
            }
            Ordering::Less => differences.push(format!("{name}: {found}, fewer than the allowed {allowed}: lower it")),
            Ordering::Equal => {}
        }
    }
    differences
}

/// The list that allows just these findings.
pub fn list(found: &BTreeMap<String, usize>) -> String {
    let lines = found.iter().filter(|(_, count)| **count > 0).map(|(name, count)| format!("{name} {count}\n"));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_and_fewer_findings_break_the_rule() {
        let found = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1), ("c".to_owned(), 0)]);
        let details = BTreeMap::from([("a".to_owned(), vec!["x:1".to_owned(), "x:2".to_owned()])]);
        let differences = |list: &str| differences(list, &found, &details).join("; ");
        assert_eq!(differences("a 2\nb 1\n"), "");
        assert_eq!(differences("a 1\nb 1\n"), "a: 2, more than the allowed 1;     x:1;     x:2");
        assert_eq!(differences("a 2\n"), "b: 1, more than the allowed 0");
        assert_eq!(
            differences("a 3\nb 1\nd 4\n"),
            "a: 2, fewer than the allowed 3: lower it; d: 0, fewer than the allowed 4: lower it"
        );
        assert_eq!(list(&found), "a 2\nb 1\n");
        assert_eq!(differences(&list(&found)), "");
    }
}
