//! Assigns revisions to channels: by the database's sync function, or else by the document itself.

use std::sync::Arc;

use flatbed_channels::{Expiry, Routing};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::{NotJudged, Refusal, Result};
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::join_all;
use prost::Message;

use crate::judge::ask::named;
use crate::judge::judgement::judge_of;
use crate::judge::judgement::{Judgement, NO_FUNCTIONS, ProposedWrite, Rule};

#[derive(Clone)]
pub enum Routes {
    /// The document's member `channels`.
    Members,
    Function(Arc<dyn Rule>),
}

impl Routes {
    pub(super) fn is_function(&self) -> bool {
        matches!(self, Routes::Function(_))
    }

    pub(super) async fn load(inner: &Inner, instance: &Instance) -> Result<Routes> {
        let Some(function) = transaction::read(&inner.db, &inner.metrics, &mut ReadFunction(instance)).await? else {
            return Ok(Routes::Members);
        };
        let judge = judge_of(inner);
        let function = judge.and_then(|judge| judge.sync_function(&named(instance), &function.source));
        let failed = || Refusal::not_judged(NotJudged::Internal, NO_FUNCTIONS);
        Ok(Routes::Function(function.ok_or_else(failed)?))
    }

    /// Routes an edit; without a `writer` all requirements are met.
    pub(super) async fn route(&self, write: ProposedWrite<'_>) -> Judgement {
        match self {
            Routes::Function(function) => completed(&write, function.judge(write).await?),
            Routes::Members => {
                let (edit, rejected) = (write.edit, |status, reason| Refusal::Rejected { status, reason });
                let routing =
                    Routing::without_function(&edit.body).map_err(|error| rejected(400, error.to_string()))?;
                routing.check(edit.id.len()).map_err(|much| rejected(403, much.to_string()))?;
                completed(&write, routing.into())
            }
        }
    }

    pub(super) async fn route_all(&self, writes: Vec<ProposedWrite<'_>>) -> Vec<Judgement> {
        let Routes::Function(function) = self else {
            return join_all(writes.into_iter().map(|write| self.route(write))).await;
        };
        let said = function.judge_all(writes.clone()).await;
        writes.iter().zip(said).map(|(write, said)| completed(write, said?)).collect()
    }
}

/// Adds the edit's own properties to its verdict.
fn completed(write: &ProposedWrite<'_>, mut verdict: Verdict) -> Judgement {
    verdict.writer = write.writer.map(|writer| writer.mark.clone()).filter(|mark| !mark.is_empty());
    if let (None, Some(Expiry::At(second))) = (verdict.expires_at_ms, write.edit.expiry) {
        verdict.expires_at_ms = Some(second.saturating_mul(1_000));
    }
    if write.edit.deleted {
        // A deleted document does not expire.
        verdict.expires_at_ms = None;
    }
    verdict.check()
}

/// Reads the stored sync function. A newer function than the instance knows belongs to a newer record, with which no
/// write of this instance commits.
pub struct ReadFunction<'a>(pub &'a Instance);

impl Operation for ReadFunction<'_> {
    type Output = Option<proto::SyncFunction>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let stored = trx.get(&self.0.keys.sync_function(), true).await?;
        Ok(stored.map(|bytes| proto::SyncFunction::decode(&*bytes)).transpose()?)
    }
}
