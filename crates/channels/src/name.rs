//! Names of channels, users and roles.
//!
//! The allowed names are Sync Gateway's, as recorded in `tests/sync-gateway/`.

/// The public channel: every user of the database sees its documents.
pub const EVERYONE: &str = "!";

/// For a user: all documents. For a document: a channel that only users with all channels see.
pub const ALL: &str = "*";

/// The prefix of a role's name where a user's name could stand.
pub const ROLE_PREFIX: &str = "role:";

/// The name of the guest for administrators; internally the guest's name is empty.
pub const GUEST: &str = "GUEST";

/// The longest name of a channel, in bytes of UTF-8: it is part of keys, beside a document's id of up to 2,048 bytes.
pub const CHANNEL_BYTES_MAX: usize = 1_000;

/// The longest name of a user or role, in bytes. As in Sync Gateway, where a key has at most 250 bytes.
pub const PRINCIPAL_BYTES_MAX: usize = 239;

/// The longest part of a refused name in an error, in characters.
const SAID_MAX: usize = 100;

/// The name is not allowed for a channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Illegal channel name {}", quoted(.0))]
pub struct IllegalChannel(pub String);

/// Checks a channel's name: it must not be empty, contain a comma, or be too long.
pub fn check_channel(name: &str) -> Result<(), IllegalChannel> {
    if name.is_empty() || name.contains(',') || name.len() > CHANNEL_BYTES_MAX {
        return Err(IllegalChannel(cut(name)));
    }
    Ok(())
}

/// True for an allowed name of a user or role: ASCII letters and digits, `_`, `-`, `+`, `.`, `@` and `%`. The empty
/// name is the guest's.
pub fn is_principal(name: &str) -> bool {
    name.len() <= PRINCIPAL_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-+.@%".contains(&byte))
}

pub(crate) fn cut(text: &str) -> String {
    text.chars().take(SAID_MAX).collect()
}

pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control.is_control() => out.extend(control.escape_default()),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_names_as_recorded() {
        for name in
            ["with space", "with/slash", "é", "日本", "!", "*", "!x", "x*", "A\0B", "A\nB", "\"q\"", "100%", "a:b"]
        {
            assert_eq!(check_channel(name), Ok(()), "{name}");
        }
        for (name, said) in [
            ("", r#"Illegal channel name """#),
            ("with,comma", r#"Illegal channel name "with,comma""#),
            ("\"\n,", r#"Illegal channel name "\"\n,""#),
        ] {
            assert_eq!(check_channel(name).unwrap_err().to_string(), said);
        }
        assert_eq!(check_channel(&"c".repeat(CHANNEL_BYTES_MAX)), Ok(()));
        let long = check_channel(&"é".repeat(CHANNEL_BYTES_MAX)).unwrap_err();
        assert_eq!(long.0, "é".repeat(SAID_MAX));
    }

    #[test]
    fn principals_have_names_as_recorded() {
        for name in ["", "alice", "a@b.org", "dash-under_score.dot+plus", "with%2Fslash", "UPPER", "0"] {
            assert!(is_principal(name), "{name}");
        }
        for name in ["with space", "with,comma", "with:colon", "héé", "a/b", "a\0"] {
            assert!(!is_principal(name), "{name}");
        }
        assert!(is_principal(&"n".repeat(239)) && !is_principal(&"n".repeat(240)));
    }
}
