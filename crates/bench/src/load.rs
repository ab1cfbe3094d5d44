//! The loads. Each runs against one database of one server and returns one JSON object of figures.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use flatbed_client::{Connection, Lines, Url};
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::{
    documents,
    stats::{cpu_s, own_cpu_s, percentiles, rounded},
};

/// The reason why a load gave no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The connection or a request failed.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// A status that ends the load.
    #[error("{method} {path}: {status} {text}")]
    Status {
        /// The request's method.
        method: Method,
        /// The request's path.
        path: String,
        status: u16,
        /// The answer's text.
        text: String,
    },
}

/// The server and database that are loaded.
#[derive(Clone)]
pub(crate) struct Target {
    /// The server.
    pub url: Url,
    /// The database's path, `/bench`.
    pub database: String,
    /// The server's process, for its processor time.
    pub pid: Option<u32>,
}

/// The request of a load with many workers.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Put new documents, numbered from this on.
    Put(u64),
    /// Get a random one of the first documents, this many.
    Get(u64),
}

struct Clock {
    started: Instant,
    own_cpu_s: f64,
    server_cpu_s: f64,
    pid: Option<u32>,
}

impl Clock {
    fn start(target: &Target) -> Clock {
        let server_cpu_s = target.pid.map_or(0.0, cpu_s);
        Clock { started: Instant::now(), own_cpu_s: own_cpu_s(), server_cpu_s, pid: target.pid }
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Adds the duration and each side's share of one core.
    fn finish(&self, mut figures: Value) -> Value {
        let seconds = self.seconds();
        figures["wall_s"] = json!(rounded(seconds, 1000.0));
        figures["client_cores"] = json!(rounded((own_cpu_s() - self.own_cpu_s) / seconds, 100.0));
        if let Some(pid) = self.pid {
            figures["server_cores"] = json!(rounded((cpu_s(pid) - self.server_cpu_s) / seconds, 100.0));
        }
        figures
    }
}

/// Sends a request, checks for a 2xx, and returns the answer's body.
pub(crate) async fn expect(
    connection: &mut Connection,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Bytes, LoadError> {
    let answer = connection.call(method.clone(), path, body).await?;
    match answer.status {
        200..300 => Ok(answer.body),
        status => Err(LoadError::Status { method, path: path.to_owned(), status, text: answer.text() }),
    }
}

/// Deletes the database, if it exists, and creates it.
pub(crate) async fn fresh(target: &Target) -> Result<(), LoadError> {
    let mut connection = Connection::open(&target.url).await?;
    connection.call(Method::DELETE, &target.database, Bytes::new()).await?;
    expect(&mut connection, Method::PUT, &target.database, Bytes::new()).await?;
    Ok(())
}

/// Sends requests in sequence on each of `workers` connections, until `count` are done or `seconds` are over. Must run
/// on a current-thread runtime.
pub(crate) async fn single(
    target: &Target,
    kind: Kind,
    workers: usize,
    count: u64,
    seconds: u64,
) -> Result<Value, LoadError> {
    let clock = Clock::start(target);
    let end = Instant::now() + Duration::from_secs(seconds);
    let next = Rc::new(Cell::new(0_u64));
    let local = LocalSet::new();
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let (target, next) = (target.clone(), next.clone());
        let mut connection = Connection::open(&target.url).await?;
        tasks.spawn_local_on(
            async move {
                let mut latencies_ms = Vec::new();
                let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
                while next.get() < count && Instant::now() < end {
                    let number = next.replace(next.get() + 1);
                    let (method, id, body) = match kind {
                        Kind::Put(base) => (Method::PUT, base + number, documents::text(base + number, false)),
                        Kind::Get(range) => (Method::GET, documents::mix(number ^ (1 << 32)) % range, String::new()),
                    };
                    let path = format!("{}/{}", target.database, documents::id(id));
                    let sent = Instant::now();
                    let answer = connection.call(method, &path, body).await?;
                    latencies_ms.push(sent.elapsed().as_secs_f64() * 1e3);
                    *statuses.entry(answer.status).or_default() += 1;
                }
                Ok::<_, LoadError>((latencies_ms, statuses))
            },
            &local,
        );
    }
    let (mut latencies_ms, mut statuses) = (Vec::new(), BTreeMap::<u16, u64>::new());
    let collected = local
        .run_until(async {
            while let Some(finished) = tasks.join_next().await {
                let Ok(finished) = finished else { continue };
                let (more_ms, more) = finished?;
                latencies_ms.extend(more_ms);
                for (status, count) in more {
                    *statuses.entry(status).or_default() += count;
                }
            }
            Ok::<_, LoadError>(())
        })
        .await;
    collected?;
    let per_second = rounded(latencies_ms.len() as f64 / clock.seconds(), 10.0);
    let name = if matches!(kind, Kind::Put(_)) { "put" } else { "get" };
    let statuses: BTreeMap<String, u64> = statuses.into_iter().map(|(status, n)| (status.to_string(), n)).collect();
    Ok(clock.finish(json!({
        "load": name, "workers": workers, "requests": latencies_ms.len(), "per_s": per_second,
        "ms": percentiles(&mut latencies_ms), "statuses": statuses,
    })))
}

/// Sends `_bulk_docs` requests of `batch` documents in sequence, until `count` documents are written or `seconds` are
/// over. The rate excludes the time in which the generator writes the documents' text.
pub(crate) async fn bulk(target: &Target, batch: u64, count: u64, seconds: u64) -> Result<Value, LoadError> {
    let clock = Clock::start(target);
    let mut connection = Connection::open(&target.url).await?;
    let path = format!("{}/_bulk_docs", target.database);
    let (mut written, mut refused) = (0, 0);
    let mut latencies_ms = Vec::new();
    while written < count && clock.seconds() < seconds as f64 {
        let until = (written + batch).min(count);
        let body = documents::bulk(written..until);
        let sent = Instant::now();
        let answer = expect(&mut connection, Method::POST, &path, body.into()).await?;
        latencies_ms.push(sent.elapsed().as_secs_f64() * 1e3);
        refused += memchr::memmem::find_iter(&answer, b"\"error\"").count();
        written = until;
    }
    let busy_s = latencies_ms.iter().sum::<f64>() / 1e3;
    Ok(clock.finish(json!({
        "load": "bulk", "batch": batch, "documents": written, "refused": refused,
        "per_s": rounded(written as f64 / busy_s, 10.0), "ms": percentiles(&mut latencies_ms),
    })))
}

/// Sends a GET of `path` below the database, and counts its rows as they come.
pub(crate) async fn rows(target: &Target, path: &str) -> Result<Value, LoadError> {
    let clock = Clock::start(target);
    let mut connection = Connection::open(&target.url).await?;
    let whole = format!("{}{path}", target.database);
    let response = connection.send(Method::GET, &whole, Bytes::new()).await?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(LoadError::Status { method: Method::GET, path: whole, status, text: String::new() });
    }
    let mut lines = Lines::new(response.into_body());
    let (mut rows, mut first_ms) = (0, None);
    while let Some(line) = lines.next().await? {
        // pouchdb-server writes all rows on one line. No document has a member called `id`.
        let found = memchr::memmem::find_iter(&line, b"\"id\":").count();
        if found > 0 {
            rows += found;
            first_ms.get_or_insert_with(|| rounded(clock.seconds() * 1e3, 10.0));
        }
    }
    let seconds = clock.seconds();
    Ok(clock.finish(json!({
        "load": path, "rows": rows, "bytes": lines.bytes(), "per_s": rounded(rows as f64 / seconds, 10.0),
        "mb_per_s": rounded(lines.bytes() as f64 / 1e6 / seconds, 10.0), "first_row_ms": first_ms,
    })))
}

