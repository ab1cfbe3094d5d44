//! `flatbed import`: copies the databases of a CouchDB, or of another server with its API, into a running Flatbed.
//!
//! Documents travel by CouchDB's replication protocol ([`flatbed_replicate`]), whose checkpoints in both databases make
//! an import resumable. Replication does not carry settings, local documents, administrators and replications: other
//! requests copy these.

mod accounts;
mod conflicts;
mod database;
mod names;
pub(crate) mod options;
mod pages;
mod server;
mod state;
mod sync_gateway;
mod unmoved;
mod verify;
mod walk;

use std::io::{BufRead, Read};
use std::sync::Arc;

use flatbed_client::encode_segment;
use flatbed_outward::{Network, Tls};
use flatbed_replicate::{Memory, PeerAccess};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use crate::output::say;
use database::{CopyRoute, SourceInfo, USERS};
use options::Import;
use pages::Pages;
use server::{ImportError, Place, Server};
use state::{ImportProgress, UnmovedList};

/// The memory for answers of both servers.
const MEMORY_BYTES: usize = 512 << 20;

/// The names on one page of databases.
const NAMES: usize = 1_000;

/// The longest URL that is read from stdin, in bytes.
const URL_BYTES_MAX: u64 = 8 << 10;

/// Copies what the options choose, and prints what was not moved. Returns whether all was moved.
///
/// # Errors
/// [`ImportError`]: nothing could be moved, or not all is known.
pub(crate) async fn import(options: &Import, to: &str) -> Result<bool, ImportError> {
    let tls = match &options.ca {
        None => Tls::default(),
        Some(path) => {
            let failed = |reason: String| ImportError::File(path.clone(), reason);
            let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
            Tls::with_authorities(&pem).map_err(|error| failed(error.to_string()))?
        }
    };
    let network = Network::default();
    let source = if options.source == "-" { line_of_stdin()? } else { options.source.clone() };
    let (source, database) =
        if options.is_sync_gateway { sync_gateway::split(&source)? } else { (source.as_str(), String::new()) };
    let from = Place::new(source, &network, &tls)?;
    let to = Place::new(to, &network, &tls)?;
    let access = PeerAccess {
        // Both databases are reached over the network.
        local: Arc::new(|| tokio::io::duplex(1).0),
        network,
        tls,
        memory: Memory::new(MEMORY_BYTES),
        clock: Default::default(),
    };
    let ways = CopyRoute { from, to, access };
    if options.is_sync_gateway {
        let progress = ImportProgress::new(1, 0);
        let left = tokio::select! {
            left = sync_gateway::import(&ways, &database, &progress) => left?,
            () = progress.show() => UnmovedList::default(),
        };
        progress.say_totals();
        return report(left, &[]);
    }
    let (mut source, mut target) = (ways.from.open(), ways.to.open());
    source.greet().await?;
    target.greet().await?;
    let mut left = UnmovedList::default();
    let chosen = choose(&mut source, options, &mut left).await?;
    if chosen.databases.is_empty() && chosen.replicators.is_empty() && !options.only.is_empty() {
        return Err(ImportError::Database("no database of the source is chosen by --only and --except".to_owned()));
    }
    let documents = chosen.databases.iter().map(|(_, info)| info.documents).fold(0, u64::saturating_add);
    let progress = Arc::new(ImportProgress::new(chosen.databases.len() as u64, documents));
    let moved = tokio::select! {
        moved = copy_all(&ways, options, chosen.databases, &progress) => moved,
        () = progress.show() => UnmovedList::default(),
    };
    left.append(moved);
    let mut paused = Vec::new();
    for name in chosen.replicators {
        match accounts::copy_replications((&mut source, &mut target), &name, &mut left).await {
            Ok(lines) => paused.extend(lines),
            Err(error) => left.add(format!("{name}: {error}")),
        }
    }
    if options.admins
        && let Err(error) = accounts::copy_admins(&mut source, &mut target, &mut left).await
    {
        left.add(format!("administrators: {error}"));
    }
    progress.say_totals();
    report(left, &paused)
}

/// Reads the URL of the source, whose password is then not in the list of processes.
fn line_of_stdin() -> Result<String, ImportError> {
    let mut line = String::new();
    let read = std::io::stdin().lock().take(URL_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| ImportError::File("-".into(), error.to_string()))?;
    Ok(line.trim().to_owned())
}

/// Prints the end of an import: what is paused, and what was not moved. Returns whether all was moved.
fn report(left: UnmovedList, paused: &[String]) -> Result<bool, ImportError> {
    if !paused.is_empty() {
        say!("paused replications (remove _replication_state from a document to start it):");
        paused.iter().for_each(|line| say!("  {line}"));
    }
    if left.is_empty() {
        say!("everything was moved");
        return Ok(true);
    }
    say!("not moved:");
    left.into_lines().iter().for_each(|line| say!("  {line}"));
    Ok(false)
}

