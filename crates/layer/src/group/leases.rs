//! The leases of a first build: which process maps which ids, so that several share it.
//!
//! Ids are leased from the first to the last, some thousand documents at a time. A lease is a key with its holder's token,
//! which each transaction that writes rows of its ids reads with conflict: who takes a lease over writes another token,
//! and what the former holder had under way fails. No clock decides that. Clocks only say when it is tried: a holder says
//! each second that it works, and of one that does not, as seen by another process's own clock, the lease is taken over.
//!
//! A lease that has ended is gone. So what is built are the ids up to where they are leased, without those of the leases that
//! are there; how many there are is bounded by how many processes build.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use foundationdb::KeySelector;
use prost::Message;
use tokio::time::Instant;

use crate::at_once::Paced;
use crate::error::{Error, Result};
use crate::group::steps::{WithinGroup, Work, begin_standing, row_bytes};
use crate::store::keys::{KeyRange, ViewPart};
use crate::store::proto::{ViewLease, ViewLeasePlace, ViewLeased};
use crate::view::apply::write_rows;
use crate::view::build::{NODES, ROWS};
use crate::view::prepare::PreparedDocument;

/// Documents of a lease.
const LEASE_DOCUMENTS: i32 = if cfg!(test) { 30 } else { 4_000 };

/// A lease whose holder has not been heard of for so long is taken over.
const SILENCE_MAX: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(5) };

/// Leases at once, of all processes.
const LEASES_MAX: usize = 500;

/// A holder's mark.
pub(super) type Token = [u8; 16];

/// A lease of this process.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub token: Token,
    /// Its ids are behind this one,
    pub from: String,
    /// up to this one, or to the end.
    pub until: Option<String>,
    /// What former holders have built: up to this id, so many documents.
    pub built_until: String,
    pub documents: u64,
}

/// What others lease, as this process sees it.
#[derive(Debug, Default)]
pub(super) struct Others {
    seen: Mutex<HashMap<String, (ViewLease, ViewLeasePlace, Instant)>>,
    /// The tokens of this process's own.
    own: Mutex<HashSet<Token>>,
}

impl Others {
    /// Whether a lease can be taken: nobody has it, or its holder has been silent for too long.
    fn is_free(&self, clock: &Clock, lease: &ViewLease, from: &str, owner: &[u8]) -> bool {
        if lease.owner.is_empty() {
            return true;
        }
        if lease.owner == owner {
            // Left by a build of this process that has ended, if it is not of this one.
            let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            return Token::try_from(lease.token.as_slice()).map_or(true, |token| !own.contains(&token));
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(from).is_some_and(|(before, _, since)| before == lease && clock.since(*since) >= SILENCE_MAX)
    }

    /// They are these.
    fn see(&self, clock: &Clock, leases: &[(String, ViewLease, ViewLeasePlace)]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = HashMap::new();
        for (from, lease, place) in leases {
            let since = match seen.remove(from) {
                Some((before, before_place, since)) if (&before, &before_place) == (lease, place) => since,
                _ => clock.now(),
            };
            now.insert(from.clone(), (lease.clone(), place.clone(), since));
        }
        *seen = now;
    }

    /// A lease has become this process's.
    pub(super) fn is_own(&self, token: Token) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(token);
    }
}

/// Takes a lease: one that its holder has left, or the next one.
pub(super) struct TakeLease<'a> {
    pub others: &'a Others,
    /// What it is to have: the same in all attempts.
    pub token: Token,
}

/// What came of it.
pub(super) enum Taken {
    Lease(Lease),
    /// Everything is leased, and others work at it.
    Nothing,
    /// Rows are all built.
    Over,
}

