//! The checks of `cargo deny` that need no network: `deny.toml` against Cargo.lock and `cargo tree`.

use std::collections::BTreeMap;

/// Returns the strings of a list `name = ["a", "b"]` in a section of a TOML file. The list may span several lines; of a
/// table in it, the value of `crate` counts.
pub fn list(toml: &str, section: &str, name: &str) -> Vec<String> {
    let head = format!("[{section}]");
    let lines = toml.lines().skip_while(|line| *line != head).skip(1).take_while(|line| !line.starts_with('['));
    let lines = lines.skip_while(|line| line.split(' ').next() != Some(name));
    let mut found = Vec::new();
    for line in lines {
        let line = line.split('#').next().unwrap_or_default();
        let values = line.split_once(&format!("{name} = ")).map_or(line, |(_, values)| values);
        if values.contains('{') {
            found.extend(
                values.split("crate = \"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned),
            );
        } else {
            found.extend(values.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        if line.trim_end().ends_with(']') {
            break;
        }
    }
    found
}

/// Returns whether licences in `allowed` satisfy the licence expression of a manifest (SPDX, or with the older slash).
pub fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any(&mut words, allowed);
    met && words.next().is_none()
}

type Words<'w> = std::iter::Peekable<std::str::SplitWhitespace<'w>>;

fn any(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = every(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= every(words, allowed);
    }
    met
}

fn every(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any(words, allowed);
        return words.next_if_eq(&")").is_some() && met;
    }
    let Some(licence) = words.next() else { return false };
    let licence = match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => format!("{licence} WITH {exception}"),
        None => licence.to_owned(),
    };
    allowed.contains(&licence)
}

/// Returns the packages of a Cargo.lock: each name with its versions and sources (empty for a crate of the workspace).
pub fn locked(lock: &str) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut packages: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let of = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
            line.and_then(|value| value.strip_suffix('"')).unwrap_or_default()
        };
        packages.entry(of("name")).or_default().push((of("version"), of("source")));
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_or_not() {
        let allowed = ["MIT", "ISC", "A WITH b"].map(str::to_owned);
        for expression in [
            "MIT",
            "GPL OR MIT",
            "GPL/MIT",
            "MIT AND ISC",
            "(GPL OR MIT) AND ISC",
            "A WITH b OR GPL",
            "GPL AND X OR ISC",
        ] {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in ["", "GPL", "MIT AND GPL", "A", "(MIT", "MIT)", "MIT ISC", "(GPL OR X) AND MIT", "MIT WITH b"]
        {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn lists_and_packages_are_read() {
        let toml = "[a]\nallow = [\"X\"]\n[licenses]\nunused = \"allow\"\nallow = [\n    \"MIT\", # \"why\"\n    \"ISC\",\n]\nother = [\"Y\"]\n";
        assert_eq!(list(toml, "licenses", "allow"), ["MIT", "ISC"]);
        assert_eq!(list(toml, "licenses", "other"), ["Y"]);
        assert!(list(toml, "gone", "allow").is_empty());
        assert_eq!(list("[b]\ndeny = [\n  { crate = \"x\", reason = \"y\" },\n]\n", "b", "deny"), ["x"]);
        let lock =
            "[[package]]\nname = \"x\"\nversion = \"1\"\n[[package]]\nname = \"x\"\nversion = \"2\"\nsource = \"s\"\n";
        assert_eq!(locked(lock)["x"], [("1", ""), ("2", "s")]);
    }
}
