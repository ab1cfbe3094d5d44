//! `flatbed load`: loads documents from files into a running server, in concurrent bulk requests of bounded size. Lines
//! of a full dump, which have `_revisions`, are stored as the revisions of a replica.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use flatbed_client::{
    Connection, Url, encode_segment,
    split::{Object, SplitError, Splitter, member, without},
};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::{
    cli::Load,
    dump_format::{self, Head, Line, document_path},
    load_large::{LargeDocument, LargeInput, large},
    output::say,
    progress::{self, Progress, Unit},
    starting,
};

const BATCH_DOCUMENTS_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 2 << 20;
const CONNECTIONS: usize = 4;
const PIECE_BYTES: usize = 1 << 18;
/// The longest document that is read, in bytes. It exceeds the server's limit, so that the server refuses the document.
const DOCUMENT_BYTES_MAX: usize = 64 << 20;
const FAILURES_PRINTED_MAX: u64 = 100;

/// The reason why a load stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The connection or the request failed.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file is not a sequence of JSON objects.
    #[error("{path}: {source}", path = path.display())]
    Split {
        /// The file.
        path: PathBuf,
        /// The defect and its position.
        source: SplitError,
    },
    /// A dump without its last line.
    #[error("{path}: the dump is cut off: its last line is missing", path = .0.display())]
    CutOff(PathBuf),
    /// A dump from which lines were lost.
    #[error("{path}: the dump is not complete: it has {found} of {told} revisions", path = path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The number of revisions in the dump.
        found: u64,
        /// The number in its last line.
        told: u64,
    },
    /// A line of a dump in a wrong place, or of a later version.
    #[error("{path}: line {line}: this line of a dump is damaged, in a wrong place, or of a later version", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
    },
    /// The server refuses all documents alike.
    #[error("the server refuses: {status} {text}")]
    Refused {
        status: u16,
        /// The answer's text.
        text: String,
    },
    /// A task of the program ended early.
    #[error("the load was interrupted")]
    Interrupted,
}

/// Loads `options.files` into the database, which is created if it is missing, and prints a summary. Refused documents
/// are reported on stderr, one on each line.
///
/// Returns whether every document was accepted.
///
/// # Errors
/// [`LoadError`]. Documents sent before the error are in the database.
pub(crate) async fn load(options: Load, url: &Url) -> Result<bool, LoadError> {
    let database = encode_segment(&options.database);
    // Reading waits for input, so a server that does not answer is reported first.
    let first = starting::connect(url).await?;

    // Successive edits of one document must keep their order.
    let connections = if options.keep_rev { 1 } else { CONNECTIONS };
    let (work_in, work) = mpsc::channel::<Work>(connections);
    let (outcomes_in, mut outcomes) = mpsc::channel(connections);
    let work = Arc::new(Mutex::new(work));
    let mut progress =
        Progress::new(format!("load {}", options.database), Unit::Documents, bytes_total(&options.files));
    let (head_in, head) = oneshot::channel();
    let options = Arc::new(options);
    let reader = {
        let options = options.clone();
        tokio::task::spawn_blocking(move || read(&options, &work_in, head_in))
    };
    match head.await {
        Ok(head) => create(first, &database, &options, head.as_ref()).await?,
        // The input cannot be read.
        Err(_) => return reader.await.map_err(|_| LoadError::Interrupted)?.map(|()| true),
    }
    for _ in 0..connections {
        let sender = Sender {
            connection: Connection::open(url).await?,
            database: format!("/{database}/"),
            outcomes: outcomes_in.clone(),
        };
        tokio::spawn(sender.run(work.clone()));
    }
    drop((work, outcomes_in));

    let (mut taken, mut failed, mut bytes) = (0_u64, 0_u64, 0_u64);
    while let Some(outcome) = outcomes.recv().await {
        let outcome = outcome?;
        taken += outcome.taken;
        bytes += outcome.bytes;
        for failure in outcome.failures {
            failed += 1;
            if failed <= FAILURES_PRINTED_MAX {
                progress.clear();
                eprintln!("{failure}");
            }
        }
        progress.draw(bytes, taken);
    }
    progress.clear();
    reader.await.map_err(|_| LoadError::Interrupted)??;
    let seconds = progress.elapsed().as_secs_f64();
    say!(
        "{taken} documents loaded in {seconds:.1} s ({}/s), {failed} failed",
        progress::rate(taken, progress.elapsed())
    );
    Ok(failed == 0)
}

