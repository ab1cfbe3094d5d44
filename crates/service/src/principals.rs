//! Users of databases with channels, as of less than a second ago: their sign-in, and whether they still exist. Reads
//! determine their access themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatbed_layer::channels::{PrincipalSession, SignInUser, is_principal};
use flatbed_layer::{Error, Layer, Result};
use tokio::time::Instant;

use crate::accounts::{Accounts, Freshness};
use crate::standing::RightsBasis;

const WITHIN: Duration = Duration::from_millis(950);

/// The most names that are cached, missing ones included.
const NAMES_MAX: usize = 10_000;

type UserKey = (Box<str>, Box<str>);

type CachedUser = (Instant, Option<Arc<SignInUser>>);

pub(crate) struct Principals {
    layer: Layer,
    found: Mutex<HashMap<UserKey, CachedUser>>,
}

impl Principals {
    pub(crate) fn new(layer: Layer) -> Principals {
        Principals { layer, found: Mutex::default() }
    }

    pub(crate) fn forget(&self, database: &str, name: &str) {
        let of = (Box::from(database), Box::from(name));
        self.found.lock().unwrap_or_else(PoisonError::into_inner).remove(&of);
    }

    async fn find(&self, database: &str, name: &str, fresh: Freshness) -> Result<Option<Arc<SignInUser>>> {
        if !is_principal(name) {
            return Ok(None);
        }
        let of = (Box::from(database), Box::from(name));
        let clock = self.layer.clock();
        let is_fresh = |asked: Instant| match fresh {
            Freshness::Second => clock.since(asked) < WITHIN,
            Freshness::Since(moment) => asked >= moment,
        };
        if let Some((asked, user)) = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&of)
            && is_fresh(*asked)
        {
            return Ok(user.clone());
        }
        let asked = clock.now();
        let user = self.layer.reader(database).user_at(name).await?.map(Arc::new);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() >= NAMES_MAX {
            found.retain(|_, (asked, _)| clock.since(*asked) < WITHIN);
        }
        if found.len() < NAMES_MAX {
            found.insert(of, (asked, user.clone()));
        }
        Ok(user)
    }
}

impl Accounts {
    /// Returns a user of a database. `None`: the user is missing, or the database has no channels.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](flatbed_layer::Error::DatabaseNotFound), and those of the storage.
    pub(crate) async fn user_of(
        &self,
        database: &str,
        name: &str,
        fresh: Freshness,
    ) -> Result<Option<Arc<SignInUser>>> {
        self.principals.find(database, name, fresh).await
    }

    /// Returns whether a user of a database is unchanged since sign-in, and whether its session is still valid.
    pub(crate) async fn user_now(&self, rests_on: &RightsBasis, fresh: Freshness) -> Result<Option<CurrentUser>> {
        let RightsBasis::Principal { database, incarnation, name, generation, session } = rests_on else {
            return Ok(None);
        };
        let found = match self.user_of(database, name, fresh).await {
            Err(Error::DatabaseNotFound) => None,
            found => found?,
        };
        let is_same = |user: &SignInUser| {
            (user.incarnation, user.principal.generation) == (*incarnation, *generation) && !user.principal.is_disabled
        };
        if !found.is_some_and(|user| is_same(&user)) {
            return Ok(None);
        }
        let Some(hash) = session else { return Ok(Some(CurrentUser { session_ends_at_ms: None })) };
        let found = match self.principals.layer.reader(database).principal_session(hash).await {
            Err(Error::DatabaseNotFound) => None,
            found => found?,
        };
        let is_theirs = |of: &PrincipalSession| of.name == **name && of.generation == *generation;
        let now_ms = self.principals.layer.clock().unix_ms();
        let counts = found.filter(|of| is_theirs(of) && now_ms < of.ends_at_ms);
        Ok(counts.map(|session| CurrentUser { session_ends_at_ms: Some(session.ends_at_ms) }))
    }
}

/// A user of a database that is unchanged since sign-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CurrentUser {
    /// The end of the session, in milliseconds of Unix time, unless it is prolonged. `None`: there is no session.
    pub session_ends_at_ms: Option<u64>,
}
