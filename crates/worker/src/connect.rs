//! Turns a job's description into a source, a target, and a redactor that hides each secret in use.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_client::{Url, UrlError, encode_segment};
use flatbed_clock::Clock;
use futures_util::FutureExt;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::attachments::Stub;
use crate::checkpoint::Checkpoint;
use crate::documents::{
    Addressing, Auth, AuthMethod, CloudOutput, CloudProvider, DatabaseType, Description, HttpOutput, Input,
    OnHttpDelete, Output, RdbmsOutput,
};
use crate::file_claim::{FileClaim, FileUse};
use crate::memory::Charge;
use crate::output::http::{Http, HttpSettings};
use crate::output::lines::Lines;
use crate::output::lines::turns::Turns;
use crate::output::mysql::{self, MySql};
use crate::output::postgres::{Postgres, PostgresSettings};
use crate::output::s3::bucket::Bucket;
use crate::output::s3::sign::Signer;
use crate::output::s3::{self, S3};
use crate::output::sqlite::Sqlite;
use crate::output::{BatchLimits, Delivery, DeliveryError, Target};
use crate::peer::{Addresses, Dial, Peer, Secure};
use crate::secret::{Redactor, SECRET_BYTES_MAX, Secret, SecretError, SecretRef};
use crate::source::HttpSource;

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The error of a description that cannot be connected. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A secret is unavailable.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A malformed address.
    #[error("the address: {0}")]
    Url(#[from] UrlError),
    /// A header that cannot be sent.
    #[error("the header {0:?} cannot be sent")]
    Header(String),
    /// A feature that the worker lacks.
    #[error("{0} is not implemented")]
    Missing(&'static str),
    /// The server has no directory for files of jobs.
    #[error("the server has no directory for files of jobs")]
    Directory,
    /// A run of the job with this id writes the file: another job, or an earlier run of this job.
    #[error("the job {0:?} writes the same file")]
    Taken(String),
    /// A target that cannot be set up.
    #[error("the target: {0}")]
    Target(String),
}

/// The places of secrets.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// The directory of `file:`. `None`: there are no such secrets.
    pub directory: Option<PathBuf>,
    /// The environment as of the start of the process. Only variables of the worker are read.
    pub variables: BTreeMap<String, String>,
}

impl Secrets {
    /// Reads a secret. Blocks on the disk.
    pub fn read(&self, reference: &SecretRef) -> Result<Secret, SecretError> {
        let missing = || SecretError::Missing(reference.clone());
        match reference {
            SecretRef::Env(name) => Secret::of(reference, self.variables.get(name).ok_or_else(missing)?.as_bytes()),
            SecretRef::File(name) => {
                let file = self.directory.as_ref().ok_or_else(missing)?.join(name);
                // Neither a link, which may lead out of the directory, nor a pipe, which may block.
                let is_file = std::fs::symlink_metadata(&file).map_err(|_| missing())?.is_file();
                if !is_file {
                    return Err(missing());
                }
                let mut bytes = Vec::new();
                let mut opened = File::open(file).map_err(|_| missing())?.take(SECRET_BYTES_MAX as u64 + 1);
                opened.read_to_end(&mut bytes).map_err(|_| missing())?;
                Secret::of(reference, &bytes)
            }
        }
    }
}

/// Reads the secrets of one description and collects them for its redactor.
#[derive(Debug)]
struct Reader<'s> {
    secrets: &'s Secrets,
    read: Vec<Secret>,
    pairs: Vec<(String, Secret)>,
}