/// Creates the database with the options, and with the settings of a dump's head. A database that exists keeps its own.
async fn create(
    mut connection: Connection,
    database: &str,
    options: &Load,
    head: Option<&Head>,
) -> Result<(), LoadError> {
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let is_partitioned = options.partitioned || head.is_some_and(|head| head.is_partitioned);
    let settings = [
        ("run_bytes", "--run-bytes", number(options.run_bytes)),
        ("shards", "--shards", number(options.shards)),
        ("partitioned", "--partitioned", is_partitioned.then(|| "true".to_owned())),
    ];
    let given = || settings.iter().filter_map(|(name, flag, value)| Some((name, flag, value.as_ref()?)));
    let query: Vec<String> = given().map(|(name, _, value)| format!("{name}={value}")).collect();
    let path = format!("/{database}?{}", query.join("&"));
    let body = match head {
        Some(Head { sync: Some(function), .. }) => json!({ "sync": function }).to_string(),
        Some(Head { has_channels: true, .. }) => json!({ "channels": true }).to_string(),
        _ => String::new(),
    };
    let answer = connection.call(Method::PUT, &path, body).await?;
    // Users who may not create databases may write into one that exists.
    let exists = match answer.status {
        401 | 403 => connection.call(Method::GET, &format!("/{database}"), "").await?.status == 200,
        status => status == 412,
    };
    if exists {
        given().for_each(|(_, flag, _)| eprintln!("{} exists: {flag} is not applied", options.database));
        if head.is_some() {
            eprintln!("{} exists: _security and _revs_limit of the dump are not applied", options.database);
        }
        return Ok(());
    }
    if !matches!(answer.status, 201 | 202) {
        return Err(LoadError::Refused { status: answer.status, text: answer.text() });
    }
    let security = head.and_then(|head| head.security.clone());
    let limit = head.and_then(|head| head.revs_limit).map(|limit| limit.to_string());
    for (name, value) in [("_security", security), ("_revs_limit", limit)] {
        let Some(value) = value else { continue };
        let answer = connection.call(Method::PUT, &format!("/{database}/{name}"), value).await?;
        if !matches!(answer.status, 200..=202) {
            return Err(LoadError::Refused { status: answer.status, text: format!("{name}: {}", answer.text()) });
        }
    }
    Ok(())
}

fn bytes_total(files: &[PathBuf]) -> Option<u64> {
    files.iter().map(|path| path.metadata().ok().filter(|data| data.is_file()).map(|data| data.len())).sum()
}

#[derive(Clone, Debug)]
struct InputPosition {
    path: Arc<Path>,
    line: u64,
}

impl fmt::Display for InputPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// The work of one or several requests.
enum Work {
    Batch(Batch),
    /// A local document, with its id.
    Local(InputPosition, String, Vec<u8>),
    /// A document whose attachments follow it.
    Large(InputPosition, LargeDocument),
}

/// The documents of one request.
#[derive(Default)]
struct Batch {
    documents: Vec<(InputPosition, Vec<u8>)>,
    bytes: usize,
    /// The documents are a replica's revisions, stored under the revisions that they name (`new_edits=false`).
    is_replica: bool,
    /// The batch is one document with a stub of an attachment.
    has_stub: bool,
}

