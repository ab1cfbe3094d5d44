//! Rights, and who has them.
//!
//! What somebody is to a database is said by its `_security`, as of less than a second ago ([`Layer::security`]). The
//! server's administrators are asked for no database's: nothing is read for them.

use std::sync::Arc;

use flatbed_auth::security::{self, Access, Security};
use flatbed_auth::{ADMIN_ROLE, Kind, Principal, Refused};
use flatbed_layer::{
    Actor, Database, DatabaseKind, Error as LayerError, Gate, Layer, NotFound, REPLICATOR, Reader, Refusal, SecurityOf,
    USERS, User,
};

use crate::accounts::Accounts;
use crate::database::{Administration, Maintenance, Ownership, Purging, Writer};
use crate::replications;
use crate::standing::Standing;
use crate::user_documents::UserDocuments;

/// The role of those who see the server's figures, and nothing else for that.
const METRICS_ROLE: &str = "_metrics";

/// Longer names no database has: they are not looked for.
const NAME_BYTES_MAX: usize = 300;

/// Somebody has not the right that they need, or it is not known.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Denied {
    /// They have it not.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// What the layer says of the database: that it is not there, among others.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// What a right asks of somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// That they are a member of the database.
    Member,
    /// That they administer it; a member who does not is told so as who writes a design document.
    Admin,
    /// The same, in the words for who would keep it in order.
    Maintainer,
    /// That they administer the server.
    Server,
    /// The same, or that they see its figures.
    Metrics,
}

impl Needs {
    /// Whether somebody has what is asked, in the server as a whole.
    pub(crate) fn in_server(self, principal: &Principal) -> Result<(), Refused> {
        match self {
            Needs::Metrics if principal.has_role(METRICS_ROLE) => Ok(()),
            _ if principal.is_admin => Ok(()),
            Needs::Metrics => {
                let reason = "You are not a server admin or read-only metrics user";
                Err(Refused::new(Kind::Unauthorized, reason))
            }
            Needs::Server | Needs::Member | Needs::Admin | Needs::Maintainer => Err(security::not_a_server_admin()),
        }
    }

    /// Whether somebody has what is asked, in a database with this `_security`.
    pub(crate) fn in_database(self, principal: &Principal, name: &str, security: &SecurityOf) -> Result<(), Refused> {
        self.are_met(principal, access(principal, name, &security.parsed(parsed)))
    }

    /// Whether it is enough to be this to the database.
    fn are_met(self, principal: &Principal, access: Access) -> Result<(), Refused> {
        match (self, access) {
            (Needs::Server | Needs::Metrics, _) => self.in_server(principal),
            (_, Access::Admin) | (Needs::Member, Access::Member) => Ok(()),
            (_, Access::Nobody) => Err(security::not_a_member(principal)),
            (Needs::Admin, Access::Member) => Err(security::not_its_admin(principal)),
            (Needs::Maintainer, Access::Member) => Err(security::not_an_admin()),
        }
    }
}

/// What a `_security` says; what cannot be read says that the database is the server administrators' alone.
pub(crate) fn parsed(security: Option<&[u8]>) -> Security {
    security.and_then(|text| Security::parse_text(text).ok()).unwrap_or_default()
}

/// What somebody is to a database with this `_security`.
pub(crate) fn access(principal: &Principal, name: &str, security: &Security) -> Access {
    if principal.is_admin {
        Access::Admin
    } else if DatabaseKind::of(name) != DatabaseKind::Ordinary && !matches!(name, USERS | REPLICATOR) {
        // Their documents have rules of their own, which are not kept yet.
        Access::Nobody
    } else {
        security.access(principal)
    }
}

/// Who asks, with what they may do. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    pub(crate) standing: Standing,
    pub(crate) users: UserDocuments,
}

impl Rights {
    pub(crate) fn principal(&self) -> &Principal {
        self.standing.principal()
    }

    /// A database, for who has the right to it.
    pub(crate) async fn database<R: Right>(
        &self,
        layer: &Layer,
        accounts: &Arc<Accounts>,
        name: &str,
    ) -> Result<R::Database, Denied> {
        let access = self.judge(R::NEEDS, layer, name).await?;
        Ok(R::given(Granted { rights: self, layer, accounts, name, access }))
    }

