//! The leases of a first build, with which several processes share it.
//!
//! Ids are leased in ascending order, some thousand documents at a time. A lease is a key with its holder's token,
//! which each transaction that writes rows of its ids reads with a conflict. A process that takes a lease over writes
//! another token, which aborts the former holder's transactions. Safety does not depend on clocks. They only decide
//! when a takeover is tried: a holder renews each second, and a lease without renewal, by the other process's own
//! clock, is taken over.
//!
//! A completed lease is removed. All ids up to the last leased one are therefore built, except those of existing
//! leases, whose number is bounded by the number of building processes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::limits::Limit;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{KeyRange, ViewPart};
use flatbed_store::proto::{ViewLease, ViewLeasePlace, ViewLeased};
use foundationdb::KeySelector;
use prost::Message;
use tokio::time::Instant;

use crate::at_once::BatchPacer;
use crate::group::steps::{GroupContext, Work, begin_standing, row_bytes};
use crate::view::apply::write_rows;
use crate::view::build::{NODES, ROWS};
use crate::view::prepare::PreparedDocument;
use crate::view::sections::SectionRule;

const LEASE_DOCUMENTS: Limit<i32> = Limit::new(4_000, 30);

/// The time without renewal after which a lease is taken over.
pub(super) const SILENCE_MAX: Limit<Duration> = Limit::new(Duration::from_secs(5), Duration::from_secs(3));

const LEASES_MAX: usize = 500;

pub(super) type LeaseToken = [u8; 16];

#[derive(Debug, Clone)]
pub struct Lease {
    pub token: LeaseToken,
    /// Its ids are behind this one.
    pub from: String,
    /// Its last id; `None`: the last of the database.
    pub until: Option<String>,
    /// The last id that former holders have built, and their number of documents.
    pub built_until: String,
    pub documents: u64,
    /// The rule of the build in which the lease was taken. A new build ends its leases.
    pub sections: Arc<SectionRule>,
}

/// The leases of other processes, as this process sees them.
#[derive(Debug, Default)]
pub struct OtherLeases {
    seen: Mutex<HashMap<String, (ViewLease, ViewLeasePlace, Instant)>>,
    own: Mutex<HashSet<LeaseToken>>,
}

impl OtherLeases {
    /// Returns whether a lease can be taken: it has no holder, or its holder has been silent for too long.
    fn is_free(&self, clock: &Clock, lease: &ViewLease, from: &str, owner: &[u8]) -> bool {
        if lease.owner.is_empty() {
            return true;
        }
        if lease.owner == owner {
            // A lease with this process's mark but an unknown token belongs to an ended build of this process.
            let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            return LeaseToken::try_from(lease.token.as_slice()).map_or(true, |token| !own.contains(&token));
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(from).is_some_and(|(before, _, since)| before == lease && clock.since(*since) >= SILENCE_MAX.get())
    }

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

    pub fn is_own(&self, token: LeaseToken) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(token);
    }
}

/// Takes a lease: one that its holder has left, or the next ids.
pub struct TakeLease<'a> {
    pub others: &'a OtherLeases,
    /// The token of the lease, the same in all attempts.
    pub token: LeaseToken,
}

pub enum TakeLeaseOutcome {
    Lease(Lease),
    /// Everything is leased to other processes.
    Nothing,
    Over,
}

impl Work for TakeLease<'_> {
    type Output = TakeLeaseOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<TakeLeaseOutcome>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let standing = begin_standing(trx, instance, job.number(), false);
        let all = keys.leases();
        let leases = trx.range(&all, true).first(LEASES_MAX * 2 + 1);
        let (progress, ..) = standing.await?;
        let Some(progress) = progress.filter(|progress| progress.phase == ROWS) else {
            return Ok(Some(TakeLeaseOutcome::Over));
        };
        let sections = Arc::new(SectionRule::of(&progress)?);
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
            sections: Arc::clone(&sections),
        };
        // The previous attempt may have committed (`commit_unknown_result`).
        if let Some((from, lease, place)) = listed.iter().find(|(_, lease, _)| lease.token == self.token) {
            return Ok(Some(TakeLeaseOutcome::Lease(taken(lease, from.clone(), place.clone()))));
        }
        let count = listed.len();
        for (from, lease, place) in listed {
            if self.others.is_free(clock, &lease, &from, &within.owner()) {
                let key = keys.lease(&from);
                // If two processes take it, one of them retries.
                if trx.get(&key, false).await?.is_none_or(|found| *found != *lease.encode_to_vec()) {
                    continue;
                }
                let (owner, token) = (within.owner().to_vec(), self.token.to_vec());
                trx.set(&key, &ViewLease { owner, token, ..lease.clone() }.encode_to_vec());
                return Ok(Some(TakeLeaseOutcome::Lease(taken(&lease, from, place))));
            }
        }
        let leased = trx.get(&keys.leased(), false).await?;
        let ViewLeased { until: from, is_end } =
            leased.as_deref().map(ViewLeased::decode).transpose()?.unwrap_or_default();
        if is_end || count >= LEASES_MAX {
            return Ok(Some(TakeLeaseOutcome::Nothing));
        }
        let documents = instance.keys.all_docs();
        let begin = instance.keys.all_docs_entry(&from);
        let last = trx.get_key(&KeySelector::new(Cow::Borrowed(&begin), true, LEASE_DOCUMENTS.get()), true).await?;
        let until = if *last < *documents.end { Some(instance.keys.all_docs_id(&last)?) } else { None };
        let (until, is_end) = (until.clone().unwrap_or_default(), until.is_none());
        let (owner, token) = (within.owner().to_vec(), self.token.to_vec());
        let lease = ViewLease { until: until.clone(), is_end, owner, token };
        trx.set(&keys.lease(&from), &lease.encode_to_vec());
        trx.set(&keys.leased(), &ViewLeased { until, is_end }.encode_to_vec());
        Ok(Some(TakeLeaseOutcome::Lease(taken(&lease, from, ViewLeasePlace::default()))))
    }
}