impl Batch {
    fn body(&self) -> Bytes {
        let mut body = Vec::with_capacity(self.bytes + self.documents.len() + 32);
        body.extend_from_slice(b"{\"docs\":[");
        for (index, (_, text)) in self.documents.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(text);
        }
        body.extend_from_slice(if self.is_replica { &b"],\"new_edits\":false}"[..] } else { &b"]}"[..] });
        body.into()
    }
}

/// Reads the files and sends their documents until all are read or the senders have stopped. The head of a dump that
/// begins the first file, or `None`, is sent before them.
fn read(options: &Load, work: &mpsc::Sender<Work>, head: oneshot::Sender<Option<Head>>) -> Result<(), LoadError> {
    let mut reader = Reader { options, work, head: Some(head), batch: Batch::default(), large: None, revisions: 0 };
    for path in &options.files {
        if !reader.file(path)? {
            return Ok(());
        }
    }
    reader.tell_head(None);
    // It fails if a sender failed, whose error is reported.
    let _ = reader.flush();
    Ok(())
}

/// The senders have stopped.
struct SendersStopped;

struct Reader<'r> {
    options: &'r Load,
    work: &'r mpsc::Sender<Work>,
    head: Option<oneshot::Sender<Option<Head>>>,
    batch: Batch,
    /// The document whose attachments are being read.
    large: Option<LargeInput>,
    /// The revisions since the last head of a dump.
    revisions: u64,
}

