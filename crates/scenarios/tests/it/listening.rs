//! Listeners of a server: TLS, Unix sockets and proxies, and the limits of one client's connections and requests.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flatbed_http::{Blocks, Limits, Listen, Proxies, Rate, Tls};
use flatbed_testkit::{PATIENCE, pass, until};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::{ActiveKeyExchange, CryptoProvider, SharedSecret, SupportedKxGroup, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, Error, HandshakeKind, NamedGroup, ProtocolVersion, RootCertStore, SupportedProtocolVersion, version,
};

use crate::support::{ServerOptions, Store, bind, serve, soon};

const CERTIFICATE: &[u8] = include_bytes!("../data/localhost.pem");
const KEY: &[u8] = include_bytes!("../data/localhost.key.pem");
const RENEWED: &[u8] = include_bytes!("../data/renewed.pem");
const RENEWED_KEY: &[u8] = include_bytes!("../data/renewed.key.pem");

const ADMIN: &str = "authorization: Basic YWRtaW46cGFzc3dvcmQ=\r\n";

struct Running {
    addresses: Vec<SocketAddr>,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap();
    }
}

async fn start(store: &Store, listen: Vec<Listen>, options: ServerOptions) -> Running {
    let bound = bind(ServerOptions { listen, ..options }, store.layer().await).await.unwrap();
    let addresses = bound.addresses();
    let (stop, stopped) = oneshot::channel();
    Running { addresses, stop, served: serve(bound, stopped) }
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Returns the answer to one request, up to the end of its JSON or of its head.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), method: &str, path: &str, headers: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: 0\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return String::new();
    }
    read(stream).await
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    let is_whole = |answer: &str| {
        answer.ends_with("}\n") || (answer.ends_with("\r\n\r\n") && answer.contains("content-length: 0"))
    };
    while !is_whole(&answer) {
        match soon(stream.read(&mut piece)).await {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.push_str(std::str::from_utf8(&piece[..count]).unwrap()),
        }
    }
    answer
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("none")
}

struct Files {
    _directory: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

fn files() -> Files {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("c.pem"), directory.path().join("k.pem"));
    std::fs::write(&certificate, CERTIFICATE).unwrap();
    std::fs::write(&key, KEY).unwrap();
    Files { _directory: directory, certificate, key }
}

fn client(versions: &[&'static SupportedProtocolVersion], protocols: &[&str]) -> Arc<ClientConfig> {
    client_of(ring::default_provider().kx_groups, versions, protocols)
}

/// Makes a client with these key exchange groups. It sends a key share for the first of them.
fn client_of(
    kx_groups: Vec<&'static dyn SupportedKxGroup>,
    versions: &[&'static SupportedProtocolVersion],
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in [CERTIFICATE, RENEWED] {
        roots.add(CertificateDer::from_pem_slice(certificate).unwrap()).unwrap();
    }
    let mut config =
        ClientConfig::builder_with_provider(Arc::new(CryptoProvider { kx_groups, ..ring::default_provider() }))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Arc::new(config)
}

async fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config.clone()).connect(name, stream).await.unwrap()
}

