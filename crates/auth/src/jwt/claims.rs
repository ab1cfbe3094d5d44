//! The claims of a token, and the requirements of a key.

use flatbed_flatten::json::Value;

use crate::error::AuthError;
use crate::principal::{AuthMethod, Principal};
use crate::roles::{kept_roles, split_roles};

const ROLES_MAX: usize = 100;

const ROLE_BYTES_MAX: usize = 256;

/// The longest name, in bytes, with its prefix.
const NAME_BYTES_MAX: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValidClaims {
    pub(super) principal: Principal,
    /// The end of its validity, in seconds since 1970, with the skew.
    pub(super) ends: Option<u64>,
}

/// The claim with the roles, as a list of texts or one text with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolesClaim {
    /// The claim of this name.
    Named(String),
    /// A claim inside other claims.
    Path(Vec<String>),
}

/// CouchDB's default, the single name `_couchdb.roles`.
impl Default for RolesClaim {
    fn default() -> RolesClaim {
        RolesClaim::Named("_couchdb.roles".to_owned())
    }
}

impl RolesClaim {
    /// Parses CouchDB's setting `roles_claim_path`: names separated by dots; `\.` is a dot in a name.
    pub fn path(text: &str) -> RolesClaim {
        let mut names = vec![String::new()];
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            match (character, names.last_mut()) {
                ('.', _) => names.push(String::new()),
                ('\\', Some(name)) if rest.peek() == Some(&'.') => name.extend(rest.next()),
                (_, Some(name)) => name.push(character),
                (_, None) => {}
            }
        }
        RolesClaim::Path(names)
    }

    fn find<'a, 'b>(&self, claims: &'a Value<'b>) -> Option<&'a Value<'b>> {
        match self {
            RolesClaim::Named(name) => claims.get(name),
            RolesClaim::Path(names) => names.iter().try_fold(claims, |value, name| value.get(name)),
        }
    }
}

/// The requirements on the claims of a key's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The required `iss`. `None`: any; the key must then sign for one issuer only.
    pub issuer: Option<String>,
    /// The required `aud`, or a member of its list. `None`: a token with an audience is refused, since it is for
    /// another server.
    pub audience: Option<String>,
    /// The required claims; `exp` by default, as in CouchDB.
    pub required: Vec<String>,
    /// The further required `iss` from the setting `required_claims`, in CouchDB's form.
    pub required_issuer: Option<String>,
    /// The prefix of the issuer's user names, which separates them from those of other issuers.
    pub name_prefix: String,
    /// The claim with the roles.
    pub roles: RolesClaim,
    /// True if the issuer may assert roles that begin with `_`, such as `_admin`. Otherwise they are dropped.
    pub trusts_system_roles: bool,
}

/// Parses the setting `required_claims`, separated by commas: names of claims, and CouchDB's `{iss, "ISSUER"}`.
/// `None`: invalid. CouchDB allows a value for no other claim.
pub fn required_claims(text: &str) -> Option<(Vec<String>, Option<String>)> {
    let (mut names, mut issuer) = (Vec::new(), None);
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let behind = match rest.strip_prefix('{') {
            Some(pair) => {
                let value = pair.trim_start().strip_prefix("iss")?.trim_start().strip_prefix(',')?;
                let (value, behind) = value.trim_start().strip_prefix('"')?.split_once('"')?;
                // Two different issuers cannot both match, and an empty one never does.
                if value.is_empty() || issuer.as_deref().is_some_and(|other| other != value) {
                    return None;
                }
                issuer = Some(value.to_owned());
                behind.trim_start().strip_prefix('}')?.trim_start()
            }
            None => {
                let (name, behind) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                let name = name.trim_end();
                if name.contains(['{', '}', '"']) {
                    return None;
                }
                if !name.is_empty() {
                    names.push(name.to_owned());
                }
                behind
            }
        };
        rest = match behind.strip_prefix(',') {
            Some(behind) => behind.trim_start(),
            None if behind.is_empty() => behind,
            None => return None,
        };
    }
    Some((names, issuer))
}

