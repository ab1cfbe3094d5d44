//! New stamps for the creations and deletions in `_db_updates`.

use flatbed_store::error::Result;
use flatbed_store::keys::KeyRange;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use foundationdb::options::MutationType;
use prost::Message;

use crate::renew::{PAGE_BYTES_MAX, PAGE_ENTRIES, Renewal};

impl Renewal<'_> {
    /// Stamps the log from its beginning. Stamped events lie behind the others, or before them if the cluster's
    /// versions are lower than the old stamps; they have the new epoch and are skipped.
    pub(super) async fn events(&self, progress: &mut (dyn FnMut() + Send)) -> Result<()> {
        let mut range = self.keys.database_events();
        loop {
            let mut page = EventsPage { renewal: self, range: &range };
            let (stamped, last) = transaction::write(self.db, self.metrics, &mut page).await?;
            if stamped > 0 {
                progress();
            }
            let Some(last) = last else { return Ok(()) };
            range.begin = [last.as_slice(), &[0]].concat();
        }
    }
}

struct EventsPage<'a> {
    renewal: &'a Renewal<'a>,
    range: &'a KeyRange,
}

impl Operation for EventsPage<'_> {
    /// Number of stamped events, and the last key examined; `None`: there was none.
    type Output = (u16, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let Renewal { keys, epoch, .. } = *self.renewal;
        let root = trx.get(&keys.instance(), false);
        let page = trx.range(self.range, false).page(PAGE_ENTRIES.get()).await?;
        self.renewal.is_own(root.await?.as_deref())?;
        let quiet = Quiet(trx);
        let (mut bytes, mut user_version, mut last) = (0, 0, None);
        for row in &page {
            last = Some(row.key().to_vec());
            // An invalid event stays for the checker to report.
            let event = proto::DatabaseEvent::decode(row.value()).ok().filter(|event| event.renewed != epoch);
            if let (Some(mut event), Ok(_)) = (event, keys.database_event_stamp(row.key())) {
                event.renewed = epoch;
                let (key, value) = (keys.database_event_stamped(user_version), event.encode_to_vec());
                quiet.atomic(&key, &value, MutationType::SetVersionstampedKey)?;
                trx.clear(row.key());
                user_version += 1;
                bytes += 4 * row.key().len() + value.len();
                if bytes > PAGE_BYTES_MAX {
                    break;
                }
            }
        }
        Ok((user_version, last))
    }
}
