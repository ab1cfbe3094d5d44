//! What principals are given and what is taken from them, in the transaction that does so.
//!
//! One thing that somebody has may come in several ways: an administrator gave it, documents do. Each way is a row; since when it is had
//! is a record of its own, which changes where the first way comes or the last one goes. Who gives reads that record, who takes
//! reads the first row that is left, both with a conflict: so of a last way that goes and a first one that comes neither is lost, and
//! who gives what is given already conflicts with nobody. Both are settled when all documents of the transaction are
//! through, since what is versionstamped cannot be read back, and so that they are waited for once.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{Given, Grant, Grantee, Kind, Periods, Stamp};
use foundationdb::options::MutationType;
use futures_util::future::{OptionFuture, try_join_all};

use crate::channels::holding::periods_of;
use crate::channels::sweep;
use crate::error::Result;
use crate::held::Reading;
use crate::instance::Instance;
use crate::store::keys::{Keys, pack_principal};
use crate::store::transaction::{Quiet, Transaction, conflict_with};

/// The place of a transaction's versionstamp, with the least user version: what a transaction gives is had before whatever else it
/// writes.
const OWN_STAMP: Stamp = Stamp([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// Who, and what they are given.
pub(crate) type Thing = (Kind, String, Given);

/// By whom something is given; `None`: an administrator.
type Way = Option<String>;

/// What a transaction gives and takes, all its documents together.
#[derive(Default)]
pub(crate) struct Shared {
    things: BTreeMap<Thing, Moved>,
    /// Principals that have changed beside that.
    touched: BTreeSet<(Kind, String)>,
    /// What is taken was never had.
    forgets: bool,
}

/// What happens to one thing.
#[derive(Default)]
struct Moved {
    /// Since when it is had, asked for early.
    periods: Option<Reading>,
    /// The ways that the transaction makes.
    made: BTreeSet<Way>,
    takes: bool,
}

/// Whom a document's grant is to, and what it is; `None`: it means nothing.
pub(crate) fn thing_of(grant: &Grant) -> Option<Thing> {
    let (kind, name) = match &grant.to {
        Grantee::User(name) => (Kind::User, name),
        Grantee::Role(name) => (Kind::Role, name),
    };
    // That a role has itself says that it is there.
    let means_something = kind == Kind::User || matches!(grant.what, Given::Channel(_));
    means_something.then(|| (kind, name.clone(), grant.what.clone()))
}

/// A document gives other things than before: the rows that say so. The rest comes with [`Shared::finish`].
pub(crate) fn changed(
    trx: &Transaction,
    keys: &Keys,
    id: &str,
    old: &BTreeSet<Grant>,
    new: &BTreeSet<Grant>,
    shared: &mut Shared,
) {
    old.difference(new).filter_map(thing_of).for_each(|thing| shared.take(trx, keys, thing, Some(id)));
    new.difference(old).filter_map(thing_of).for_each(|thing| shared.give(trx, keys, thing, Some(id)));
}

impl Shared {
    /// Of which nothing is remembered once it is taken.
    pub(crate) fn forgetting() -> Shared {
        Shared { forgets: true, ..Shared::default() }
    }

    /// A document may give these: asks for what is read of each, as a snapshot, so that nobody waits for it later.
    pub(crate) fn begin(&mut self, trx: &Transaction, keys: &Keys, grants: &BTreeSet<Grant>) {
        for thing in grants.iter().filter_map(thing_of) {
            let moved = self.things.entry(thing);
            let (kind, name, what) = moved.key();
            let key = keys.periods(*kind, name, what);
            moved.or_default().periods.get_or_insert_with(|| Box::pin(trx.get(&key, true)));
        }
    }

    /// Somebody is given something, by a document or an administrator.
    pub(crate) fn give(&mut self, trx: &Transaction, keys: &Keys, thing: Thing, by: Option<&str>) {
        trx.set(&way(keys, &thing, by), b"");
        self.things.entry(thing).or_default().made.insert(by.map(str::to_owned));
    }

    /// Something is taken from somebody, as far as it was given so.
    pub(crate) fn take(&mut self, trx: &Transaction, keys: &Keys, thing: Thing, by: Option<&str>) {
        trx.clear(&way(keys, &thing, by));
        let moved = self.things.entry(thing).or_default();
        moved.made.remove(&by.map(str::to_owned));
        moved.takes = true;
    }

    /// A principal has changed, whatever else it has.
    pub(crate) fn touch(&mut self, kind: Kind, name: &str) {
        self.touched.insert((kind, name.to_owned()));
    }

    /// All is given and taken: says since when, and who has changed. Waits at most once, and not for what was asked for with
    /// [`Shared::begin`]. Gives whether anybody has changed.
    pub(crate) async fn finish(self, trx: &Transaction, instance: &Instance) -> Result<bool> {
        let keys = &instance.keys;
        let Shared { things, touched: mut changed, forgets } = self;
        let moved = things.into_iter().filter(|(_, moved)| moved.takes || !moved.made.is_empty());
        let reads = moved.map(|(thing, Moved { periods, made, .. })| {
            let (kind, name, what) = &thing;
            let key = keys.periods(*kind, name, what);
            let periods = periods.unwrap_or_else(|| Box::pin(trx.get(&key, true)));
            // Behind what the transaction itself has cleared and set; it conflicts as far as it reads.
            let ways = keys.ways(*kind, name, what);
            let left = made.is_empty().then(|| trx.range(&ways, false).any());
            async move {
                let (periods, left) = futures_util::future::join(periods, OptionFuture::from(left)).await;
                let periods = periods?.map(|found| periods_of(&found)).transpose()?.unwrap_or_default();
                let is_left = left.transpose()?.unwrap_or(true);
                Ok::<_, crate::error::Error>((thing, key, periods, is_left))
            }
        });
        for ((kind, name, _), key, periods, is_had) in try_join_all(reads).await? {
            let was_had = periods.open().is_some();
            if is_had || was_had {
                conflict_with(trx, &key)?;
            }
            match (was_had, is_had) {
                (_, false) if forgets => trx.clear(&key),
                (true, false) => set_stamped(trx, &key, &periods.taken(OWN_STAMP)),
                (false, true) => set_stamped(trx, &key, &periods.given(OWN_STAMP)),
                _ => continue,
            }
            changed.insert((kind, name));
        }
        if !changed.is_empty() {
            sweep::note(trx, instance)?;
        }
        let at_ms = trx.clock().unix_ms();
        for (number, (kind, name)) in changed.iter().enumerate() {
            let version = [&OWN_STAMP.0[..], &0_u32.to_le_bytes()].concat();
            // Who writes by what they have has it as a read conflict.
            trx.atomic_op(&keys.principal_version(*kind, name), &version, MutationType::SetVersionstampedValue);
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            note_changed(trx, instance, number, (*kind, name), at_ms)?;
        }
        Ok(!changed.is_empty())
    }
}

/// Says that a principal has changed to whoever follows; `number`: another one for each of a transaction.
pub(super) fn note_changed(
    trx: &Transaction,
    instance: &Instance,
    number: u16,
    (kind, name): (Kind, &str),
    at_ms: u64,
) -> Result<()> {
    let key = instance.keys.changed_principal_stamped(instance.incarnation(), number);
    Quiet(trx).atomic(&key, &pack_principal(kind, name, at_ms), MutationType::SetVersionstampedKey)
}

/// Writes periods of which the newest begins or ends with the transaction.
fn set_stamped(trx: &Transaction, key: &[u8], periods: &Periods) {
    let mut value = periods.encode();
    value.extend_from_slice(&0_u32.to_le_bytes());
    trx.atomic_op(key, &value, MutationType::SetVersionstampedValue);
}

fn way(keys: &Keys, (kind, name, what): &Thing, by: Option<&str>) -> Vec<u8> {
    match by {
        Some(id) => keys.given_by_document(*kind, name, what, id),
        None => keys.given_by_administrator(*kind, name, what),
    }
}