impl Default for Binding {
    fn default() -> Binding {
        Binding {
            issuer: None,
            audience: None,
            required: vec!["exp".to_owned()],
            required_issuer: None,
            name_prefix: String::new(),
            roles: RolesClaim::default(),
            trusts_system_roles: false,
        }
    }
}

impl Binding {
    /// Validates the claims of a token with a verified signature.
    pub(super) fn judge(&self, claims: &Value<'_>, now: u64, skew: u64) -> Result<ValidClaims, AuthError> {
        if let Some(missing) = self.required.iter().find(|name| claims.get(name).is_none()) {
            return Err(AuthError::bad_request(format!("Missing {missing} claim")));
        }
        self.judge_origin(claims)?;
        let ends = judge_times(claims, now, skew)?;
        let principal = Principal::user(self.name(claims)?, self.roles(claims)?, AuthMethod::Jwt);
        Ok(ValidClaims { principal, ends })
    }

    fn judge_origin(&self, claims: &Value<'_>) -> Result<(), AuthError> {
        for issuer in self.issuer.iter().chain(&self.required_issuer) {
            match claims.get("iss") {
                None => return Err(AuthError::bad_request("Missing iss claim")),
                Some(Value::String(found)) if found == issuer => {}
                Some(_) => return Err(AuthError::bad_request("Invalid iss claim")),
            }
        }
        let is_ours = |found: &Value<'_>| self.audience.is_some() && found.as_str() == self.audience.as_deref();
        match claims.get("aud") {
            None if self.audience.is_none() => Ok(()),
            None => Err(AuthError::bad_request("Missing aud claim")),
            Some(Value::Array(found)) if found.iter().any(is_ours) => Ok(()),
            Some(found) if is_ours(found) => Ok(()),
            Some(_) => Err(AuthError::bad_request("Invalid aud claim")),
        }
    }

    fn name(&self, claims: &Value<'_>) -> Result<String, AuthError> {
        let subject = claims.get("sub").ok_or_else(|| AuthError::unauthorized("Token missing sub claim."))?;
        let name = subject.as_str().filter(|subject| !subject.is_empty()).map(|subject| {
            let prefix = &self.name_prefix;
            format!("{prefix}{subject}")
        });
        name.filter(|name| name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control))
            .ok_or_else(|| AuthError::bad_request("Invalid sub claim"))
    }

    fn roles(&self, claims: &Value<'_>) -> Result<Vec<String>, AuthError> {
        let malformed = || AuthError::bad_request("Malformed token");
        let roles: Vec<&str> = match self.roles.find(claims) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(roles)) => {
                roles.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(malformed)?
            }
            Some(Value::String(roles)) => split_roles(roles),
            Some(_) => return Err(malformed()),
        };
        if roles.len() > ROLES_MAX || roles.iter().any(|role| role.len() > ROLE_BYTES_MAX) {
            return Err(malformed());
        }
        Ok(kept_roles(&roles, self.trusts_system_roles))
    }
}

/// Validates the claims `exp`, `nbf` and `iat` that are present; returns the end, with the skew.
fn judge_times(claims: &Value<'_>, now: u64, skew: u64) -> Result<Option<u64>, AuthError> {
    let exp = time(claims, "exp")?;
    if exp.is_some_and(|exp| exp.saturating_add(skew) <= now) {
        return Err(AuthError::unauthorized("exp not in future"));
    }
    for name in ["nbf", "iat"] {
        if time(claims, name)?.is_some_and(|from| from > now.saturating_add(skew)) {
            return Err(AuthError::unauthorized(format!("{name} not in past")));
        }
    }
    Ok(exp.map(|exp| exp.saturating_add(skew)))
}

