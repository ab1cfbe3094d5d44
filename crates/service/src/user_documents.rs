//! The documents of `_users`: changes before a write, validation, and visibility.
//!
//! The rules are in `flatbed_auth::users`. This module applies them: it hashes passwords before a write, in the queue
//! of password checks; the rule judges as functions of design documents do; and a reader who does not administer
//! `_users` reads bodies only through [`DocumentFilter`].

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use flatbed_auth::security::{Access, Security};
use flatbed_auth::users::{self, PreparedDocument, UnhashedDocument};
use flatbed_auth::{ADMIN_ROLE, AuthError, AuthMethod, Principal, SALT_BYTES};
use flatbed_clock::Clock;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{
    DESIGN, Document, DocumentFilter, DocumentId, Edit, Error, Judgement, NotJudged, ProposedWrite, Refusal, Result,
    Rule, Verdict,
};

use crate::configuration::Configuration;
use crate::rights::{parsed, refusal};
use crate::sign_in::{SignIn, network};
use crate::standing::SignInError;
use crate::turns::TurnClient;

/// The most passwords in a request of a user who is no administrator.
const PASSWORDS_MAX: usize = 20;

/// The rules of `_users` with the state that they need. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct UserDocuments {
    configuration: Configuration,
    sign_in: Arc<SignIn>,
    /// The writer's address, which decides its turn to have a password hashed.
    peer: Option<IpAddr>,
}

impl UserDocuments {
    pub(crate) fn new(configuration: Configuration, sign_in: Arc<SignIn>) -> UserDocuments {
        UserDocuments { configuration, sign_in, peer: None }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.sign_in.clock()
    }

    /// True if every user may list the names of databases (`admin_only_all_dbs` is `false`).
    pub(crate) fn shows_database_names(&self) -> bool {
        !self.configuration.now().auth.admin_only_all_dbs
    }

    /// The same for a client at this address.
    pub(crate) fn from(&self, peer: Option<IpAddr>) -> UserDocuments {
        UserDocuments { peer, ..self.clone() }
    }

    /// The number of the client that decides its turn in calls of functions: of the user, else of the network.
    pub(crate) fn client(&self, user: Option<&str>) -> Option<u64> {
        let is_known = user.is_some() || self.peer.is_some();
        is_known.then(|| TurnClient::of(user, network(self.peer)).number())
    }

    pub(crate) fn seen_by(&self, principal: &Principal) -> Arc<dyn DocumentFilter> {
        Arc::new(UsersReader { name: principal.name.clone(), configuration: self.configuration.clone() })
    }

    /// Returns the rules for documents that the principal writes.
    pub(crate) fn written_by(&self, principal: &Principal, access: Access) -> UserDocumentWriter {
        let is_server_admin = principal.is_admin || principal.has_role(ADMIN_ROLE);
        let is_admin = is_server_admin || access == Access::Admin;
        UserDocumentWriter { name: principal.name.clone(), is_server_admin, is_admin, of: self.clone() }
    }

    async fn hash(&self, unhashed: UnhashedDocument<'_>, is_admin: bool) -> Result<Value<'static>> {
        let (password, salt) = unhashed.to_hash();
        let hash = self.sign_in.hash(password, salt, self.peer, is_admin).await.map_err(|error| match error {
            SignInError::Layer(error) => error,
            other => Refusal::NotJudged { because: NotJudged::TooMany, reason: other.to_string() }.into(),
        })?;
        Ok(unhashed.with(&hash).into_owned())
    }
}

impl UserDocuments {
    /// Hashes a password of a database's user, in the queue of password checks.
    pub(crate) async fn hash_of(&self, password: &str, is_admin: bool) -> std::result::Result<Vec<u8>, SignInError> {
        let mut random = [0; SALT_BYTES];
        getrandom::fill(&mut random).map_err(|_| flatbed_layer::Error::NoRandomness)?;
        let salt: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = self.sign_in.hash(password, &salt, self.peer, is_admin).await?;
        Ok(hash.to_string().into_bytes())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct UserDocumentWriter {
    name: Option<String>,
    is_server_admin: bool,
    is_admin: bool,
    of: UserDocuments,
}

impl UserDocumentWriter {
    fn actor(&self) -> users::Actor<'_> {
        users::Actor { name: self.name.as_deref(), is_server_admin: self.is_server_admin, is_admin: self.is_admin }
    }

    /// Returns the edits to write. The first forbidden edit refuses all of them, as in CouchDB.
    pub(crate) async fn before_update<'e>(&self, edits: &[Edit<'e>]) -> Result<Vec<Edit<'e>>> {
        let mut prepared = Vec::with_capacity(edits.len());
        let mut passwords = 0;
        let settings = self.of.configuration.now();
        // All edits are checked before the first password is hashed.
        for edit in edits {
            if edit.history.is_some() && !self.is_admin {
                // It could make a conflict in another user's document, which then allows no sign-in.
                let reason = "Only administrators may write revisions of other replicas into the users database.";
                return Err(Refusal::Forbidden(reason.to_owned()).into());
            }
            let mut random = [0; SALT_BYTES];
            getrandom::fill(&mut random).map_err(|_| Error::NoRandomness)?;
            let body = users::before_update(&edit.id, edit.body.clone(), &self.actor(), &random).map_err(refusal)?;
            if let PreparedDocument::Hash(unhashed) = &body {
                passwords += 1;
                let (password, _) = unhashed.to_hash();
                settings.auth.password_rules.check(password).map_err(Refusal::InvalidSetting)?;
            }
            prepared.push((edit, body));
        }
        if passwords > PASSWORDS_MAX && !self.is_admin {
            let reason = format!("At most {PASSWORDS_MAX} passwords are set in a request.");
            return Err(Refusal::Forbidden(reason).into());
        }
        let mut edits = Vec::with_capacity(prepared.len());
        for (edit, body) in prepared {
            let body = match body {
                PreparedDocument::AsIs(body) => body,
                PreparedDocument::Hash(unhashed) => self.of.hash(unhashed, self.is_server_admin).await?,
            };
            let Edit { id, parent, history, deleted, expiry, attachments, .. } = edit.clone();
            edits.push(Edit { id, parent, history, deleted, expiry, attachments, body });
        }
        Ok(edits)
    }

    /// Refuses a write or a deletion of the user document of a configured administrator, unless the writer
    /// administers the server or `_users`. The error is the conflict of an existing name, which precedes the
    /// validation, so the answer does not reveal the administrators' names. Names are compared byte by byte, as at
    /// sign-in.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub(crate) fn may_register(&self, edit: &Edit<'_>) -> std::result::Result<(), Refusal> {
        if self.is_admin {
            return Ok(());
        }
        let admins = &self.of.configuration.now().admins;
        let is_admins = users::name_in(&edit.id).is_some_and(|name| admins.contains_key(name));
        if is_admins { Err(Refusal::Conflict) } else { Ok(()) }
    }

    /// Checks whether the writer may write a document of this id at all.
    pub(crate) fn enters(&self, id: &str) -> std::result::Result<(), Refusal> {
        if DocumentId::of(id).is_local() {
            return self.local();
        }
        users::before_update(id, Value::Null, &self.actor(), &[0; SALT_BYTES]).map(drop).map_err(refusal)
    }

    /// Checks access to local documents, which only administrators have here.
    pub(crate) fn local(&self) -> std::result::Result<(), Refusal> {
        if self.is_admin { Ok(()) } else { Err(refusal(AuthError::not_found())) }
    }
}

