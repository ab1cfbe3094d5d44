//! Replications over `https` with a self-signed certificate.

use std::sync::Arc;

use flatbed_replicator::{ReplicatorOptions, Tls};

use crate::support::{ServerOptions, Store};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate for `localhost`, for this test only (`tests/data/README.md`).
const CERTIFICATE: &[u8] = include_bytes!("../data/localhost.pem");
const KEY: &[u8] = include_bytes!("../data/localhost.key.pem");

/// Starts a TLS proxy before a server and returns its port.
async fn with_tls(to: std::net::SocketAddr) -> u16 {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_slice(KEY).unwrap())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut from = acceptor.accept(stream).await?;
                let mut to = TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_with_who_is_trusted() {
    let (store, other_store) = (Store::new(), Store::new());
    let tls = Tls::with_authorities(CERTIFICATE).unwrap();
    let replicator = ReplicatorOptions { tls, ..ReplicatorOptions::default() };
    let server = store.serve(replicator).await;
    let other = other_store.serve(ServerOptions::default()).await;
    let port = with_tls(other.address).await;
    server.ok("PUT", "/a", Value::Null).await;
    let docs: Vec<Value> = (0..500).map(|n| json!({"_id": format!("doc{n}"), "text": "x".repeat(1_000)})).collect();
    server.ok("POST", "/a/_bulk_docs", json!({"docs": docs})).await;

    let url = format!("https://localhost:{port}/b");
    let push = json!({"source": "a", "target": url, "create_target": true});
    assert_eq!(server.ok("POST", "/_replicate", push.clone()).await["history"][0]["docs_written"], 500);
    let pull = json!({"source": url, "target": "c", "create_target": true});
    assert_eq!(server.ok("POST", "/_replicate", pull).await["history"][0]["docs_written"], 500);
    assert_eq!(server.ok("GET", "/c", Value::Null).await["doc_count"], 500);

    // An untrusted or misnamed server, and one without TLS, gets no request and no credentials. Each is tried several
    // times.
    let spec = |source: String| json!({"source": source, "target": "c"});
    let (unknown, misnamed, plain) = tokio::join!(
        other.json("POST", "/_replicate", spec(url)),
        server.json("POST", "/_replicate", spec(format!("https://anna:s3cret@127.0.0.1:{port}/b"))),
        server.json("POST", "/_replicate", spec(format!("https://localhost:{}/b", other.address.port()))),
    );
    for ((status, answer), wanted) in [(unknown, "certificate"), (misnamed, "certificate"), (plain, "no TLS")] {
        let reason = answer["reason"].as_str().unwrap();
        assert!(status == 500 && reason.contains(wanted) && reason.contains("https://"), "{answer}");
        assert!(!reason.contains("s3cret"), "{answer}");
    }
    server.stop().await;
    other.stop().await;
}