/// Returns a `NumericDate` in whole seconds; a date before 1970 is 1970.
fn time(claims: &Value<'_>, name: &str) -> Result<Option<u64>, AuthError> {
    match claims.get(name) {
        None => Ok(None),
        Some(Value::Number(text)) => {
            let seconds: f64 = text.parse().map_err(|_| AuthError::bad_request("Malformed token"))?;
            // The cast saturates.
            Ok(Some(seconds as u64))
        }
        Some(_) => Err(AuthError::bad_request(format!("Invalid {name} claim"))),
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use proptest::prelude::*;

    use super::*;
    use crate::error::AuthErrorKind;

    const NOW: u64 = 1_000_000;

    fn judge(binding: &Binding, text: &str, skew: u64) -> Result<ValidClaims, String> {
        let claims = parse(text.as_bytes(), &Limits::default()).unwrap();
        binding.judge(&claims, NOW, skew).map_err(|refused| {
            let unauthorized = ["exp not in future", "nbf not in past", "iat not in past", "Token missing sub claim."];
            let is_unauthorized = unauthorized.contains(&&*refused.reason);
            let expected = if is_unauthorized { AuthErrorKind::Unauthorized } else { AuthErrorKind::BadRequest };
            assert_eq!(refused.kind, expected, "{}", refused.reason);
            refused.reason.into_owned()
        })
    }

    fn lax() -> Binding {
        Binding { required: Vec::new(), ..Binding::default() }
    }

    #[test]
    fn exp_is_wanted_by_default() {
        assert_eq!(judge(&Binding::default(), r#"{"sub":"a"}"#, 0), Err("Missing exp claim".into()));
        let binding = Binding { required: vec!["exp".into(), "jti".into()], ..lax() };
        assert_eq!(judge(&binding, r#"{"sub":"a","exp":2000000}"#, 0), Err("Missing jti claim".into()));
        assert!(judge(&binding, r#"{"sub":"a","exp":2000000,"jti":null}"#, 0).is_ok());
    }

    #[test]
    fn claims_are_required_in_couchdbs_form() {
        let issued = |issuer: &str| Some(issuer.to_owned());
        for (text, names, issuer) in [
            ("", &[][..], None),
            ("exp", &["exp"][..], None),
            (" exp , https://a/b,, jti ", &["exp", "https://a/b", "jti"][..], None),
            (r#"{iss, "hello"}"#, &[][..], issued("hello")),
            (r#"exp, {iss, "a, {b}"}, jti"#, &["exp", "jti"][..], issued("a, {b}")),
            (r#"{ iss ,"a" } , {iss,"a"},exp"#, &["exp"][..], issued("a")),
        ] {
            let names: Vec<String> = names.iter().map(|name: &&str| (*name).to_owned()).collect();
            assert_eq!(required_claims(text), Some((names, issuer)), "{text}");
        }
        for text in [
            "{iss}",
            "{iss, hello}",
            r#"{iss, ""}"#,
            r#"{iss, "a"} exp"#,
            r#"{iss, "a"}, {iss, "b"}"#,
            r#"{iss, "a""#,
            r#"{aud, "a"}"#,
            r#"{issuer, "a"}"#,
            r#"exp {iss, "a"}"#,
            "exp}",
        ] {
            assert_eq!(required_claims(text), None, "{text}");
        }
        let bound = Binding { required_issuer: issued("i"), ..lax() };
        let with = |binding: &Binding, rest: &str| judge(binding, &format!(r#"{{"sub":"s"{rest}}}"#), 0).err();
        assert_eq!(with(&bound, r#","iss":"i""#), None);
        assert_eq!(with(&bound, r#","iss":"j""#).as_deref(), Some("Invalid iss claim"));
        assert_eq!(with(&bound, "").as_deref(), Some("Missing iss claim"));
        let both = Binding { issuer: issued("j"), ..bound };
        assert_eq!(with(&both, r#","iss":"i""#).as_deref(), Some("Invalid iss claim"), "both hold");
    }

    #[test]
    fn times_have_a_skew() {
        let with =
            |claim: &str, skew| judge(&lax(), &format!(r#"{{"sub":"a",{claim}}}"#), skew).map(|found| found.ends);
        assert_eq!(with(r#""exp":1000001"#, 0), Ok(Some(1_000_001)));
        assert_eq!(with(r#""exp":1000000"#, 0), Err("exp not in future".into()));
        assert_eq!(with(r#""exp":999971"#, 30), Ok(Some(1_000_001)));
        assert_eq!(with(r#""exp":999970"#, 30), Err("exp not in future".into()));
        assert_eq!(with(r#""exp":1000001.9"#, 0), Ok(Some(1_000_001)));
        assert_eq!(with(r#""exp":1e300"#, 30), Ok(Some(u64::MAX)));
        assert_eq!(with(r#""exp":-1"#, 0), Err("exp not in future".into()));
        assert_eq!(with(r#""exp":"2000000""#, 0), Err("Invalid exp claim".into()));
        assert_eq!(with(r#""exp":null"#, 0), Err("Invalid exp claim".into()));
        for name in ["nbf", "iat"] {
            assert_eq!(with(&format!(r#""{name}":1000000"#), 0), Ok(None));
            assert_eq!(with(&format!(r#""{name}":1000001"#), 0), Err(format!("{name} not in past")));
            assert_eq!(with(&format!(r#""{name}":1000030"#), 30), Ok(None));
            assert_eq!(with(&format!(r#""{name}":1000031"#), 30), Err(format!("{name} not in past")));
            assert_eq!(with(&format!(r#""{name}":true"#), 0), Err(format!("Invalid {name} claim")));
        }
    }

    #[test]
    fn issuer_and_audience_are_the_keys() {
        let bound = Binding { issuer: Some("i".into()), audience: Some("a".into()), ..lax() };
        let with = |binding: &Binding, rest: &str| judge(binding, &format!(r#"{{"sub":"s"{rest}}}"#), 0).err();
        assert_eq!(with(&bound, r#","iss":"i","aud":"a""#), None);
        assert_eq!(with(&bound, r#","iss":"i","aud":["b","a"]"#), None);
        for (rest, reason) in [
            (r#","aud":"a""#, "Missing iss claim"),
            (r#","iss":"I","aud":"a""#, "Invalid iss claim"),
            (r#","iss":["i"],"aud":"a""#, "Invalid iss claim"),
            (r#","iss":"i""#, "Missing aud claim"),
            (r#","iss":"i","aud":"b""#, "Invalid aud claim"),
            (r#","iss":"i","aud":["b",null]"#, "Invalid aud claim"),
            (r#","iss":"i","aud":[]"#, "Invalid aud claim"),
            (r#","iss":"i","aud":null"#, "Invalid aud claim"),
        ] {
            assert_eq!(with(&bound, rest).as_deref(), Some(reason), "{rest}");
        }
        assert_eq!(with(&lax(), r#","iss":"any""#), None);
        for rest in [r#","aud":"a""#, r#","aud":[null]"#, r#","aud":5"#] {
            assert_eq!(with(&lax(), rest).as_deref(), Some("Invalid aud claim"));
        }
    }

    #[test]
    fn names_have_the_issuers_prefix() {
        let prefixed = Binding { name_prefix: "corp/".into(), ..lax() };
        let name = |text: &str| judge(&prefixed, text, 0).map(|found| found.principal.name.unwrap());
        assert_eq!(name(r#"{"sub":"anna"}"#).as_deref(), Ok("corp/anna"));
        assert_eq!(name("{}"), Err("Token missing sub claim.".into()));
        for sub in ["\"\"", "5", "null", "\"a\\u0000\"", "\"a\\n\""] {
            assert_eq!(name(&format!(r#"{{"sub":{sub}}}"#)), Err("Invalid sub claim".into()), "{sub}");
        }
        let long = |bytes: usize| name(&format!(r#"{{"sub":"{}"}}"#, "x".repeat(bytes)));
        assert_eq!((long(507).unwrap().len(), long(508)), (512, Err("Invalid sub claim".into())));
    }

    fn roles(binding: &Binding, rest: &str) -> Result<String, String> {
        judge(binding, &format!(r#"{{"sub":"a"{rest}}}"#), 0).map(|found| found.principal.roles.join("|"))
    }

    #[test]
    fn roles_are_a_list_or_a_text() {
        for (claim, expected) in
            [(r#"["a","b c",""]"#, "a|b c|"), ("[]", ""), ("null", ""), (r#""a , b,c,""#, "a|b|c"), (r#""""#, "")]
        {
            assert_eq!(roles(&lax(), &format!(r#","_couchdb.roles":{claim}"#)).as_deref(), Ok(expected), "{claim}");
        }
        for claim in ["5", "true", "{}", "[1]", r#"["a",null]"#] {
            let found = roles(&lax(), &format!(r#","_couchdb.roles":{claim}"#));
            assert_eq!(found, Err("Malformed token".into()), "{claim}");
        }
        assert_eq!(roles(&lax(), r#","_couchdb":{"roles":["a"]}"#).as_deref(), Ok(""));
        let hundred = |count: usize| roles(&lax(), &format!(r#","_couchdb.roles":[{}"r"]"#, r#""r","#.repeat(count)));
        assert!(hundred(99).is_ok() && hundred(100).is_err());
        let long = |bytes: usize| roles(&lax(), &format!(r#","_couchdb.roles":"{}""#, "x".repeat(bytes)));
        assert!(long(256).is_ok() && long(257).is_err());
    }

    #[test]
    fn roles_stand_where_the_settings_say() {
        let at = |path: &str| Binding { roles: RolesClaim::path(path), ..lax() };
        let rest = r#","realm":{"access.to":{"roles":["a"]},"b\\":"c"},"top":"t""#;
        assert_eq!(roles(&at(r"realm.access\.to.roles"), rest).as_deref(), Ok("a"));
        assert_eq!(roles(&at("top"), rest).as_deref(), Ok("t"));
        assert_eq!(roles(&at(r"realm.b\"), rest).as_deref(), Ok("c"));
        for none in ["", "realm.access.to.roles", "top.more", "realm.", "none"] {
            assert_eq!(roles(&at(none), rest).as_deref(), Ok(""), "{none}");
        }
        assert_eq!(RolesClaim::path(r"a\.b.c\d"), RolesClaim::Path(vec!["a.b".into(), r"c\d".into()]));
    }

    #[test]
    fn system_roles_are_dropped_unless_the_key_is_trusted() {
        let rest = r#","_couchdb.roles":["_admin","a","_x"]"#;
        assert_eq!(roles(&lax(), rest).as_deref(), Ok("a"));
        let trusted = Binding { trusts_system_roles: true, ..lax() };
        assert_eq!(roles(&trusted, rest).as_deref(), Ok("_admin|a|_x"));
        let text = format!(r#"{{"sub":"a"{rest}}}"#);
        let is_admin = |binding: &Binding| judge(binding, &text, 0).unwrap().principal.is_admin;
        assert_eq!((is_admin(&lax()), is_admin(&trusted)), (false, true));
        let signed_in = judge(&lax(), &text, 0).unwrap().principal.signed_in;
        assert_eq!(signed_in, AuthMethod::Jwt);
    }

    proptest! {
        #[test]
        fn no_untrusted_key_makes_an_administrator(roles in prop::collection::vec("_?[a-z ,_]{0,6}", 0..6), is_list: bool) {
            let claim = if is_list { format!("{roles:?}") } else { format!("{:?}", roles.join(",")) };
            let found = judge(&lax(), &format!(r#"{{"sub":"a","_couchdb.roles":{claim}}}"#), 0).unwrap().principal;
            prop_assert!(!found.is_admin && found.roles.iter().all(|role| !role.starts_with('_')));
        }

        #[test]
        fn a_path_is_read_back(names in prop::collection::vec("[a-z.]{0,4}", 1..4)) {
            let text = names.iter().map(|name| name.replace('.', r"\.")).collect::<Vec<_>>().join(".");
            prop_assert_eq!(RolesClaim::path(&text), RolesClaim::Path(names));
        }
    }
}
