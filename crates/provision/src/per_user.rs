//! Works off the changes of `_users`: each user gets a database.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Backoff, Claim, Failure, Job, JobEnd, Lease, Next, Run, Status, try_lead};
use flatbed_layer::{
    ChangeRow, Changes, ChangesQuery, Database, Error, FeedPosition, Reader, Result, Since, USERS, WaitOutcome,
};
use flatbed_service::configuration::PerUserSettings;

use crate::user_database::UserDatabase;
use crate::{PAUSE, Provision};

/// The id of the lease, which lies in `_users`.
const LEASE: &str = "couch_peruser";

const BACKOFF: Backoff = Backoff { first: PAUSE, max: Duration::from_secs(60) };

/// Waits while `[couch_peruser]` is off, and follows `_users` while it is on, until the work is stopped.
pub(crate) async fn run(provision: &Arc<Provision>) {
    let mut settings = provision.configuration.changes();
    while !provision.status.is_stopped() {
        if !provision.configuration.now().per_user.is_enabled {
            provision.lag.end();
        }
        tokio::select! {
            // It fails only if the settings are gone, with the server.
            enabled = async { settings.wait_for(|now| now.per_user.is_enabled).await.is_ok() } => if !enabled { return },
            () = provision.status.stopped() => return,
        }
        if let Err(error) = follow(provision).await {
            if matches!(error, Error::DatabaseNotFound) {
                provision.lag.end();
            }
            tracing::debug!(%error, "_users could not be followed for the databases of users");
            tokio::select! {
                () = provision.layer.clock().sleep(PAUSE) => {}
                () = provision.status.stopped() => return,
            }
        }
    }
}

/// Follows `_users` until the settings change or the work is stopped.
async fn follow(provision: &Arc<Provision>) -> Result<()> {
    let mut changes_of_settings = provision.configuration.changes();
    let settings = provision.configuration.now().per_user.clone();
    if !settings.is_enabled {
        return Ok(());
    }
    let users = provision.layer.reader(USERS);
    // It is dropped only where no lease is held.
    let mut ended = pin!(async {
        tokio::select! {
            _ = async { changes_of_settings.wait_for(|now| now.per_user != settings).await.is_ok() } => {}
            () = provision.status.stopped() => {}
        }
    });
    tokio::select! {
        there = users.wait_until_there() => there?,
        () = &mut ended => return Ok(()),
    }
    let round = Arc::new(Round::new(provision, settings.clone()));
    let leases = Arc::new(provision.database(USERS));
    let mut changes = users.changes(ChangesQuery { since: Since::Now, ..ChangesQuery::default() });
    loop {
        let newest = newest(&mut changes).await?;
        if round.is_done(&users, &leases, newest).await? {
            tokio::select! {
                waited = changes.wait() => if waited == WaitOutcome::Shutdown {
                    provision.status.stopped().await;
                    return Ok(());
                },
                () = &mut ended => return Ok(()),
            }
        } else {
            // Another process works, or this one could not: the lease is read again.
            tokio::select! {
                () = provision.layer.clock().sleep(provision.options.lease / 4) => {}
                () = &mut ended => return Ok(()),
            }
        }
    }
}

/// Reads a feed to its end, and returns the position there.
async fn newest(changes: &mut Changes) -> Result<FeedPosition> {
    loop {
        let page = changes.next_page().await?;
        if page.at_end {
            return Ok(page.last_seq);
        }
    }
}

/// The position up to which all users have their databases, and the prefix of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Progress {
    /// `None`: no user has one.
    place: Option<FeedPosition>,
    prefix: String,
}

impl Progress {
    fn to_state(&self) -> Vec<u8> {
        match self.place {
            Some(place) => format!("{place}\n{}", self.prefix).into_bytes(),
            None => Vec::new(),
        }
    }

    /// Parses a lease's state. The state of another version counts as none, and all users are looked at again.
    fn of_state(state: &[u8]) -> Progress {
        let parts = std::str::from_utf8(state).ok().and_then(|text| text.split_once('\n'));
        let parsed = parts
            .and_then(|(place, prefix)| Some(Progress { place: Some(place.parse().ok()?), prefix: prefix.to_owned() }));
        parsed.unwrap_or_default()
    }

    /// Returns where the work for this prefix resumes.
    fn since(&self, prefix: &str) -> Since {
        match self.place {
            Some(place) if self.prefix == prefix => Since::After(place),
            _ => Since::Beginning,
        }
    }

    /// Returns whether no user before `newest` is left for this prefix.
    fn has_reached(&self, newest: FeedPosition, prefix: &str) -> bool {
        let is_there = |place: FeedPosition| place.incarnation() == newest.incarnation() && place >= newest;
        self.prefix == prefix && self.place.is_some_and(is_there)
    }
}

/// The job that brings the databases of users up to date. It is done at the end of `_users`.
struct Round {
    provision: Arc<Provision>,
    settings: PerUserSettings,
    claim: Claim,
    progress: Mutex<Progress>,
}

