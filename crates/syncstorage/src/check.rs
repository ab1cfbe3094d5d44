//! The invariants of the raw keys: every count and every derived key is recomputed.
//!
//! The check reads page by page, in bounded memory, and may run beside writers. A wrong collection is checked again,
//! and passed over if it changes each time.

mod batches;
mod collection;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::fold::due_at;
use crate::keys::{ACCOUNTS, Due, DueEntry, KeyRange, UserKeys, shard_of};
use crate::names::{BatchId, CollectionName, Uid};
use crate::store::{Inner, Store};
use crate::timestamp::Timestamp;
use crate::transaction::{Page, pause};
use crate::values::{Batch, Collection, Head};
use crate::write::{all_states, batches, head};

const PAGE_ROWS: usize = 500;

/// The number of checks of a wrong user, and the pause between them.
const LOOKS: u32 = 4;
const LOOK_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 500 });

const PROBLEMS_KEPT: usize = 1_000;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Users with data.
    pub users: u64,
    /// Collections of all users.
    pub collections: u64,
    /// Records of all users, including expired ones that are not swept yet.
    pub records: u64,
    /// Open batches and uploads.
    pub batches: u64,
    /// Users that changed during each of their checks.
    pub passed_over: u64,
    /// The number of problems.
    pub problems: u64,
    /// The texts of the first problems.
    pub texts: Vec<String>,
}

impl CheckReport {
    fn note(&mut self, text: String) {
        self.problems += 1;
        if self.texts.len() < PROBLEMS_KEPT {
            self.texts.push(text);
        }
    }
}

/// The expected state of a user while its data is read.
struct UserState {
    user: UserKeys,
    head: Head,
    states: Vec<(CollectionName, Collection)>,
    batches: Vec<(BatchId, Batch)>,
}

#[derive(Default)]
struct UserCheck {
    records: u64,
    problems: Vec<String>,
}

impl UserCheck {
    fn note(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(text);
        }
    }

    /// Adds a problem if two values differ.
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: impl std::fmt::Display, stored: T, computed: T) {
        if stored != computed {
            self.note(format!("{what}: {stored:?} is stored, and it is {computed:?}"));
        }
    }
}

impl Store {
    /// Checks all users.
    ///
    /// # Errors
    /// [`Storage`](Error::Storage), [`Format`](Error::Format). Corrupt data is a problem and no error.
    pub async fn check(&self) -> Result<CheckReport> {
        let (inner, mut checked) = (&*self.inner, CheckReport::default());
        let mut from = Some(Uid(0));
        while let Some(uid) = from {
            let found = inner.one_page(&inner.keys.users_from(uid), 1).await?;
            let Some((key, _)) = found.rows.first() else { break };
            let uid = inner.keys.uid_of(key)?;
            inner.check_user(uid, &mut checked).await?;
            from = uid.0.checked_add(1).map(Uid);
        }
        inner.check_dues(&mut checked).await?;
        let behind = KeyRange { begin: inner.keys.part(ACCOUNTS + 1), ..inner.keys.all() };
        if !inner.one_page(&behind, 1).await?.rows.is_empty() {
            checked.note("there is something behind all that is known of".to_owned());
        }
        Ok(checked)
    }
}

impl Inner {
    /// Reads a page of a range, in a transaction of its own.
    async fn one_page(&self, range: &KeyRange, limit: usize) -> Result<Page> {
        self.runner.read(move |trx| async move { trx.page(range, limit, false).await }).await
    }

    /// Passes all keys of a range to `take`, page by page.
    async fn walk(&self, mut range: KeyRange, mut take: impl FnMut(&[u8], &Bytes) -> Result<()>) -> Result<()> {
        loop {
            let Page { rows, rest } = self.one_page(&range, PAGE_ROWS).await?;
            rows.iter().try_for_each(|(key, value)| take(key, value))?;
            match rest {
                Some(rest) => range = rest,
                None => return Ok(()),
            }
        }
    }

