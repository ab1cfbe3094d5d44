//! The cost of authentication and of TLS: reads with each way to sign in beside anonymous reads, first sign-ins, reads
//! over TLS beside plain ones, and handshakes.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{
    Method,
    header::{self, HeaderName},
};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        client::Resumption,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};

use crate::{
    documents,
    server::{Server, ServerError},
    stats::{cpu_s, median, percentiles, rounded},
    way::{Way, WayError},
};

/// The self-signed certificate of the tests, for `localhost`, and its key.
const CERTIFICATE: &[u8] = include_bytes!("../../scenarios/tests/data/localhost.pem");
const KEY: &[u8] = include_bytes!("../../scenarios/tests/data/localhost.key.pem");

/// The administrator, and the user that reads.
pub(crate) const ADMIN: &str = "Basic YWRtaW46c2VjcmV0";
const BASIC: &str = "Basic YW5uYTpzZWNyZXQ=";

/// The secret of tokens, in base64, and a token of `anna` signed by it, valid until 2100.
pub(crate) const JWT_SECRET: &str = "ZmxhdGJlZC1iZW5jaC1mbGF0YmVkLWJlbmNoLWZsYXQ=";
const TOKEN: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6ImJlbmNoIn0.\
    eyJzdWIiOiJhbm5hIiwiZXhwIjo0MTAyNDQ0ODAwfQ.vur7OA3U4CbLRfSk_-nqw2bC3TbUIIaPJYjaAdIKOYg";

const WORKERS: usize = 16;
const DOCUMENTS: u64 = 10_000;

/// The users whose first sign-in is measured.
const USERS: usize = 60;

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A connection or a file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A request failed.
    #[error(transparent)]
    Way(#[from] WayError),
    /// The certificate is not accepted.
    #[error(transparent)]
    Tls(#[from] tokio_rustls::rustls::Error),
}

/// Runs tasks to their ends.
async fn all(local: &LocalSet, mut tasks: JoinSet<Result<(), AccessError>>) -> Result<(), AccessError> {
    let ended = local.run_until(async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    });
    ended.await
}

/// Reads random documents in sequence on each of the connections. Returns the rate per second.
async fn reads(way: &Way, seconds: u64) -> Result<f64, AccessError> {
    let mut connections = Vec::new();
    for _ in 0..WORKERS {
        let mut connection = way.open().await?;
        // This request fills the server's cache of sign-ins.
        connection.expect(Method::GET, &format!("/bench/{}", documents::id(0)), String::new()).await?;
        connections.push(connection);
    }
    let (count, started) = (Rc::new(Cell::new(0_u64)), Instant::now());
    let (end, local, mut tasks) = (started + Duration::from_secs(seconds), LocalSet::new(), JoinSet::new());
    for mut connection in connections {
        let count = count.clone();
        let work = async move {
            while Instant::now() < end {
                let number = count.replace(count.get() + 1);
                let path = format!("/bench/{}", documents::id(documents::mix(number) % DOCUMENTS));
                connection.expect(Method::GET, &path, String::new()).await?;
            }
            Ok::<_, AccessError>(())
        };
        tasks.spawn_local_on(work, &local);
    }
    all(&local, tasks).await?;
    Ok(rounded(count.get() as f64 / started.elapsed().as_secs_f64(), 10.0))
}

/// Makes handshakes without resumption, eight at a time, with a request on each connection. Returns the rate per
/// second.
async fn handshakes(way: &Way, seconds: u64) -> Result<f64, AccessError> {
    const AT_ONCE: usize = 8;
    let (count, started) = (Rc::new(Cell::new(0_u64)), Instant::now());
    let (end, local, mut tasks) = (started + Duration::from_secs(seconds), LocalSet::new(), JoinSet::new());
    for _ in 0..AT_ONCE {
        let (way, count) = (way.clone(), count.clone());
        let work = async move {
            while Instant::now() < end {
                way.open().await?.expect(Method::GET, "/_up", String::new()).await?;
                count.set(count.get() + 1);
            }
            Ok::<_, AccessError>(())
        };
        tasks.spawn_local_on(work, &local);
    }
    all(&local, tasks).await?;
    Ok(rounded(count.get() as f64 / started.elapsed().as_secs_f64(), 10.0))
}

/// Signs users in for the first time, four at a time, so that no password is cached.
async fn sign_ins(plain: &Way) -> Result<Value, AccessError> {
    let next = Rc::new(Cell::new(0_usize));
    let started = Instant::now();
    let (local, mut tasks) = (LocalSet::new(), JoinSet::new());
    for _ in 0..4 {
        let (plain, next) = (plain.clone(), next.clone());
        let work = async move {
            let (mut times_ms, mut connection) = (Vec::new(), plain.open().await?);
            while next.get() < USERS {
                let number = next.replace(next.get() + 1);
                let begun = Instant::now();
                let body = json!({"name": format!("user{number}"), "password": format!("password{number}")});
                connection.expect(Method::POST, "/_session", body.to_string()).await?;
                times_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            Ok::<_, AccessError>(times_ms)
        };
        tasks.spawn_local_on(work, &local);
    }
    let times_ms = local.run_until(async {
        let mut all_ms = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            all_ms.extend(ended.map_err(io::Error::other)??);
        }
        Ok::<_, AccessError>(all_ms)
    });
    let mut times_ms = times_ms.await?;
    let per_s = rounded(times_ms.len() as f64 / started.elapsed().as_secs_f64(), 10.0);
    Ok(json!({"load": "first sign-ins", "per_s": per_s, "ms": percentiles(&mut times_ms)}))
}