/// A reader of `_users` who does not administer it.
#[derive(Debug)]
struct UsersReader {
    name: Option<String>,
    configuration: Configuration,
}

impl UsersReader {
    fn actor(&self) -> users::Actor<'_> {
        users::Actor { name: self.name.as_deref(), is_server_admin: false, is_admin: false }
    }

    fn owns(&self, id: &str) -> bool {
        self.name.is_some() && self.name.as_deref() == users::name_in(id)
    }
}

impl DocumentFilter for UsersReader {
    fn asks(&self, id: &str) -> std::result::Result<(), Refusal> {
        if id.starts_with(DESIGN) { users::may_see_designs(&self.actor()).map_err(refusal) } else { Ok(()) }
    }

    fn is_whole(&self, id: &str) -> bool {
        self.owns(id)
    }

    fn hides(&self, id: &str) -> bool {
        !self.owns(id)
    }

    fn part(&self, id: &str, members: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let text = [b"{", members, b"}"].concat();
        let body = json::parse(&text, &Limits::default()).map_err(|_| refusal(AuthError::not_found()))?;
        let public = &self.configuration.now().auth.public_fields;
        let body = match users::read(id, body, &self.actor(), public).map_err(refusal)? {
            users::VisibleDocument::Whole(body) | users::VisibleDocument::Public(body) => body,
        };
        Ok(json::members_to_vec(&body))
    }
}

/// The validation of `_users`, as CouchDB's `_design/_auth` does it.
#[derive(Debug)]
pub(crate) struct UsersRule;

impl Rule for UsersRule {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> std::pin::Pin<Box<dyn Future<Output = Judgement> + Send + 'a>> {
        Box::pin(async move { validate(&write).map(|()| Verdict::default()) })
    }
}

fn validate(write: &ProposedWrite<'_>) -> std::result::Result<(), Refusal> {
    let roles = write.user.roles.clone();
    let principal = match &write.user.name {
        Some(name) => Principal::user(name, roles, AuthMethod::Password),
        None => Principal { roles: roles.into(), ..Principal::anonymous() },
    };
    let security: Security = parsed(write.security);
    let text = write.old.map(|old: &Document| [b"{", old.body.as_slice(), b"}"].concat());
    let old = text.as_deref().map(|text| json::parse(text, &Limits::default()));
    let old =
        old.transpose().map_err(|_| Refusal::Forbidden("The document that is there cannot be read.".to_owned()))?;
    let write =
        users::Write { id: &write.edit.id, is_deleted: write.edit.deleted, body: &write.edit.body, old: old.as_ref() };
    users::validate(&write, &users::Actor::new(&principal, &security)).map_err(refusal)
}

/// Returns the edits to write: unchanged in other databases than `_users`.
pub(crate) async fn prepared<'s, 'e>(
    entering: Option<&UserDocumentWriter>,
    edits: &'s [Edit<'e>],
) -> Result<Cow<'s, [Edit<'e>]>> {
    match entering {
        None => Ok(Cow::Borrowed(edits)),
        Some(entering) => entering.before_update(edits).await.map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests;