    async fn values(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>> {
        self.runner.read(move |trx| async move { trx.get_all(keys.iter().cloned()).await }).await
    }

    async fn known(&self, uid: Uid) -> Result<UserState> {
        let user = &self.keys.user(uid);
        self.runner
            .read(move |trx| async move {
                let head = head(&trx, user, true).await?;
                let (states, batches) = (all_states(&trx, user, true).await?, batches(&trx, user, true).await?);
                Ok(UserState { user: user.clone(), head, states, batches })
            })
            .await
    }

    async fn check_user(&self, uid: Uid, checked: &mut CheckReport) -> Result<()> {
        let mut last = UserCheck::default();
        for look in 0..LOOKS {
            if look > 0 {
                pause(LOOK_PAUSE).await;
            }
            let known = match self.known(uid).await {
                Ok(known) => known,
                Err(Error::Corrupt(what)) => {
                    last = UserCheck { records: 0, problems: vec![format!("user {uid}: {what}")] };
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut found = UserCheck::default();
            match self.check_known(&known, &mut found).await {
                Ok(()) => {}
                Err(Error::Corrupt(what)) => found.note(format!("user {uid}: {what}")),
                Err(error) => return Err(error),
            }
            let now = self.known(uid).await;
            let is_same = now
                .is_ok_and(|now| now.head == known.head && now.states == known.states && now.batches == known.batches);
            if is_same && (found.problems.is_empty() || look + 1 == LOOKS) || found.problems.is_empty() {
                checked.users += 1;
                checked.collections += known.states.len() as u64;
                checked.batches += known.batches.len() as u64;
                checked.records += found.records;
                found.problems.into_iter().for_each(|problem| checked.note(problem));
                return Ok(());
            }
            last = if is_same { found } else { UserCheck::default() };
        }
        if last.problems.is_empty() {
            checked.passed_over += 1;
        }
        last.problems.into_iter().for_each(|problem| checked.note(problem));
        Ok(())
    }

    async fn check_known(&self, known: &UserState, look: &mut UserCheck) -> Result<()> {
        let UserState { user, head, states, batches } = known;
        let uid = user.uid();
        look.same(format_args!("user {uid}: collections"), head.collections as usize, states.len());
        if head.shown > head.last {
            look.note(format!("user {uid}: the time that is shown is later than the clock"));
        }
        for (name, state) in states {
            self.check_collection(known, name, state, look).await?;
        }
        for (batch, record) in batches {
            self.check_batch(known, *batch, record, look).await?;
        }
        // Staged data of no batch.
        let staged: BTreeSet<BatchId> = batches
            .iter()
            .map(|(batch, _)| *batch)
            .chain(states.iter().flat_map(|(_, state)| state.overlays.iter().map(|overlay| overlay.batch)))
            .collect();
        let mut strays = BTreeSet::new();
        self.walk(user.staged(), |key, _| {
            let batch = user.take_staged(key)?;
            if !staged.contains(&batch) && strays.len() < PROBLEMS_KEPT {
                strays.insert(format!("user {uid}: something is staged of the batch {batch}, which is not there"));
            }
            Ok(())
        })
        .await?;
        let names: BTreeSet<&CollectionName> = states.iter().map(|(name, _)| name).collect();
        self.walk(user.data(), |key, _| {
            let name = user.take_data(key)?;
            if names.contains(&name) || strays.len() >= PROBLEMS_KEPT {
                return Ok(());
            }
            let is_ahead = user
                .collection(&name)
                .take_blob(key)
                .is_ok_and(|(blob, _)| batches.iter().any(|(batch, _)| batch.0 == blob.writer));
            if !is_ahead {
                strays.insert(format!("user {uid}: there is data of {name}, which is not there"));
            }
            Ok(())
        })
        .await?;
        strays.into_iter().for_each(|stray| look.note(stray));
        self.check_due_of(known, look).await
    }

    async fn check_due_of(&self, known: &UserState, look: &mut UserCheck) -> Result<()> {
        let UserState { user, states, batches, .. } = known;
        let mut dues = Vec::new();
        for (name, state) in states {
            if state.earliest < Timestamp::MAX {
                dues.push((state.earliest, Due::Expiry(name.clone())));
            }
            dues.extend(state.overlays.iter().map(|overlay| (due_at(overlay), Due::Fold(name.clone()))));
        }
        dues.extend(batches.iter().map(|(batch, record)| (record.deadline, Due::Batch(*batch))));
        let keys: Vec<_> = dues.iter().map(|(at, due)| user.due(*at, due)).collect();
        let mut missing = Vec::new();
        for (((at, due), key), found) in dues.iter().zip(&keys).zip(self.values(&keys).await?) {
            if found.is_none() {
                missing.push((at, due, key));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        // Entries that failed are put off to another key.
        let mut deferred = BTreeSet::new();
        self.walk(self.keys.due_of(shard_of(user.uid())), |key, _| {
            let original = self.keys.take_deferred(key).map(|deferred| deferred.original);
            deferred.extend(original.filter(|original| keys.contains(original)));
            Ok(())
        })
        .await?;
        for (at, due, _) in missing.into_iter().filter(|(.., key)| !deferred.contains(*key)) {
            look.note(format!("user {}: it is not noted that {due:?} is due at {at}", user.uid()));
        }
        Ok(())
    }

    async fn check_dues(&self, checked: &mut CheckReport) -> Result<()> {
        let mut range = self.keys.due_all();
        loop {
            let Page { rows, rest } = self.one_page(&range, PAGE_ROWS).await?;
            for (key, _) in &rows {
                match (self.keys.take_due(key), self.keys.take_deferred(key)) {
                    (Ok(entry), _) => self.check_due(key, entry, checked).await?,
                    // Its subject may be gone since: then the next attempt removes the entry.
                    (Err(_), Some(deferred)) if self.keys.take_due(&deferred.original).is_ok() => {}
                    (Err(_), _) => checked.note("a note of what is due is not of the form".to_owned()),
                }
            }
            match rest {
                Some(rest) => range = rest,
                None => return Ok(()),
            }
        }
    }

    async fn check_due(&self, key: &[u8], entry: DueEntry, checked: &mut CheckReport) -> Result<()> {
        let user = &self.keys.user(entry.uid);
        let entry = &entry;
        let is_true = self
            .runner
            .read(move |trx| async move {
                if trx.get(key, true).await?.is_none() {
                    // Done meanwhile.
                    return Ok(true);
                }
                let state = |name: &CollectionName| {
                    let found = trx.get(user.collection(name).state(), true);
                    async move { found.await?.map(|bytes| Collection::decode(&bytes)).transpose() }
                };
                Ok(match &entry.due {
                    Due::Expiry(name) => state(name).await?.is_some_and(|state| state.earliest == entry.at),
                    Due::Fold(name) => state(name)
                        .await?
                        .is_some_and(|state| state.overlays.iter().any(|overlay| due_at(overlay) == entry.at)),
                    Due::Batch(batch) => {
                        let found = trx.get(user.batch(*batch).record(), true).await?;
                        let record = found.map(|bytes| Batch::decode(&bytes)).transpose()?;
                        record.is_some_and(|record| record.deadline == entry.at)
                    }
                    Due::Purge => true,
                })
            })
            .await;
        match is_true {
            Ok(true) => {}
            Ok(false) | Err(Error::Corrupt(_)) => {
                checked
                    .note(format!("user {}: {:?} is noted as due at {}, and is not", entry.uid, entry.due, entry.at));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
