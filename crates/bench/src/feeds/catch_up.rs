//! One follower that starts at 0 of a large database while others write: the time to reach the end, and a check that it
//! has then seen the content of the database.

use std::{
    cell::Cell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use flatbed_client::Connection;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use super::{
    FeedsError, moment,
    stream::{ChunkedAnswer, StreamError, member},
};
use crate::{
    documents,
    load::{LoadError, Target},
    server::Server,
    stats::{resident, rounded},
};

/// The connections that write meanwhile.
const WRITERS: usize = 4;

/// The writes per second of all of them. Every other one updates an existing document, spread over all documents.
const WRITES_PER_S: u64 = 100;

/// The time limit of the follower for the last writes.
const END_MAX: Duration = Duration::from_secs(60);

/// The pause between two checks for messages to the follower.
const READ_WAIT: Duration = Duration::from_millis(100);

/// The newest states: a hash of the revision by the document's number.
type Newest = HashMap<usize, u64>;

fn hash(rev: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    rev.hash(&mut hasher);
    // 0 means a document that was not seen.
    hasher.finish() | 1
}

/// The reason why the follower has not reached the end.
#[derive(Debug, thiserror::Error)]
pub(super) enum CatchUpError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The feed is malformed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Rows are missing.
    #[error("the newest rows of {missing} documents did not come")]
    Missing {
        /// The number of missing rows.
        missing: usize,
    },
}

/// The rows read by the follower.
struct FollowerProgress {
    rows: u64,
    bytes: u64,
}

/// Reads the feed until each document in the message has its newest revision. `seen` counts documents.
fn follow(
    address: SocketAddr,
    path: &str,
    documents: usize,
    seen: &AtomicUsize,
    expected: &mpsc::Receiver<Newest>,
) -> Result<FollowerProgress, CatchUpError> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(READ_WAIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut answer = ChunkedAnswer::new();
    let mut newest = vec![0_u64; documents];
    let mut buffer = vec![0; 256 * 1024];
    let mut report = FollowerProgress { rows: 0, bytes: 0 };
    let mut end: Option<(Newest, Instant)> = None;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(StreamError::Ended.into()),
            Ok(read) => {
                report.bytes += read as u64;
                let mut new = 0;
                answer.take(&buffer[..read], |row| {
                    report.rows += 1;
                    if row.number >= newest.len() {
                        newest.resize(row.number + 1, 0);
                    }
                    new += usize::from(newest[row.number] == 0 && row.number < documents);
                    newest[row.number] = member(row.text, b"\"rev\":\"").map_or(0, hash);
                })?;
                seen.fetch_add(new, Ordering::Relaxed);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        if let Ok(wanted) = expected.try_recv() {
            end = Some((wanted, Instant::now()));
        }
        if let Some((wanted, since)) = &end {
            let missing = wanted.iter().filter(|(number, rev)| newest.get(**number) != Some(*rev)).count();
            if missing == 0 {
                return Ok(report);
            }
            if since.elapsed() > END_MAX {
                return Err(CatchUpError::Missing { missing });
            }
        }
    }
}