/// The databases that are copied.
#[derive(Default)]
struct DatabaseChoice {
    databases: Vec<(String, SourceInfo)>,
    /// The replicator databases, whose documents are paused.
    replicators: Vec<String>,
}

/// Returns whether documents of a database are replications.
fn is_replicator(name: &str) -> bool {
    name == "_replicator" || name.ends_with("/_replicator")
}

/// Returns whether a server keeps a database for itself, or makes its content anew.
fn is_of_server(name: &str) -> bool {
    name.starts_with('_') && name != USERS && !is_replicator(name)
}

/// Lists the databases of the source, and chooses those to copy. `_users` comes first, so that accounts are there when
/// their databases are.
async fn choose(source: &mut Server, options: &Import, left: &mut UnmovedList) -> Result<DatabaseChoice, ImportError> {
    let mut chosen = DatabaseChoice::default();
    let mut pages = Pages::of(NAMES);
    while let Some(query) = pages.query() {
        let path = format!("/_all_dbs?{query}");
        let page = source.get(&path).await?;
        let names = page.as_array().ok_or_else(|| ImportError::Answer(path))?;
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let known = pages.note(&names);
        for name in names.iter().skip(known) {
            if is_of_server(name) || !names::is_chosen(name, &options.only, &options.except) {
                continue;
            }
            if is_replicator(name) {
                chosen.replicators.push((*name).to_owned());
                continue;
            }
            match source.find(&format!("/{}", encode_segment(name))).await {
                Ok(Some(info)) => chosen.databases.push(((*name).to_owned(), SourceInfo::read(&info))),
                // Deleted meanwhile.
                Ok(None) => {}
                Err(error) => left.add(format!("{name}: {error}")),
            }
        }
    }
    chosen.databases.sort_by_key(|(name, _)| name != USERS);
    Ok(chosen)
}

/// Copies databases, several at once.
async fn copy_all(
    ways: &CopyRoute,
    options: &Import,
    databases: Vec<(String, SourceInfo)>,
    progress: &Arc<ImportProgress>,
) -> UnmovedList {
    let seats = Arc::new(Semaphore::new(options.parallel));
    let mut running = JoinSet::new();
    let mut left = UnmovedList::default();
    let (local, verify) = (options.local, options.verify);
    for (name, info) in databases {
        let Ok(seat) = seats.clone().acquire_owned().await else { break };
        while let Some(done) = running.try_join_next() {
            left.append(joined(done));
        }
        let (ways, progress, is_users) = (ways.clone(), progress.clone(), name == USERS);
        running.spawn(async move {
            let _seat = seat;
            copy_one(&ways, &name, &info, (local, verify), &progress).await
        });
        if is_users && let Some(done) = running.join_next().await {
            left.append(joined(done));
        }
    }
    while let Some(done) = running.join_next().await {
        left.append(joined(done));
    }
    left
}

/// Returns the outcome of a task; one that ended early has not moved its database.
fn joined(done: Result<UnmovedList, JoinError>) -> UnmovedList {
    done.unwrap_or_else(|error| {
        let mut left = UnmovedList::default();
        left.add(format!("a database: {error}"));
        left
    })
}

async fn copy_one(
    ways: &CopyRoute,
    name: &str,
    info: &SourceInfo,
    (local, verify): (bool, bool),
    progress: &ImportProgress,
) -> UnmovedList {
    let of_database = progress.begin(name, info.documents);
    let mut left = match database::copy(ways, name, info, local, of_database).await {
        Ok(left) => left,
        Err(error) => {
            let mut left = UnmovedList::default();
            left.add(format!("{name}: {error}"));
            progress.end(name);
            return left;
        }
    };
    let path = format!("/{}", encode_segment(name));
    if name == USERS
        && let Err(error) = conflicts::add_conflicting_users(&mut ways.to.open(), &path, &mut left).await
    {
        left.add(format!("{name}: conflicts of users: {error}"));
    }
    if verify {
        progress.compare(name);
        let (mut from, mut to) = (ways.from.open(), ways.to.open());
        if let Err(error) = verify::verify((&mut from, &mut to), &path, name, &mut left).await {
            left.add(format!("{name}: it could not be compared: {error}"));
        }
    }
    progress.end(name);
    progress.say(&format!("{name}: {}", if left.is_empty() { "done" } else { "done, not all was moved" }));
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_databases() {
        for name in ["_replicator", "team/_replicator"] {
            assert!(is_replicator(name) && !is_of_server(name), "{name}");
        }
        for name in ["_global_changes", "_metadata", "_dbs", "_nodes"] {
            assert!(is_of_server(name), "{name}");
        }
        assert!(!is_of_server("_users") && !is_of_server("a") && !is_replicator("x_replicator"));
    }
}