impl Reader<'_> {
    fn secret(&mut self, reference: &SecretRef) -> Result<Secret, ConnectError> {
        let secret = self.secrets.read(reference)?;
        self.read.push(secret.clone());
        Ok(secret)
    }

    /// Returns the headers of the sign-in and the configured headers.
    fn headers(&mut self, auth: &Auth, named: &BTreeMap<String, String>) -> Result<HeaderMap, ConnectError> {
        let mut headers = HeaderMap::new();
        for (name, value) in named {
            let unsendable = || ConnectError::Header(name.clone());
            // A value that looks like a reference is one: `documents` refuses all others.
            let value = match value.parse::<SecretRef>() {
                Ok(reference) => sensitive(self.secret(&reference)?.expose()).ok_or_else(unsendable)?,
                Err(SecretError::NoReference) => HeaderValue::from_str(value).map_err(|_| unsendable())?,
                Err(error) => return Err(error.into()),
            };
            headers.insert(HeaderName::try_from(name.as_str()).map_err(|_| unsendable())?, value);
        }
        let missing = || ConnectError::Header("authorization".to_owned());
        let (name, value) = match auth.method {
            AuthMethod::None => return Ok(headers),
            AuthMethod::Basic => {
                let (Some(user), Some(password)) = (&auth.username, &auth.password) else { return Err(missing()) };
                let password = self.secret(password)?;
                let credentials = BASE64.encode(format!("{user}:{}", password.expose()));
                self.pairs.push((user.clone(), password));
                (header::AUTHORIZATION, format!("Basic {credentials}"))
            }
            AuthMethod::Bearer => {
                let token = self.secret(auth.token.as_ref().ok_or_else(missing)?)?;
                (header::AUTHORIZATION, format!("Bearer {}", token.expose()))
            }
            AuthMethod::Session => {
                let token = self.secret(auth.token.as_ref().ok_or_else(missing)?)?;
                (header::COOKIE, token.expose().to_owned())
            }
        };
        headers.insert(name, sensitive(&value).ok_or_else(missing)?);
        Ok(headers)
    }

    fn redactor(&self) -> Redactor {
        let pairs = self.pairs.iter().map(|(name, secret)| (name.as_str(), secret));
        Redactor::new(&self.read, pairs)
    }
}

fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A job's target.
#[derive(Debug)]
pub enum AnyTarget {
    /// An SQLite file.
    Sqlite(Sqlite),
    /// A PostgreSQL server.
    Postgres(Box<Postgres>),
    /// A MySQL or MariaDB server.
    MySql(Box<MySql>),
    /// An HTTP endpoint.
    Http(Box<Http>),
    /// An S3-compatible store.
    S3(Box<S3>),
    /// A file of JSON Lines.
    File(Lines<Arc<File>>),
    /// The standard output.
    Stdout(Lines<std::io::Stdout>),
}

/// Evaluates an expression with the target of any kind.
macro_rules! each {
    ($of:expr, $target:ident => $value:expr) => {
        match $of {
            AnyTarget::Sqlite($target) => $value,
            AnyTarget::Postgres($target) => $value,
            AnyTarget::MySql($target) => $value,
            AnyTarget::Http($target) => $value,
            AnyTarget::S3($target) => $value,
            AnyTarget::File($target) => $value,
            AnyTarget::Stdout($target) => $value,
        }
    };
}

/// Its futures are boxed here, so that no crate that runs a job compiles the targets again.
impl Target for AnyTarget {
    fn begin(&mut self, epoch: u64) -> impl Future<Output = Result<Option<Checkpoint>, DeliveryError>> + Send {
        each!(self, target => target.begin(epoch).boxed())
    }

    fn hold(&mut self, room: Arc<Charge>) {
        match self {
            AnyTarget::Sqlite(target) => target.hold(room),
            AnyTarget::File(target) => target.hold(room),
            AnyTarget::Stdout(target) => target.hold(room),
            // These end their work on drop.
            AnyTarget::Postgres(_) | AnyTarget::MySql(_) | AnyTarget::Http(_) | AnyTarget::S3(_) => {}
        }
    }

    fn deliver(
        &mut self,
        batch: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
    ) -> impl Future<Output = Result<(), DeliveryError>> + Send {
        each!(self, target => target.deliver(batch, checkpoint).boxed())
    }

    async fn holds(&mut self, delivery: &Delivery, stub: &Stub) -> bool {
        each!(self, target => target.holds(delivery, stub).boxed().await)
    }

    fn persist(&mut self) -> impl Future<Output = Result<(), DeliveryError>> + Send {
        each!(self, target => target.persist().boxed())
    }

    fn window(&self) -> Option<BatchLimits> {
        each!(self, target => target.window())
    }

