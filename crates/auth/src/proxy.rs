//! Proxy authentication: a trusted proxy asserts the user.
//!
//! Two conditions must hold. The connection's peer must be one of the settings, which the caller checks. And the
//! proxy must know the server's secret, with which it sends an HMAC of the name. CouchDB requires neither by default;
//! here both are always required.

use subtle::ConstantTimeEq;

use crate::hex::hex;
use crate::principal::{AuthMethod, Principal};
use crate::roles::{kept_roles, split_roles};
use crate::session::{MacAlgorithm, Secret};

/// The default header with the user's name.
pub const USER_HEADER: &str = "x-auth-couchdb-username";

/// The default header with the user's roles.
pub const ROLES_HEADER: &str = "x-auth-couchdb-roles";

/// The default header with the token.
pub const TOKEN_HEADER: &str = "x-auth-couchdb-token";

const NAME_BYTES_MAX: usize = 512;

const ROLES_MAX: usize = 100;

/// The assertion in the headers of a request.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    /// The value of [`USER_HEADER`].
    pub name: &'a str,
    /// The value of [`ROLES_HEADER`]: roles separated by commas.
    pub roles: Option<&'a str>,
    /// The value of [`TOKEN_HEADER`]: HMAC-SHA256 (from older proxies HMAC-SHA1) of the name, in hexadecimal digits
    /// of lower case.
    pub token: Option<&'a str>,
}

impl std::fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim").field("name", &self.name).field("roles", &self.roles).finish_non_exhaustive()
    }
}

/// Returns the asserted user. `None` is anonymous and no error, as in CouchDB.
///
/// `is_named_peer`: the connection's own address, which no header can change, is in the settings. Roles that begin
/// with `_` are dropped unless `trusts_system_roles`. A name has 1 to 512 bytes, no control characters or colons, and
/// does not begin with `_`; of more than 100 roles none counts.
pub fn authenticate(
    claim: &Claim<'_>,
    is_named_peer: bool,
    secrets: &[Secret],
    trusts_system_roles: bool,
) -> Option<Principal> {
    let name = claim.name;
    if !is_named_peer || name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        return None;
    }
    // Session cookies are signed with the same secret: `NAME:TIME`, with a salt after the secret. They must not pass
    // as assertions.
    if name.contains(':') || name.starts_with('_') {
        return None;
    }
    let token = claim.token?;
    let is_right = |secret: &Secret| {
        MacAlgorithm::ACCEPTED.into_iter().any(|algorithm| {
            let digits = hex(&secret.sign(algorithm, "", name.as_bytes()));
            digits.as_bytes().ct_eq(token.as_bytes()).into()
        })
    };
    if !secrets.iter().any(is_right) {
        return None;
    }
    let roles = split_roles(claim.roles.unwrap_or_default());
    if roles.len() > ROLES_MAX {
        return None;
    }
    Some(Principal::user(name, kept_roles(&roles, trusts_system_roles), AuthMethod::Proxy))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The output of Python's `hmac` for "anna" with "the secret".
    const SHA256: &str = "d8b3fc8da9f2f7fae00c2c3f5b60eb8cecddc267cb38192d9926e0c694da5a03";
    const SHA1: &str = "fbac35b32cec995f83c8c54edfd7c19a7ea4568e";

    fn secret() -> Secret {
        Secret::new(b"the secret".to_vec())
    }

    fn ask(name: &str, roles: Option<&str>, token: Option<&str>) -> Option<Principal> {
        authenticate(&Claim { name, roles, token }, true, &[secret()], false)
    }

    /// A session's cookie is signed with the same secret, but neither passes as the other.
    #[test]
    fn a_word_is_no_session() {
        for name in ["anna:5F000000", "_replicator"] {
            let token = hex(&secret().sign(MacAlgorithm::NEW, "", name.as_bytes()));
            let claim = Claim { name, roles: None, token: Some(&token) };
            assert_eq!(authenticate(&claim, true, &[secret()], false), None, "{name}");
        }
    }

    #[test]
    fn a_named_peer_with_the_secret_is_believed() {
        for token in [SHA256, SHA1] {
            let found = ask("anna", Some("a , b,c,,"), Some(token)).unwrap();
            assert_eq!((found.name.as_deref(), found.roles.join("|").as_str()), (Some("anna"), "a|b|c"));
            assert_eq!((found.is_admin, found.signed_in), (false, AuthMethod::Proxy));
        }
        assert!(ask("anna", None, Some(SHA256)).unwrap().roles.is_empty());
        let old = [Secret::new(b"new".to_vec()), secret()];
        let claim = Claim { name: "anna", roles: None, token: Some(SHA256) };
        assert!(authenticate(&claim, true, &old, false).is_some());
        assert!(authenticate(&claim, true, &old[..1], false).is_none());
        assert!(authenticate(&claim, true, &[], false).is_none());
        assert!(authenticate(&claim, false, &old, false).is_none());
    }

    #[test]
    fn the_token_must_be_right() {
        for token in [None, Some(""), Some(&SHA256[1..]), Some(&SHA256.to_uppercase()), Some(&SHA1[..39])] {
            assert_eq!(ask("anna", None, token), None, "{token:?}");
        }
        assert_eq!(ask("bob", None, Some(SHA256)), None);
        let shown = format!("{:?}", Claim { name: "anna", roles: None, token: Some(SHA256) });
        assert!(shown.contains("anna") && !shown.contains(SHA256));
    }

    fn signed(name: &str) -> Option<Principal> {
        let token = hex(&secret().sign(MacAlgorithm::Sha256, "", name.as_bytes()));
        ask(name, None, Some(&token))
    }

    #[test]
    fn names_and_roles_have_bounds() {
        assert!(signed(&"x".repeat(512)).is_some() && signed("é s").is_some());
        for name in ["", "a\n", "a\0", &"x".repeat(513)] {
            assert_eq!(signed(name), None, "{name:?}");
        }
        let roles = |count: usize| ask("anna", Some(&"r,".repeat(count)), Some(SHA256)).map(|found| found.roles.len());
        assert_eq!((roles(100), roles(101)), (Some(100), None));
    }

    #[test]
    fn system_roles_are_dropped_unless_they_are_trusted() {
        let claim = Claim { name: "anna", roles: Some("_admin,a"), token: Some(SHA256) };
        let found = |trusts| authenticate(&claim, true, &[secret()], trusts).unwrap();
        assert_eq!((found(false).is_admin, found(false).roles.join("|").as_str()), (false, "a"));
        assert_eq!((found(true).is_admin, found(true).roles.join("|").as_str()), (true, "_admin|a"));
    }

    #[test]
    fn headers_are_couchdbs() {
        let couchdb = ["X-Auth-CouchDB-UserName", "X-Auth-CouchDB-Roles", "X-Auth-CouchDB-Token"];
        assert_eq!([USER_HEADER, ROLES_HEADER, TOKEN_HEADER], couchdb.map(str::to_ascii_lowercase));
    }

    proptest! {
        #[test]
        fn nobody_guesses_a_token(name in "\\PC{0,20}", token in "[0-9a-f]{0,64}") {
            prop_assert_eq!(ask(&name, None, Some(&token)), None);
        }
    }
}
