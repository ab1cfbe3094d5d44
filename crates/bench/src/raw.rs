//! The raw engine under the same keys: the rate of FoundationDB's binding on the embedded engine when it writes the
//! layer's keys and values, without HTTP, JSON, revisions or feeds.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use foundationdb::{Database, FdbBindingError, FdbError, RangeOption, api::FdbApiBuilder};
use foundationdb_sys::backend::{self, Backend, LoadError};
use serde_json::{Value, json};

use crate::{documents, stats::rounded};

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RawError {
    #[error(transparent)]
    Storage(#[from] FdbError),
    /// A transaction that was not committed.
    #[error(transparent)]
    Transaction(#[from] FdbBindingError),
    /// The embedded engine cannot be used.
    #[error(transparent)]
    Backend(#[from] LoadError),
    /// The cluster file cannot be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A path that is not UTF-8.
    #[error("the directory's name is not UTF-8")]
    Path,
    /// The source has no keys.
    #[error("the database to take the keys from is empty")]
    Empty,
}

type Pair = (Vec<u8>, Vec<u8>);

/// Reads all keys of the data directory `source`, which holds `documents` documents and is not in use, and writes them
/// into a new one in `scratch`, one document's share in each transaction. Boots FoundationDB's network, once in a
/// process.
pub(crate) fn run(source: &Path, scratch: &Path, documents: usize) -> Result<Vec<Value>, RawError> {
    backend::select(Backend::Embedded)?;
    let network = FdbApiBuilder::default().build()?;
    // SAFETY: the guard is dropped at the end of this function, before the process ends.
    let network = unsafe { network.boot() }?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = runtime.block_on(measure(source, scratch, documents.max(1)));
    drop(runtime);
    drop(network);
    figures
}

async fn measure(source: &Path, scratch: &Path, documents: usize) -> Result<Vec<Value>, RawError> {
    let pairs = read_all(&open(source)?).await?;
    if pairs.is_empty() {
        return Err(RawError::Empty);
    }
    let shares = shares(pairs, documents);
    let bytes: usize = shares.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
    let keys_each = rounded(shares.iter().map(Vec::len).sum::<usize>() as f64 / documents as f64, 10.0);
    let mut figures = Vec::new();
    for (workers, batch) in [(1, 1), (16, 1), (64, 1), (1, 200)] {
        let directory = scratch.join(format!("raw-{workers}-{batch}"));
        let count = if batch > 1 { documents } else { documents.min(workers * 5000) };
        let started = Instant::now();
        let written = write(&open(&directory)?, &shares[..count], workers, batch).await?;
        let per_s = rounded(written as f64 / started.elapsed().as_secs_f64(), 10.0);
        figures.push(json!({
            "load": "raw", "workers": workers, "documents_a_transaction": batch, "documents": written, "per_s": per_s,
            "keys_a_document": keys_each, "bytes_a_document": bytes / documents,
        }));
        std::fs::remove_dir_all(&directory)?;
    }
    Ok(figures)
}

fn open(directory: &Path) -> Result<Database, RawError> {
    std::fs::create_dir_all(directory)?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("embedded:bench@{}", std::fs::canonicalize(directory)?.display()))?;
    Ok(Database::from_path(file.path().to_str().ok_or(RawError::Path)?)?)
}

async fn read_all(database: &Database) -> Result<Vec<Pair>, RawError> {
    let mut pairs: Vec<Pair> = Vec::new();
    loop {
        // A new transaction for each page: the whole takes longer than the 5 s of a read version.
        let transaction = database.create_trx()?;
        let mut begin = pairs.last().map_or(Vec::new(), |(key, _)| key.clone());
        if !begin.is_empty() {
            begin.push(0);
        }
        let range = RangeOption { mode: foundationdb::options::StreamingMode::WantAll, ..(begin, vec![0xFF]).into() };
        let page = transaction.get_range(&range, 1, true).await?;
        pairs.extend(page.iter().map(|pair| (pair.key().to_vec(), pair.value().to_vec())));
        if !page.more() {
            return Ok(pairs);
        }
    }
}

/// Groups the keys by document, as the layer writes them in one transaction: keys that contain its id, or whose values
/// do, as in the index by sequence. Keys of no document (counters) are left out.
fn shares(pairs: Vec<Pair>, documents: usize) -> Vec<Vec<Pair>> {
    let mut shares: Vec<Vec<Pair>> = (0..documents).map(|_| Vec::new()).collect();
    for (key, value) in pairs {
        let number = documents::number(&key).or_else(|| documents::number(&value));
        if let Some(share) = number.and_then(|number| shares.get_mut(number)) {
            share.push((key, value));
        }
    }
    shares
}

async fn write(database: &Database, shares: &[Vec<Pair>], workers: usize, batch: usize) -> Result<usize, RawError> {
    let next = std::cell::Cell::new(0_usize);
    let end = Instant::now() + Duration::from_secs(10);
    let worker = async || {
        while Instant::now() < end {
            let from = next.get();
            let until = (from + batch).min(shares.len());
            if from == until {
                break;
            }
            next.set(until);
            let transaction = database.create_trx()?;
            for (key, value) in shares[from..until].iter().flatten() {
                transaction.set(key, value);
            }
            transaction.commit().await.map_err(FdbError::from)?;
        }
        Ok::<_, RawError>(())
    };
    let mut running: Vec<_> = (0..workers).map(|_| Box::pin(worker())).collect();
    let mut result = Ok(());
    std::future::poll_fn(|context| {
        running.retain_mut(|worker| match worker.as_mut().poll(context) {
            std::task::Poll::Ready(Ok(())) => false,
            std::task::Poll::Ready(Err(error)) => {
                result = Err(error);
                false
            }
            std::task::Poll::Pending => true,
        });
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    result.map(|()| next.get().min(shares.len()))
}