/// Returns a TLS connector that trusts the certificate of the tests, without session resumption.
fn tls() -> Result<TlsConnector, AccessError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE).map_err(io::Error::other)?)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The measured ways, with the figures of each round.
#[derive(Default)]
struct Rounds(BTreeMap<&'static str, Vec<f64>>);

impl Rounds {
    fn enter(&mut self, name: &'static str, figure: f64) {
        self.0.entry(name).or_default().push(figure);
    }

    fn median(&mut self, name: &str) -> f64 {
        self.0.get_mut(name).map_or(f64::NAN, |figures| median(figures))
    }
}

/// Runs everything against a server of its own in `directory`, in rounds of `seconds` for each way. Returns one JSON
/// object.
pub(crate) async fn run(binary: &Path, directory: &Path, rounds: u64, seconds: u64) -> Result<Value, AccessError> {
    std::fs::create_dir_all(directory)?;
    let file = |name: &str| directory.join(name);
    std::fs::write(file("certificate.pem"), CERTIFICATE)?;
    std::fs::write(file("key.pem"), KEY)?;
    let config = format!(
        "tls_certificate = \"certificate.pem\"\ntls_key = \"key.pem\"\n\n[admins]\nadmin = \"secret\"\n\n\
         [limits]\nrequests_by_user = 0\n\n[jwt_auth]\nalgorithms = \"HS256\"\n\n[jwt_keys]\n\"hmac:bench\" = \"{JWT_SECRET}\"\n"
    );
    std::fs::write(file("flatbed.toml"), config)?;
    let (server, secret) = Server::flatbed_with_tls(binary, &file("data"), &file("flatbed.toml")).await?;
    let address = server.url.authority().parse().map_err(io::Error::other)?;
    let none = Way { address, tls: None, says: None };
    let says = |name: HeaderName, value: &str| Way { says: Some((name, value.to_owned())), ..none.clone() };
    fill(&says(header::AUTHORIZATION, ADMIN)).await?;
    let sign_in = json!({"name": "anna", "password": "secret"}).to_string();
    let (_, cookie) = none.open().await?.expect(Method::POST, "/_session", sign_in).await?;
    let cookie = cookie.unwrap_or_default();
    let cookie = cookie.split(';').next().unwrap_or_default();
    let encrypted = Way { address: secret, tls: Some(tls()?), says: None };
    let ways = [
        ("none", none.clone()),
        ("basic", says(header::AUTHORIZATION, BASIC)),
        ("cookie", says(header::COOKIE, cookie)),
        ("jwt", says(header::AUTHORIZATION, TOKEN)),
        ("tls", encrypted.clone()),
    ];
    let mut found = Rounds::default();
    for _ in 0..rounds {
        for (name, way) in &ways {
            found.enter(name, reads(way, seconds).await?);
        }
        let before_s = server.pid().map_or(0.0, cpu_s);
        let per_s = handshakes(&encrypted, seconds).await?;
        let used_s = server.pid().map_or(0.0, cpu_s) - before_s;
        found.enter("handshakes", per_s);
        found.enter("handshake_us", rounded(used_s * 1e6 / (per_s * seconds as f64), 1.0));
    }
    let first = sign_ins(&none).await?;
    server.stop().await?;
    let plain = found.median("none");
    let mut figures = json!({"load": "access", "workers": WORKERS, "rounds": rounds, "first_sign_ins": first});
    for (name, _) in &ways {
        figures[*name] = json!({"per_s": found.median(name), "share": rounded(found.median(name) / plain, 1000.0)});
    }
    figures["handshakes_per_s"] = json!(found.median("handshakes"));
    figures["handshake_server_us"] = json!(found.median("handshake_us"));
    Ok(figures)
}

/// Creates the users, and a database that all of them read.
async fn fill(admin: &Way) -> Result<(), AccessError> {
    let mut admin = admin.open().await?;
    // It may exist already.
    let _ = admin.call(Method::PUT, "/_users", String::new()).await?;
    let user = |name: String, password: String| {
        let id = format!("org.couchdb.user:{name}");
        json!({"_id": id, "name": name, "password": password, "roles": [], "type": "user"})
    };
    let anna = user("anna".to_owned(), "secret".to_owned());
    admin.expect(Method::PUT, "/_users/org.couchdb.user:anna", anna.to_string()).await?;
    for number in 0..USERS {
        let user = user(format!("user{number}"), format!("password{number}"));
        admin.expect(Method::POST, "/_users", user.to_string()).await?;
    }
    admin.expect(Method::PUT, "/bench", String::new()).await?;
    admin.expect(Method::PUT, "/bench/_security", "{}".to_owned()).await?;
    for from in (0..DOCUMENTS).step_by(1_000) {
        let body = documents::bulk(from..from + 1_000);
        admin.expect(Method::POST, "/bench/_bulk_docs", body).await?;
    }
    Ok(())
}