/// Follows `target` from its beginning. The database holds the documents 0 to `documents`.
pub(super) async fn run(
    server: &Server,
    target: &Target,
    documents: u64,
    round: u64,
    include_docs: bool,
) -> Result<Value, FeedsError> {
    let name = if include_docs { "catch-up-docs" } else { "catch-up" };
    let wrong = |what: String| FeedsError::Wrong { case: name.to_owned(), what };
    let pid = server.pid().ok_or_else(|| wrong("the server is gone".to_owned()))?;
    let address = server.url.authority().parse().map_err(|error| wrong(format!("{error}")))?;
    let path = format!("{}/_changes?feed=continuous&since=0&include_docs={include_docs}", target.database);
    let count = usize::try_from(documents).unwrap_or(usize::MAX);
    let before = moment(server, pid).await?;
    let seen = Arc::new(AtomicUsize::new(0));
    let (expect, expected) = mpsc::channel();
    let follower = std::thread::spawn({
        let seen = seen.clone();
        move || follow(address, &path, count, &seen, &expected)
    });

    let stop = Rc::new(Cell::new(false));
    let local = LocalSet::new();
    let caught_up = local.run_until(async {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn_local(write(target.clone(), documents, round, writer as u64, stop.clone()));
        }
        let mut peak_mb: f64 = 0.0;
        while seen.load(Ordering::Relaxed) < count && !follower.is_finished() {
            peak_mb = peak_mb.max(resident(pid).anonymous_mb);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let after = moment(server, pid).await?;
        stop.set(true);
        let mut newest = Newest::new();
        while let Some(written) = writers.join_next().await {
            newest.extend(written.map_err(|error| wrong(error.to_string()))??);
        }
        Ok::<_, FeedsError>((after, peak_mb, newest))
    });
    let (after, peak_mb, newest) = caught_up.await?;
    let writes = newest.len();
    let _ = expect.send(newest);
    let report = match follower.join() {
        Ok(report) => report.map_err(|error| wrong(error.to_string()))?,
        Err(_) => return Err(wrong("the follower failed".to_owned())),
    };
    let took_s = (after.at - before.at).as_secs_f64();
    let (server_cpu_s, client_cpu_s) = after.cpu_s(&before);
    Ok(json!({
        "case": name, "documents": documents, "rows": report.rows, "documents_written_meanwhile": writes,
        "took_s": rounded(took_s, 100.0), "rows_per_s": rounded(documents as f64 / took_s, 1.0),
        "mb_per_s": rounded(report.bytes as f64 / 1e6 / took_s, 1.0),
        "server_cpu_s": rounded(server_cpu_s, 100.0), "client_cpu_s": rounded(client_cpu_s, 100.0),
        "server_us_a_row": rounded(server_cpu_s * 1e6 / documents as f64, 100.0),
        "memory_idle_mb": rounded(before.memory_mb, 10.0), "memory_peak_mb": rounded(peak_mb, 10.0),
        "by_seq_reads": after.counted(&before, "by_seq_reads"), "by_seq_rows": after.counted(&before, "by_seq_rows"),
    }))
}

/// Writes new documents and updates old ones in turn until it is stopped. Returns the last state of each document.
async fn write(
    target: Target,
    documents: u64,
    round: u64,
    writer: u64,
    stop: Rc<Cell<bool>>,
) -> Result<Newest, LoadError> {
    let mut connection = Connection::open(&target.url).await?;
    let mut newest = Newest::new();
    let mut tick = tokio::time::interval(Duration::from_millis(1000 * WRITERS as u64 / WRITES_PER_S));
    for turn in 0_u64.. {
        tick.tick().await;
        if stop.get() {
            break;
        }
        // Each writer has its own numbers.
        let of_writer = |number: u64| number * WRITERS as u64 + writer;
        let number = match turn % 2 {
            0 => documents + of_writer(round * 1_000_000 + turn),
            _ => of_writer(documents::mix(turn ^ round << 32) % (documents / WRITERS as u64)),
        };
        let path = format!("{}/{}", target.database, documents::id(number));
        let mut put = path.clone();
        if turn % 2 == 1 {
            let found = connection.call(Method::GET, &path, Bytes::new()).await?;
            if let Some(rev) = member(&found.body, b"\"_rev\":\"") {
                put = format!("{path}?rev={}", String::from_utf8_lossy(rev));
            }
        }
        let answer = connection.call(Method::PUT, &put, documents::text(number, false)).await?;
        let Some(rev) = member(&answer.body, b"\"rev\":\"").filter(|_| answer.status == 201) else {
            let (status, text) = (answer.status, answer.text());
            return Err(LoadError::Status { method: Method::PUT, path, status, text });
        };
        newest.insert(usize::try_from(number).unwrap_or(usize::MAX), hash(rev));
    }
    Ok(newest)
}