    fn keeps_checkpoint(&self) -> bool {
        each!(self, target => target.keeps_checkpoint())
    }
}

/// The parts of a run.
#[derive(Debug)]
pub struct RunParts {
    /// The source.
    pub source: HttpSource,
    /// The target.
    pub target: AnyTarget,
    /// Hides all secrets of both.
    pub redactor: Redactor,
}

/// The Flatbed server that hosts the jobs and the databases named by `local`: this process or a remote one.
#[derive(Clone)]
pub struct Local {
    /// The URL before the name of a database.
    base: String,
    /// The account that reads its databases. `None`: connections need no sign-in.
    account: Option<(String, Secret)>,
    dial: Dial,
}

impl Local {
    /// Creates a server at `base`, a URL without its trailing slash.
    pub fn new(base: String, account: Option<(String, Secret)>, dial: Dial) -> Local {
        Local { base, account, dial }
    }

    /// Returns a peer for one of its databases. Requests use these headers and, if they carry no credentials, the
    /// account.
    pub fn peer(&self, database: &str, mut headers: HeaderMap) -> Result<Peer, UrlError> {
        let url = Url::parse_either(&format!("{}/{}", self.base, encode_segment(database)))?;
        let signs_in = headers.contains_key(header::AUTHORIZATION) || headers.contains_key(header::COOKIE);
        if let (Some((name, password)), false) = (&self.account, signs_in) {
            let credentials = BASE64.encode(format!("{name}:{}", password.expose()));
            // Base64 is valid in a header.
            headers.extend(sensitive(&format!("Basic {credentials}")).map(|value| (header::AUTHORIZATION, value)));
        }
        Ok(Peer::new(url, headers, self.dial.clone()))
    }
}

/// The resources that connect a job to its source and target.
#[derive(Clone)]
pub struct Reach {
    /// The places of secrets.
    pub secrets: Secrets,
    /// The directory of files that jobs write. `None`: jobs cannot write files.
    pub files: Option<PathBuf>,
    /// The locks of those files.
    pub turns: Turns,
    /// Connects to remote servers.
    pub dial: Dial,
    /// Begins TLS for protocols that start without it.
    pub secure: Secure,
    /// Resolves allowed addresses for libraries that connect by themselves.
    pub addresses: Addresses,
    /// Certificate authorities beside Mozilla's list, as DER.
    pub authorities: Vec<Vec<u8>>,
    /// The Flatbed server with the databases that jobs name, if any.
    pub local: Option<Local>,
    /// The time of the process.
    pub clock: Clock,
}

impl Reach {
    fn peer(&self, url: Url, headers: HeaderMap) -> Peer {
        Peer::new(url, headers, self.dial.clone()).with_clock(self.clock.clone())
    }
}