fn presented(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_of_both_versions() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let server = start(&store, vec![Listen::Https(local(), tls), local().into()], ServerOptions::with_admin()).await;
    let [address, plain] = server.addresses[..] else { panic!("two addresses") };
    for (version, found) in [(&version::TLS12, ProtocolVersion::TLSv1_2), (&version::TLS13, ProtocolVersion::TLSv1_3)] {
        let config = client(&[version], &["http/1.1"]);
        let mut stream = secure(address, &config).await;
        assert_eq!(stream.get_ref().1.protocol_version(), Some(found));
        for _ in 0..3 {
            assert_eq!(status(&ask(&mut stream, "GET", "/", "").await), "200");
        }
        drop(stream);
        // A client that resumes its session need not get the full greeting.
        let mut again = secure(address, &config).await;
        assert_eq!(status(&ask(&mut again, "GET", "/_up", "").await), "200");
        assert_eq!(again.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed));
    }
    // A large answer, and a body in pieces.
    let mut stream = secure(address, &client(&[&version::TLS13], &[])).await;
    assert_eq!(status(&ask(&mut stream, "PUT", "/db", ADMIN).await), "201");
    let text = "x".repeat(3_000_000);
    let document = format!("{{\"text\":\"{text}\"}}");
    let head = format!("PUT /db/a HTTP/1.1\r\nhost: a\r\n{ADMIN}content-length: {}\r\n\r\n", document.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(document.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(status(&read(&mut stream).await), "201");
    assert!(ask(&mut stream, "GET", "/db/a", ADMIN).await.contains(&text));
    // A TLS port refuses plain HTTP, and an HTTP port refuses TLS.
    let mut wrong = TcpStream::connect(address).await.unwrap();
    assert!(!ask(&mut wrong, "GET", "/", "").await.contains("HTTP"));
    let mut right = TcpStream::connect(plain).await.unwrap();
    assert_eq!(status(&ask(&mut right, "GET", "/", "").await), "200");
    let metrics = ask(&mut right, "GET", "/metrics", &format!("connection: close\r\n{ADMIN}")).await;
    for line in [
        "flatbed_tls_handshakes_total{result=\"completed\"} 5",
        "flatbed_tls_handshakes_total{result=\"failed\"} 1",
        "flatbed_listener_connections{listener=\"http\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    drop(stream);
    server.stop().await;
}

/// A key exchange group that the server does not know.
#[derive(Debug)]
struct OwnGroup;

impl SupportedKxGroup for OwnGroup {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(OwnGroup))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::Unknown(0xfe2a)
    }
}

impl ActiveKeyExchange for OwnGroup {
    fn complete(self: Box<Self>, _: &[u8]) -> Result<SharedSecret, Error> {
        Err(Error::General("unsupported by the server".into()))
    }

    fn pub_key(&self) -> &[u8] {
        &[7; 32]
    }

    fn group(&self) -> NamedGroup {
        self.name()
    }
}

/// A client that sends a key share of an unsupported group gets a retry request for another group that it names; a
/// client that names no supported group is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_asked_for_a_key_of_another_group() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let server = start(&store, vec![Listen::Https(local(), tls)], ServerOptions::with_admin()).await;
    for group in [ring::kx_group::X25519, ring::kx_group::SECP256R1, ring::kx_group::SECP384R1] {
        let config = client_of(vec![&OwnGroup, group], &[&version::TLS13], &["http/1.1"]);
        let mut stream = secure(server.addresses[0], &config).await;
        let session = stream.get_ref().1;
        assert_eq!(session.handshake_kind(), Some(HandshakeKind::FullWithHelloRetryRequest));
        assert_eq!(session.negotiated_key_exchange_group().map(|found| found.name()), Some(group.name()));
        assert_eq!(status(&ask(&mut stream, "GET", "/", "").await), "200");
    }
    let stream = TcpStream::connect(server.addresses[0]).await.unwrap();
    let connector = TlsConnector::from(client_of(vec![&OwnGroup], &[&version::TLS13], &[]));
    let refused = soon(connector.connect(ServerName::try_from("localhost").unwrap(), stream)).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("HandshakeFailure")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_over_tls() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let server = start(&store, vec![Listen::Https(local(), tls)], ServerOptions::default()).await;
    let stream = secure(server.addresses[0], &client(&[&version::TLS13], &["h2", "http/1.1"])).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    for _ in 0..3 {
        let request = hyper::Request::get("https://localhost/_up").body(()).unwrap();
        let (answer, _) = sender.send_request(request, true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
    }
    drop(sender);
    connection.await.unwrap().unwrap();
    server.stop().await;
}

