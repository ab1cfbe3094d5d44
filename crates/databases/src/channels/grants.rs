//! Grants to principals and their revocation, in the transaction that changes them.
//!
//! A principal may hold a channel or role in several ways: by an administrator, and by documents. Each way is a row.
//! The periods in which it is held are a record of its own, which changes when the first way comes or the last one
//! goes. A grant reads that record, and a revocation reads the first remaining row, both with a conflict. So neither a
//! last way that goes nor a concurrent first one that comes is lost, and a further grant of the same thing conflicts
//! with nothing. Both are settled once, after all documents of the transaction: versionstamped values cannot be read
//! back, and all reads are awaited together.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{Grant, GrantedItem, Grantee, Periods, PrincipalKind, Stamp};
use flatbed_store::access::{self, AccessNote};
use flatbed_store::error::Result;
use flatbed_store::keys::Keys;
use flatbed_store::seq::{own_stamp, stamped_value};
use flatbed_store::transaction::{Transaction, conflict_with};
use foundationdb::options::MutationType;
use futures_util::future::{OptionFuture, try_join_all};

use crate::channels::holding::periods_of;
use crate::channels::sweep;
use crate::held::VersionRead;
use crate::instance::Instance;

/// A principal, and the channel or role that it may hold.
pub type Entitlement = (PrincipalKind, String, GrantedItem);

/// The id of the granting document; `None`: an administrator.
type GrantSource = Option<String>;

/// The grants and revocations of a transaction, of all its documents.
#[derive(Default)]
pub struct GrantChanges {
    things: BTreeMap<Entitlement, GrantChange>,
    /// True if revocations leave no past period.
    forgets: bool,
}

#[derive(Default)]
struct GrantChange {
    /// The periods in which it is held, requested early.
    periods: Option<VersionRead>,
    /// The ways that the transaction adds.
    made: BTreeSet<GrantSource>,
    takes: bool,
}

/// Returns the thing that a document's grant gives; `None` for a grant without meaning.
pub fn thing_of(grant: &Grant) -> Option<Entitlement> {
    let (kind, name) = match &grant.to {
        Grantee::User(name) => (PrincipalKind::User, name),
        Grantee::Role(name) => (PrincipalKind::Role, name),
    };
    // A role that holds itself exists.
    let means_something = kind == PrincipalKind::User || matches!(grant.what, GrantedItem::Channel(_));
    means_something.then(|| (kind, name.clone(), grant.what.clone()))
}

/// Writes the rows of a document whose grants have changed. [`GrantChanges::finish`] writes the rest.
pub fn changed(
    trx: &Transaction,
    keys: &Keys,
    id: &str,
    old: &BTreeSet<Grant>,
    new: &BTreeSet<Grant>,
    shared: &mut GrantChanges,
) {
    old.difference(new).filter_map(thing_of).for_each(|thing| shared.take(trx, keys, thing, Some(id)));
    new.difference(old).filter_map(thing_of).for_each(|thing| shared.give(trx, keys, thing, Some(id)));
}

impl GrantChanges {
    /// Creates a change whose revocations leave no past period.
    pub fn forgetting() -> GrantChanges {
        GrantChanges { forgets: true, ..GrantChanges::default() }
    }

    /// Requests the reads for grants that a document may give, as snapshots, so that they are not awaited later.
    pub fn begin(&mut self, trx: &Transaction, keys: &Keys, grants: &BTreeSet<Grant>) {
        for thing in grants.iter().filter_map(thing_of) {
            let moved = self.things.entry(thing);
            let (kind, name, what) = moved.key();
            let key = keys.periods(*kind, name, what);
            moved.or_default().periods.get_or_insert_with(|| Box::pin(trx.get(&key, true)));
        }
    }

    /// Adds a grant of a document or an administrator.
    pub fn give(&mut self, trx: &Transaction, keys: &Keys, thing: Entitlement, by: Option<&str>) {
        trx.set(&way(keys, &thing, by), b"");
        self.things.entry(thing).or_default().made.insert(by.map(str::to_owned));
    }

    /// Removes a grant of a document or an administrator, if it exists.
    pub fn take(&mut self, trx: &Transaction, keys: &Keys, thing: Entitlement, by: Option<&str>) {
        trx.clear(&way(keys, &thing, by));
        let moved = self.things.entry(thing).or_default();
        moved.made.remove(&by.map(str::to_owned));
        moved.takes = true;
    }

