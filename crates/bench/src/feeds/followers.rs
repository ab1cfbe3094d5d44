//! Thousands of continuous feeds, read by one thread.

use std::{
    cell::RefCell,
    io,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    task::LocalSet,
};

use super::{
    stream::{ChunkedAnswer, Rows, StreamError},
    tally::{Histogram, Tally},
};
use crate::documents::mix;

/// The connections that are being opened at once.
const OPENING_MAX: usize = 128;

/// The largest read, in bytes, with one buffer for all feeds.
const READ_BYTES: usize = 256 * 1024;

/// The feeds of one source address. A pair of addresses has 28,000 ports by default (`ip_local_port_range`).
const FEEDS_A_SOURCE: usize = 5_000;

/// HTTP/2's window of a stream and of a connection, in bytes. The followers read all data at once.
const WINDOW_BYTES: u32 = 1 << 20;

/// The reason why a feed broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The feed is malformed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// HTTP/2's framing failed.
    #[error(transparent)]
    Http2(#[from] h2::Error),
    /// A request that cannot be written.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
}

/// The feeds to open.
#[derive(Clone)]
pub(crate) struct Plan {
    /// The server.
    pub address: SocketAddr,
    pub feeds: usize,
    /// The number of databases that they are spread over, `/feeds0` and so on.
    pub databases: usize,
    /// The feeds on one HTTP/2 connection; 0: HTTP/1.1, one feed on each connection.
    pub streams: usize,
    /// The request of each feed, instead of `/feeds0` and so on: all feeds then read one database.
    pub asks: Option<Arc<[FeedRequest]>>,
}

/// The request of one feed, over HTTP/1.1.
pub(crate) struct FeedRequest {
    /// Its database, `/db`.
    pub database: String,
    /// Its header `authorization`.
    pub authorization: String,
}

/// The rows that a follower has seen at the end.
#[derive(Clone, Default)]
pub(crate) struct FollowerResult {
    pub database: usize,
    pub rows: u64,
    /// A hash of the rows' documents and their order. Equal hashes mean equal rows in equal order.
    pub order: u64,
}

/// The results of all followers.
pub(crate) struct Report {
    pub seen: Vec<FollowerResult>,
    /// The time from acknowledgements to rows, for each row of each follower.
    pub latencies: Histogram,
    /// The first failures, at most ten.
    pub failures: Vec<String>,
    /// The bytes read from the sockets; with HTTP/2, from the streams.
    pub bytes: u64,
}

struct FollowerState {
    plan: Plan,
    tally: Arc<Tally>,
    opened: Arc<AtomicUsize>,
    opening: Semaphore,
    buffer: RefCell<Vec<u8>>,
    report: RefCell<Report>,
}

pub(crate) struct Followers {
    thread: JoinHandle<io::Result<Report>>,
    stop: watch::Sender<bool>,
    opened: Arc<AtomicUsize>,
}