/// Reads a description's secrets and makes its source and target. Blocks on the disk.
pub fn connect(job: &Description, reach: &Reach) -> Result<RunParts, ConnectError> {
    let Reach { secrets, files, local, clock, .. } = reach;
    let mut reader = Reader { secrets, read: Vec::new(), pairs: Vec::new() };
    let headers = reader.headers(&job.input.auth, &job.input.headers)?;
    let peer = match (&job.input.url, &job.input.local) {
        (Some(url), _) => reach.peer(Url::parse_either(&keyspace(url, &job.input))?, headers),
        (None, Some(name)) => {
            let local = local.as_ref().ok_or(ConnectError::Missing("a server whose databases could be named"))?;
            if let Some((name, password)) = &local.account {
                reader.read.push(password.clone());
                reader.pairs.push((name.clone(), password.clone()));
            }
            local.peer(name, headers)?.with_clock(clock.clone())
        }
        (None, None) => return Err(ConnectError::Missing("an input without a database")),
    };
    let source = HttpSource::new(peer, job.input.source_type, job.input.changes_feed.clone());
    let tables = job.mapping.tables();
    let in_files = |name: &Option<String>| -> Result<PathBuf, ConnectError> {
        // The schema ensures a plain name; a path would leave the directory.
        let name = name.as_deref().filter(|name| !name.contains(['/', '\\', '\0']) && !name.starts_with('.'));
        Ok(files.as_deref().ok_or(ConnectError::Directory)?.join(name.ok_or(ConnectError::Directory)?))
    };
    let target = match &job.output {
        Output::Rdbms(output) if output.database_type == DatabaseType::Sqlite => {
            let file = in_files(&Some(output.database.clone()))?;
            // SQLite takes an empty file for an empty database.
            create_missing(&file).map_err(|error| ConnectError::Target(error.to_string()))?;
            let claim = FileClaim::take(&file, FileUse::Sqlite, &job.id)?;
            let target = Sqlite::in_file(&file, &job.id, tables, output.create_tables).with_claim(Arc::new(claim));
            AnyTarget::Sqlite(target.with_clock(clock.clone()))
        }
        Output::Rdbms(output) if output.database_type == DatabaseType::Postgres => {
            let way = way(output, &mut reader, reach)?;
            AnyTarget::Postgres(Box::new(Postgres::at(way, &job.id, tables, output.create_tables)))
        }
        Output::Rdbms(output) => {
            let way = way(output, &mut reader, reach)?;
            let way = mysql::MysqlSettings {
                host: way.host,
                port: output.port.unwrap_or(3306),
                database: way.database,
                user: way.user,
                password: way.password,
                time_max: way.time_max,
                addresses: reach.addresses.clone(),
                authorities: output.ssl.then(|| reach.authorities.clone()),
                clock: way.clock,
            };
            AnyTarget::MySql(Box::new(MySql::at(way, &job.id, tables, output.create_tables)))
        }
        Output::Http(output) => AnyTarget::Http(Box::new(http(output, job, &mut reader, reach)?)),
        Output::Cloud(output) => match output.provider {
            CloudProvider::S3 => AnyTarget::S3(Box::new(s3(output, job, &mut reader, reach)?)),
            CloudProvider::Stdout => {
                let lines = Lines::new(std::io::stdout(), tables.to_vec());
                AnyTarget::Stdout(lines.with_turn(reach.turns.at(Path::new("/dev/stdout")).with_clock(clock.clone())))
            }
            CloudProvider::File => {
                let path = in_files(&output.file)?;
                let failed = |error: std::io::Error| ConnectError::Target(error.to_string());
                create_missing(&path).map_err(failed)?;
                // Claimed before the file is opened: it may be the database of another job.
                let claim = Arc::new(FileClaim::take(&path, FileUse::Lines, &job.id)?);
                let file = Arc::new(File::options().read(true).append(true).open(&path).map_err(failed)?);
                let lines = Lines::new(file.clone(), tables.to_vec()).with_synced_file(file).with_claim(claim);
                AnyTarget::File(lines.with_turn(reach.turns.at(&path).with_clock(clock.clone())))
            }
        },
    };
    Ok(RunParts { source, target, redactor: reader.redactor() })
}

/// Creates a missing file and syncs its directory entry: a checkpoint must not pass lines of a file that a crash loses.
///
/// An existing file is not opened. An earlier run in this process may have it open as a database, and closing any
/// descriptor of a file releases all locks that the process holds on it. Another process would then consider itself the
/// last user and delete the write-ahead log with its committed transactions.
fn create_missing(path: &Path) -> std::io::Result<()> {
    match File::options().append(true).create_new(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(_) => path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all()),
    }
}

/// Returns a database's address; with Sync Gateway's collections in the form `db.scope.collection`.
fn keyspace(url: &str, input: &Input) -> String {
    let Some(collection) = &input.collection else { return url.to_owned() };
    let scope = encode_segment(input.scope.as_deref().unwrap_or("_default"));
    format!("{}.{scope}.{}", url.trim_end_matches('/'), encode_segment(collection))
}