fn row_id(line: &[u8]) -> Option<String> {
    let start = memchr::memmem::find(line, b"\"id\":\"")? + 6;
    let end = start + memchr::memchr(b'"', &line[start..])?;
    Some(String::from_utf8_lossy(&line[start..end]).into_owned())
}

/// Measures the time from the acknowledgement of a write to its row on a continuous feed: `count` writes, `rate` per
/// second. The figure is negative if a row comes before the acknowledgement.
pub(crate) async fn latency(target: &Target, count: u64, rate: u64) -> Result<Value, LoadError> {
    const BASE: u64 = 50_000_000;
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut feed = Connection::open(&target.url).await?;
            let path = format!("{}/_changes?feed=continuous&since=now&heartbeat=10000", target.database);
            let response = feed.send(Method::GET, &path, Bytes::new()).await?;
            let seen: Rc<RefCell<HashMap<String, Instant>>> = Rc::default();
            let follower = tokio::task::spawn_local({
                let seen = seen.clone();
                async move {
                    let mut lines = Lines::new(response.into_body());
                    while let Ok(Some(line)) = lines.next().await {
                        if let Some(id) = row_id(&line) {
                            seen.borrow_mut().insert(id, Instant::now());
                        }
                    }
                }
            });
            // `now` is the moment at which the server reads it, which no answer shows.
            tokio::time::sleep(Duration::from_millis(1500)).await;

            let clock = Clock::start(target);
            let mut writer = Connection::open(&target.url).await?;
            let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / rate));
            let mut acknowledged = Vec::new();
            for number in BASE..BASE + count {
                tick.tick().await;
                let path = format!("{}/{}", target.database, documents::id(number));
                let sent = Instant::now();
                expect(&mut writer, Method::PUT, &path, documents::text(number, false).into()).await?;
                acknowledged.push((documents::id(number), sent, Instant::now()));
            }
            for _ in 0..100 {
                if acknowledged.iter().all(|(id, ..)| seen.borrow().contains_key(id)) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            follower.abort();

            let seen = seen.borrow();
            let ms = |from: Instant, to: Instant| {
                let after = to.saturating_duration_since(from).as_secs_f64() * 1e3;
                after - from.saturating_duration_since(to).as_secs_f64() * 1e3
            };
            let rows = || acknowledged.iter().filter_map(|(id, sent, done)| Some((*sent, *done, *seen.get(id)?)));
            let mut from_acknowledged: Vec<f64> = rows().map(|(_, done, row)| ms(done, row)).collect();
            let mut from_sent: Vec<f64> = rows().map(|(sent, _, row)| ms(sent, row)).collect();
            let mut writes: Vec<f64> = acknowledged.iter().map(|(_, sent, done)| ms(*sent, *done)).collect();
            Ok(clock.finish(json!({
                "load": "latency", "rate": rate, "writes": acknowledged.len(), "seen": from_sent.len(),
                "acknowledged_to_row_ms": percentiles(&mut from_acknowledged),
                "sent_to_row_ms": percentiles(&mut from_sent), "write_ms": percentiles(&mut writes),
            })))
        })
        .await
}
