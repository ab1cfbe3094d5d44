//! Rights in databases and in the server.
//!
//! A database's `_security` decides a user's access, as of less than a second ago ([`Layer::security`]). For
//! administrators of the server nothing is read.

use std::sync::Arc;
use std::time::Duration;

use flatbed_auth::security::{self, Access, Security};
use flatbed_auth::{ADMIN_ROLE, AuthError, AuthErrorKind, Principal};
use flatbed_layer::channels::{ReadPrincipal, SignInUser, SignsIn};
use flatbed_layer::{
    Actor, Database, DatabaseKind, DatabaseSecurity, Error as LayerError, Gate, Layer, NotFound, REPLICATOR, Reader,
    Refusal, USERS, User, is_replicator_name,
};
use tokio::time::Instant;

use crate::accounts::{Accounts, Freshness};
use crate::database::{Administration, Maintenance, Ownership, PurgeAccess, Writer, WriterGrant};
use crate::given::RenewableGrant;
use crate::replications;
use crate::standing::{RightsBasis, Standing};
use crate::user_documents::{UserDocumentWriter, UserDocuments};

const METRICS_ROLE: &str = "_metrics";

/// The age at which a standing is renewed before a right is judged: a request's body may take minutes to arrive.
const IDENTIFIED_WITHIN: Duration = Duration::from_millis(500);

/// The longest database name that is looked up.
const NAME_BYTES_MAX: usize = 300;

const NO_DATABASE: &str = "";

/// The reason why a right is not granted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AccessError {
    /// The user lacks the right.
    #[error(transparent)]
    Refused(#[from] AuthError),
    /// A failure of the layer, such as a missing database.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// The requirement of a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Membership in the database. A database with channels admits its users; its reads and writes check their
    /// channels.
    Member,
    /// Access to all documents: administrators of a database with channels, members of another one.
    Whole,
    /// Administration of the database. Members are refused with the reason for design documents.
    Admin,
    /// The same, refused with the reason for maintenance.
    Maintainer,
    /// Administration of the server.
    Server,
    /// Administration of the server, or the role for metrics.
    Metrics,
}

impl Requirement {
    pub(crate) fn in_server(self, principal: &Principal) -> Result<(), AuthError> {
        match self {
            Requirement::Metrics if principal.has_role(METRICS_ROLE) => Ok(()),
            _ if principal.is_admin => Ok(()),
            Requirement::Metrics => {
                let reason = "You are not a server admin or read-only metrics user";
                Err(AuthError::new(AuthErrorKind::Unauthorized, reason))
            }
            Requirement::Server
            | Requirement::Member
            | Requirement::Whole
            | Requirement::Admin
            | Requirement::Maintainer => Err(security::not_a_server_admin()),
        }
    }

    /// Checks whether a user who had the given access still meets the requirement under this `_security`. In a
    /// database with channels less access means that the user lost some, though reads are still allowed. The same
    /// holds for readers of an ordinary database that has become a replicator database.
    pub(crate) fn in_database_as(
        self,
        (before, was_replicator): (Access, bool),
        standing: &Standing,
        principal: &Principal,
        name: &str,
        security: &DatabaseSecurity,
    ) -> Result<(), AuthError> {
        if !principal.is_admin && was_replicator != is_replicator(name, security) {
            return Err(security::not_a_member(principal));
        }
        match standing.is_user_of(name, security.incarnation()) {
            None => {
                let now = access(principal, name, &security.parsed(parsed));
                self.are_met(principal, now, security)?;
                match security.has_channels() && now < before {
                    true if before == Access::Admin => Err(security::not_an_admin()),
                    true => Err(security::not_a_member(principal)),
                    false => Ok(()),
                }
            }
            // Users of one database have no access to others, and none at all outside of channels.
            Some(is_here) if !is_here || !security.has_channels() => Err(security::not_a_member(principal)),
            Some(_) => self.are_met(principal, Access::Member, security),
        }
    }

