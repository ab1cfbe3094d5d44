//! Follows the replicator databases. All servers follow the same documents, and leases decide which server runs each
//! one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Backoff, Failure, Job, Next, Run, Status, supervise};
use flatbed_layer::{ChangeRow, ChangesQuery, Error as LayerError, Extras, REPLICATOR, WaitOutcome};
use flatbed_replicate::{Error, Spec};

use crate::Replicator;
use crate::description::Description;
use crate::follow::{FollowedDocument, Origins};
use crate::owner::Owner;
use crate::refusals::{Refusals, RefusedDocument};
use crate::replication::{Origin, Replication};

/// The pause after an error, and before a database that was created again is read.
const PAUSE: Duration = Duration::from_secs(1);

const BACKOFF: Backoff = Backoff { first: PAUSE, max: PAUSE };

pub(crate) async fn run(replicator: Arc<Replicator>) {
    let supervisor = Supervisor::new(&replicator, &REPLICATOR.into(), None);
    tokio::join!(supervise(&supervisor, &BACKOFF, None), follow_others(&replicator));
    for followed in replicator.followed() {
        followed.job.status.stop();
        followed.job.status.ended().await;
    }
}

/// Follows the replicator databases beside `_replicator`, as they are created and deleted.
async fn follow_others(replicator: &Arc<Replicator>) {
    let mut supervisors = HashMap::new();
    tokio::select! {
        () = find_others(replicator, &mut supervisors) => {}
        () = replicator.supervisor.stopped() => {}
    }
    for supervisor in supervisors.values() {
        supervisor.status().stop();
    }
    for supervisor in supervisors.into_values() {
        supervisor.status().ended().await;
    }
}

type Supervisors = HashMap<Arc<str>, Arc<Supervisor>>;

async fn find_others(replicator: &Arc<Replicator>, supervisors: &mut Supervisors) {
    let mut databases = replicator.layer.replicator_databases();
    loop {
        let found = match databases.names().await {
            Ok(names) => {
                change_others(replicator, supervisors, names).await;
                databases.wait().await
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(WaitOutcome::MayHaveChanged) => {}
            Ok(WaitOutcome::Shutdown) => return,
            Err(error) => {
                tracing::warn!(%error, "the replicator databases could not be listed");
                replicator.clock().sleep(PAUSE).await;
            }
        }
    }
}

/// Starts following new databases of these names, and stops following all others.
async fn change_others(replicator: &Arc<Replicator>, supervisors: &mut Supervisors, names: Vec<Arc<str>>) {
    let names: HashSet<Arc<str>> = names.into_iter().collect();
    let gone: Vec<Arc<str>> = supervisors.keys().filter(|name| !names.contains(*name)).cloned().collect();
    for name in gone {
        if let Some(supervisor) = supervisors.remove(&name) {
            supervisor.status().stop();
            // At most one supervisor follows a name, even if the database is created again.
            supervisor.status().ended().await;
        }
        replicator.keep(&name, &HashSet::new());
    }
    for name in names {
        if supervisors.contains_key(&name) {
            continue;
        }
        let supervisor = Arc::new(Supervisor::new(replicator, &name, Some(Status::new(replicator.clock()))));
        supervisors.insert(name, supervisor.clone());
        tokio::spawn(async move {
            supervise(&*supervisor, &BACKOFF, None).await;
            supervisor.status().end();
        });
    }
}

/// The state of the task that follows one database.
struct Supervisor {
    replicator: Arc<Replicator>,
    database: Arc<str>,
    /// The state of the task. `None`: that of the whole replicator.
    status: Option<Status>,
    refusals: Refusals,
}

impl Supervisor {
    fn new(replicator: &Arc<Replicator>, database: &Arc<str>, status: Option<Status>) -> Supervisor {
        let (replicator, database) = (replicator.clone(), database.clone());
        Supervisor { replicator, database, status, refusals: Refusals::new() }
    }
}

#[async_trait]
impl Job for Supervisor {
    fn kind(&self) -> &'static str {
        "supervisor"
    }

    fn id(&self) -> &str {
        &self.database
    }

    fn status(&self) -> &Status {
        self.status.as_ref().unwrap_or(&self.replicator.supervisor)
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        self.refusals.begin();
        tokio::select! {
            () = follow(&self.replicator, &self.database, &self.refusals) => Ok(Next::Again(PAUSE)),
            () = self.refusals.write(&self.replicator) => Ok(Next::Again(PAUSE)),
            () = watch_leases(&self.replicator, &self.database) => Ok(Next::Again(PAUSE)),
            () = self.status().stopped() => Ok(Next::Done),
        }
    }
}

/// Reads the leases of all jobs of a database that other servers run, in a few transactions per pass, so that the cost
/// of waiting does not grow with a poll of each job.
async fn watch_leases(replicator: &Arc<Replicator>, database: &str) {
    loop {
        replicator.clock().sleep(replicator.options.lease / 4).await;
        if let Err(error) = look_at_leases(replicator, database).await {
            tracing::debug!(%error, database, "the leases of replications could not be read");
            // No job of the database repeats its request, so none keeps a seat from the jobs of other databases.
            replicator.followed_in(database).iter().for_each(|followed| followed.withdraw());
        }
    }
}