fn way(output: &RdbmsOutput, reader: &mut Reader<'_>, reach: &Reach) -> Result<PostgresSettings, ConnectError> {
    let given = |value: &Option<String>| value.clone().ok_or(ConnectError::Missing("a server without a host or user"));
    let user = given(&output.username)?;
    let password = output.password.as_ref().map(|password| reader.secret(password)).transpose()?;
    if let Some(password) = &password {
        reader.pairs.push((user.clone(), password.clone()));
    }
    Ok(PostgresSettings {
        host: given(&output.host)?,
        port: output.port.unwrap_or(5432),
        database: output.database.clone(),
        schema: output.schema.clone(),
        user,
        password: password.map(|password| password.expose().to_owned()),
        time_max: time_max(output.timeout_seconds.filter(|seconds| *seconds > 0.0)),
        dial: reach.dial.clone(),
        secure: output.ssl.then(|| reach.secure.clone()),
        clock: reach.clock.clone(),
    })
}

fn http(output: &HttpOutput, job: &Description, reader: &mut Reader<'_>, reach: &Reach) -> Result<Http, ConnectError> {
    // `documents` refuses templates in the server's name.
    let (server, template) = output.parts();
    let method = |of: &Option<String>, other: Method| match of {
        None => Ok(other),
        Some(name) => Method::from_bytes(name.as_bytes()).map_err(|_| ConnectError::Missing("this method")),
    };
    let ways = HttpSettings {
        template: template.to_owned(),
        method: method(&output.method, Method::PUT)?,
        delete_method: method(&output.delete_method, Method::DELETE)?,
        is_delete_with_body: output.send_delete_body,
        is_delete_ignored: output.on_delete == OnHttpDelete::Ignore,
        format: output.format,
        attachments: job
            .attachments_apart()
            .map(|part| output.attachments(part))
            .transpose()
            .map_err(ConnectError::Target)?,
        time_max: time_max(output.timeout_seconds),
    };
    let headers = reader.headers(&output.auth, &output.headers)?;
    let peer = reach.peer(Url::parse_either(server)?, headers);
    Ok(Http::new(peer, ways, job.mapping.tables().to_vec(), job.system.processing.at_once()))
}