impl Followers {
    /// Starts to open the feeds.
    pub(crate) fn start(plan: Plan, tally: Arc<Tally>) -> io::Result<Followers> {
        let (stop, mut stopped) = watch::channel(false);
        let opened = Arc::new(AtomicUsize::new(0));
        let seen = (0..plan.feeds)
            .map(|feed| FollowerResult { database: feed % plan.databases, ..FollowerResult::default() })
            .collect();
        let report = Report { seen, latencies: Histogram::default(), failures: Vec::new(), bytes: 0 };
        let counted = opened.clone();
        let thread = std::thread::Builder::new().name("followers".to_owned()).spawn(move || {
            let shared = Rc::new(FollowerState {
                plan,
                tally,
                opened: counted,
                opening: Semaphore::new(OPENING_MAX),
                buffer: RefCell::new(vec![0; READ_BYTES]),
                report: RefCell::new(report),
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let local = LocalSet::new();
            shared.spawn(&local);
            runtime.block_on(local.run_until(async {
                let _ = stopped.changed().await;
            }));
            // The tasks hold the rest of the shared state.
            drop(local);
            drop(runtime);
            let none = Report { seen: Vec::new(), latencies: Histogram::default(), failures: Vec::new(), bytes: 0 };
            Ok(shared.report.replace(none))
        })?;
        Ok(Followers { thread, stop, opened })
    }

    /// Waits until this many feeds have begun. False if none more begins within a minute.
    pub(crate) async fn opened(&self, feeds: usize) -> bool {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let opened = self.opened.load(Ordering::Relaxed);
            if opened >= feeds {
                return true;
            }
            if opened > last {
                (last, since) = (opened, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(60) || self.thread.is_finished() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Closes all feeds.
    pub(crate) fn stop(self) -> io::Result<Report> {
        let _ = self.stop.send(true);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the followers' thread failed")))
    }
}

impl FollowerState {
    fn spawn(self: &Rc<Self>, local: &LocalSet) {
        if self.plan.streams == 0 {
            for feed in 0..self.plan.feeds {
                let shared = self.clone();
                local.spawn_local(async move {
                    let failed = shared.http1(feed).await;
                    shared.failed(feed, failed);
                });
            }
            return;
        }
        for first in (0..self.plan.feeds).step_by(self.plan.streams) {
            let shared = self.clone();
            local.spawn_local(async move {
                let failed = shared.http2(first).await;
                shared.failed(first, failed);
            });
        }
    }

    fn failed(&self, feed: usize, result: Result<(), FollowError>) {
        let mut report = self.report.borrow_mut();
        if let Err(error) = result
            && report.failures.len() < 10
        {
            report.failures.push(format!("feed {feed}: {error}"));
        }
    }

    fn path(&self, feed: usize) -> String {
        let database = match self.plan.asks.as_ref().and_then(|asks| asks.get(feed)) {
            Some(asks) => asks.database.clone(),
            None => format!("/feeds{}", feed % self.plan.databases),
        };
        format!("{database}/_changes?feed=continuous&since=now&heartbeat=30000")
    }

    async fn connect(&self, feed: usize) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if self.plan.address.ip().is_loopback() {
            let source = u8::try_from(1 + feed / FEEDS_A_SOURCE % 250).unwrap_or(1);
            socket.bind((Ipv4Addr::new(127, 0, 0, source), 0).into())?;
        }
        socket.connect(self.plan.address).await
    }

    /// Runs one feed on a connection of its own.
    async fn http1(&self, feed: usize) -> Result<(), FollowError> {
        let mut permit = self.opening.acquire().await.ok();
        let mut stream = self.connect(feed).await?;
        let says = match self.plan.asks.as_ref().and_then(|asks| asks.get(feed)) {
            Some(asks) => format!("Authorization: {}\r\n", asks.authorization),
            None => String::new(),
        };
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n{says}\r\n", self.path(feed), self.plan.address);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = ChunkedAnswer::new();
        loop {
            stream.readable().await?;
            // No other task runs before the buffer is free again.
            let mut buffer = self.buffer.borrow_mut();
            let read = match stream.try_read(&mut buffer) {
                Ok(0) => return Err(StreamError::Ended.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            let mut report = self.report.borrow_mut();
            report.bytes += read as u64;
            answer.take(&buffer[..read], |row| self.row(&mut report, feed, row.number, now))?;
            if permit.is_some() && answer.has_begun() {
                self.opened.fetch_add(1, Ordering::Relaxed);
                permit = None;
            }
        }
    }

    /// Runs the feeds from `first` on that share a connection.
    async fn http2(self: &Rc<Self>, first: usize) -> Result<(), FollowError> {
        let _permit = self.opening.acquire().await.ok();
        let stream = self.connect(first).await?;
        stream.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(16 * WINDOW_BYTES);
        let (mut sender, connection) = builder.handshake::<_, bytes::Bytes>(stream).await?;
        tokio::task::spawn_local(connection);
        for feed in first..(first + self.plan.streams).min(self.plan.feeds) {
            let uri = format!("http://{}{}", self.plan.address, self.path(feed));
            let request = hyper::Request::builder().uri(uri).body(())?;
            sender = sender.ready().await?;
            let (answer, _) = sender.send_request(request, true)?;
            let answer = answer.await?;
            if answer.status() != 200 {
                return Err(StreamError::Head(answer.status().to_string()).into());
            }
            self.opened.fetch_add(1, Ordering::Relaxed);
            let shared = self.clone();
            tokio::task::spawn_local(async move {
                let failed = shared.stream(feed, answer.into_body()).await;
                shared.failed(feed, failed);
            });
        }
        Ok(())
    }

    async fn stream(&self, feed: usize, mut body: h2::RecvStream) -> Result<(), FollowError> {
        let mut rows = Rows::default();
        while let Some(data) = body.data().await {
            let data = data?;
            let now = Instant::now();
            let mut report = self.report.borrow_mut();
            report.bytes += data.len() as u64;
            rows.take(&data, |row| self.row(&mut report, feed, row.number, now))?;
            body.flow_control().release_capacity(data.len())?;
        }
        Err(StreamError::Ended.into())
    }

    fn row(&self, report: &mut Report, feed: usize, number: usize, now: Instant) {
        if let Some(seen) = report.seen.get_mut(feed) {
            seen.rows += 1;
            seen.order = mix(seen.order ^ number as u64);
        }
        if let Some(microseconds) = self.tally.row(number, now) {
            report.latencies.add(microseconds);
        }
    }
}
