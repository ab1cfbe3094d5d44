//! Changes of a database's settings.

use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::features::check_record;
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::record_log::note_change;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::actor::Actor;
use crate::confirmed::DatabaseSecurity;
use crate::server::Inner;

/// Byte limit of the whole record after a change that makes it larger. The record is one value, of at most 100,000
/// bytes. Indexes and groups have a lower limit, to leave room for settings; the rest is for later notes of the layer.
const RECORD_BYTES_MAX: usize = 95_000;

pub fn check_room(record: &[u8], before: &[u8]) -> std::result::Result<(), Refusal> {
    if record.len() <= RECORD_BYTES_MAX || record.len() <= before.len() {
        return Ok(());
    }
    let taken = before.len();
    let reason = format!("indexes, views and settings of this database take {taken} bytes: there is no room for it");
    Err(Refusal::InvalidSetting(reason))
}

/// Changes a database's settings, which every process notices. A change that makes the record too large is refused.
pub struct ChangeRecord<'a, F> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub actor: &'a Actor,
    pub change: F,
    pub once: Once,
}

impl<F: Fn(&mut proto::DatabaseRecord) + Send> Operation for ChangeRecord<'_, F> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Other clients may have changed the setting or replaced the database since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let bytes = trx.get(&key, false);
        let writer = self.inner.writer(trx, self.actor);
        let (writer, _) = futures_util::try_join!(writer, self.inner.epoch_for_write(trx))?;
        let bytes = bytes.await?.ok_or(Error::DatabaseNotFound)?;
        let before = proto::DatabaseRecord::decode(&*bytes)?;
        check_record(&before, self.inner.collation)?;
        writer.admitted_by(trx, &DatabaseSecurity::new(&before.security, before.incarnation)).await?;
        let mut record = before.clone();
        (self.change)(&mut record);
        if record == before {
            return Ok(());
        }
        let record = record.encode_to_vec();
        check_room(&record, &bytes)?;
        self.once.mark(trx);
        trx.set(&key, &record);
        note_change(trx, &self.inner.keys, self.name)
    }
}