    /// What they are to a database, where that is enough.
    async fn judge(&self, needs: Needs, layer: &Layer, name: &str) -> Result<Access, Denied> {
        let principal = self.principal();
        if principal.is_admin {
            return Ok(Access::Admin);
        }
        if needs == Needs::Server {
            return Err(security::not_a_server_admin().into());
        }
        let found =
            if name.len() > NAME_BYTES_MAX { Err(LayerError::DatabaseNotFound) } else { layer.security(name).await };
        let found = match found {
            // Strangers are not told which databases there are.
            Err(LayerError::DatabaseNotFound) if principal.name.is_none() => {
                return Err(security::not_a_member(principal).into());
            }
            found => found?,
        };
        let access = access(principal, name, &found.parsed(parsed));
        needs.are_met(principal, access)?;
        Ok(access)
    }

    pub(crate) fn user(&self) -> User {
        let principal = self.principal();
        let mut roles = principal.roles.to_vec();
        if principal.is_admin && !principal.has_role(ADMIN_ROLE) {
            roles.insert(0, ADMIN_ROLE.to_owned());
        }
        User { name: principal.name.clone(), roles, fence: self.standing.fence() }
    }
}

/// A right in a database, with what it is asked for: see [`Context::database`](crate::Context::database).
pub trait Right: sealed::Sealed {
    /// A database that can do what the right allows, and no more.
    type Database;

    /// What it asks.
    #[doc(hidden)]
    const NEEDS: Needs;

    /// The database, for who has the right.
    #[doc(hidden)]
    fn given(granted: Granted<'_>) -> Self::Database;
}

/// To read what is in it, and its figures.
#[derive(Debug, Clone, Copy)]
pub struct Read;

/// To write documents, local ones and attachments; design documents, for who administers it.
#[derive(Debug, Clone, Copy)]
pub struct Write;

/// To set it up.
#[derive(Debug, Clone, Copy)]
pub struct Administer;

/// To keep it in order.
#[derive(Debug, Clone, Copy)]
pub struct Maintain;

/// To remove documents without a trace.
#[derive(Debug, Clone, Copy)]
pub struct Purge;

/// To create and to delete it.
#[derive(Debug, Clone, Copy)]
pub struct Own;

/// That somebody has a right in a database.
pub struct Granted<'g> {
    rights: &'g Rights,
    layer: &'g Layer,
    accounts: &'g Arc<Accounts>,
    name: &'g str,
    access: Access,
}

impl Granted<'_> {
    /// What they see of it.
    fn reader(&self) -> Reader {
        let reader = self.layer.reader(self.name);
        if self.name == USERS && self.access != Access::Admin {
            return reader.seen_by(self.rights.users.seen_by(self.rights.principal()));
        }
        if self.name == REPLICATOR && self.access != Access::Admin {
            return reader.seen_by(replications::seen_by(self.rights.principal()));
        }
        reader
    }

    fn database(&self, needs: Needs) -> Database {
        self.layer.database(self.name, self.actor(needs))
    }

    /// How it is asked for once more; `None`: there is nothing that could be another.
    fn again(&self) -> Option<Arc<Again>> {
        let standing = &self.rights.standing;
        if standing.principal().is_admin && standing.fence().is_none() {
            return None;
        }
        let (accounts, layer) = (self.accounts.clone(), self.layer.clone());
        let (standing, users) = (standing.clone(), self.rights.users.clone());
        Some(Arc::new(Again { accounts, layer, standing, users, name: self.name.into() }))
    }

    fn actor(&self, needs: Needs) -> Actor {
        let principal = self.rights.principal().clone();
        let held = Held { principal, needs, name: self.name.to_owned(), access: self.access };
        self.rights.user().through(Arc::new(held))
    }
}

/// What a right to write is asked for with once more, where what it rested on was another when something was written.
pub(crate) struct Again {
    accounts: Arc<Accounts>,
    layer: Layer,
    standing: Standing,
    users: UserDocuments,
    name: Arc<str>,
}

