//! Access versions: stamps that say in which databases users, roles, grants or sessions have changed.
//!
//! A database has a cell of a bucket by its name ([`AccessCell`]). Each change overwrites the stamps of the cell and of
//! the bucket, without a read and without a conflict, in the transaction of the change. A process that follows rights
//! reads the stamps of all buckets, then the cells of the buckets that have moved, then the databases of the cells that
//! have moved. So the cost of following is that of the changes.
//!
//! The log of a database's changed users and roles is written by [`note_principals`] alone. It returns an
//! [`AccessNote`], without which the layer writes neither the record of a user or role nor the end of a session.

use flatbed_channels::PrincipalKind;
use foundationdb::options::MutationType;

use crate::error::Result;
use crate::keys::{AccessCell, BUCKETS, Keys, RootKeys, pack_principal};
use crate::seq::{own_stamp, stamped_value};
use crate::transaction::{Quiet, Transaction};

/// Proof that a transaction has noted a change of access. Only the functions of this module create it.
#[derive(Debug)]
#[must_use = "a writer of rights must show it"]
pub struct AccessNote(());

/// Notes in this epoch that access to a database has changed, without naming users.
pub fn note(trx: &Transaction, (root, epoch, name): (&RootKeys, u32, &str)) -> Result<AccessNote> {
    let (quiet, of, stamp) = (Quiet(trx), AccessCell::of(name), stamped_value(&own_stamp(epoch, 0)));
    quiet.atomic(&root.access_cell(of), &stamp, MutationType::SetVersionstampedValue)?;
    quiet.atomic(&root.access_bucket(of.bucket), &stamp, MutationType::SetVersionstampedValue)?;
    Ok(AccessNote(()))
}

/// Logs changed users and roles of a database for followers, and notes the change. Call it once in a transaction: the
/// entries have the user versions 0, 1, 2 and so on.
pub fn note_principals<'a>(
    trx: &Transaction,
    of: (&RootKeys, u32, &str),
    (keys, incarnation): (&Keys, u64),
    changed: impl IntoIterator<Item = (PrincipalKind, &'a str)>,
) -> Result<AccessNote> {
    let ((_, epoch, _), quiet, at_ms) = (of, Quiet(trx), trx.clock().unix_ms());
    for (number, (kind, principal)) in changed.into_iter().enumerate() {
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        let key = keys.changed_principal_stamped(incarnation, epoch, number);
        let value = pack_principal(kind, principal, at_ms);
        quiet.atomic(&key, &value, MutationType::SetVersionstampedKey)?;
    }
    note(trx, of)
}

/// Notes a change of access to every database that has had one, in the transaction that begins this epoch: a restore
/// reverts changes that followers may have seen.
pub async fn note_all(trx: &Transaction, root: &RootKeys, epoch: u32) -> Result<()> {
    let rows = trx.range(&root.access_buckets(), true).all(BUCKETS).await?;
    // Without cells each bucket has changed as a whole.
    let cells = root.all_access_cells();
    trx.clear_range(&cells.begin, &cells.end);
    let stamp = stamped_value(&own_stamp(epoch, 0));
    let touch = |key: &[u8]| Quiet(trx).atomic(key, &stamp, MutationType::SetVersionstampedValue);
    rows.iter().try_for_each(|row| touch(row.key()))
}
