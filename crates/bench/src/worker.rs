//! The changes worker's deliveries: documents of 1 kB from a database of the server into each kind of target, from the
//! first to the last, and the delay of a write; beside PostgreSQL a plain `COPY` of the same documents. The server runs
//! the jobs itself (`--worker`), so both share the processors with this program.

mod jobs;
mod postgres;
mod queue;

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::SocketAddr,
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use flatbed_client::{Connection, encode_segment};
use hyper::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::LocalSet,
};

use crate::{
    documents,
    server::{Server, ServerError},
    stats::{cpu_s, own_cpu_s, percentiles, rounded},
};
use postgres::Postgres;

const DATABASE: &str = "/source";
/// The documents of one `_bulk_docs`.
const BATCH: u64 = 1_000;
/// The time limit for a target that accepts nothing.
const STALLED: Duration = Duration::from_secs(60);
/// The connections of the writes whose delay is measured, and their rate per second.
const WRITERS: u64 = 10;
const WRITES_PER_S: u64 = 1_000;
/// The longest head of the worker's requests, in bytes.
const HEAD_MAX: usize = 64 * 1024;

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A connection or a file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A request failed.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// PostgreSQL failed.
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
    /// An unexpected answer.
    #[error("{target}: {status} {text}")]
    Status {
        /// The request's target.
        target: String,
        /// The answer's status.
        status: u16,
        /// The answer's text.
        text: String,
    },
    #[error("{case}: only {delivered} of {of} documents were delivered; {jobs}")]
    Stalled {
        case: &'static str,
        delivered: u64,
        /// The number of documents.
        of: u64,
        /// The server's status of its jobs.
        jobs: String,
    },
}

type Result<T> = std::result::Result<T, WorkerError>;

pub(crate) struct Options {
    /// Flatbed's binary.
    pub flatbed: PathBuf,
    pub directory: PathBuf,
    /// The names of the cases; none: all with an available target.
    pub cases: Vec<String>,
    pub documents: u64,
    /// The duration of the writes whose delay is measured, in seconds.
    pub seconds: u64,
    /// The port of a PostgreSQL at 127.0.0.1 with a user, a password and a database `flatbed`.
    pub postgres: Option<u16>,
    /// The entries of the queue, for the case `queue`, which runs only by name.
    pub entries: u64,
    /// The jobs at once, for the case `jobs`, which runs only by name.
    pub jobs: u64,
}

/// The arrival of each document at the endpoint, by its number.
type Arrivals = Rc<RefCell<HashMap<usize, Instant>>>;

async fn call(connection: &mut Connection, method: Method, target: &str, body: String) -> Result<Bytes> {
    let answer = connection.call(method, target, Bytes::from(body)).await?;
    match answer.status {
        200..300 => Ok(answer.body),
        status => Err(WorkerError::Status { target: target.to_owned(), status, text: answer.text() }),
    }
}