impl Again {
    /// The same right as of now.
    ///
    /// # Errors
    /// That they have it no longer, as the layer says it; those of the layer.
    pub(crate) async fn writer(&self) -> Result<Writer, LayerError> {
        let refused = |refused| LayerError::Refused(refusal(refused));
        let standing = self.accounts.anew(&self.standing).await?;
        let standing = standing.ok_or_else(|| refused(Refused::wrong_password()))?;
        let rights = Rights { standing, users: self.users.clone() };
        // What is known of the database's may be some of a second old.
        self.layer.securities(std::slice::from_ref(&self.name), None).await?;
        match rights.database::<Write>(&self.layer, &self.accounts, &self.name).await {
            Ok(writer) => Ok(writer),
            Err(Denied::Refused(reason)) => Err(refused(reason)),
            Err(Denied::Layer(error)) => Err(error),
        }
    }
}

/// What was granted, to be judged again by the `_security` of the moment in which something is written.
#[derive(Debug)]
struct Held {
    principal: Principal,
    needs: Needs,
    name: String,
    access: Access,
}

impl Gate for Held {
    fn judge(&self, security: &SecurityOf) -> Result<(), Refusal> {
        if self.principal.is_admin {
            return Ok(());
        }
        let access = access(&self.principal, &self.name, &security.parsed(parsed));
        self.needs.are_met(&self.principal, access).map_err(refusal)?;
        // What was let by as an administrator's, design documents among it, is to be judged anew as a member's.
        if self.access == Access::Admin && access != Access::Admin { Err(Refusal::UserChanged) } else { Ok(()) }
    }
}

impl Right for Read {
    type Database = Reader;

    const NEEDS: Needs = Needs::Member;

    fn given(granted: Granted<'_>) -> Reader {
        granted.reader()
    }
}

impl Right for Write {
    type Database = Writer;

    const NEEDS: Needs = Needs::Member;

    fn given(granted: Granted<'_>) -> Writer {
        let designs = match granted.access {
            Access::Admin => Ok(()),
            Access::Member | Access::Nobody => Err(no_designs(granted.rights.principal())),
        };
        let entering = (granted.name == USERS)
            .then(|| granted.rights.users.written_by(granted.rights.principal(), granted.access));
        let (database, standing) = (granted.database(Self::NEEDS), &granted.rights.standing);
        Writer::new(database, granted.reader(), designs, standing, entering, granted.again())
    }
}

impl Right for Administer {
    type Database = Administration;

    const NEEDS: Needs = Needs::Admin;

    fn given(granted: Granted<'_>) -> Administration {
        Administration(granted.database(Self::NEEDS))
    }
}

impl Right for Maintain {
    type Database = Maintenance;

    const NEEDS: Needs = Needs::Maintainer;

    fn given(granted: Granted<'_>) -> Maintenance {
        Maintenance(granted.database(Self::NEEDS))
    }
}

impl Right for Purge {
    type Database = Purging;

    const NEEDS: Needs = Needs::Server;

    fn given(granted: Granted<'_>) -> Purging {
        Purging(granted.database(Self::NEEDS))
    }
}

impl Right for Own {
    type Database = Ownership;

    const NEEDS: Needs = Needs::Server;

    fn given(granted: Granted<'_>) -> Ownership {
        Ownership(granted.database(Self::NEEDS))
    }
}

/// Why somebody may not write design documents.
fn no_designs(principal: &Principal) -> Refusal {
    refusal(security::not_its_admin(principal))
}

/// As the layer has it.
pub(crate) fn refusal(Refused { kind, reason }: Refused) -> Refusal {
    match kind {
        Kind::NotFound => Refusal::DocumentNotFound(NotFound::Missing),
        Kind::Unauthorized => Refusal::Unauthorized(reason.into_owned()),
        _ => Refusal::Forbidden(reason.into_owned()),
    }
}

mod sealed {
    /// Nobody else makes rights.
    pub trait Sealed {}

    impl Sealed for super::Read {}
    impl Sealed for super::Write {}
    impl Sealed for super::Administer {}
    impl Sealed for super::Maintain {}
    impl Sealed for super::Purge {}
    impl Sealed for super::Own {}
}

#[cfg(test)]
mod tests;
