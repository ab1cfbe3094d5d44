//! Rights, and who has them.

use flatbed_auth::Principal;
use flatbed_layer::{Layer, Reader, User};

use crate::database::{Administration, Ownership, Writer};
use crate::standing::Standing;

/// Somebody has not the right that they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// One of the server's administrators.
    Server,
    /// One in a database.
    Database,
}

/// Who asks, with what they may do.
#[derive(Debug)]
pub struct Rights {
    pub(crate) standing: Standing,
}

impl Rights {
    pub(crate) fn principal(&self) -> &Principal {
        self.standing.principal()
    }

    /// The server's administrators alone see and change what is the server's.
    pub(crate) fn server(&self) -> Result<(), Denied> {
        if self.principal().is_admin { Ok(()) } else { Err(Denied::Server) }
    }

    /// As long as there are no users beside the administrators, these alone have rights in databases. Users, roles and a
    /// database's `_security` are looked at here.
    pub(crate) fn database(&self) -> Result<(), Denied> {
        if self.principal().is_admin { Ok(()) } else { Err(Denied::Database) }
    }

    pub(crate) fn user(&self) -> User {
        let roles = if self.principal().is_admin { vec!["_admin".to_owned()] } else { Vec::new() };
        User { name: self.principal().name.clone(), roles }
    }
}

/// A right in a database, with what it is asked for: see [`Context::database`](crate::Context::database).
pub trait Right: sealed::Sealed {
    /// A database that can do what the right allows, and no more.
    type Database;

    /// The database, for who has the right.
    #[doc(hidden)]
    fn given(self, rights: &Rights, layer: &Layer, name: &str) -> Result<Self::Database, Denied>;
}

/// To read what is in it, and its figures.
#[derive(Debug, Clone, Copy)]
pub struct Read;

/// To write documents, local ones and attachments.
#[derive(Debug, Clone, Copy)]
pub struct Write;

/// To set it up, and to keep it in order.
#[derive(Debug, Clone, Copy)]
pub struct Administer;

/// To create and to delete it.
#[derive(Debug, Clone, Copy)]
pub struct Own;

impl Right for Read {
    type Database = Reader;

    fn given(self, rights: &Rights, layer: &Layer, name: &str) -> Result<Reader, Denied> {
        rights.database()?;
        Ok(layer.reader(name))
    }
}

impl Right for Write {
    type Database = Writer;

    fn given(self, rights: &Rights, layer: &Layer, name: &str) -> Result<Writer, Denied> {
        rights.database()?;
        Ok(Writer(layer.database(name, rights.user())))
    }
}

impl Right for Administer {
    type Database = Administration;

    fn given(self, rights: &Rights, layer: &Layer, name: &str) -> Result<Administration, Denied> {
        rights.database()?;
        Ok(Administration(layer.database(name, rights.user())))
    }
}

impl Right for Own {
    type Database = Ownership;

    fn given(self, rights: &Rights, layer: &Layer, name: &str) -> Result<Ownership, Denied> {
        rights.server()?;
        Ok(Ownership(layer.database(name, rights.user())))
    }
}

mod sealed {
    /// Nobody else makes rights.
    pub trait Sealed {}

    impl Sealed for super::Read {}
    impl Sealed for super::Write {}
    impl Sealed for super::Administer {}
    impl Sealed for super::Own {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::RestsOn;

    fn rights(name: Option<&str>, is_admin: bool) -> Rights {
        let principal = Principal { name: name.map(str::to_owned), is_admin, ..Principal::anonymous() };
        Rights { standing: Standing::new(principal, RestsOn::Nothing) }
    }

    #[test]
    fn administrators_alone_have_rights() {
        let (admin, anna, nobody) = (rights(Some("admin"), true), rights(Some("anna"), false), rights(None, false));
        assert_eq!((admin.server(), admin.database()), (Ok(()), Ok(())));
        for other in [anna, nobody] {
            assert_eq!((other.server(), other.database()), (Err(Denied::Server), Err(Denied::Database)));
            assert!(other.user().roles.is_empty());
        }
        assert_eq!(admin.user(), User { name: Some("admin".to_owned()), roles: vec!["_admin".to_owned()] });
    }
}