impl Work for TakeLease<'_> {
    type Output = Taken;

    async fn attempt(&mut self, within: &WithinGroup<'_>) -> Result<Option<Taken>> {
        let WithinGroup { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let standing = begin_standing(trx, instance, job.number(), false);
        let all = keys.leases();
        let leases = trx.range(&all, true).first(LEASES_MAX * 2 + 1);
        let (progress, ..) = standing.await?;
        if progress.is_none_or(|progress| progress.phase != ROWS) {
            return Ok(Some(Taken::Over));
        }
        let mut listed: Vec<(String, ViewLease, ViewLeasePlace)> = Vec::new();
        for row in leases.await?.iter() {
            match keys.split(row.key())? {
                ViewPart::Lease(from) => {
                    listed.push((from, ViewLease::decode(row.value())?, ViewLeasePlace::default()));
                }
                ViewPart::LeasePlace(of) => {
                    if let Some((from, _, place)) = listed.last_mut()
                        && *from == of
                    {
                        *place = ViewLeasePlace::decode(row.value())?;
                    }
                }
                _ => {}
            }
        }
        let clock = within.job.clock();
        self.others.see(clock, &listed);
        let taken = |lease: &ViewLease, from: String, place: ViewLeasePlace| Lease {
            token: self.token,
            built_until: place.built_until.max(from.clone()),
            from,
            until: Some(lease.until.clone()).filter(|_| !lease.is_end),
            documents: place.documents,
        };
        // An attempt before this one may have been committed.
        if let Some((from, lease, place)) = listed.iter().find(|(_, lease, _)| lease.token == self.token) {
            return Ok(Some(Taken::Lease(taken(lease, from.clone(), place.clone()))));
        }
        let count = listed.len();
        for (from, lease, place) in listed {
            if self.others.is_free(clock, &lease, &from, &within.owner()) {
                let key = keys.lease(&from);
                // Of two that take it one tries again.
                if trx.get(&key, false).await?.is_none_or(|found| *found != *lease.encode_to_vec()) {
                    continue;
                }
                let (owner, token) = (within.owner().to_vec(), self.token.to_vec());
                trx.set(&key, &ViewLease { owner, token, ..lease.clone() }.encode_to_vec());
                return Ok(Some(Taken::Lease(taken(&lease, from, place))));
            }
        }
        let leased = trx.get(&keys.leased(), false).await?;
        let ViewLeased { until: from, is_end } =
            leased.as_deref().map(ViewLeased::decode).transpose()?.unwrap_or_default();
        if is_end || count >= LEASES_MAX {
            return Ok(Some(Taken::Nothing));
        }
        let documents = instance.keys.all_docs();
        let begin = instance.keys.all_docs_entry(&from);
        let last = trx.get_key(&KeySelector::new(Cow::Borrowed(&begin), true, LEASE_DOCUMENTS), true).await?;
        let until = if *last < *documents.end { Some(instance.keys.all_docs_id(&last)?) } else { None };
        let (until, is_end) = (until.clone().unwrap_or_default(), until.is_none());
        let (owner, token) = (within.owner().to_vec(), self.token.to_vec());
        let lease = ViewLease { until: until.clone(), is_end, owner, token };
        trx.set(&keys.lease(&from), &lease.encode_to_vec());
        trx.set(&keys.leased(), &ViewLeased { until, is_end }.encode_to_vec());
        Ok(Some(Taken::Lease(taken(&lease, from, ViewLeasePlace::default()))))
    }
}

impl WithinGroup<'_> {
    /// Whether a lease is still this holder's; read with conflict.
    pub(super) async fn holds(&self, from: &str, token: &Token) -> Result<bool> {
        let lease = self.trx.get(&self.instance.keys.view(self.job.number()).lease(from), false).await?;
        let lease = lease.as_deref().map(ViewLease::decode).transpose()?;
        Ok(lease.is_some_and(|lease| lease.token == token))
    }
}

/// Writes rows of a lease's documents, those of the first ones.
pub(super) struct WriteRows<'a, 'p> {
    /// Where the lease begins, and its token.
    pub lease: (&'a str, Token),
    pub documents: &'a [PreparedDocument],
    pub pace: &'a mut Paced<'p>,
}

/// What was written.
#[derive(Debug)]
pub(super) enum Wrote {
    /// Of so many documents.
    Documents(usize),
    /// A row has no room: the group must be begun anew.
    Full,
    /// The lease is another one's.
    Lost,
}

impl Work for WriteRows<'_, '_> {
    type Output = Wrote;