fn time_max(seconds: Option<f64>) -> Duration {
    let seconds = seconds.filter(|seconds| *seconds > 0.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(ANSWER_MAX)
}

fn s3(output: &CloudOutput, job: &Description, reader: &mut Reader<'_>, reach: &Reach) -> Result<S3, ConnectError> {
    let name = output.bucket.as_deref().ok_or(ConnectError::Missing("a store without a bucket"))?;
    let region = output.region.as_deref().unwrap_or("us-east-1");
    let amazons = format!("https://s3.{region}.amazonaws.com");
    let endpoint = output.endpoint_url.as_deref().unwrap_or(&amazons);
    // A wildcard certificate does not cover a bucket name with dots.
    let usual = match &output.endpoint_url {
        None if !name.contains('.') => Addressing::Virtual,
        _ => Addressing::Path,
    };
    let in_name = output.addressing.unwrap_or(usual) == Addressing::Virtual;
    let url = match endpoint.split_once("://") {
        Some((scheme, rest)) if in_name => format!("{scheme}://{name}.{rest}"),
        _ => endpoint.to_owned(),
    };
    let signer = match (&output.access_key_id, &output.secret_access_key) {
        (Some(id), Some(key)) => Some(Signer {
            access_key_id: reader.secret(id)?,
            secret_access_key: reader.secret(key)?,
            region: region.to_owned(),
        }),
        _ => None,
    };
    let session_token = output.session_token.as_ref().map(|token| reader.secret(token)).transpose()?;
    let peer = reach.peer(Url::parse_either(&url)?, HeaderMap::new());
    let bucket = Bucket::new(peer, (!in_name).then_some(name), signer, session_token, time_max(output.timeout_seconds));
    let ways = s3::StoreSettings {
        template: output.template().map_err(ConnectError::Target)?,
        format: output.format,
        content_type: output.content_type.clone(),
        on_delete: output.on_delete,
        attachments: job
            .attachments_apart()
            .map(|part| output.attachments(part))
            .transpose()
            .map_err(ConnectError::Target)?,
        window: output.window(),
    };
    let at_once = job.system.processing.at_once();
    Ok(S3::new(bucket, ways, &job.id, job.mapping.tables().to_vec(), at_once))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::documents::{Connections, Document, read};

    fn described(input: Value, output_type: &str, output: Value) -> Description {
        let mut whole = json!({"id": "in", "source_type": "couchdb", "url": "http://h:5984/db"});
        whole.as_object_mut().unwrap().extend(input.as_object().unwrap().clone());
        let mapping = json!({"tables": [{"name": "t", "primary_key": "id", "columns": {"id": "$._id"}}]});
        let job = json!({"type": "job", "id": "j", "inputs": [whole], "outputs": [output], "output_type": output_type, "mapping": mapping});
        let Document::Job(job) = read(job.to_string().as_bytes()).unwrap() else { panic!() };
        Connections::default().resolve(&job).unwrap()
    }

    fn nowhere() -> Dial {
        Arc::new(|_: &Url| Box::pin(async { Err("nowhere".to_owned()) }))
    }

    fn secrets(directory: &Path) -> Secrets {
        std::fs::write(directory.join("couch"), "hunter2-couch\n").unwrap();
        std::fs::write(directory.join("empty"), "").unwrap();
        let variables =
            [("FLATBED_WORKER_H", "hunter2-header"), ("FLATBED_WORKER_T", "hunter2-token"), ("HOME", "/root")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Secrets { directory: Some(directory.to_owned()), variables }
    }

    fn reach(secrets: &Secrets, files: Option<&Path>) -> Reach {
        Reach {
            secrets: secrets.clone(),
            files: files.map(Path::to_owned),
            turns: Turns::default(),
            dial: nowhere(),
            secure: Arc::new(|_, stream| Box::pin(async { Ok(stream) })),
            addresses: Arc::new(|_| Box::pin(async { Ok(Vec::new()) })),
            authorities: Vec::new(),
            local: None,
            clock: Clock::system(),
        }
    }

    fn stdout() -> Value {
        json!({"id": "out", "provider": "stdout"})
    }

    #[test]
    fn every_secret_that_is_used_is_hidden() {
        let directory = tempfile::tempdir().unwrap();
        let basic = json!({"auth": {"method": "basic", "username": "anna", "password": "file:couch"}, "headers": {"x-key": "env:FLATBED_WORKER_H", "x-from": "me"}});
        let output = json!({"id": "out", "url": "https://h/in/{id}", "auth": {"method": "bearer", "token": "env:FLATBED_WORKER_T"}});
        let job = described(basic, "http", output);
        let connected = connect(&job, &reach(&secrets(directory.path()), None)).unwrap();
        assert!(matches!(connected.target, AnyTarget::Http(_)));
        let used = ["hunter2-couch", "hunter2-header", "hunter2-token"];
        let said = format!(
            "{} {} Basic {}",
            used.join(" "),
            BASE64.encode("hunter2-token"),
            BASE64.encode("anna:hunter2-couch")
        );
        assert_eq!(connected.redactor.text(&said, 1_000), "*** *** *** *** Basic ***");
        assert!(!format!("{connected:?}").contains("hunter2"));
    }

    #[test]
    fn secrets_lie_in_their_places_alone() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        let inside = directory.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&outside, "hunter2").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::fs::create_dir(inside.join("directory")).unwrap();
        let secrets = secrets(&inside);
        let read = |text: &str| secrets.read(&text.parse().unwrap()).map(|secret| secret.expose().to_owned());
        assert_eq!(read("file:couch").unwrap(), "hunter2-couch");
        for text in ["file:link", "file:directory", "file:gone", "env:FLATBED_WORKER_GONE"] {
            assert!(matches!(read(text), Err(SecretError::Missing(_))), "{text}");
        }
        assert!(matches!(read("file:empty"), Err(SecretError::Unusable(_))));
        let without = Secrets::default();
        assert!(without.read(&"file:couch".parse().unwrap()).is_err());
        // The value is not valid in a header.
        std::fs::write(inside.join("two"), "a\r\nb: c").unwrap();
        let job = described(json!({"headers": {"x-key": "file:two"}}), "cloud", stdout());
        assert!(matches!(connect(&job, &reach(&secrets, None)), Err(ConnectError::Header(_))));
    }

    /// Returns the locks that this process holds on a file, from the kernel's list.
    #[cfg(target_os = "linux")]
    fn locks_on(path: &Path) -> usize {
        use std::os::unix::fs::MetadataExt;

        let inode = format!(":{}", std::fs::metadata(path).unwrap().ino());
        let process = std::process::id().to_string();
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let is_ours = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.contains(&"POSIX")
                && words.contains(&process.as_str())
                && words.iter().any(|word| word.ends_with(&inode))
        };
        locks.lines().filter(is_ours).count()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_database_that_is_open_keeps_its_locks() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = Secrets::default();
        let reached = reach(&secrets, Some(directory.path()));
        let path = directory.path().join("x");
        // An earlier run whose thread still writes.
        let earlier = rusqlite::Connection::open(&path).unwrap();
        earlier.pragma_update(None, "journal_mode", "WAL").unwrap();
        earlier.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)").unwrap();
        let locks = locks_on(&path);
        assert!(locks > 0, "SQLite locks a database that it has open");
        let sqlite = json!({"id": "out", "database_type": "sqlite", "database": "x", "create_tables": true});
        let connected = connect(&described(json!({}), "rdbms", sqlite), &reached).unwrap();
        assert_eq!(locks_on(&path), locks);
        let file = json!({"id": "out", "provider": "file", "file": "x"});
        let lines = Description { id: "lines".to_owned(), ..described(json!({}), "cloud", file) };
        assert!(connect(&lines, &reached).is_err());
        assert_eq!(locks_on(&path), locks);
        drop((connected, earlier));
    }

    #[test]
    fn a_second_job_does_not_write_the_file_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = Secrets::default();
        let (one, elsewhere) = (reach(&secrets, Some(directory.path())), reach(&secrets, Some(directory.path())));
        let file = |name: &str| json!({"id": "out", "provider": "file", "file": name});
        let sqlite = json!({"id": "out", "database_type": "sqlite", "database": "x", "create_tables": true});
        let first = described(json!({}), "rdbms", sqlite);
        let connected = connect(&first, &one).unwrap();
        for name in ["x", "x-wal"] {
            let second = Description { id: "second".to_owned(), ..described(json!({}), "cloud", file(name)) };
            // The second `Reach` stands for another process.
            for reach in [&one, &elsewhere] {
                let refused = connect(&second, reach).unwrap_err();
                assert_eq!(refused.to_string(), "the job \"j\" writes the same file", "{name}");
            }
        }
        drop(connected);
        let second = Description { id: "second".to_owned(), ..described(json!({}), "cloud", file("x-wal")) };
        let _connected = connect(&second, &elsewhere).unwrap();
        assert!(matches!(connect(&first, &one), Err(ConnectError::Taken(job)) if job == "second"));
    }

    #[test]
    fn files_lie_in_their_directory_alone() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = Secrets::default();
        let file = |name: &str| json!({"id": "out", "provider": "file", "file": name});
        let sqlite = json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite", "create_tables": true});
        for (kind, output, name) in [("cloud", file("x.jsonl"), "x.jsonl"), ("rdbms", sqlite, "x.sqlite")] {
            let job = described(json!({}), kind, output);
            assert!(matches!(connect(&job, &reach(&secrets, None)), Err(ConnectError::Directory)));
            assert!(connect(&job, &reach(&secrets, Some(directory.path()))).is_ok());
            // Databases are opened when a run begins.
            assert!(kind == "rdbms" || directory.path().join(name).exists());
        }
        let mut job = described(json!({}), "cloud", file("x"));
        if let Output::Cloud(output) = &mut job.output {
            output.file = Some("../x".to_owned());
        }
        assert!(matches!(connect(&job, &reach(&secrets, Some(directory.path()))), Err(ConnectError::Directory)));
        for (kind, name) in [("mysql", "MySql"), ("postgres", "Postgres")] {
            let output = json!({"id": "out", "database_type": kind, "host": "h", "username": "u", "database": "d"});
            let connected = connect(&described(json!({}), "rdbms", output), &reach(&secrets, None)).unwrap();
            assert!(format!("{:?}", connected.target).starts_with(name));
        }
    }
}
