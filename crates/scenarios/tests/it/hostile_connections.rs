//! Clients that send requests and do not read, on HTTP/1 and HTTP/2, and that open more connections than they need.

use std::time::Duration;

use crate::support::{ADMIN, Running, ServerOptions, Store, figure, soon};
use flatbed_testkit::{WaitLoop, pass, until, until_wanted};
use h2::client::SendRequest;
use hyper::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

type Requests = SendRequest<bytes::Bytes>;

/// Opens an HTTP/2 connection on which the server may send `window` bytes per stream.
async fn http2(server: &Running, window: u32) -> (Requests, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(1 << 30).max_send_buffer_size(1 << 20);
    let (send, connection) = builder.handshake(stream).await.unwrap();
    (send, tokio::spawn(connection))
}

fn request(server: &Running, method: &str, path: &str, authorization: Option<&str>) -> Request<()> {
    let mut builder = Request::builder().method(method).uri(format!("http://{}{path}", server.address));
    if let Some(authorization) = authorization {
        builder = builder.header("authorization", authorization);
    }
    builder.body(()).unwrap()
}

const PAGES: &str = "flatbed_memory_used_bytes{part=\"answer_page\"}";
const UNSENT: &str = "flatbed_memory_used_bytes{part=\"answer_unsent\"}";

async fn with_documents(store: &Store, stall_max: Duration) -> Running {
    let server = store.serve(ServerOptions { stall_max, ..ServerOptions::default() }).await;
    server.ok("PUT", "/db", Value::Null).await;
    for n in 0..3 {
        server.ok("PUT", &format!("/db/small{n}"), json!({ "text": "x".repeat(10_000) })).await;
        server.ok("PUT", &format!("/db/medium{n}"), json!({ "text": "x".repeat(200_000) })).await;
        server.ok("PUT", &format!("/db/large{n}"), json!({ "text": "x".repeat(2_000_000) })).await;
    }
    server
}

