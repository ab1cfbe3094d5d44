//! The claims of a bearer token of Mozilla's accounts.

use flatbed_flatten::json::{Limits, Value, parse_unique};
use flatbed_syncstorage::accounts::Claim;

const SCOPE: &str = "https://identity.mozilla.com/apps/oldsync";

/// The claims that this server uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    /// The account.
    pub account: String,
    /// The account's generation, if stated.
    pub generation: Option<u64>,
}

impl Claims {
    /// Reads the claims of a token with a valid signature, at `now` in seconds since 1970.
    ///
    /// # Errors
    /// The defect, for the log.
    pub(super) fn read(text: &[u8], issuer: &str, now: u64) -> Result<Claims, &'static str> {
        let claims = parse_unique(text, &Limits { depth_max: 16 }).map_err(|_| "the token's claims are no JSON")?;
        let string = |name: &str| claims.get(name).and_then(Value::as_str);
        if string("iss") != Some(issuer) {
            return Err("the token is of another issuer");
        }
        let number = |name: &str| match claims.get(name) {
            Some(Value::Number(number)) => number.parse::<f64>().ok(),
            _ => None,
        };
        if number("exp").is_none_or(|exp| exp <= now as f64) {
            return Err("the token has expired");
        }
        if number("nbf").is_some_and(|nbf| nbf > now as f64 + SKEW_SECONDS) {
            return Err("the token is not valid yet");
        }
        // Mozilla's server splits at commas, though accounts write blanks (RFC 6749, 3.3), so it refuses two scopes.
        if !string("scope").unwrap_or_default().split(',').any(|scope| scope.trim() == SCOPE) {
            return Err("the token is not for sync");
        }
        let account = string("sub").filter(|account| is_account(account)).ok_or("the token names no account")?;
        let generation = match claims.get("fxa-generation") {
            None | Some(Value::Null) => None,
            Some(Value::Number(number)) => {
                let generation: Option<i64> = number.parse().ok();
                Some(generation.and_then(|number| u64::try_from(number).ok()).ok_or("the generation is no number")?)
            }
            Some(_) => return Err("the generation is no number"),
        };
        Ok(Claims { account: account.to_owned(), generation })
    }
}

/// The time by which the accounts' clock may be ahead.
const SKEW_SECONDS: f64 = 60.0;

/// Checks an account's id. The id is only compared and logged.
fn is_account(text: &str) -> bool {
    (1..=Claim::ACCOUNT_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(more: &str) -> Result<Claims, &'static str> {
        let text = format!(r#"{{"iss":"i","exp":1001,"scope":"{SCOPE}","sub":"a"{more}}}"#);
        Claims::read(text.as_bytes(), "i", 1_000)
    }

    #[test]
    fn what_counts() {
        let claims = |generation| Ok(Claims { account: "a".into(), generation });
        assert_eq!(read(""), claims(None));
        assert_eq!(read(r#","fxa-generation":1234,"aud":"x","nbf":1050"#), claims(Some(1234)));
        assert_eq!(read(r#","fxa-generation":null"#), claims(None));
        for more in [
            r#","fxa-generation":-1"#,
            r#","fxa-generation":"1""#,
            r#","fxa-generation":1.5"#,
            r#","nbf":1061"#,
            r#","sub":"b""#,
        ] {
            assert!(read(more).is_err(), "{more}");
        }
    }

    #[test]
    fn what_must_be_there() {
        for text in [
            r#"{"iss":"j","exp":1001,"scope":"S","sub":"a"}"#,
            r#"{"exp":1001,"scope":"S","sub":"a"}"#,
            r#"{"iss":"i","exp":1000,"scope":"S","sub":"a"}"#,
            r#"{"iss":"i","scope":"S","sub":"a"}"#,
            r#"{"iss":"i","exp":1001,"sub":"a"}"#,
            r#"{"iss":"i","exp":1001,"scope":"profile","sub":"a"}"#,
            r#"{"iss":"i","exp":1001,"scope":"profile S","sub":"a"}"#,
            r#"{"iss":"i","exp":1001,"scope":["S"],"sub":"a"}"#,
            r#"{"iss":"i","exp":1001,"scope":"S"}"#,
            r#"{"iss":"i","exp":1001,"scope":"S","sub":""}"#,
            r#"{"iss":"i","exp":1001,"scope":"S","sub":"a\nb"}"#,
        ] {
            assert!(Claims::read(text.replace('S', SCOPE).as_bytes(), "i", 1_000).is_err(), "{text}");
        }
        let both = r#"{"iss":"i","exp":1001,"scope":"profile,S","sub":"a"}"#.replace('S', SCOPE);
        assert!(Claims::read(both.as_bytes(), "i", 1_000).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in r#"\{("(iss|exp|sub|scope)":("[a-z]{0,3}"|[0-9.e-]{1,4}),?){0,5}\}|.{0,40}"#) {
            let _ = Claims::read(text.as_bytes(), "i", 1_000);
        }
    }
}