    async fn attempt(&mut self, within: &WithinGroup<'_>) -> Result<Option<Wrote>> {
        let (from, token) = &self.lease;
        if !within.holds(from, token).await? {
            return Ok(Some(Wrote::Lost));
        }
        let job = within.job;
        let applied =
            write_rows(&within.at(), &job.storage, Some(&job.written), self.pace.attempt(self.documents)).await?;
        Ok(Some(if applied.is_full { Wrote::Full } else { Wrote::Documents(applied.documents) }))
    }

    fn bytes(&self) -> usize {
        row_bytes(self.documents)
    }

    fn record_wait(&mut self, time: Duration) {
        self.pace.record_wait(time);
    }
}

/// A lease, and how far it is built.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub from: String,
    pub token: Token,
    pub built_until: String,
    pub documents: u64,
}

/// Says that a process works at its leases, and how far they are; `leaves`: that it works at them no longer.
pub(super) struct Beat<'a> {
    pub held: &'a [Held],
    pub beats: u64,
    pub leaves: bool,
}

impl Work for Beat<'_> {
    /// Where those begin that are another one's by now, and the documents of all leases that have ended.
    type Output = (Vec<String>, u64);

    async fn attempt(&mut self, within: &WithinGroup<'_>) -> Result<Option<Self::Output>> {
        let WithinGroup { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let standing = begin_standing(trx, instance, job.number(), false);
        let mut lost = Vec::new();
        for Held { from, token, built_until, documents } in self.held {
            if !within.holds(from, token).await? {
                lost.push(from.clone());
                continue;
            }
            let place = ViewLeasePlace { built_until: built_until.clone(), documents: *documents, beats: self.beats };
            trx.set(&keys.lease_place(from), &place.encode_to_vec());
            if self.leaves {
                let lease = trx.get(&keys.lease(from), false).await?;
                let lease = lease.as_deref().map(ViewLease::decode).transpose()?.unwrap_or_default();
                let nobody = ViewLease { owner: Vec::new(), token: Vec::new(), ..lease };
                trx.set(&keys.lease(from), &nobody.encode_to_vec());
            }
        }
        let (progress, ..) = standing.await?;
        Ok(Some((lost, progress.map_or(0, |progress| progress.documents))))
    }
}

/// All documents of a lease are built. With the last one the nodes are next, and this process makes them.
pub(super) struct EndLease<'a> {
    pub held: &'a Held,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Ended {
    /// There is more to build.
    Lease,
    /// Rows are all built.
    Rows,
    /// The lease is another one's.
    Lost,
}

impl Work for EndLease<'_> {
    type Output = Ended;

    async fn attempt(&mut self, within: &WithinGroup<'_>) -> Result<Option<Ended>> {
        let WithinGroup { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let Held { from, token, documents, .. } = self.held;
        let standing = begin_standing(trx, instance, job.number(), true);
        let (leased, holds) = (trx.get(&keys.leased(), false), within.holds(from, token));
        let (progress, ..) = standing.await?;
        let Some(mut progress) = progress.filter(|progress| progress.phase == ROWS) else {
            return Ok(Some(Ended::Rows));
        };
        if !holds.await? {
            return Ok(Some(Ended::Lost));
        }
        trx.clear(&keys.lease(from));
        trx.clear(&keys.lease_place(from));
        progress.documents += documents;
        let leased = leased.await?.as_deref().map(ViewLeased::decode).transpose()?.unwrap_or_default();
        let all = keys.leases();
        // Behind the key up to which ids are leased, and beside the lease that this transaction has cleared. Beats of others
        // make it try again, at worst.
        let others = KeyRange { begin: [&keys.leased()[..], &[0]].concat(), end: all.end.clone() };
        let is_over = leased.is_end && !trx.range(&others, false).any().await?;
        if is_over {
            trx.clear_range(&all.begin, &all.end);
            progress.phase = NODES;
            progress.holder = within.owner().to_vec();
        }
        within.write(&progress);
        Ok(Some(if is_over { Ended::Rows } else { Ended::Lease }))
    }
}

/// A new holder's mark.
///
/// # Errors
/// [`Error::NoRandomness`].
pub(super) fn new_token() -> Result<Token> {
    let mut token = Token::default();
    getrandom::fill(&mut token).map_err(|_| Error::NoRandomness)?;
    Ok(token)
}