    /// Writes the periods and versions once all grants are known. Waits at most once, and not for reads of
    /// [`GrantChanges::begin`]. `None`: no principal has changed, and no access is noted.
    pub async fn finish(self, trx: &Transaction, instance: &Instance) -> Result<Option<AccessNote>> {
        let changed = self.settle(trx, instance).await?;
        if changed.is_empty() { Ok(None) } else { note_changed(trx, instance, &changed).map(Some) }
    }

    /// As [`GrantChanges::finish`], in a transaction that changes this principal itself.
    pub async fn finish_with(
        self,
        trx: &Transaction,
        instance: &Instance,
        (kind, name): (PrincipalKind, &str),
    ) -> Result<AccessNote> {
        let mut changed = self.settle(trx, instance).await?;
        changed.insert((kind, name.to_owned()));
        note_changed(trx, instance, &changed)
    }

    /// Writes the periods, and returns the principals that have gained or lost something.
    async fn settle(self, trx: &Transaction, instance: &Instance) -> Result<BTreeSet<(PrincipalKind, String)>> {
        let keys = &instance.keys;
        // With the least user version: its grants precede everything else that the transaction writes.
        let own = Stamp(own_stamp(instance.epoch(), 0));
        let (GrantChanges { things, forgets }, mut changed) = (self, BTreeSet::new());
        let moved = things.into_iter().filter(|(_, moved)| moved.takes || !moved.made.is_empty());
        let reads = moved.map(|(thing, GrantChange { periods, made, .. })| {
            let (kind, name, what) = &thing;
            let key = keys.periods(*kind, name, what);
            let periods = periods.unwrap_or_else(|| Box::pin(trx.get(&key, true)));
            // After the writes of the transaction, which the read sees; it conflicts on what it reads.
            let ways = keys.ways(*kind, name, what);
            let left = made.is_empty().then(|| trx.range(&ways, false).any());
            async move {
                let (periods, left) = futures_util::future::join(periods, OptionFuture::from(left)).await;
                let periods = periods?.map(|found| periods_of(&found)).transpose()?.unwrap_or_default();
                let is_left = left.transpose()?.unwrap_or(true);
                Ok::<_, flatbed_store::error::Error>((thing, key, periods, is_left))
            }
        });
        for ((kind, name, _), key, periods, is_had) in try_join_all(reads).await? {
            let was_had = periods.open().is_some();
            if is_had || was_had {
                conflict_with(trx, &key)?;
            }
            match (was_had, is_had) {
                (_, false) if forgets => trx.clear(&key),
                (true, false) => set_stamped(trx, &key, &periods.taken(own)),
                (false, true) => set_stamped(trx, &key, &periods.given(own)),
                _ => continue,
            }
            changed.insert((kind, name));
        }
        Ok(changed)
    }
}

/// Writes the versions of changed principals, and notes them for followers and for the sweep.
fn note_changed(
    trx: &Transaction,
    instance: &Instance,
    changed: &BTreeSet<(PrincipalKind, String)>,
) -> Result<AccessNote> {
    let version = stamped_value(&own_stamp(instance.epoch(), 0));
    for (kind, name) in changed {
        // A read conflict of each writer whose rights include the principal's.
        let key = instance.keys.principal_version(*kind, name);
        trx.atomic_op(&key, &version, MutationType::SetVersionstampedValue);
    }
    note_followers(trx, instance, changed.iter().map(|(kind, name)| (*kind, &**name)))
}

/// Records for followers that principals have changed or lost a session. Called once in a transaction.
pub(super) fn note_followers<'a>(
    trx: &Transaction,
    instance: &Instance,
    changed: impl IntoIterator<Item = (PrincipalKind, &'a str)>,
) -> Result<AccessNote> {
    sweep::note(trx, instance)?;
    let (root, of) = ((&instance.root, instance.epoch(), &*instance.name), (&instance.keys, instance.incarnation()));
    access::note_principals(trx, root, of, changed)
}

/// Writes periods of which the newest begins or ends with the transaction.
fn set_stamped(trx: &Transaction, key: &[u8], periods: &Periods) {
    let value = stamped_value(&periods.encode());
    trx.atomic_op(key, &value, MutationType::SetVersionstampedValue);
}

fn way(keys: &Keys, (kind, name, what): &Entitlement, by: Option<&str>) -> Vec<u8> {
    match by {
        Some(id) => keys.given_by_document(*kind, name, what, id),
        None => keys.given_by_administrator(*kind, name, what),
    }
}
