//! The choice of databases by their names.

/// Returns whether a name matches a pattern: `*` stands for any characters, `?` for one. Takes time in the product of
/// both lengths at most.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of_name) = (0, 0);
    // The place behind the last `*`, and the part of the name from which it is tried again.
    let mut star: Option<(usize, usize)> = None;
    while of_name < name.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, of_name));
            }
            Some(wanted) if *wanted == '?' || name.get(of_name) == Some(wanted) => {
                at += 1;
                of_name += 1;
            }
            _ => {
                let Some((behind, tried)) = star else { return false };
                at = behind;
                of_name = tried + 1;
                star = Some((behind, of_name));
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|rest| *rest == '*')
}

/// Returns whether a database is chosen by `--only` and `--except`.
pub(crate) fn is_chosen(name: &str, only: &[String], except: &[String]) -> bool {
    let is_in = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
    (only.is_empty() || is_in(only)) && !is_in(except)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, is_match) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "a/b", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcdef", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("**b", "aab", true),
            ("", "a", false),
            ("userdb-*", "userdb-61", true),
            ("[a]", "a", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(is_chosen("a", &[], &[]) && !is_chosen("a", &[], &list(&["b", "?"])));
        assert!(is_chosen("ab", &list(&["x", "a*"]), &list(&["a"])) && !is_chosen("b", &list(&["a*"]), &[]));
    }
}