impl GroupContext<'_> {
    /// Returns whether the holder still has the lease; read with a conflict.
    pub(super) async fn holds(&self, from: &str, token: &LeaseToken) -> Result<bool> {
        let lease = self.trx.get(&self.instance.keys.view(self.job.number()).lease(from), false).await?;
        let lease = lease.as_deref().map(ViewLease::decode).transpose()?;
        Ok(lease.is_some_and(|lease| lease.token == token))
    }
}

pub struct WriteRows<'a, 'p> {
    pub lease: (&'a str, LeaseToken),
    pub sections: &'a SectionRule,
    pub documents: &'a [PreparedDocument],
    pub pace: &'a mut BatchPacer<'p>,
}

#[derive(Debug)]
pub enum WriteOutcome {
    Documents(usize),
    /// A row's label does not fit: the group must be rebuilt.
    Full,
    Lost,
}

impl Work for WriteRows<'_, '_> {
    type Output = WriteOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<WriteOutcome>> {
        let (from, token) = &self.lease;
        if !within.holds(from, token).await? {
            return Ok(Some(WriteOutcome::Lost));
        }
        let (job, documents) = (within.job, self.pace.attempt(self.documents));
        let applied = write_rows(&within.at(), &job.storage, Some(&job.written), self.sections, documents).await?;
        Ok(Some(if applied.is_full { WriteOutcome::Full } else { WriteOutcome::Documents(applied.documents) }))
    }

    fn bytes(&self) -> usize {
        row_bytes(self.documents)
    }

    fn record_wait(&mut self, time: Duration) {
        self.pace.record_wait(time);
    }
}

#[derive(Debug, Clone)]
pub struct LeaseProgress {
    pub from: String,
    pub token: LeaseToken,
    pub built_until: String,
    pub documents: u64,
}

/// Renews a process's leases and records their progress. `leaves`: returns them instead.
pub struct Beat<'a> {
    pub held: &'a [LeaseProgress],
    pub beats: u64,
    pub leaves: bool,
}

impl Work for Beat<'_> {
    /// The beginnings of lost leases, and the documents of all leases that have ended.
    type Output = (Vec<String>, u64);

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<Self::Output>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let standing = begin_standing(trx, instance, job.number(), false);
        let mut lost = Vec::new();
        for LeaseProgress { from, token, built_until, documents } in self.held {
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

/// Ends a completely built lease. After the last one this process builds the nodes.
pub struct EndLease<'a> {
    pub held: &'a LeaseProgress,
}

#[derive(Debug)]
pub enum EndLeaseOutcome {
    Lease,
    Rows,
    Lost,
}

impl Work for EndLease<'_> {
    type Output = EndLeaseOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<EndLeaseOutcome>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let LeaseProgress { from, token, documents, .. } = self.held;
        let standing = begin_standing(trx, instance, job.number(), true);
        let (leased, holds) = (trx.get(&keys.leased(), false), within.holds(from, token));
        let (progress, ..) = standing.await?;
        let Some(mut progress) = progress.filter(|progress| progress.phase == ROWS) else {
            return Ok(Some(EndLeaseOutcome::Rows));
        };
        if !holds.await? {
            return Ok(Some(EndLeaseOutcome::Lost));
        }
        trx.clear(&keys.lease(from));
        trx.clear(&keys.lease_place(from));
        progress.documents += documents;
        let leased = leased.await?.as_deref().map(ViewLeased::decode).transpose()?.unwrap_or_default();
        let all = keys.leases();
        // Behind the key of the last leased id, and beside the lease that this transaction has cleared. Renewals by
        // others abort it at worst.
        let others = KeyRange { begin: [&keys.leased()[..], &[0]].concat(), end: all.end.clone() };
        let is_over = leased.is_end && !trx.range(&others, false).any().await?;
        if is_over {
            trx.clear_range(&all.begin, &all.end);
            progress.phase = NODES;
            progress.holder = within.owner().to_vec();
        }
        within.write(&progress);
        Ok(Some(if is_over { EndLeaseOutcome::Rows } else { EndLeaseOutcome::Lease }))
    }
}

/// Returns the mark of a new holder.
///
/// # Errors
/// [`Error::NoRandomness`].
pub fn new_token() -> Result<LeaseToken> {
    let mut token = LeaseToken::default();
    getrandom::fill(&mut token).map_err(|_| Error::NoRandomness)?;
    Ok(token)
}
