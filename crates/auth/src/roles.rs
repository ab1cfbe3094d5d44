//! Roles that tokens and proxies assert.

pub(crate) fn split_roles(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|role| !role.is_empty()).collect()
}

/// Returns the asserted roles that are accepted.
pub(crate) fn kept_roles(roles: &[&str], trusts_system_roles: bool) -> Vec<String> {
    let kept = roles.iter().filter(|role| trusts_system_roles || !role.starts_with('_'));
    kept.map(|role| (*role).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_split_at_commas() {
        assert_eq!(split_roles(" a , b c,,d,"), ["a", "b c", "d"]);
        assert!(split_roles("").is_empty() && split_roles(" , ").is_empty());
    }

    #[test]
    fn system_roles_count_where_they_are_trusted() {
        assert_eq!(kept_roles(&["a", "_admin", "b_"], false), ["a", "b_"]);
        assert_eq!(kept_roles(&["a", "_admin", "b_"], true), ["a", "_admin", "b_"]);
    }
}
