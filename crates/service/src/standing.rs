//! Who makes a request, and what their rights rest on.

use std::net::IpAddr;
use std::sync::Arc;

use flatbed_auth::jwt::VerifiedBy;
use flatbed_auth::{Credentials, Kind, Principal, Refused, SignedIn, proxy};
use flatbed_layer::channels::SessionHash;
use flatbed_layer::{RevId, SettingFence, UserFence};

use crate::configuration::ProxySettings;

/// What a request says of who makes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Claims<'a> {
    /// The header `authorization`.
    pub authorization: Option<&'a str>,
    /// The header `cookie`.
    pub cookie: Option<&'a str>,
    /// The headers of proxy authentication.
    pub proxy: Option<proxy::Claim<'a>>,
    /// Where the client is: behind a proxy that is named, as that says. `None`: in this process.
    pub peer: Option<IpAddr>,
    /// The other end of the connection, which no header can say.
    pub connection: Option<IpAddr>,
    /// Whether the client's connection is encrypted: whether a cookie is sent on such alone.
    pub is_secure: bool,
}

impl Claims<'_> {
    /// The name and password of a request that claims nothing else.
    pub(crate) fn basic_alone(&self) -> Option<Credentials> {
        let is_alone = self.cookie.is_none() && self.proxy.is_none();
        Credentials::of_header(self.authorization.filter(|_| is_alone)?).ok().flatten()
    }
}

/// What a request's or a feed's rights rest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestsOn {
    /// Nobody has claimed to be anybody.
    Nothing,
    /// There is no administrator by name: everyone is one.
    OpenServer,
    /// The server itself asks.
    Server,
    /// An administrator of the configuration.
    Admin {
        /// Their name.
        name: String,
        /// The salt of their hash: another password has another one.
        salt: String,
        /// The winner of the user document of that name which adds roles.
        rev: Option<RevId>,
    },
    /// A user document.
    Document {
        /// Their name.
        name: String,
        /// The salt of their hash.
        salt: String,
        /// The winner as of which it was read.
        rev: RevId,
        /// Where the account began ([`Document::born`](flatbed_layer::Document::born)): names are given again.
        born: RevId,
    },
    /// A JSON Web Token.
    Token {
        /// When it ends, in seconds since 1970.
        ends: Option<u64>,
        /// The key that has verified it.
        by: VerifiedBy,
    },
    /// A proxy's word.
    Proxy,
    /// A user of one database that has channels, or its guest: nobody anywhere else, whatever they are called.
    Principal {
        /// The database's name.
        database: Arc<str>,
        /// Tells it from others that had its name.
        incarnation: u64,
        /// The user's; the guest's is empty.
        name: Arc<str>,
        /// The user's, when they signed in: it goes up with another password, and where they are disabled.
        generation: u64,
        /// The session that they signed in with, if they did so with one.
        session: Option<SessionHash>,
    },
}

/// Who makes a request, with what that rests on. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Standing {
    principal: Principal,
    rests_on: Arc<RestsOn>,
    /// Of a proxy's word, the settings by which it was believed.
    proxy: Option<Arc<ProxySettings>>,
    /// Of a right that rests on what is stored of administrators, what that was.
    setting: Option<Arc<SettingFence>>,
}

impl Standing {
    pub(crate) fn new(principal: Principal, rests_on: RestsOn) -> Standing {
        Standing { principal, rests_on: Arc::new(rests_on), proxy: None, setting: None }
    }

    /// Whom a proxy has vouched for.
    pub(crate) fn of_proxy(principal: Principal, settings: &ProxySettings) -> Standing {
        Standing { proxy: Some(Arc::new(settings.clone())), ..Standing::new(principal, RestsOn::Proxy) }
    }

    /// Whether whom a proxy has vouched for would still be believed to be that by these settings.
    pub(crate) fn is_vouched_for(&self, settings: &ProxySettings) -> bool {
        !settings.peers.is_empty() && self.proxy.as_deref() == Some(settings)
    }

    /// A user of one database. Their name is not that of a principal: it is no account's, and no member's of a `_security`.
    pub(crate) fn of_user(rests_on: RestsOn, signed_in: SignedIn) -> Standing {
        Standing::new(Principal { signed_in, ..Principal::anonymous() }, rests_on)
    }

    /// Nobody in particular.
    pub fn anonymous() -> Standing {
        Standing::new(Principal::anonymous(), RestsOn::Nothing)
    }

    /// The server itself, which may do everything.
    pub fn of_server() -> Standing {
        Standing::new(Principal::nameless_admin(), RestsOn::Server)
    }

    /// Where there is no administrator, as the settings say.
    pub(crate) fn of_open_server(setting: Option<Arc<SettingFence>>) -> Standing {
        Standing::new(Principal::nameless_admin(), RestsOn::OpenServer).judged_by(setting)
    }

    /// The same, of who is an administrator by a stored setting.
    pub(crate) fn judged_by(self, setting: Option<Arc<SettingFence>>) -> Standing {
        Standing { setting, ..self }
    }

    /// What is stored of the administrator that this is, or that there are none, which must be so when a write on behalf of who it is is
    /// committed. `None`: their rights rest on nothing that is stored with the settings.
    pub fn setting(&self) -> Option<Arc<SettingFence>> {
        self.setting.clone()
    }

    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// What must be so when a write on behalf of who it is is committed. The rights of an administrator of the configuration do not
    /// rest on a user document; where one adds roles, functions of databases were asked with these.
    pub fn fence(&self) -> Option<UserFence> {
        let (name, rev) = match self.rests_on() {
            RestsOn::Admin { name, rev: Some(rev), .. } | RestsOn::Document { name, rev, .. } => (name, rev),
            _ => return None,
        };
        Some(UserFence { name: name.clone(), rev: Some(rev.clone()) })
    }

    /// Of a user of one database: whether it is this one. `None`: they are no such user.
    pub(crate) fn is_user_of(&self, name: &str, found: u64) -> Option<bool> {
        match self.rests_on() {
            RestsOn::Principal { database, incarnation, .. } => Some(&**database == name && *incarnation == found),
            _ => None,
        }
    }

    /// What they are refused with once they are nobody any more.
    pub(crate) fn lost(&self) -> Refused {
        match self.rests_on() {
            RestsOn::Nothing => Refused::new(Kind::Unauthorized, "Authentication required."),
            _ => Refused::wrong_password(),
        }
    }

    /// What that rests on.
    pub fn rests_on(&self) -> &RestsOn {
        &self.rests_on
    }
}

/// Who a request was found to come from.
#[derive(Debug, Clone)]
pub struct Identified {
    /// Who it is.
    pub standing: Standing,
    /// The value of a `set-cookie` header for the answer, whatever that is: a session goes on.
    pub set_cookie: Option<String>,
}

/// Why it is not known who makes a request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SignInError {
    /// What they claim is wrong, or no claim at all.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// There is no room for another check of a password: later, perhaps.
    #[error("Too many passwords are being checked")]
    TooMany,
    /// The storage does not say who they are.
    #[error(transparent)]
    Layer(#[from] flatbed_layer::Error),
}