/// Longer than the interval between two checks of the files.
const LOOKED: Duration = Duration::from_millis(2_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let server = start(&store, vec![Listen::Https(local(), tls)], ServerOptions::default()).await;
    let config = client(&[&version::TLS13], &[]);
    let shown = async || presented(&secure(server.addresses[0], &client(&[&version::TLS13], &[])).await);
    let (old, new) = (CertificateDer::from_pem_slice(CERTIFICATE), CertificateDer::from_pem_slice(RENEWED));
    let (old, new) = (old.unwrap(), new.unwrap());
    assert_eq!(shown().await, old);
    let mut before = secure(server.addresses[0], &config).await;
    // The new key is still missing: the old pair stays.
    std::fs::write(&files.certificate, RENEWED).unwrap();
    pass(LOOKED).await;
    assert_eq!(shown().await, old);
    std::fs::write(&files.key, RENEWED_KEY).unwrap();
    until("the new one is shown", async || shown().await == new).await;
    std::fs::remove_file(&files.key).unwrap();
    pass(LOOKED).await;
    assert_eq!(shown().await, new);
    assert_eq!(status(&ask(&mut before, "GET", "/", "").await), "200");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_reloaded_at_once() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let server = start(&store, vec![Listen::Https(local(), tls.clone())], ServerOptions::default()).await;
    let shown = async || presented(&secure(server.addresses[0], &client(&[&version::TLS13], &[])).await);
    let (old, new) = (CertificateDer::from_pem_slice(CERTIFICATE), CertificateDer::from_pem_slice(RENEWED));
    let (old, new) = (old.unwrap(), new.unwrap());
    let mut before = secure(server.addresses[0], &client(&[&version::TLS13], &[])).await;
    std::fs::write(&files.certificate, RENEWED).unwrap();
    assert!(tls.reload().unwrap_err().to_string().contains("cannot be used"));
    assert_eq!(shown().await, old);
    std::fs::write(&files.key, RENEWED_KEY).unwrap();
    tls.reload().unwrap();
    assert_eq!(shown().await, new);
    assert_eq!(status(&ask(&mut before, "GET", "/", "").await), "200");
    server.stop().await;
}

