//! Addresses as messages, logs and answers show them: without anything that may be secret.

/// Returns an address, valid or not, without user, query and fragment. A part that may be one of these is omitted.
pub fn shown_address(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let end = |rest: &str| rest.find(['?', '#']).unwrap_or(rest.len());
    // A password may contain an unescaped slash.
    let rest = match rest.rsplit_once('@') {
        // A password with an unescaped question mark, or a query with an `@`: the host is unknown.
        Some((before, _)) if end(before) < before.len() => "",
        Some((_, rest)) => rest,
        None => rest,
    };
    let rest = rest.get(..end(rest)).unwrap_or_default();
    let rest = if has_sound_port(rest) { rest } else { "" };
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// Returns whether the text after the first colon, if any, is a port. Otherwise the address begins with a user and a
/// password, whose `@` is escaped or missing.
fn has_sound_port(rest: &str) -> bool {
    let authority = rest.split('/').next().unwrap_or_default();
    // An IPv6 address is in brackets.
    let behind = authority.rsplit_once(']').map_or(authority, |(_, behind)| behind);
    behind.split_once(':').is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_user_and_query() {
        for (text, shown) in [
            ("db", "db"),
            ("db?token=s3cret", "db"),
            ("anna:s3cret@h/db", "h/db"),
            ("http://h/a%40b", "http://h/a%40b"),
            ("HTTP://a:b:c@[::1]:1/db/", "HTTP://[::1]:1/db/"),
            ("http://s3cret@", "http://"),
            ("http://h/db?token=s3cret", "http://h/db"),
            ("http://anna:s3cret@h/db?token=s3cret#s3cret", "http://h/db"),
            ("http://h/db#s3cret", "http://h/db"),
            ("http://h/db?token=s3@cret", "http://"),
            ("http://anna:s3?c@ret@h/db", "http://"),
            ("http:/anna:s3cret@h:1/db", "h:1/db"),
            ("http://anna:s3cret%40h/db", "http://"),
            ("http://anna:12/s3cret@h:1/db", "http://h:1/db"),
            ("anna:s3cret", ""),
            ("", ""),
        ] {
            assert_eq!(shown_address(text), shown);
        }
    }
}