impl Reader<'_> {
    fn tell_head(&mut self, head: Option<Head>) {
        if let Some(sender) = self.head.take() {
            let _ = sender.send(head);
        }
    }

    fn send(&self, work: Work) -> Result<(), SendersStopped> {
        self.work.blocking_send(work).map_err(|_| SendersStopped)
    }

    fn flush(&mut self) -> Result<(), SendersStopped> {
        if self.batch.documents.is_empty() {
            return Ok(());
        }
        let batch = mem::take(&mut self.batch);
        self.send(Work::Batch(batch))
    }

    /// Reads a file. Returns false if the senders have stopped.
    fn file(&mut self, path: &Path) -> Result<bool, LoadError> {
        let failed = |source| LoadError::Read { path: path.to_owned(), source };
        let mut input: Box<dyn Read> =
            if path.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(failed)?) };
        let shared: Arc<Path> = path.into();
        let mut splitter = Splitter::new(DOCUMENT_BYTES_MAX);
        let mut piece = vec![0; PIECE_BYTES];
        let split_failed = |source| LoadError::Split { path: path.to_owned(), source };
        let (mut is_dump, mut has_ended) = (false, false);
        loop {
            let length = match input.read(&mut piece) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            if length == 0 {
                break;
            }
            splitter.push(&piece[..length]);
            while let Some(Object { line, text }) = splitter.next_object().map_err(split_failed)? {
                let damaged = || LoadError::Line { path: path.to_owned(), line };
                let place = InputPosition { path: shared.clone(), line };
                match (dump_format::line(text), self.large.take()) {
                    (Line::Data(data), Some(mut large)) => match large.push(data) {
                        Some(true) => self.large = Some(large),
                        Some(false) => {}
                        None => {
                            large.give_up();
                            return Err(damaged());
                        }
                    },
                    (Line::Void, Some(large)) => {
                        large.give_up();
                        self.revisions = self.revisions.saturating_sub(1);
                    }
                    (_, Some(large)) => {
                        large.give_up();
                        return Err(damaged());
                    }
                    // All attachments behind it are empty.
                    (Line::Void, None) => self.revisions = self.revisions.saturating_sub(1),
                    // Another dump may follow one that has ended.
                    (Line::Head(head), None) if !is_dump || has_ended => {
                        (is_dump, has_ended, self.revisions) = (true, false, 0);
                        self.tell_head(Some(head));
                    }
                    (Line::Tail { revisions, left_out }, None) if is_dump && !has_ended => {
                        has_ended = true;
                        if let Some(told) = revisions.filter(|told| *told != self.revisions) {
                            // The documents read so far are loaded.
                            let _ = self.flush();
                            return Err(LoadError::Incomplete { path: path.to_owned(), found: self.revisions, told });
                        }
                        if left_out > 0 {
                            eprintln!("{}: the dump leaves out {left_out} revisions", path.display());
                        }
                    }
                    (Line::Document, None) if !has_ended => {
                        self.tell_head(None);
                        match self.document(place, text) {
                            Some(Ok(())) => {}
                            Some(Err(SendersStopped)) => return Ok(false),
                            None => return Err(damaged()),
                        }
                    }
                    _ => return Err(damaged()),
                }
            }
        }
        splitter.finish().map_err(split_failed)?;
        if let Some(large) = self.large.take() {
            large.give_up();
            return Err(LoadError::CutOff(path.to_owned()));
        }
        if is_dump && !has_ended {
            // The documents read so far are loaded.
            let _ = self.flush();
            return Err(LoadError::CutOff(path.to_owned()));
        }
        Ok(true)
    }

    /// Takes a document. `None`: it is malformed.
    fn document(&mut self, place: InputPosition, text: &[u8]) -> Option<Result<(), SendersStopped>> {
        let is_replica = member(text, "_revisions").is_some();
        if let Some(id) = local_id(text) {
            return Some(self.send(Work::Local(place, id, without(text, "_rev").into_owned())));
        }
        self.revisions += u64::from(is_replica);
        if is_replica && has_word(text, b"follows") {
            let following = dump_format::following(text)?;
            if !following.is_empty() {
                let (document, mut input) = large(text, following)?;
                let sent = self.send(Work::Large(place, document));
                if input.begin() {
                    self.large = Some(input);
                }
                return Some(sent);
            }
        }
        let text = if self.options.keep_rev || is_replica { text.into() } else { without(text, "_rev") };
        let batch = &self.batch;
        let full = batch.documents.len() >= BATCH_DOCUMENTS_MAX || batch.bytes + text.len() > BATCH_BYTES_MAX;
        let has_stub = !is_replica && has_word(&text, b"stub");
        if (full || batch.is_replica != is_replica || batch.has_stub || has_stub)
            && let Err(stopped) = self.flush()
        {
            return Some(Err(stopped));
        }
        let batch = &mut self.batch;
        (batch.is_replica, batch.has_stub) = (is_replica, has_stub);
        batch.bytes += text.len();
        batch.documents.push((place, text.into_owned()));
        Some(Ok(()))
    }
}

/// Returns whether the attachments of a document contain a string. A server that lacks the data of a stub refuses the
/// whole request, and may have written other documents of it.
fn has_word(document: &[u8], word: &[u8]) -> bool {
    let attachments = member(document, "_attachments").and_then(|member| document.get(member.value));
    attachments.is_some_and(|text| text.split(|byte| *byte == b'"').any(|part| part == word))
}

/// Returns the id of a local document.
fn local_id(document: &[u8]) -> Option<String> {
    let id = document.get(member(document, "_id")?.value)?;
    if !id.starts_with(b"\"_local/") {
        return None;
    }
    string(document, "_id")
}

/// The result of a batch.
#[derive(Default)]
struct Outcome {
    taken: u64,
    bytes: u64,
    failures: Vec<String>,
}

struct Sender {
    connection: Connection,
    /// The path of the database, with a slash at its end.
    database: String,
    outcomes: mpsc::Sender<Result<Outcome, LoadError>>,
}

impl Sender {
    async fn run(mut self, all: Arc<Mutex<mpsc::Receiver<Work>>>) {
        loop {
            // The lock is held while waiting for work, not while sending it: the senders take turns.
            let Some(work) = all.lock().await.recv().await else { return };
            let outcome = match work {
                Work::Batch(batch) => self.send(batch).await,
                Work::Local(place, id, text) => self.send_local(&place, &id, text).await,
                Work::Large(place, document) => self.send_large(&place, document).await,
            };
            let stop = outcome.is_err();
            if self.outcomes.send(outcome).await.is_err() || stop {
                return;
            }
        }
    }

