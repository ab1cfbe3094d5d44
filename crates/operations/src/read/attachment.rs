//! Finds an attachment of a revision.

use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::attachments::AttachmentPlace;
use flatbed_databases::document::edit::GetOptions;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::{NotFound, Refusal, Result};
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::FutureExt;

use crate::read::over::DocumentReads;
use crate::read::viewer::{PendingViewer, check_id, is_judged};

/// Finds an attachment and the place of its data.
pub struct OpenAttachment<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    pub id: &'a str,
    /// The revision; `None`: the winner.
    pub rev: Option<&'a RevId>,
    pub attachment: &'a str,
}

impl Operation for OpenAttachment<'_> {
    type Output = AttachmentPlace;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<AttachmentPlace> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let keys = instance.keys.document(self.id);
        let missing = || Refusal::DocumentNotFound(NotFound::Missing);
        let decode =
            |record: Option<foundationdb::future::FdbSlice>| RevisionRecord::decode(&record.ok_or_else(missing)?);
        // All requests at once, if more than the document is needed.
        let is_judged = is_judged(&instance, self.asker);
        let coming = is_judged.then(|| PendingViewer::begin(self.inner, trx, &instance, self.asker));
        let info = trx.get(&keys.info(), true);
        let named = |rev: &RevId| trx.get(&keys.revision(rev), true);
        let early = self.rev.filter(|_| is_judged).map(named);
        let viewer = match coming {
            Some(coming) => {
                check_id(self.id)?;
                Some(coming.viewer().boxed().await?)
            }
            None => None,
        };
        let info = Info::decode(&info.await?.ok_or_else(missing)?)?.read_at(trx.clock().unix_ms());
        let rev = match self.rev {
            None => {
                if let Some(viewer) = &viewer
                    && !viewer.can_see_winner(trx, &keys, &info).await?
                {
                    return Err(missing().into());
                }
                if info.deleted {
                    return Err(Refusal::DocumentNotFound(NotFound::Deleted).into());
                }
                info.winner
            }
            Some(rev) => {
                let record = match early {
                    Some(early) => decode(early.await?)?,
                    None => decode(named(rev).await?)?,
                };
                let now = trx.clock().unix_ms();
                // Before any further read: a hidden attachment must not take longer than an absent one.
                if record.has_ended(now) || record.body_dropped || viewer.is_some_and(|viewer| !viewer.can_see(&record))
                {
                    return Err(missing().into());
                }
                if *rev != info.winner {
                    let once =
                        DocumentReads::of([&GetOptions { rev: Some(rev.clone()), ..GetOptions::default() }], false);
                    if Box::pin(once.is_over(trx, &instance, &keys, &info, rev, None)).await? {
                        return Err(missing().into());
                    }
                }
                rev.clone()
            }
        };
        AttachmentPlace::find(trx, instance.clone(), &keys, &rev, self.attachment).await
    }
}