/// Waits until the caller has the only connection.
async fn is_alone(server: &Running) {
    // The tasks of answers end soon after their connection.
    let figures = async || {
        let metrics = server.call("GET", "/metrics", "").await.body;
        ["flatbed_connections", UNSENT, PAGES].map(|name| figure(&metrics, name))
    };
    until_wanted("connections and memory", figures, |found| *found == [1, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_are_few_and_their_connection_is_cut() {
    let server = with_documents(&Store::new(), Duration::from_millis(1_600)).await;
    // A window that is closed from the start, and one that is open for the first byte: hyper then takes a whole piece.
    for window in [0, 1] {
        for path in ["/db/medium0", "/db/large0", "/db/_all_docs?include_docs=true", "/db/_changes?include_docs=true"] {
            // A slow machine may not check between the answers and the cut, so the test retries.
            let mut waiting = WaitLoop::begin();
            loop {
                let (mut requests, connection) = http2(&server, window).await;
                let asked = async {
                    let mut answers = Vec::new();
                    for _ in 0..400 {
                        // The connection may be cut before all requests are sent.
                        let Ok(ready) = soon(requests.clone().ready()).await else { break };
                        requests = ready;
                        let Ok((answer, _)) = requests.send_request(request(&server, "GET", path, None), true) else {
                            break;
                        };
                        answers.push(answer);
                    }
                    let _ = soon(connection).await;
                    answers
                };
                tokio::pin!(asked);
                let mut most = 0;
                let answers = loop {
                    tokio::select! {
                        answers = &mut asked => break answers,
                        unsent = server.figure(UNSENT) => most = most.max(unsent),
                    }
                };
                assert!(most <= 17 * 1024 * 1024, "{path}: {most} bytes");
                drop(answers);
                is_alone(&server).await;
                if most > 100_000 || path == "/db/large0" {
                    break;
                }
                waiting.pause(&format!("{path}: they wait: {most}")).await;
            }
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_in_the_end_gets_all() {
    let server = with_documents(&Store::new(), Duration::from_secs(20)).await;
    let (mut requests, connection) = http2(&server, 1_000).await;
    let mut answers = Vec::new();
    for n in 0..200 {
        requests = soon(requests.ready()).await.unwrap();
        let path = format!("/db/{}{}", ["small", "medium", "large"][n % 3], n / 3 % 3);
        answers.push((n, requests.send_request(request(&server, "GET", &path, None), true).unwrap().0));
    }
    let read = |(n, answer): (usize, h2::client::ResponseFuture)| async move {
        let mut body = soon(answer).await.unwrap().into_body();
        let mut length = 0;
        while let Some(piece) = soon(body.data()).await {
            let piece = piece.unwrap();
            length += piece.len();
            body.flow_control().release_capacity(piece.len()).unwrap();
        }
        assert!(length > [10_000, 200_000, 2_000_000][n % 3], "{n}: {length}");
    };
    let reading: Vec<_> = answers.into_iter().map(|answer| tokio::spawn(read(answer))).collect();
    for reading in reading {
        reading.await.unwrap();
    }
    drop(requests);
    soon(connection).await.unwrap().unwrap();
    is_alone(&server).await;
    server.stop().await;
}

/// Each document is larger than the page budget, and the readers together read many times the budget for pieces.
#[tokio::test(flavor = "multi_thread")]
async fn all_get_their_turn_where_there_is_little_room() {
    let store = Store::new();
    with_documents(&store, Duration::from_secs(20)).await.stop().await;
    let options = ServerOptions { body_memory_bytes: 2_000_000, ..ServerOptions::default() };
    let server = store.serve(options).await;
    assert_eq!(server.figure("flatbed_memory_limit_bytes{part=\"answer_page\"}").await, 1_000_000);
    let wanted = json!({ "docs": [{ "id": "large0" }, { "id": "small1" }, { "id": "large1" }] }).to_string();
    let mut readers = Vec::new();
    for _ in 0..4 {
        for (method, path, body, least) in [
            ("GET", "/db/large0", "", 2_000_000),
            ("GET", "/db/medium0", "", 200_000),
            ("GET", "/db/large1?open_revs=all", "", 2_000_000),
            ("GET", "/db/_all_docs?include_docs=true", "", 6_600_000),
            ("GET", "/db/_changes?include_docs=true", "", 6_600_000),
            ("POST", "/db/_bulk_get", &wanted, 4_000_000),
        ] {
            let (mut client, body) = (server.connect().await, body.to_owned());
            readers.push(tokio::spawn(async move {
                let answer = client.call(method, path, &[], body.as_bytes()).await;
                assert_eq!(answer.status, 200, "{path}");
                assert!(answer.body.len() > least, "{path}: {}", answer.body.len());
                serde_json::from_str::<Value>(&answer.body).unwrap();
            }));
        }
    }
    for reader in readers {
        reader.await.unwrap();
    }
    is_alone(&server).await;
    server.stop().await;
}

/// Reads a little at intervals, until its connection is cut.
async fn dribbles(server: &Running, path: &str) -> JoinHandle<()> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    tokio::spawn(async move {
        let mut little = [0; 500];
        while stream.read(&mut little).await.is_ok_and(|count| count > 0) {
            pass(Duration::from_millis(50)).await;
        }
    })
}

/// The whole budget is held by clients that never stop reading; each check finds that some bytes have moved.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_little_is_cut_where_others_wait() {
    let store = Store::new();
    with_documents(&store, Duration::from_secs(20)).await.stop().await;
    let options = ServerOptions { body_memory_bytes: 8_000_000, ..ServerOptions::default() };
    let server = store.serve(options).await;
    for path in ["/db/_all_docs?include_docs=true", "/db/_changes?include_docs=true"] {
        let mut slow = Vec::new();
        for _ in 0..4 {
            slow.push(dribbles(&server, path).await);
        }
        // More bytes than the system buffers.
        until("the page budget is used up", async || server.figure(PAGES).await >= 2_000_000).await;
        let answer = server.call("GET", "/db/_all_docs?include_docs=true&limit=1&start_key=%22small%22", "").await;
        assert_eq!((answer.status, answer.json()["rows"][0]["id"].as_str()), (200, Some("small0")), "{path}");
        for slow in slow {
            slow.abort();
        }
        is_alone(&server).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_have_few_streams() {
    let server = Store::new().serve(ServerOptions::with_admin()).await;
    let (mut requests, _connection) = http2(&server, 65_535).await;
    // Their bodies never end, so the server answers none of them.
    let mut open = Vec::new();
    for _ in 0..150 {
        requests = soon(requests.ready()).await.unwrap();
        open.push(requests.send_request(request(&server, "PUT", "/db/d", None), false).unwrap());
    }
    let mut refused = 0;
    for (answer, _) in open.iter_mut().skip(100) {
        let error = soon(answer).await.unwrap_err();
        refused += usize::from(error.reason() == Some(h2::Reason::REFUSED_STREAM));
    }
    assert_eq!(refused, 50);
    drop(open);
    // An authenticated administrator has a thousand.
    let ask = || request(&server, "GET", "/_session", Some(ADMIN.1));
    soon(async {
        loop {
            let mut ready = requests.clone().ready().await.unwrap();
            match ready.send_request(ask(), true).unwrap().0.await {
                Ok(answer) => break assert_eq!(answer.status(), 200),
                Err(error) => assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM)),
            }
        }
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..150 {
        requests = soon(requests.ready()).await.unwrap();
        open.push(requests.send_request(request(&server, "PUT", "/db/d", Some(ADMIN.1)), false).unwrap());
    }
    requests = soon(requests.ready()).await.unwrap();
    assert_eq!(soon(requests.send_request(ask(), true).unwrap().0).await.unwrap().status(), 200);
    drop((open, requests));
    server.stop().await;
}

/// The frame of HTTP/2 (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET /db/_all_docs` on `localhost`, without a dictionary (RFC 7541).
fn headers() -> Vec<u8> {
    let literal = |index: u8, value: &str| [&[index, value.len() as u8], value.as_bytes()].concat();
    // Indexed: `:method GET`, `:scheme http`; literal: `:path`, `:authority`.
    [&[0x82, 0x86][..], &literal(0x04, "/db/_all_docs?include_docs=true"), &literal(0x01, "localhost")].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_frames_end_their_connection_or_do_nothing() {
    let server = with_documents(&Store::new(), Duration::from_secs(1)).await;
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    let many = |one: &dyn Fn(u32) -> Vec<u8>| (0..20_000).flat_map(one).collect::<Vec<u8>>();
    let ask = |stream| frame(1, 0x5, stream, &headers());
    let floods: [(&str, Vec<u8>); 7] = [
        ("streams that are reset", many(&|n| [ask(2 * n + 1), frame(3, 0, 2 * n + 1, &8_u32.to_be_bytes())].concat())),
        ("streams", many(&|n| ask(2 * n + 1))),
        ("pings", many(&|_| frame(6, 0, 0, &[0; 8]))),
        ("settings", many(&|_| frame(4, 0, 0, &[]))),
        ("windows", [ask(1), many(&|_| frame(8, 0, 0, &1_u32.to_be_bytes()))].concat()),
        ("empty data", [frame(1, 0x4, 1, &headers()), many(&|_| frame(0, 0, 1, &[]))].concat()),
        (
            "a head without end",
            [frame(1, 0x1, 1, &headers()), many(&|_| frame(9, 0, 1, &[&[0, 1, b'x', 100][..], &[b'y'; 100]].concat()))]
                .concat(),
        ),
    ];
    for (name, flood) in floods {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        // The client reads nothing meanwhile: the server may stop reading, too.
        let sent = async {
            stream.write_all(&begin).await?;
            stream.write_all(&flood).await
        };
        let _ = tokio::time::timeout(Duration::from_secs(3), sent).await;
        let unsent = server.figure(UNSENT).await;
        assert!(unsent < 17 * 1024 * 1024, "{name}: {unsent}");
        assert!(server.figure("flatbed_requests_in_flight").await <= 1_001, "{name}");
        assert_eq!(server.call("GET", "/db/small0", "").await.status, 200, "{name}");
        drop(stream);
        is_alone(&server).await;
        until(&format!("{name}: no request of them is in flight"), async || {
            server.figure("flatbed_requests_in_flight").await <= 1
        })
        .await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_wait_for_their_reader() {
    let server = with_documents(&Store::new(), Duration::from_secs(2)).await;
    let answered =
        |route: &'static str| format!("flatbed_requests_total{{route=\"{route}\",method=\"GET\",status=\"200\"}}");
    // As many answers as the system buffers, and a few more.
    for (path, route, most) in
        [("/db/small0", "/{db}/{docid}", 2_000), ("/_up", "/_up", 60_000), ("/db/large0", "/{db}/{docid}", 50)]
    {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        server.call("GET", path, "").await;
        let before = server.figure(&answered(route)).await;
        let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(1_000);
        let sent = async {
            for _ in 0..400 {
                stream.write_all(ask.as_bytes()).await?;
            }
            std::io::Result::Ok(())
        };
        assert!(soon(sent).await.is_err(), "{path}: the connection was not cut");
        let answers = server.figure(&answered(route)).await - before;
        assert!(answers < most, "{path}: {answers} answers without a reader");
        is_alone(&server).await;
    }
    server.stop().await;
}

/// Waits until this many requests run; one of them asks for the number.
async fn until_in_flight(server: &Running, what: &str, count: u64) {
    until_wanted(what, async || server.figure("flatbed_requests_in_flight").await, |found| *found == count).await;
}

/// Reads answers until a text has come so many times.
async fn read_until(stream: &mut TcpStream, text: &str, times: usize) -> String {
    let mut read = Vec::new();
    while String::from_utf8_lossy(&read).matches(text).count() < times {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "the connection ended");
    }
    String::from_utf8(read).unwrap()
}

/// The bytes of the next request must not hide from the server that the client has left.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_pipelines_and_resets_ends_its_request() {
    let server = Store::new().serve_database().await;
    let target = "/db/_changes?feed=longpoll&since=now HTTP/1.1\r\nhost: localhost\r\n";
    let plain = format!("GET {target}\r\n");
    let chunked = format!(
        "POST {target}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    );
    for (request, ahead) in [(&plain, 0), (&plain, 1), (&plain, 20_000), (&chunked, 1)] {
        let case = format!("{ahead} bytes ahead of {request}");
        // Its timeout begins first, so it waits when the request of the client that left ends.
        let mut other = TcpStream::connect(server.address).await.unwrap();
        other.write_all(plain.as_bytes()).await.unwrap();
        until_in_flight(&server, "the feed waits", 2).await;
        let ends = async {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(format!("{request}{}", "G".repeat(ahead)).as_bytes()).await.unwrap();
            until_in_flight(&server, &case, 3).await;
            // It resets the connection.
            stream.set_zero_linger().unwrap();
            drop(stream);
            until_in_flight(&server, &case, 2).await;
        };
        tokio::select! {
            () = ends => {}
            _ = read_until(&mut other, "last_seq", 1) => panic!("a request lasted as long as its feed: {case}"),
        }
        drop(other);
        until_in_flight(&server, "the feed has ended", 1).await;
    }
    server.stop().await;
}

/// The server reads the bytes of the next requests while it answers one. It answers them afterwards, in order.
#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_after_a_long_one() {
    let server = Store::new().serve_database().await;
    for count in [1, 300] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let feed = "GET /db/_changes?feed=longpoll&since=now HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let next = "GET /_up HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(count);
        stream.write_all(format!("{feed}{next}").as_bytes()).await.unwrap();
        server.until_followed(1).await;
        server.ok("PUT", &format!("/db/a{count}"), json!({})).await;
        let read = soon(read_until(&mut stream, "\"status\":\"ok\"", count)).await;
        let (feed_end, first) = (read.find("last_seq").unwrap(), read.find("\"status\"").unwrap());
        assert!(feed_end < first, "{count}");
        assert_eq!(read.matches("HTTP/1.1 200").count(), count + 1);
    }
    server.stop().await;
}