/// Runs an endpoint that accepts everything.
async fn serve(mut stream: TcpStream, taken: Arrivals) -> io::Result<()> {
    let mut held = Vec::new();
    loop {
        let end = loop {
            match memchr::memmem::find(&held, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None if held.len() > HEAD_MAX => return Ok(()),
                None if stream.read_buf(&mut held).await? == 0 => return Ok(()),
                None => {}
            }
        };
        let head = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let all = end + length.unwrap_or(0_usize);
        while held.len() < all {
            if stream.read_buf(&mut held).await? == 0 {
                return Ok(());
            }
        }
        if let Some(number) = documents::number(&held[..all]) {
            taken.borrow_mut().insert(number, Instant::now());
        }
        held.drain(..all);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}

async fn accept(listener: TcpListener, taken: Arrivals) {
    while let Ok((stream, _)) = listener.accept().await {
        // The client reports a broken connection.
        tokio::task::spawn_local(serve(stream, taken.clone()));
    }
}

/// Returns a mapping to one table of the top level, and with children one of five rows for each document.
fn mapping(has_children: bool) -> Value {
    let path = |(name, path): &(&str, &str)| ((*name).to_owned(), json!(format!("${}", path.replace('/', "."))));
    let columns = Value::Object(postgres::COLUMNS.iter().map(path).collect());
    let mut tables = vec![json!({"name": "flat", "primary_key": "id", "columns": columns})];
    if has_children {
        tables[0]["name"] = json!("parents");
        tables.push(json!({
            "name": "children", "parent": "parents", "foreign_key": {"column": "parent_id", "references": "id"},
            "source_array": "$.items", "primary_key": ["parent_id", "position"],
            "columns": {"parent_id": "$$._id", "position": "$#", "sku": "$.sku", "quantity": "$.quantity"},
        }));
    }
    json!({ "tables": tables })
}

struct World {
    server: Server,
    connection: RefCell<Option<Connection>>,
    documents: u64,
}

impl World {
    async fn call(&self, method: Method, target: &str, body: String) -> Result<Bytes> {
        let held = self.connection.borrow_mut().take();
        let mut connection = match held {
            Some(connection) => connection,
            None => Connection::open(&self.server.url).await?,
        };
        let answer = call(&mut connection, method, target, body).await;
        *self.connection.borrow_mut() = Some(connection);
        answer
    }

    /// Writes documents with five lines each, so that all cases read the same.
    async fn fill(&self) -> Result<()> {
        self.call(Method::PUT, DATABASE, String::new()).await?;
        for from in (0..self.documents).step_by(BATCH as usize) {
            let text = |number: u64| {
                let mut document = documents::text(number, true);
                let items: Vec<Value> =
                    (0..5).map(|line| json!({"sku": format!("s{line}"), "quantity": number % 9 + line})).collect();
                document.pop();
                format!("{document},\"items\":{}}}", json!(items))
            };
            let docs: Vec<String> = (from..self.documents.min(from + BATCH)).map(text).collect();
            let body = format!("{{\"docs\":[{}]}}", docs.join(","));
            self.call(Method::POST, &format!("{DATABASE}/_bulk_docs"), body).await?;
        }
        Ok(())
    }

    /// Returns the documents that this process has delivered since its start.
    async fn delivered(&self) -> Result<u64> {
        let [delivered] = self.counted(["flatbed_worker_delivered_total"]).await?;
        Ok(delivered as u64)
    }

    /// Returns metrics of `/metrics`, each summed over its labels.
    async fn counted<const N: usize>(&self, names: [&str; N]) -> Result<[f64; N]> {
        let body = self.call(Method::GET, "/metrics", String::new()).await?;
        let text = String::from_utf8_lossy(&body);
        let of = |name: &str| {
            let is = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
            let lines = text.lines().filter(is);
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Ok(names.map(of))
    }

    async fn job(&self, case: &str, output_type: &str, output: Value, mapping: Value) -> Result<()> {
        let mut job = json!({
            "type": "job", "id": case, "output_type": output_type, "outputs": [output],
            "inputs": [{"id": "source", "source_type": "flatbed", "local": DATABASE.trim_start_matches('/')}],
        });
        if !mapping.is_null() {
            job["mapping"] = mapping;
        }
        self.call(Method::PUT, &path(case), job.to_string()).await.map(drop)
    }

    /// Ends the job, and waits until it has stopped.
    async fn end(&self, case: &str) -> Result<()> {
        let body = self.call(Method::GET, &path(case), String::new()).await?;
        let job: Value = serde_json::from_slice(&body).unwrap_or_default();
        let rev = job["_rev"].as_str().unwrap_or_default();
        self.call(Method::DELETE, &format!("{}?rev={rev}", path(case)), String::new()).await.map(drop)
    }

    /// Measures the time from the first arrival to the last.
    async fn measure(
        &self,
        case: &'static str,
        output_type: &str,
        output: Value,
        mapping: Value,
        postgres: Option<&Postgres>,
    ) -> Result<Value> {
        let (before, of) = (self.delivered().await?, self.documents);
        let pid = self.server.pid().unwrap_or_default();
        self.job(case, output_type, output, mapping).await?;
        let target_s = async || match postgres {
            Some(postgres) => postgres.cpu_s().await,
            None => Ok(0.0),
        };
        let mut begun: Option<(Instant, u64, f64, f64, f64)> = None;
        let mut last = (Instant::now(), 0);
        loop {
            let now = self.delivered().await? - before;
            if now > last.1 {
                last = (Instant::now(), now);
                if begun.is_none() {
                    begun = Some((last.0, now, cpu_s(pid), own_cpu_s(), target_s().await?));
                }
            }
            if now >= of {
                break;
            }
            if last.0.elapsed() > STALLED {
                let body = self.call(Method::GET, "/_worker/_api/jobs", String::new()).await?;
                let jobs = String::from_utf8_lossy(&body).chars().take(1_000).collect();
                return Err(WorkerError::Stalled { case, delivered: now, of, jobs });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let target_end_s = target_s().await?;
        self.end(case).await?;
        let (at, first, server_s, own_s, target_begin_s) = begun.unwrap_or((last.0, of, 0.0, 0.0, 0.0));
        let (s, count) = (last.0.duration_since(at).as_secs_f64(), (of - first) as f64);
        let mut figures = json!({
            "load": "worker", "case": case, "documents": of, "seconds": rounded(s, 100.0), "per_s": rounded(count / s, 1.0),
            "server_cores": rounded((cpu_s(pid) - server_s) / s, 100.0),
            "client_cores": rounded((own_cpu_s() - own_s) / s, 100.0),
        });
        if postgres.is_some() {
            figures["postgres_cores"] = json!(rounded((target_end_s - target_begin_s) / s, 100.0));
        }
        Ok(figures)
    }

    /// Measures the delay from a write's answer to its arrival at an endpoint.
    async fn lag(&self, endpoint: SocketAddr, taken: &Arrivals, seconds: u64) -> Result<Value> {
        self.job("lag", "http", http(endpoint), Value::Null).await?;
        while taken.borrow().len() < self.documents as usize {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (begun, count) = (Instant::now(), seconds * WRITES_PER_S);
        let written: Rc<RefCell<HashMap<usize, Instant>>> = Rc::default();
        let writers = (0..WRITERS).map(|writer| {
            let written = written.clone();
            async move {
                let mut connection = Connection::open(&self.server.url).await?;
                for number in (writer..count).step_by(WRITERS as usize) {
                    let due = begun + Duration::from_secs_f64(number as f64 / WRITES_PER_S as f64);
                    tokio::time::sleep_until(due.into()).await;
                    let number = self.documents + number;
                    let target = format!("{DATABASE}/{}", documents::id(number));
                    call(&mut connection, Method::PUT, &target, documents::text(number, false)).await?;
                    written.borrow_mut().insert(number as usize, Instant::now());
                }
                Ok::<_, WorkerError>(())
            }
        });
        for ended in join(writers).await {
            ended?;
        }
        let took = begun.elapsed().as_secs_f64();
        let wait_until = Instant::now() + STALLED;
        while taken.borrow().len() < (self.documents + count) as usize && Instant::now() < wait_until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.end("lag").await?;
        let (written, taken) = (written.borrow(), taken.borrow());
        let of = |(number, at): (&usize, &Instant)| {
            Some(taken.get(number)?.saturating_duration_since(*at).as_secs_f64() * 1e3)
        };
        let mut ms: Vec<f64> = written.iter().filter_map(of).collect();
        Ok(json!({
            "load": "worker", "case": "lag", "writes_per_s": rounded(count as f64 / took, 1.0), "arrived": ms.len(),
            "of": count, "ms": percentiles(&mut ms),
        }))
    }
}

/// Runs all futures to their ends.
async fn join<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_over = true;
        for (one, output) in all.iter_mut().filter(|(_, output)| output.is_none()) {
            match one.as_mut().poll(context) {
                std::task::Poll::Ready(done) => *output = Some(done),
                std::task::Poll::Pending => is_over = false,
            }
        }
        if is_over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

fn path(case: &str) -> String {
    format!("/_worker/{}", encode_segment(&format!("job::{case}")))
}

fn http(endpoint: SocketAddr) -> Value {
    json!({"id": "endpoint", "url": format!("http://{endpoint}/in/{{id}}")})
}

/// Measures each case, and prints a line of JSON for it.
pub(crate) async fn run(options: &Options) -> Result<()> {
    LocalSet::new().run_until(measure(options)).await
}

async fn measure(options: &Options) -> Result<()> {
    match std::fs::remove_dir_all(&options.directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let files = options.directory.join("files");
    std::fs::create_dir_all(&files)?;
    let files = files.to_string_lossy().into_owned();
    let variables = [
        ("FLATBED_WORKER", "true"),
        ("FLATBED_WORKER_FILES", files.as_str()),
        ("FLATBED_WORKER_ALLOW", "127.0.0.1"),
        ("FLATBED_WORKER_BENCH", "flatbed"),
    ];
    let server = Server::flatbed_with(&options.flatbed, &options.directory.join("data"), &variables).await?;
    let world = World { server, connection: RefCell::new(None), documents: options.documents };
    let named = |case: &str| options.cases.iter().any(|named| named == case);
    if named("queue") {
        queue::measure(&world, options.entries).await?;
    }
    if named("jobs") {
        jobs::measure(&world, options.jobs, options.seconds).await?;
    }
    if options.cases.iter().all(|case| case == "queue" || case == "jobs") && !options.cases.is_empty() {
        world.server.stop().await?;
        std::fs::remove_dir_all(&options.directory)?;
        return Ok(());
    }
    world.fill().await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let (endpoint, taken) = (listener.local_addr()?, Arrivals::default());
    tokio::task::spawn_local(accept(listener, taken.clone()));
    let wanted = |case: &str| options.cases.is_empty() || options.cases.iter().any(|wanted| wanted == case);
    let sqlite = |file: &str| json!({"id": "rows", "database_type": "sqlite", "database": file, "create_tables": true});
    let session = match options.postgres {
        Some(port) => Some(Postgres::open(port).await?),
        None => None,
    };
    let postgres = |port: u16| {
        json!({
            "id": "rows", "database_type": "postgres", "host": "127.0.0.1", "port": port, "database": "flatbed",
            "username": "flatbed", "password": "env:FLATBED_WORKER_BENCH", "create_tables": true,
        })
    };
    let lines = json!({"id": "lines", "provider": "file", "file": "lines.jsonl"});
    let mut cases = vec![
        ("files", "cloud", lines, Value::Null),
        ("http", "http", http(endpoint), Value::Null),
        ("sqlite", "rdbms", sqlite("flat.sqlite"), mapping(false)),
        ("sqlite-children", "rdbms", sqlite("children.sqlite"), mapping(true)),
    ];
    if let Some(port) = options.postgres {
        cases.push(("postgres", "rdbms", postgres(port), mapping(false)));
        cases.push(("postgres-children", "rdbms", postgres(port), mapping(true)));
    }
    for (case, output_type, output, mapping) in cases {
        if wanted(case) {
            let session = session.as_ref().filter(|_| case.starts_with("postgres"));
            println!("{}", world.measure(case, output_type, output, mapping, session).await?);
        }
    }
    if let Some(session) = session.filter(|_| wanted("postgres-copy")) {
        println!("{}", session.copy(options.documents).await?);
    }
    if wanted("lag") {
        taken.borrow_mut().clear();
        println!("{}", world.lag(endpoint, &taken, options.seconds).await?);
    }
    world.server.stop().await?;
    std::fs::remove_dir_all(&options.directory)?;
    Ok(())
}
