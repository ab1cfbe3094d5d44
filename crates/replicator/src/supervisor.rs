//! Follows `_replicator`: every server works off the same documents, and the leases say which one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Backoff, Failure, Job, Next, Run, Status, supervise};
use flatbed_layer::{ChangeRow, ChangesQuery, Error as LayerError, Extras, REPLICATOR, Wait};
use flatbed_replicate::{Error, Progress, Spec};

use crate::Replicator;
use crate::description::Description;
use crate::follow::Followed;
use crate::owner::Owner;
use crate::replication::{Origin, Replication};

/// After an error, and before a database is read that was deleted and made again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs until the server stops.
pub(crate) async fn run(replicator: Arc<Replicator>) {
    supervise(&Supervisor(replicator.clone()), &Backoff { first: PAUSE, max: PAUSE }, None).await;
    for followed in replicator.followed() {
        followed.job.status.stop();
        followed.job.status.ended().await;
    }
}

struct Supervisor(Arc<Replicator>);

#[async_trait]
impl Job for Supervisor {
    fn kind(&self) -> &'static str {
        "supervisor"
    }

    fn id(&self) -> &str {
        REPLICATOR
    }

    fn status(&self) -> &Status {
        &self.0.supervisor
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        tokio::select! {
            () = follow(&self.0) => Ok(Next::Again(PAUSE)),
            () = watch_leases(&self.0) => Ok(Next::Again(PAUSE)),
            () = self.0.supervisor.stopped() => Ok(Next::Done),
        }
    }
}

/// Looks at the leases of all jobs that other servers run, in few reads, for as long as there are any: what a server
/// that waits costs does not grow with how often it looks at each.
async fn watch_leases(replicator: &Arc<Replicator>) {
    loop {
        replicator.clock().sleep(replicator.options.lease / 4).await;
        if let Err(error) = look_at_leases(replicator).await {
            tracing::debug!(%error, "the leases of replications could not be read");
        }
    }
}

async fn look_at_leases(replicator: &Arc<Replicator>) -> flatbed_layer::Result<()> {
    let waiting = replicator.followed().into_iter();
    let waiting = waiting.filter(|followed| !followed.is_ours() && !followed.job.status.has_ended());
    let mut waiting: HashMap<String, Arc<Followed>> = waiting.map(|followed| (followed.id.clone(), followed)).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let mut after: Option<String> = None;
    loop {
        let page = replicator.reader().leases(after.as_deref()).await?;
        let now = replicator.clock().now();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        for (id, found) in page {
            if let Some(followed) = waiting.remove(&id) {
                followed.claim.note(Some(found), now);
            }
        }
    }
    for followed in waiting.into_values() {
        followed.claim.note(None, replicator.clock().now());
    }
    Ok(())
}

/// Follows the database until it is gone or cannot be read.
async fn follow(replicator: &Arc<Replicator>) {
    if let Err(error) = replicator.reader().wait_until_there().await {
        tracing::debug!(%error, "whether there is a _replicator could not be read");
        return;
    }
    let query = ChangesQuery { extras: Extras::DOCUMENTS, ..ChangesQuery::default() };
    let mut changes = replicator.reader().changes(query);
    let mut seen = Some(HashSet::new());
    loop {
        let page = match changes.next_page().await {
            Ok(page) => page,
            Err(LayerError::DatabaseNotFound) => {
                replicator.keep(&HashSet::new());
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "_replicator cannot be followed; it is read again");
                return;
            }
        };
        for row in &page.rows {
            if let Some(seen) = &mut seen {
                seen.insert(row.id.clone());
            }
            if let Err(error) = take(replicator, row).await {
                tracing::warn!(%error, "whose replication it is cannot be read; _replicator is read again");
                return;
            }
        }
        if !page.at_end {
            continue;
        }
        // All is read once: what was followed from before and is gone was in another database.
        if let Some(seen) = seen.take() {
            replicator.keep(&seen);
        }
        match changes.wait().await {
            Wait::MayHaveChanged => {}
            Wait::Shutdown => return,
        }
    }
}

/// Acts on a document's change.
async fn take(replicator: &Arc<Replicator>, row: &ChangeRow) -> flatbed_layer::Result<()> {
    let description = row.doc.as_ref().filter(|_| !row.deleted).and_then(Description::read);
    let before = replicator.followed_by(&row.id);
    if let (Some(before), Some(description)) = (&before, &description)
        && before.rev == description.rev
    {
        return Ok(());
    }
    if before.is_some() {
        replicator.unfollow(&row.id);
    }
    let database = replicator.database();
    let ended = description.as_ref().is_none_or(|description| description.end().is_some());
    if let Some(mut description) = description.filter(|_| !ended) {
        match asked(replicator, &mut description, &row.id).await? {
            Ok((spec, owner)) => {
                let origin = Origin { database: REPLICATOR, doc_id: row.id.clone() };
                let id = spec.job_id(replicator.layer.uuid());
                let job = Replication::new(id, &spec, owner, Some(origin), replicator.clock());
                let Description { id, rev, .. } = description;
                replicator.follow(Followed::new(replicator, id, rev, spec.filter_bytes(), job), before);
            }
            Err(error) => {
                let noted = description.note(&database, None, 0, &Progress::default(), &Err(error)).await;
                if let Err(error) = noted {
                    tracing::warn!(%error, "a document of _replicator could not be refused");
                }
            }
        }
        return Ok(());
    }
    if before.is_some()
        && let Err(error) = database.drop_lease(&row.id).await
    {
        tracing::debug!(%error, "a replication's lease could not be removed");
    }
    Ok(())
}

/// What a document asks for, and on whose behalf; why it cannot be done, among that.
async fn asked(
    replicator: &Replicator,
    description: &mut Description,
    id: &str,
) -> flatbed_layer::Result<Result<(Spec, Owner), Error>> {
    let asked = description.spec().and_then(|spec| Ok((spec, description.owner()?)));
    let (mut spec, owner) = match asked {
        Ok(asked) => asked,
        Err(error) => return Ok(Err(error)),
    };
    let is_admin = owner.now(&replicator.accounts).await?.is_some_and(|standing| standing.principal().is_admin);
    spec.owner = owner.name().filter(|_| !is_admin).map(str::to_owned);
    if let Some(user) = &spec.owner
        && replicator.documents_of(user, id) >= replicator.options.user_documents_max
    {
        let reason = format!("{} replications of this owner are not done yet", replicator.options.user_documents_max);
        return Ok(Err(Error::InvalidSpec(reason)));
    }
    Ok(Ok((spec, owner)))
}