async fn look_at_leases(replicator: &Arc<Replicator>, database: &str) -> flatbed_layer::Result<()> {
    let (ours, others): (Vec<_>, Vec<_>) =
        replicator.followed_in(database).into_iter().partition(|followed| followed.is_ours());
    ours.iter().for_each(|followed| followed.note_progress());
    let waiting = others.into_iter().filter(|followed| !followed.job.status.has_ended());
    let mut waiting: HashMap<String, Arc<FollowedDocument>> =
        waiting.map(|followed| (followed.id.clone(), followed)).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let reader = replicator.reader(database);
    let mut after: Option<String> = None;
    loop {
        let page = reader.leases(after.as_deref()).await?;
        let now = replicator.clock().now();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        for (id, found) in page {
            if let Some(followed) = waiting.remove(&id) {
                followed.claim.note(Some(found), now);
                if !followed.claim.may_be_taken(now) {
                    followed.withdraw();
                }
            }
        }
    }
    for followed in waiting.into_values() {
        followed.claim.note(None, replicator.clock().now());
    }
    Ok(())
}

/// Follows a database until it is deleted, replaced, or cannot be read.
async fn follow(replicator: &Arc<Replicator>, name: &Arc<str>, refusals: &Refusals) {
    let reader = replicator.reader(name);
    if **name == *REPLICATOR
        && let Err(error) = reader.wait_until_there().await
    {
        tracing::debug!(%error, "the existence of _replicator could not be read");
        return;
    }
    let origins = match replicator.origins(name).await {
        Ok(Some(origins)) => origins,
        Ok(None) => return replicator.keep(name, &HashSet::new()),
        Err(error) => {
            tracing::debug!(%error, database = &**name, "a replicator database could not be read");
            return;
        }
    };
    let query = ChangesQuery { extras: Extras::DOCUMENTS, ..ChangesQuery::default() };
    let mut changes = reader.changes(query);
    let mut seen = Some(HashSet::new());
    loop {
        let page = match changes.next_page().await {
            Ok(page) => page,
            Err(LayerError::DatabaseNotFound) => return replicator.keep(name, &HashSet::new()),
            Err(error) => {
                tracing::warn!(%error, database = &**name, "documents cannot be followed; they are read again");
                return;
            }
        };
        // The rows are from another database of this name, in which any member may have written them.
        let is_other = |at: u64| origins.incarnation.is_some_and(|incarnation| at != incarnation);
        if is_other(page.last_seq.incarnation()) || page.rows.iter().any(|row| is_other(row.seq.incarnation())) {
            return replicator.keep(name, &HashSet::new());
        }
        for row in &page.rows {
            if let Some(seen) = &mut seen {
                seen.insert(row.id.clone());
            }
            if let Err(error) = take(replicator, &origins, row, refusals).await {
                tracing::warn!(%error, database = &**name, "the owner of a replication cannot be read; all are read again");
                return;
            }
        }
        if !page.at_end {
            continue;
        }
        // Everything was read once: documents that were followed before and are gone belonged to another database.
        if let Some(seen) = seen.take() {
            replicator.keep(name, &seen);
            refusals.note_end();
        }
        match changes.wait().await {
            WaitOutcome::MayHaveChanged => {}
            WaitOutcome::Shutdown => return,
        }
    }
}

async fn take(
    replicator: &Arc<Replicator>,
    origins: &Origins,
    row: &ChangeRow,
    refusals: &Refusals,
) -> flatbed_layer::Result<()> {
    let description = row.doc.as_ref().filter(|_| !row.deleted).and_then(Description::read);
    let before = replicator.followed_by(&origins.name, &row.id);
    if let (Some(before), Some(description)) = (&before, &description)
        && before.rev == description.rev
        && before.origins.incarnation == origins.incarnation
    {
        return Ok(());
    }
    if before.is_some() {
        replicator.unfollow(&origins.name, &row.id);
    }
    let ended = description.as_ref().is_none_or(|description| description.end().is_some());
    if let Some(mut description) = description.filter(|_| !ended) {
        match asked(replicator, &mut description, &origins.name).await? {
            Ok((spec, owner)) => {
                let origin = Origin { database: origins.name.clone(), doc_id: row.id.clone() };
                let id = spec.job_id(replicator.layer.uuid());
                let job = Replication::new(id, &spec, owner, Some(origin), replicator.clock());
                let Description { id, rev, .. } = description;
                let followed = FollowedDocument::new(replicator, origins.clone(), id, rev, spec.filter_bytes(), job);
                replicator.follow(followed, before);
            }
            Err(error) => {
                let owner = description.owner().ok();
                let owner = owner.as_ref().and_then(Owner::name).unwrap_or_default();
                let Description { id, rev, .. } = &description;
                let (origins, id, rev) = (origins.clone(), id.clone(), rev.clone());
                refusals.push(owner, RefusedDocument { origins, id, rev, error });
            }
        }
        return Ok(());
    }
    if before.is_some()
        && let Err(error) = replicator.database(&origins.name).drop_lease(&row.id).await
    {
        tracing::debug!(%error, "a replication's lease could not be removed");
    }
    Ok(())
}

/// Returns the requested replication and its owner, or the reason why it is invalid.
async fn asked(
    replicator: &Replicator,
    description: &mut Description,
    database: &str,
) -> flatbed_layer::Result<Result<(Spec, Owner), Error>> {
    let asked = description.spec(replicator.spec_defaults()).and_then(|spec| Ok((spec, description.owner()?)));
    let (mut spec, owner) = match asked {
        Ok(asked) => asked,
        Err(error) => return Ok(Err(error)),
    };
    let is_admin = owner.now(&replicator.accounts).await?.is_some_and(|standing| standing.principal().is_admin);
    spec.owner = owner.name().filter(|_| !is_admin).map(str::to_owned);
    if let Some(user) = &spec.owner
        && replicator.documents_of(user, database, &description.id) >= replicator.options.user_documents_max
    {
        let reason = format!("{} replications of this owner are not done yet", replicator.options.user_documents_max);
        return Ok(Err(Error::InvalidSpec(reason)));
    }
    Ok(Ok((spec, owner)))
}