    async fn send_local(&mut self, place: &InputPosition, id: &str, text: Vec<u8>) -> Result<Outcome, LoadError> {
        let (bytes, path) = (text.len() as u64, format!("{}{}", self.database, document_path(id)));
        let answer = self.connection.call(Method::PUT, &path, text).await?;
        Outcome::of_one(place, bytes, &answer)
    }

    async fn send_large(&mut self, place: &InputPosition, document: LargeDocument) -> Result<Outcome, LoadError> {
        let bytes = document.bytes();
        match document.send(&mut self.connection, &self.database).await? {
            Some(answer) => Outcome::of_one(place, bytes, &answer),
            None => Ok(Outcome::default()),
        }
    }

    async fn send(&mut self, batch: Batch) -> Result<Outcome, LoadError> {
        let mut outcome = Outcome { bytes: batch.bytes as u64, ..Outcome::default() };
        let path = format!("{}_bulk_docs", self.database);
        let answer = self.connection.call(Method::POST, &path, batch.body()).await?;
        match answer.status {
            201 | 202 => outcome.add(&batch, &answer.body),
            // One bad document fails the request for all: send each alone to find it. 412 is for a stub of an
            // attachment that the server lacks.
            400 | 412 | 413 if batch.documents.len() > 1 => {
                let is_replica = batch.is_replica;
                for (place, text) in batch.documents {
                    let bytes = text.len();
                    let alone = Batch { documents: vec![(place, text)], bytes, is_replica, has_stub: false };
                    let answer = self.connection.call(Method::POST, &path, alone.body()).await?;
                    outcome.add_alone(&alone, answer)?;
                }
            }
            _ => outcome.add_alone(&batch, answer)?,
        }
        Ok(outcome)
    }
}

impl Outcome {
    /// Returns the outcome of a request for one document.
    fn of_one(place: &InputPosition, bytes: u64, answer: &flatbed_client::Answer) -> Result<Outcome, LoadError> {
        match answer.status {
            200..=202 => Ok(Outcome { taken: 1, bytes, failures: Vec::new() }),
            400 | 403 | 404 | 409 | 412 | 413 => {
                let failure = format!("{place}: {} {}", answer.status, answer.text());
                Ok(Outcome { taken: 0, bytes, failures: vec![failure] })
            }
            status => Err(LoadError::Refused { status, text: answer.text() }),
        }
    }

    fn add(&mut self, batch: &Batch, answer: &[u8]) {
        if batch.is_replica { self.add_replica(batch, answer) } else { self.add_edits(&batch.documents, answer) }
    }

    /// Matches the answer's results to the documents: they come in the same order.
    fn add_edits(&mut self, documents: &[(InputPosition, Vec<u8>)], answer: &[u8]) {
        let mut splitter = Splitter::new(answer.len());
        splitter.push(answer);
        for (place, _) in documents {
            match splitter.next_object() {
                Ok(Some(result)) if member(result.text, "error").is_none() => self.taken += 1,
                Ok(Some(result)) => self.failures.push(failure(place, result.text)),
                Ok(None) | Err(_) => self.failures.push(format!("{place}: the server's answer does not mention it")),
            }
        }
    }