    /// Checks whether this access meets the requirement. A closed database admits its administrators only.
    fn are_met(self, principal: &Principal, access: Access, security: &DatabaseSecurity) -> Result<(), AuthError> {
        self.suffices(principal, access, security.has_channels())?;
        match access {
            Access::Member | Access::Nobody if security.closed().is_any() && !principal.is_admin => {
                Err(AuthError::new(AuthErrorKind::Unavailable, Refusal::Closed.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn suffices(self, principal: &Principal, access: Access, has_channels: bool) -> Result<(), AuthError> {
        match (self, access) {
            (Requirement::Server | Requirement::Metrics, _) => self.in_server(principal),
            (_, Access::Admin) | (Requirement::Member, Access::Member) => Ok(()),
            (Requirement::Member, Access::Nobody) if has_channels => Ok(()),
            (Requirement::Whole, Access::Member) if !has_channels => Ok(()),
            // Anonymous clients must not learn that the database exists.
            (Requirement::Whole, _) if has_channels && (access == Access::Member || principal.name.is_some()) => {
                Err(AuthError::new(AuthErrorKind::Forbidden, "Only administrators may read this."))
            }
            (_, Access::Nobody) => Err(security::not_a_member(principal)),
            (Requirement::Admin, Access::Member) => Err(security::not_its_admin(principal)),
            (Requirement::Maintainer, Access::Member) => Err(security::not_an_admin()),
            // Handled above.
            (Requirement::Whole, Access::Member) => Err(security::not_a_member(principal)),
        }
    }
}

/// Parses a `_security`. An invalid one leaves the database to administrators of the server.
pub(crate) fn parsed(security: Option<&[u8]>) -> Security {
    security.and_then(|text| Security::parse_text(text).ok()).unwrap_or_default()
}

pub(crate) fn access(principal: &Principal, name: &str, security: &Security) -> Access {
    if principal.is_admin {
        Access::Admin
    } else if DatabaseKind::of(name) != DatabaseKind::Ordinary && !matches!(name, USERS | REPLICATOR) {
        // Documents of other system databases need rules of their own, which do not exist yet.
        Access::Nobody
    } else {
        security.access(principal)
    }
}

/// True for a replicator database: its documents have owners, and other users see no credentials in them.
fn is_replicator(name: &str, security: &DatabaseSecurity) -> bool {
    name == REPLICATOR || security.is_replicator()
}

/// Returns whether a database is a replicator database, or would be created as one. Reads nothing for most names.
pub(crate) async fn asks_for_replications(layer: &Layer, name: &str) -> Result<bool, LayerError> {
    if !is_replicator_name(name) || name.len() > NAME_BYTES_MAX {
        return Ok(name == REPLICATOR);
    }
    match layer.security(name).await {
        Ok(security) => Ok(security.is_replicator()),
        Err(LayerError::DatabaseNotFound) => Ok(true),
        Err(error) => Err(error),
    }
}

/// A standing and what is needed to judge its rights. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    pub(crate) standing: Standing,
    pub(crate) users: UserDocuments,
    pub(crate) since: Instant,
}

impl Rights {
    pub(crate) fn new(standing: Standing, users: UserDocuments) -> Rights {
        let since = users.clock().now();
        Rights { standing, users, since }
    }

    pub(crate) fn is_renewal_due(&self) -> bool {
        !matches!(self.standing.basis(), RightsBasis::Server)
            && self.users.clock().since(self.since) >= IDENTIFIED_WITHIN
    }

    pub(crate) async fn renew(&self, accounts: &Accounts, fresh: Freshness) -> Result<Rights, AccessError> {
        let since = self.users.clock().now();
        let standing = accounts.current_standing(&self.standing, fresh).await?;
        let standing = standing.ok_or_else(|| self.standing.lost())?;
        Ok(Rights { standing, since, ..self.clone() })
    }

    pub(crate) fn principal(&self) -> &Principal {
        self.standing.principal()
    }

    pub(crate) async fn grant<'g>(
        &'g self,
        needs: Requirement,
        layer: &'g Layer,
        accounts: &'g Arc<Accounts>,
        name: &'g str,
    ) -> Result<DatabaseGrant<'g>, AccessError> {
        let (access, is_replicator) = self.judge(needs, layer, accounts, name).await?;
        Ok(DatabaseGrant { rights: self, layer, accounts, name, access, is_replicator })
    }

    /// Returns the user's access to a database, if it is sufficient, and whether it is a replicator database.
    async fn judge(
        &self,
        needs: Requirement,
        layer: &Layer,
        accounts: &Accounts,
        name: &str,
    ) -> Result<(Access, bool), AccessError> {
        let principal = self.principal();
        if principal.is_admin {
            return Ok((Access::Admin, asks_for_replications(layer, name).await?));
        }
        if needs == Requirement::Server {
            return Err(security::not_a_server_admin().into());
        }
        let found =
            if name.len() > NAME_BYTES_MAX { Err(LayerError::DatabaseNotFound) } else { layer.security(name).await };
        let found = match found {
            // A missing database is answered like one that the user may not read, so that the answer does not reveal
            // names. If the names are public, named users get CouchDB's 404.
            Err(LayerError::DatabaseNotFound) if principal.name.is_none() || !self.users.shows_database_names() => {
                return Err(security::not_a_member(principal).into());
            }
            found => found?,
        };
        if let Some(is_here) = self.standing.is_user_of(name, found.incarnation()) {
            // Users of one database have no access to others, and none at all outside of channels.
            if !is_here || !found.has_channels() {
                return Err(self.refuse_outsider(layer).await);
            }
            needs.are_met(principal, Access::Member, &found)?;
            return Ok((Access::Member, is_replicator(name, &found)));
        }
        let access = access(principal, name, &found.parsed(parsed));
        if access == Access::Nobody && !(found.has_channels() && self.is_user_in(accounts, name).await?) {
            return Err(self.refuse_outsider(layer).await);
        }
        needs.are_met(principal, access, &found)?;
        Ok((access, is_replicator(name, &found)))
    }

    /// Returns the refusal of a user without access. The `_security` of an existing database is mostly cached, so
    /// this looks up a name that no database has: both refusals then read the same from storage.
    async fn refuse_outsider(&self, layer: &Layer) -> AccessError {
        match layer.security(NO_DATABASE).await {
            Ok(_) | Err(LayerError::DatabaseNotFound) => security::not_a_member(self.principal()).into(),
            Err(error) => error.into(),
        }
    }

    /// Returns whether the account is an enabled user of a database with channels. A principal without a name is its
    /// guest.
    async fn is_user_in(&self, accounts: &Accounts, database: &str) -> Result<bool, LayerError> {
        let account = self.principal().name.as_deref();
        if account == Some("") {
            return Ok(false);
        }
        let is_let_in = |user: &SignInUser| {
            !user.principal.is_disabled && (account.is_none() || user.principal.signs_in == SignsIn::Account)
        };
        let came = self.users.clock().now();
        // The second lookup finds a user that was created after the first one was cached.
        for fresh in [Freshness::Second, Freshness::Since(came)] {
            match accounts.user_of(database, account.unwrap_or_default(), fresh).await {
                Ok(Some(user)) if is_let_in(&user) => return Ok(true),
                Ok(_) => {}
                Err(LayerError::DatabaseNotFound) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    pub(crate) fn user(&self) -> User {
        let principal = self.principal();
        let mut roles = principal.roles.to_vec();
        if principal.is_admin && !principal.has_role(ADMIN_ROLE) {
            roles.insert(0, ADMIN_ROLE.to_owned());
        }
        let (fence, setting) = (self.standing.fence(), self.standing.setting());
        let client = self.users.client(principal.name.as_deref());
        User { name: principal.name.clone(), roles, fence, setting, client }
    }
}

/// A right in a database, for [`Context::database`](crate::Context::database).
pub trait Right: sealed::Sealed {
    /// A database that can do what the right allows and no more.
    type Database;

    /// The requirement.
    #[doc(hidden)]
    const NEEDS: Requirement;

    /// Creates the database.
    #[doc(hidden)]
    fn given(granted: DatabaseGrant<'_>) -> Self::Database;
}

/// The right to read documents and statistics.
#[derive(Debug, Clone, Copy)]
pub struct Read;

/// The right to read data that restricted readers of a database with channels do not see.
#[derive(Debug, Clone, Copy)]
pub struct ReadWhole;

/// The right to write documents, local documents and attachments. Administrators also write design documents.
#[derive(Debug, Clone, Copy)]
pub struct Write;

/// The right to configure the database.
#[derive(Debug, Clone, Copy)]
pub struct Administer;

/// The right to maintain the database.
#[derive(Debug, Clone, Copy)]
pub struct Maintain;

/// The right to purge documents.
#[derive(Debug, Clone, Copy)]
pub struct Purge;

/// The right to create and to delete the database.
#[derive(Debug, Clone, Copy)]
pub struct Own;

/// A granted right.
pub struct DatabaseGrant<'g> {
    pub(crate) rights: &'g Rights,
    pub(crate) layer: &'g Layer,
    pub(crate) accounts: &'g Arc<Accounts>,
    pub(crate) name: &'g str,
    access: Access,
    is_replicator: bool,
}

impl DatabaseGrant<'_> {
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// True if the database is a replicator database, or would be created as one.
    pub(crate) fn is_replicator(&self) -> bool {
        self.is_replicator
    }

    /// The part of the database that the user can read.
    pub(crate) fn reader(&self) -> Reader {
        let reader = self.layer.reader(self.name).asked_by(self.asker());
        if self.name == USERS && self.access != Access::Admin {
            return reader.seen_by(self.rights.users.seen_by(self.rights.principal()));
        }
        match (self.access, self.is_replicator) {
            (Access::Admin, _) => reader,
            (_, true) => reader.seen_by(replications::seen_by(&self.rights.standing)),
            // The database may have been deleted, and created again as a replicator database.
            (_, false) if is_replicator_name(self.name) => reader.as_ordinary(),
            (_, false) => reader,
        }
    }

    pub(crate) fn database(&self, needs: Requirement) -> Database {
        self.layer.database(self.name, self.actor(needs)).asked_by(self.asker())
    }

    /// The user on whose behalf the layer reads and writes. The layer applies it if the database has channels.
    pub(crate) fn asker(&self) -> ReadPrincipal {
        if let RightsBasis::Principal { name, .. } = self.rights.standing.basis() {
            return if name.is_empty() { ReadPrincipal::Guest } else { ReadPrincipal::Principal(Arc::clone(name)) };
        }
        match &self.rights.principal().name {
            _ if self.access == Access::Admin => ReadPrincipal::All,
            None => ReadPrincipal::Guest,
            Some(name) => {
                ReadPrincipal::Account { name: name.as_str().into(), is_member: self.access == Access::Member }
            }
        }
    }

    /// The database for staged data, which belongs to no document yet: the user may change before one takes it.
    pub(crate) fn staging(&self) -> Database {
        let held = CommitGate { access: Access::Member, ..self.held(Requirement::Member) };
        let user = User { fence: None, setting: None, ..self.rights.user() };
        self.layer.database(self.name, user.through(Arc::new(held))).asked_by(self.asker())
    }

    pub(crate) fn designs(&self) -> Result<(), Refusal> {
        match self.access {
            Access::Admin => Ok(()),
            Access::Member | Access::Nobody => Err(design_refusal(self.rights.principal())),
        }
    }

    pub(crate) fn entering(&self) -> Option<UserDocumentWriter> {
        let rights = self.rights;
        (self.name == USERS).then(|| rights.users.written_by(rights.principal(), self.access))
    }

    fn held(&self, needs: Requirement) -> CommitGate {
        let standing = self.rights.standing.clone();
        let writes_documents = needs == Requirement::Member && is_replicator_name(self.name);
        let as_replicator = writes_documents.then_some(self.is_replicator);
        CommitGate { standing, needs, name: self.name.to_owned(), access: self.access, as_replicator }
    }

    fn actor(&self, needs: Requirement) -> Actor {
        let held = self.held(needs);
        self.rights.user().through(Arc::new(held))
    }
}

/// A grant, judged again by the `_security` at the commit.
#[derive(Debug)]
struct CommitGate {
    standing: Standing,
    needs: Requirement,
    name: String,
    access: Access,
    /// True if the write was prepared for a replicator database, with owners set. A database of the other kind
    /// refuses it. `None`: either kind will do.
    as_replicator: Option<bool>,
}

impl Gate for CommitGate {
    fn judge(&self, security: &DatabaseSecurity) -> Result<(), Refusal> {
        let principal = self.standing.principal();
        // Even for an administrator: the server would run a document without an owner with its own rights.
        if self.as_replicator.is_some_and(|as_replicator| as_replicator != security.is_replicator()) {
            return Err(Refusal::UserChanged);
        }
        if principal.is_admin {
            return Ok(());
        }
        let access = match self.standing.is_user_of(&self.name, security.incarnation()) {
            Some(false) => return Err(Refusal::UserChanged),
            // The sync function decides what the user may write.
            Some(true) => Access::Nobody,
            None => access(principal, &self.name, &security.parsed(parsed)),
        };
        self.needs.are_met(principal, access, security).map_err(refusal)?;
        // Edits that were allowed for an administrator, such as design documents, must be judged as a member's.
        if self.access == Access::Admin && access != Access::Admin { Err(Refusal::UserChanged) } else { Ok(()) }
    }
}

impl Right for Read {
    type Database = Reader;

    const NEEDS: Requirement = Requirement::Member;

    fn given(granted: DatabaseGrant<'_>) -> Reader {
        granted.reader()
    }
}

impl Right for ReadWhole {
    type Database = Reader;

    const NEEDS: Requirement = Requirement::Whole;

    fn given(granted: DatabaseGrant<'_>) -> Reader {
        granted.reader()
    }
}

impl Right for Write {
    type Database = Writer;

    const NEEDS: Requirement = Requirement::Member;

    fn given(granted: DatabaseGrant<'_>) -> Writer {
        Writer(RenewableGrant::new(&granted, Self::NEEDS, WriterGrant::of))
    }
}

impl Right for Administer {
    type Database = Administration;

    const NEEDS: Requirement = Requirement::Admin;

    fn given(granted: DatabaseGrant<'_>) -> Administration {
        Administration(RenewableGrant::new(&granted, Self::NEEDS, |granted| granted.database(Self::NEEDS)))
    }
}

impl Right for Maintain {
    type Database = Maintenance;

    const NEEDS: Requirement = Requirement::Maintainer;

    fn given(granted: DatabaseGrant<'_>) -> Maintenance {
        Maintenance(RenewableGrant::new(&granted, Self::NEEDS, |granted| granted.database(Self::NEEDS)))
    }
}

impl Right for Purge {
    type Database = PurgeAccess;

    const NEEDS: Requirement = Requirement::Server;

    fn given(granted: DatabaseGrant<'_>) -> PurgeAccess {
        PurgeAccess(RenewableGrant::new(&granted, Self::NEEDS, |granted| granted.database(Self::NEEDS)))
    }
}

impl Right for Own {
    type Database = Ownership;

    const NEEDS: Requirement = Requirement::Server;

    fn given(granted: DatabaseGrant<'_>) -> Ownership {
        Ownership(RenewableGrant::new(&granted, Self::NEEDS, |granted| granted.database(Self::NEEDS)))
    }
}

fn design_refusal(principal: &Principal) -> Refusal {
    refusal(security::not_its_admin(principal))
}

pub(crate) fn refusal(AuthError { kind, reason }: AuthError) -> Refusal {
    match kind {
        AuthErrorKind::NotFound => Refusal::DocumentNotFound(NotFound::Missing),
        AuthErrorKind::Unauthorized => Refusal::Unauthorized(reason.into_owned()),
        AuthErrorKind::Unavailable => Refusal::Closed,
        _ => Refusal::Forbidden(reason.into_owned()),
    }
}

mod sealed {
    /// Keeps other crates from implementing `Right`.
    pub trait Sealed {}

    impl Sealed for super::Read {}
    impl Sealed for super::ReadWhole {}
    impl Sealed for super::Write {}
    impl Sealed for super::Administer {}
    impl Sealed for super::Maintain {}
    impl Sealed for super::Purge {}
    impl Sealed for super::Own {}
}

#[cfg(test)]
mod tests;