impl Round {
    fn new(provision: &Arc<Provision>, settings: PerUserSettings) -> Round {
        let claim = Claim::new(provision.owner, provision.options.lease, provision.layer.clock());
        Round { provision: provision.clone(), settings, claim, progress: Mutex::default() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether all users up to `newest` have their databases, after working under the lease if they do not and
    /// no other process works.
    async fn is_done(self: &Arc<Self>, users: &Reader, leases: &Arc<Database>, newest: FeedPosition) -> Result<bool> {
        let lease = lease(users).await?;
        let progress = lease.as_ref().map(|lease| Progress::of_state(&lease.state)).unwrap_or_default();
        if progress.has_reached(newest, &self.settings.database_prefix) {
            self.provision.lag.end();
            return Ok(true);
        }
        let now = self.provision.layer.clock().now();
        self.provision.lag.begin(now);
        self.claim.note(lease, now);
        if !self.claim.may_be_taken(now) {
            return Ok(false);
        }
        let end = Box::pin(try_lead(self, &self.claim, leases, &BACKOFF)).await;
        let is_done = matches!(end, Some(JobEnd::Done));
        if is_done {
            self.provision.lag.end();
        }
        Ok(is_done)
    }

    fn is_over(&self, run: &Run) -> bool {
        run.is_stopped() || self.provision.configuration.now().per_user != self.settings
    }

    /// Does what a user's change requires. A user who can have no database is logged, so that the others do not wait.
    async fn work_off(&self, row: &ChangeRow) -> Result<()> {
        let Some(user) = flatbed_auth::users::name_in(&row.id).filter(|user| !user.is_empty()) else { return Ok(()) };
        let database = UserDatabase::of(&self.provision, &self.settings, user);
        let done = if row.deleted { database.withdraw().await } else { database.provide().await };
        match done {
            Err(Error::Refused(refusal)) => {
                self.provision.metrics.user_database_failures.add(1);
                tracing::warn!(user, %refusal, "a user can have no database");
                Ok(())
            }
            // A client has deleted it meanwhile.
            Err(Error::DatabaseNotFound) => Ok(()),
            done => done,
        }
    }

    fn note(&self, place: FeedPosition) {
        *self.progress() = Progress { place: Some(place), prefix: self.settings.database_prefix.clone() };
    }
}

/// Returns the lease of this work, if it was ever taken.
async fn lease(users: &Reader) -> Result<Option<Lease>> {
    let mut after: Option<String> = None;
    loop {
        let page = users.leases(after.as_deref()).await?;
        let Some((last, _)) = page.last() else { return Ok(None) };
        after = Some(last.clone());
        if let Some((_, found)) = page.into_iter().find(|(id, _)| id == LEASE) {
            return Ok(Some(found));
        }
    }
}

#[async_trait]
impl Job for Round {
    fn kind(&self) -> &'static str {
        "databases of users"
    }

    fn id(&self) -> &str {
        LEASE
    }

    fn status(&self) -> &Status {
        &self.provision.status
    }

    async fn run(&self, run: Run) -> std::result::Result<Next, Failure> {
        self.provision.status.begin();
        let failed = |error: Error| {
            self.provision.metrics.user_database_failures.add(1);
            Failure::Failed(error.to_string())
        };
        // An account's deletion may follow a change of the settings that this process has not seen.
        self.provision.configuration.reload().await.map_err(failed)?;
        let since = self.progress().since(&self.settings.database_prefix);
        let query = ChangesQuery { since, ..ChangesQuery::default() };
        let mut changes = self.provision.layer.reader(USERS).changes(query);
        loop {
            let page = changes.next_page().await.map_err(failed)?;
            for row in &page.rows {
                if self.is_over(&run) {
                    return Ok(Next::Done);
                }
                self.work_off(row).await.map_err(failed)?;
                self.note(row.seq.into());
            }
            self.note(page.last_seq);
            if page.at_end {
                self.provision.status.succeed();
                return Ok(Next::Done);
            }
        }
    }

    fn state(&self) -> Vec<u8> {
        self.progress().to_state()
    }

    fn restore(&self, state: &[u8]) {
        *self.progress() = Progress::of_state(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u64, incarnation: u64) -> FeedPosition {
        format!("{number:016}-{incarnation:016x}00000000").parse().unwrap()
    }

    #[test]
    fn progress_resumes_for_its_own_prefix_alone() {
        let progress = Progress { place: Some(place(7, 1)), prefix: "userdb-".to_owned() };
        assert_eq!(Progress::of_state(&progress.to_state()), progress);
        assert_eq!(progress.since("userdb-"), Since::After(place(7, 1)));
        assert_eq!(progress.since("other-"), Since::Beginning);
        assert!(progress.has_reached(place(7, 1), "userdb-") && progress.has_reached(place(6, 1), "userdb-"));
        assert!(!progress.has_reached(place(8, 1), "userdb-"));
        assert!(!progress.has_reached(place(7, 1), "other-"));
        // Another database of this name.
        assert!(!progress.has_reached(place(3, 2), "userdb-"));
    }

    #[test]
    fn no_state_and_foreign_states_begin_anew() {
        for state in [&b""[..], b"x", b"x\nuserdb-", b"\xff\n"] {
            assert_eq!(Progress::of_state(state), Progress::default());
        }
        assert!(Progress::default().to_state().is_empty());
        assert_eq!(Progress::default().since(""), Since::Beginning);
    }
}