    /// Counts a replica's revisions from the answer, which lists only the refused ones.
    fn add_replica(&mut self, batch: &Batch, answer: &[u8]) {
        let mut splitter = Splitter::new(answer.len());
        splitter.push(answer);
        let mut failed = 0;
        let ended = loop {
            match splitter.next_object() {
                // A server may also list accepted revisions.
                Ok(Some(result)) if member(result.text, "error").is_none() => {}
                Ok(Some(result)) => {
                    let name = |text: &[u8], id, rev| (string(text, id), string(text, rev));
                    let of_result = name(result.text, "id", "rev");
                    let is_meant = |(_, text): &&(InputPosition, Vec<u8>)| name(text, "_id", "_rev") == of_result;
                    let found = batch.documents.iter().find(is_meant).or(batch.documents.first());
                    if let Some((place, _)) = found {
                        self.failures.push(failure(place, result.text));
                        failed += 1;
                    }
                }
                Ok(None) => break splitter.finish(),
                Err(error) => break Err(error),
            }
        };
        match (ended, batch.documents.first()) {
            (Err(error), Some((place, _))) => {
                self.failures.push(format!("{place}: the server's answer is malformed: {error}"));
            }
            _ => self.taken += (batch.documents.len() as u64).saturating_sub(failed),
        }
    }

    fn add_alone(&mut self, alone: &Batch, answer: flatbed_client::Answer) -> Result<(), LoadError> {
        match (answer.status, alone.documents.as_slice()) {
            (201 | 202, _) => self.add(alone, &answer.body),
            (400 | 412 | 413, [(place, _)]) => {
                self.failures.push(format!("{place}: {} {}", answer.status, answer.text()));
            }
            (status, _) => return Err(LoadError::Refused { status, text: answer.text() }),
        }
        Ok(())
    }
}

/// Formats the server's error for a refused document.
fn failure(place: &InputPosition, result: &[u8]) -> String {
    let text = |name| {
        let value = member(result, name).map_or(&b"?"[..], |member| &result[member.value]);
        String::from_utf8_lossy(value).into_owned()
    };
    format!("{place}: {} {}: {}", text("id"), text("error"), text("reason"))
}

/// Returns an object's string member, unescaped: equal texts may be escaped differently.
fn string(object: &[u8], name: &str) -> Option<String> {
    match serde_json::from_slice(object.get(member(object, name)?.value)?) {
        Ok(Value::String(text)) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_matched_to_documents() {
        let place = |line| InputPosition { path: Path::new("f").into(), line };
        let documents: Vec<_> = (1..=3).map(|line| (place(line), Vec::new())).collect();
        let mut outcome = Outcome::default();
        outcome.add_edits(
            &documents,
            br#"[{"ok":true,"id":"a","rev":"1-a"},{"id":"b","error":"conflict","reason":"No."}]"#,
        );
        assert_eq!(outcome.taken, 1);
        let expected = ["f:2: \"b\" \"conflict\": \"No.\"", "f:3: the server's answer does not mention it"];
        assert_eq!(outcome.failures, expected);
    }

    #[test]
    fn of_revisions_only_failures_are_answered() {
        let place = |line| InputPosition { path: Path::new("f").into(), line };
        let line = |line: u64, text: &str| (place(line), text.as_bytes().to_vec());
        let documents = vec![
            line(1, r#"{"_id":"a","_rev":"1-b"}"#),
            line(2, r#"{"_id":"\u0061","_rev":"1-c"}"#),
            line(3, r#"{"_id":"b","_rev":"1-c"}"#),
        ];
        let batch = Batch { documents, bytes: 0, is_replica: true, has_stub: false };
        assert!(batch.body().ends_with(b"],\"new_edits\":false}"));
        let outcome = |answer: &[u8]| {
            let mut outcome = Outcome::default();
            outcome.add(&batch, answer);
            (outcome.taken, outcome.failures)
        };
        assert_eq!(outcome(b"[]\n"), (3, Vec::new()));
        let refused = outcome(br#"[{"id":"a","rev":"1-c","error":"forbidden","reason":"No."}]"#);
        assert_eq!(refused, (2, vec![r#"f:2: "a" "forbidden": "No.""#.to_owned()]));
        let (taken, failures) = outcome(b"[{");
        assert_eq!((taken, failures.len()), (0, 1));
    }
}