#[test]
fn certificates_that_cannot_be_used() {
    let files = files();
    let read = |certificate: &[u8], key: &[u8]| {
        std::fs::write(&files.certificate, certificate).unwrap();
        std::fs::write(&files.key, key).unwrap();
        Tls::read(&files.certificate, &files.key).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(read(CERTIFICATE, KEY), Ok(()));
    assert!(read(CERTIFICATE, RENEWED_KEY).unwrap_err().contains("cannot be used"));
    assert!(read(b"", KEY).unwrap_err().contains("no certificates"));
    assert!(read(KEY, KEY).unwrap_err().contains("no certificates"));
    assert!(read(CERTIFICATE, CERTIFICATE).unwrap_err().contains("no private key"));
    assert!(read(&[b'x'; (1 << 20) + 1], KEY).unwrap_err().contains("larger than"));
    assert!(Tls::read(Path::new("/nowhere"), &files.key).unwrap_err().to_string().contains("/nowhere"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_the_file_system() {
    let (store, directory) = (Store::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("flatbed.sock");
    let listen = || vec![Listen::Unix(path.clone(), 0o620)];
    // A stale socket.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = start(&store, listen(), ServerOptions::default()).await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    for _ in 0..2 {
        assert_eq!(status(&ask(&mut stream, "GET", "/", "").await), "200");
    }
    assert_eq!(status(&ask(&mut stream, "PUT", "/db", "").await), "201");
    // A request in pieces, and HTTP/2.
    let mut pieces = UnixStream::connect(&path).await.unwrap();
    for piece in ["P", "UT /db2 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0", "\r\n\r\n"] {
        pieces.write_all(piece.as_bytes()).await.unwrap();
        pass(Duration::from_millis(20)).await;
    }
    assert_eq!(status(&read(&mut pieces).await), "201");
    let (mut sender, connection) = h2::client::handshake(UnixStream::connect(&path).await.unwrap()).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get("http://localhost/_up").body(()).unwrap();
    assert_eq!(sender.send_request(request, true).unwrap().0.await.unwrap().status(), 200);
    // A socket of a server that answers is not replaced.
    assert!(bind(ServerOptions { listen: listen(), ..ServerOptions::default() }, store.layer().await).await.is_err());
    assert_eq!(status(&ask(&mut stream, "GET", "/db", "").await), "200");
    drop((stream, pieces, sender));
    server.stop().await;
    assert!(!path.exists());
    // A file that is no socket is not replaced.
    std::fs::write(&path, "text").unwrap();
    assert!(bind(ServerOptions { listen: listen(), ..ServerOptions::default() }, store.layer().await).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_a_proxy_speaks_for() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let proxy_protocol: Blocks = "127.0.0.1".parse().unwrap();
    let rate = Rate { per_second: 1, burst: 2 };
    let limits = Limits { requests_by_address: rate, handshake_max: Duration::from_secs(3), ..Limits::default() };
    let proxies = Proxies { proxy_protocol, ..Proxies::default() };
    let options = ServerOptions { limits, proxies, ..ServerOptions::default() };
    let server = start(&store, vec![local().into(), Listen::Https(local(), tls)], options).await;
    let [plain, secured] = server.addresses[..] else { panic!("two addresses") };
    let connect = async |header: &[u8]| {
        let mut stream = TcpStream::connect(plain).await.unwrap();
        stream.write_all(header).await.unwrap();
        stream
    };
    let v2 = |last: u8| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        header.extend([192, 0, 2, last, 10, 0, 0, 1, 0, 80, 0, 81]);
        header
    };
    // The client's address counts: two requests, and a third from another address.
    for (header, wanted) in [
        (v2(1), "200"),
        (b"PROXY TCP4 192.0.2.1 10.0.0.1 80 81\r\n".to_vec(), "200"),
        (v2(1), "429"),
        (v2(2), "200"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "200"),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec(), "200"),
    ] {
        let mut answer = ask(&mut connect(&header).await, "GET", "/", "").await;
        for _ in 0..100 {
            // A second has passed since the first request.
            if wanted == "429" && status(&answer) == "200" {
                answer = ask(&mut connect(&header).await, "GET", "/", "").await;
            }
        }
        assert_eq!(status(&answer), wanted, "{answer}");
        assert_eq!(answer.contains("\r\nretry-after: 1\r\n"), wanted == "429", "{answer}");
    }
    // The header is mandatory.
    for begin in [&b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], b"PROXY TCP4 x\r\n", b"PROXY"] {
        assert_eq!(read(&mut connect(begin).await).await, "");
    }
    // The header precedes TLS.
    let mut stream = TcpStream::connect(secured).await.unwrap();
    stream.write_all(&v2(3)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(client(&[&version::TLS13], &["http/1.1"]));
    let mut stream = connector.connect(name, stream).await.unwrap();
    assert_eq!(status(&ask(&mut stream, "GET", "/", "").await), "200");
    drop(stream);
    // Other addresses connect without the header, and are refused with it.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let mut other = socket.connect(plain).await.unwrap();
    assert_eq!(status(&ask(&mut other, "GET", "/", "").await), "200");
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let mut other = socket.connect(plain).await.unwrap();
    other.write_all(b"PROXY TCP4 192.0.2.1 10.0.0.1 80 81\r\n").await.unwrap();
    assert!(!ask(&mut other, "GET", "/", "").await.starts_with("HTTP/1.1 200"));
    drop(other);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarding_headers() {
    let store = Store::new();
    let rate = Rate { per_second: 1, burst: 2 };
    let limits = Limits { requests_by_address: rate, ..Limits::default() };
    let proxies = Proxies { forwarding: "127.0.0.2".parse().unwrap(), ..Proxies::default() };
    let options = ServerOptions { limits, proxies, ..ServerOptions::default() };
    let server = start(&store, vec![local().into()], options).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(server.addresses[0]).await.unwrap()
    };
    let (mut proxy, mut other) = (from(2).await, from(3).await);
    for (address, wanted) in [("192.0.2.1", "200"), ("9.9.9.9, 192.0.2.1", "200"), ("8.8.8.8,192.0.2.1", "429")] {
        let header = format!("x-forwarded-for: {address}\r\n");
        let mut answer = ask(&mut proxy, "GET", "/", &header).await;
        for _ in 0..100 {
            // A second has passed since the first request.
            if wanted == "429" && status(&answer) == "200" {
                answer = ask(&mut proxy, "GET", "/", &header).await;
            }
        }
        assert_eq!(status(&answer), wanted, "{address}");
        // The header of an unlisted peer is ignored, so the request counts as local.
        assert_eq!(status(&ask(&mut other, "GET", "/", &header).await), "200");
    }
    drop((proxy, other));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request() {
    let store = Store::new();
    let limits = Limits {
        unfinished: 50,
        unfinished_by_address: 40,
        connections_by_address: 60,
        head_max: PATIENCE,
        ..Limits::default()
    };
    // The limit covers all connections before the last ones, however late closed ones are released.
    let options =
        ServerOptions { limits, unlimited: Blocks::default(), connections_max: 192, ..ServerOptions::default() };
    let server = start(&store, vec![local().into()], options).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 1, last], 0))).unwrap();
        socket.connect(server.addresses[0]).await.unwrap()
    };
    let mut innocent = from(1).await;
    let mut flood = Vec::new();
    for n in 0..100 {
        let mut stream = from(2 + n % 2).await;
        if n % 3 > 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: loc").await;
        }
        flood.push(stream);
    }
    // This connection is the oldest, and has sent no request yet.
    assert_eq!(status(&ask(&mut innocent, "GET", "/", "").await), "200");
    // A client that has sent a request keeps its connection for a while.
    let mut idle = Vec::new();
    for _ in 0..70 {
        let mut stream = from(4).await;
        if status(&ask(&mut stream, "GET", "/", "").await) == "200" {
            idle.push(stream);
        }
    }
    assert_eq!(idle.len(), 70, "an address drops idle connections for new ones");
    let mut kept = 0;
    for stream in &mut idle {
        kept += usize::from(status(&ask(stream, "GET", "/", "").await) == "200");
    }
    assert!((40..=60).contains(&kept), "{kept} connections of an address remain");
    // Idle connections make room for new ones at the limit.
    let mut others = Vec::new();
    for last in 5..105 {
        let mut stream = from(last).await;
        assert_eq!(status(&ask(&mut stream, "GET", "/", "").await), "200", "{last}");
        others.push(stream);
    }
    drop((innocent, flood, idle, others));
    server.stop().await;
    // An HTTP/2 connection without requests ends in time, too. A slow machine may start the timeout late.
    let limits = Limits { head_max: Duration::from_secs(1), ..Limits::default() };
    let server = start(&store, vec![local().into()], ServerOptions { limits, ..ServerOptions::default() }).await;
    let stream = TcpStream::connect(server.addresses[0]).await.unwrap();
    if let Ok((_sender, connection)) = h2::client::handshake(stream).await {
        let _ = soon(connection).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_do_not_keep_this_machine_out() {
    let store = Store::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let unlimited: Blocks = "127.0.9.0/24,unix".parse().unwrap();
    let options = ServerOptions { unlimited, connections_max: 32, ..ServerOptions::with_admin() };
    let server = start(&store, vec![local().into(), Listen::Unix(path.clone(), 0o600)], options).await;
    let from = async |net: u8, last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, net, last], 0))).unwrap();
        socket.connect(server.addresses[0]).await.unwrap()
    };
    let begun = "POST /_session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let mut slow = Vec::new();
    for n in 0..40 {
        let mut stream = from(1, 1 + n % 4).await;
        let _ = stream.write_all(format!("{begun}content-length: 60000\r\n\r\n").as_bytes()).await;
        slow.push(stream);
    }
    let machine = async {
        let mut own = from(9, 1).await;
        assert_eq!(status(&ask(&mut own, "GET", "/", "").await), "200");
        let mut socket = UnixStream::connect(&path).await.unwrap();
        assert_eq!(status(&ask(&mut socket, "GET", "/", "").await), "200");
    };
    soon(machine).await;
    // Another client waits until a body has been too slow for long enough.
    let mut other = from(1, 99).await;
    assert_eq!(status(&ask(&mut other, "GET", "/", "").await), "200");
    // The server does not wait for a body above the limit of a session's body.
    let large = format!("{begun}content-length: 70000\r\n\r\n");
    let mut stream = from(9, 2).await;
    stream.write_all(large.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; 70_000]).await.unwrap();
    assert_eq!(status(&read(&mut stream).await), "413");
    drop(slow);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins() {
    let (store, files) = (Store::new(), files());
    let tls = Tls::read(&files.certificate, &files.key).unwrap();
    let cors = flatbed_http::Cors { origins: vec!["https://app.example".into(), "*".into()], ..Default::default() };
    let options = ServerOptions { cors, ..ServerOptions::with_admin() };
    let server = start(&store, vec![local().into(), Listen::Https(local(), tls)], options).await;
    let cookie = "cookie: a=b; AuthSession=x\r\n";
    let mut plain = TcpStream::connect(server.addresses[0]).await.unwrap();
    let mut secured = secure(server.addresses[1], &client(&[&version::TLS13], &[])).await;
    for (method, path, headers, of_plain, of_secured) in [
        ("PUT", "/db", "origin: https://evil.example\r\n", false, false),
        ("PUT", "/db", "origin: null\r\n", false, false),
        ("PUT", "/db", "sec-fetch-site: cross-site\r\n", false, false),
        ("PUT", "/db", "sec-fetch-site: same-origin\r\n", true, true),
        ("PUT", "/db", "origin: https://localhost\r\n", false, true),
        ("PUT", "/db", "origin: https://localhost\r\nsec-fetch-site: same-origin\r\n", true, true),
        ("PUT", "/db", "origin: https://localhost\r\nx-forwarded-proto: https\r\n", true, true),
        ("PUT", "/db", "origin: http://localhost\r\n", true, false),
        ("PUT", "/db", "origin: https://app.example\r\nsec-fetch-site: cross-site\r\n", true, true),
        ("PUT", "/db", "", true, true),
        ("GET", "/db", "origin: https://evil.example\r\n", true, true),
        ("DELETE", "/db/a", "origin: https://evil.example\r\n", false, false),
        ("COPY", "/db/a", "origin: https://evil.example\r\n", false, false),
        ("GET", "/db/_design/d/_update/u", "sec-fetch-site: cross-site\r\n", false, false),
        ("GET", "/db/_design/d/_update/u", "sec-fetch-site: same-site\r\n", false, false),
        ("GET", "/db", "sec-fetch-site: same-site\r\n", true, true),
        ("GET", "/db/_design/d/_update/u", "sec-fetch-site: same-origin\r\n", true, true),
    ] {
        let headers = format!("{cookie}{headers}");
        let answer = ask(&mut plain, method, path, &headers).await;
        assert_eq!(!answer.contains("A page of another origin"), of_plain, "{method} {headers} {answer}");
        let answer = ask(&mut secured, method, path, &headers).await;
        assert_eq!(!answer.contains("A page of another origin"), of_secured, "{method} {headers} {answer}");
        assert!(!answer.contains("access-control-allow-credentials"), "{answer}");
    }
    // A form that signs in as another user needs no cookie.
    let form = "content-type: application/x-www-form-urlencoded\r\norigin: https://evil.example\r\n";
    assert_eq!(status(&ask(&mut plain, "POST", "/_session", form).await), "403");
    // The rule is unchanged without a session: a page cannot send a valid request without a preflight request.
    assert_eq!(status(&ask(&mut plain, "PUT", "/db", "origin: https://evil.example\r\n").await), "401");
    drop((plain, secured));
    server.stop().await;
}
