//! The principal of a request, and the basis of its rights.

use std::net::IpAddr;
use std::sync::Arc;

use flatbed_auth::jwt::VerifiedBy;
use flatbed_auth::{AuthError, AuthErrorKind, AuthMethod, Credentials, Principal, proxy};
use flatbed_layer::channels::SessionHash;
use flatbed_layer::{RevId, SettingFence, UserFence};

use crate::configuration::ProxySettings;

/// The credentials in a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Claims<'a> {
    /// The header `authorization`.
    pub authorization: Option<&'a str>,
    /// The header `cookie`.
    pub cookie: Option<&'a str>,
    /// The headers of proxy authentication.
    pub proxy: Option<proxy::Claim<'a>>,
    /// The client's address, or the address asserted by a trusted proxy. `None`: this process.
    pub peer: Option<IpAddr>,
    /// The address of the connection, which headers cannot change.
    pub connection: Option<IpAddr>,
    /// True if the client's connection is encrypted, so that its cookie gets the attribute `Secure`.
    pub is_secure: bool,
}

impl Claims<'_> {
    /// The name and password of a request without other credentials.
    pub(crate) fn basic_alone(&self) -> Option<Credentials> {
        let is_alone = self.cookie.is_none() && self.proxy.is_none();
        Credentials::of_header(self.authorization.filter(|_| is_alone)?).ok().flatten()
    }
}

/// The basis of the rights of a request or of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RightsBasis {
    /// No credentials: anonymous.
    Nothing,
    /// No administrator exists by name, so every client is one.
    OpenServer,
    /// The server itself.
    Server,
    /// An administrator of the configuration.
    Admin {
        /// The administrator's name.
        name: String,
        /// The salt of the hash, which changes with the password.
        salt: String,
        /// The winning revision of the user document of that name, which adds roles.
        rev: Option<RevId>,
    },
    /// A user document.
    Document {
        /// The account's name.
        name: String,
        /// The salt of the hash.
        salt: String,
        /// The winning revision that was read.
        rev: RevId,
        /// The first revision of the account ([`Document::born`](flatbed_layer::Document::born)), since a name may be
        /// reused.
        born: RevId,
    },
    /// A JSON Web Token.
    Token {
        /// Its end, in seconds since 1970.
        ends: Option<u64>,
        /// The key that verified it.
        by: VerifiedBy,
    },
    /// The assertion of a trusted proxy.
    Proxy,
    /// A user of one database with channels, or its guest. It has no rights in other databases.
    Principal {
        /// The database's name.
        database: Arc<str>,
        /// The database's incarnation, since a name may be reused.
        incarnation: u64,
        /// The user's name; empty for the guest.
        name: Arc<str>,
        /// The user's generation at sign-in. It increases with a new password and when the user is disabled.
        generation: u64,
        /// The session, if the user signed in with one.
        session: Option<SessionHash>,
    },
}

/// A principal and the basis of its rights. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Standing {
    principal: Principal,
    rests_on: Arc<RightsBasis>,
    /// The settings by which a proxy's assertion was trusted.
    proxy: Option<Arc<ProxySettings>>,
    /// The stored setting of administrators that a right rests on.
    setting: Option<Arc<SettingFence>>,
}

impl Standing {
    pub(crate) fn new(principal: Principal, rests_on: RightsBasis) -> Standing {
        Standing { principal, rests_on: Arc::new(rests_on), proxy: None, setting: None }
    }

    /// A user asserted by a trusted proxy.
    pub(crate) fn of_proxy(principal: Principal, settings: &ProxySettings) -> Standing {
        Standing { proxy: Some(Arc::new(settings.clone())), ..Standing::new(principal, RightsBasis::Proxy) }
    }

    /// True if these settings still trust the proxy's assertion.
    pub(crate) fn is_vouched_for(&self, settings: &ProxySettings) -> bool {
        !settings.peers.is_empty() && self.proxy.as_deref() == Some(settings)
    }

    /// A user of one database. Its name is not a principal's name, so it is neither an account nor a member in a
    /// `_security`.
    pub(crate) fn of_user(rests_on: RightsBasis, signed_in: AuthMethod) -> Standing {
        Standing::new(Principal { signed_in, ..Principal::anonymous() }, rests_on)
    }

    /// An anonymous client.
    pub fn anonymous() -> Standing {
        Standing::new(Principal::anonymous(), RightsBasis::Nothing)
    }

    /// The server itself, which may do everything.
    pub fn of_server() -> Standing {
        Standing::new(Principal::nameless_admin(), RightsBasis::Server)
    }

    /// An administrator of a server without administrators.
    pub(crate) fn of_open_server(setting: Option<Arc<SettingFence>>) -> Standing {
        Standing::new(Principal::nameless_admin(), RightsBasis::OpenServer).judged_by(setting)
    }

    /// Sets the stored setting of administrators that the rights rest on.
    pub(crate) fn judged_by(self, setting: Option<Arc<SettingFence>>) -> Standing {
        Standing { setting, ..self }
    }

    /// The stored entry of this administrator, or its absence on a server without any. It must be unchanged when a
    /// write commits. `None`: the rights rest on no stored setting.
    pub fn setting(&self) -> Option<Arc<SettingFence>> {
        self.setting.clone()
    }

    /// The principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The user document that must be unchanged when a write commits. An administrator's rights do not rest on one,
    /// but functions of databases have seen the roles that it adds.
    pub fn fence(&self) -> Option<UserFence> {
        let (name, rev) = match self.basis() {
            RightsBasis::Admin { name, rev: Some(rev), .. } | RightsBasis::Document { name, rev, .. } => (name, rev),
            _ => return None,
        };
        Some(UserFence { name: name.clone(), rev: Some(rev.clone()) })
    }

    /// Returns whether a user of one database is a user of this one. `None`: the rights rest on something else.
    pub(crate) fn is_user_of(&self, name: &str, found: u64) -> Option<bool> {
        match self.basis() {
            RightsBasis::Principal { database, incarnation, .. } => Some(&**database == name && *incarnation == found),
            _ => None,
        }
    }

    pub(crate) fn lost(&self) -> AuthError {
        match self.basis() {
            RightsBasis::Nothing => AuthError::new(AuthErrorKind::Unauthorized, "Authentication required."),
            _ => AuthError::wrong_password(),
        }
    }

    /// The basis of the rights.
    pub fn basis(&self) -> &RightsBasis {
        &self.rests_on
    }
}

/// An identified request.
#[derive(Debug, Clone)]
pub struct IdentifiedRequest {
    /// The principal and the basis of its rights.
    pub standing: Standing,
    /// The `set-cookie` value that renews the session, for any answer.
    pub set_cookie: Option<String>,
}

/// The reason why a request is not identified.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SignInError {
    /// The credentials are wrong or missing.
    #[error(transparent)]
    Refused(#[from] AuthError),
    /// The queue of password checks is full; a retry may succeed.
    #[error("Too many passwords are being checked")]
    TooMany,
    /// The storage failed.
    #[error(transparent)]
    Layer(#[from] flatbed_layer::Error),
}
