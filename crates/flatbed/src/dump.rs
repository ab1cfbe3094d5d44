//! `flatbed dump`: a running server's documents to stdout, one revision a line. [`crate::dump_format`] describes the
//! other lines.

use std::io::{self, BufWriter, Write};
use std::mem;

use bytes::Bytes;
use flatbed_client::{
    Connection, Url, encode_segment,
    split::{SplitError, Splitter, member, without},
};
use http_body_util::BodyExt;
use hyper::{Method, body::Incoming};
use serde_json::{Value, json};

use crate::{
    cli::Dump,
    dump_format::{self, DATA_BYTES, FollowingAttachment, Head, VOID_LINE, document_path},
    progress::{self, Progress, Unit},
};

/// The length of a revision's attachments up to which they are part of its line. Longer ones follow it.
const INLINE_BYTES: u64 = 1 << 20;
/// The length of attachments up to which revisions are read together with them.
const GROUP_BYTES: u64 = 8 << 20;
/// The longest line in bytes. `flatbed load` sends it in a request of its own, and a server takes bodies of 64 MB.
const LINE_BYTES_MAX: usize = (64 << 20) - 1024;
/// The longest row of `_bulk_get` or `_all_docs` in bytes: the document, and its id at most twice, with escapes.
const ROW_BYTES_MAX: usize = LINE_BYTES_MAX + (128 << 10);
/// The reason reported for a revision longer than [`LINE_BYTES_MAX`].
const TOO_LARGE: &str = "is with its attachments larger than the 64 MB that load can send in one piece";
/// The longest head of an answer, in bytes. `{"total_rows":N,"offset":N,"rows":[` is far shorter.
const HEAD_BYTES_MAX: usize = 4096;
/// The most changed documents of one page.
const CHANGES: usize = 1_000;
/// The most revisions of one `_bulk_get`.
const REVISIONS: usize = 500;
/// The most pages behind the end of the feed that are read for documents that were edited meanwhile.
const LATE_PAGES: usize = 100;
/// The reason reported for a revision that did not exist any more on the last of these pages.
const GONE: &str = "was replaced before it could be read, again and again";

/// The reason why a dump is not complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    /// The connection or the request failed.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// The connection broke in the middle of the answer.
    #[error("the server's answer broke off: {0}")]
    Body(#[from] hyper::Error),
    /// The URL of the administrators' port is invalid.
    #[error("--admin-url: {0}")]
    AdminUrl(#[from] flatbed_client::UrlError),
    /// The server refuses to return the documents.
    #[error("the server refuses: {status} {text}")]
    Refused {
        status: u16,
        /// The answer's text.
        text: String,
    },
    /// The server refuses a revision that its feed names.
    #[error("the server refuses revision {rev} of {id:?}: {text}")]
    Revision {
        /// The document's id.
        id: String,
        /// The revision.
        rev: String,
        /// The server's error.
        text: String,
    },
    /// A document is longer than any line.
    #[error("a document behind {behind} is with its attachments larger than the 64 MB that load can send")]
    TooLarge {
        /// The id of the last document that was written, as JSON text.
        behind: String,
    },
    /// The answer is not one of CouchDB's API.
    #[error("the server's answer is no list of documents")]
    Answer,
    /// A malformed row, or an answer without its end.
    #[error("the server's answer is malformed: {0}")]
    Row(#[from] SplitError),
    /// Stdout is closed or full.
    #[error("stdout: {0}")]
    Write(#[from] io::Error),
}

/// Writes the database with a summary on stderr: its settings and every leaf of every document with its attachments and
/// its history, about in the order of the changes feed; with `no_rev` the winners alone, ordered by `_id`. Returns
/// whether no revision was left out.
///
/// # Errors
/// [`DumpError`]. The output before it is incomplete.
pub(crate) async fn dump(options: &Dump, url: &Url) -> Result<bool, DumpError> {
    let progress = Progress::new(format!("dump {}", options.database), Unit::Documents, None);
    let output = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    let mut connection = Connection::open(url).await?;
    let database = encode_segment(&options.database);
    let (head, notes) = head(&mut connection, options, &database).await?;
    for note in notes {
        eprintln!("{note}");
    }
    let mut dumping = DumpState { url, database, connection, output, progress, written: 0, left_out: 0, gone: vec![] };
    let what = if options.no_rev {
        dumping.winners().await?;
        "documents"
    } else {
        dumping.output.write_all(&head.line())?;
        dumping.leaves().await?;
        if options.local {
            dumping.locals().await?;
        }
        let tail = dump_format::tail_line(dumping.written, dumping.left_out);
        dumping.output.write_all(&tail)?;
        "revisions"
    };
    let DumpState { mut output, mut progress, written, left_out, .. } = dumping;
    output.flush()?;
    progress.clear();
    let seconds = progress.elapsed().as_secs_f64();
    let rate = progress::rate(written, progress.elapsed());
    eprintln!("{written} {what} dumped in {seconds:.1} s ({rate}/s), {left_out} left out");
    Ok(left_out == 0)
}

/// Returns the settings of the database, and warnings about its properties that the dump does not contain, one line
/// each. `path`: the database's name, encoded for a path.
async fn head(connection: &mut Connection, options: &Dump, path: &str) -> Result<(Head, Vec<String>), DumpError> {
    let name = &options.database;
    let answer = connection.call(Method::GET, &format!("/{path}"), Bytes::new()).await?;
    let mut head = match answer.status {
        200 => head_of(name, &answer.body),
        404 => return Err(DumpError::Refused { status: 404, text: answer.text() }),
        status => {
            let unknown =
                format!("whether {name} is partitioned or has channels is unknown: {status} {}", answer.text());
            return Ok((Head { database: name.clone(), ..Head::default() }, vec![unknown]));
        }
    };
    if let Some(url) = options.admin_url.as_ref().filter(|_| head.has_channels && !options.no_rev) {
        head.sync = sync_function(url, path).await?;
    }
    let mut notes = notes(&head, options.no_rev, options.admin_url.is_some());
    if options.no_rev {
        return Ok((head, notes));
    }
    let answer = connection.call(Method::GET, &format!("/{path}/_security"), Bytes::new()).await?;
    head.security = dump_format::compact_object(&answer.body).filter(|_| answer.status == 200);
    if head.security.is_none() {
        notes.push(format!("the dump does not contain _security of {name}: {} {}", answer.status, answer.text()));
    }
    let answer = connection.call(Method::GET, &format!("/{path}/_revs_limit"), Bytes::new()).await?;
    head.revs_limit = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200);
    if head.revs_limit.is_none() {
        notes.push(format!("the dump does not contain _revs_limit of {name}: {} {}", answer.status, answer.text()));
    }
    Ok((head, notes))
}

/// Returns the sync function of a database; `None` for the default one. `url`: the administrators' port.
async fn sync_function(url: &str, path: &str) -> Result<Option<String>, DumpError> {
    let url = Url::parse(url)?.of_server()?;
    let answer = Connection::open(&url).await?.call(Method::GET, &format!("/{path}/_config"), Bytes::new()).await?;
    if answer.status != 200 {
        return Err(DumpError::Refused { status: answer.status, text: answer.text() });
    }
    let config: Value = serde_json::from_slice(&answer.body).map_err(|_| DumpError::Answer)?;
    Ok(config["sync"].as_str().map(str::to_owned))
}

/// Returns the settings in the answer to `GET /{db}`.
fn head_of(name: &str, info: &[u8]) -> Head {
    let info: Value = serde_json::from_slice(info).unwrap_or_default();
    let has = |property: &str| info["props"][property] == true;
    let (is_partitioned, has_channels) = (has("partitioned"), has("channels"));
    Head { database: name.to_owned(), is_partitioned, has_channels, ..Head::default() }
}

/// Returns the warnings about a database. `knows_function`: its sync function is in the head, or it has none.
fn notes(head: &Head, no_rev: bool, knows_function: bool) -> Vec<String> {
    let name = &head.database;
    let mut notes = Vec::new();
    if head.is_partitioned && no_rev {
        notes.push(format!("{name} is partitioned, which the dump does not tell: load it with --partitioned"));
    }
    if head.has_channels {
        let function = if knows_function && !no_rev { "" } else { "its sync function (--admin-url), " };
        notes.push(format!(
            "{name} has channels: the dump does not contain {function}its users and roles, and when documents end (_exp)"
        ));
    }
    notes
}

/// The state of a running dump.
struct DumpState<'u, W: Write> {
    url: &'u Url,
    /// The database's name, encoded for a path.
    database: String,
    connection: Connection,
    output: W,
    progress: Progress,
    written: u64,
    /// The number of revisions left out: too large for a line, or listed in the feed and refused by the server.
    left_out: u64,
    /// The revisions of the current page of changes that did not exist any more.
    gone: Vec<(String, String)>,
}

impl<W: Write> DumpState<'_, W> {
    /// Writes each document's winner without its revision.
    async fn winners(&mut self) -> Result<(), DumpError> {
        let path = format!("/{}/_all_docs?include_docs=true&attachments=true", self.database);
        let mut rows = Rows::of(&mut self.connection, Method::GET, &path, Bytes::new(), b"\"rows\":[").await?;
        let mut last = Vec::<u8>::new();
        let too_large = |last: &[u8]| DumpError::TooLarge { behind: text_of(last) };
        loop {
            let row = match rows.next().await {
                Ok(Some(row)) => row,
                Ok(None) => return Ok(()),
                Err(DumpError::Row(SplitError::TooLarge { .. })) => return Err(too_large(&last)),
                Err(error) => return Err(error),
            };
            if let Some(total) = rows.total.take() {
                self.progress.set_total(total);
            }
            if let Some(document) = document(&row) {
                if document.len() > LINE_BYTES_MAX {
                    return Err(too_large(&last));
                }
                last = member(document, "_id").map_or_else(Vec::new, |id| document[id.value].to_vec());
                write_line(&mut self.output, document, true)?;
                self.written += 1;
            }
            self.progress.draw(self.written, self.written);
        }
    }

    /// Writes every leaf. A document that changes meanwhile comes again later in the feed, so its new leaves follow its
    /// old ones.
    async fn leaves(&mut self) -> Result<(), DumpError> {
        let (mut since, mut done, mut late) = ("0".to_owned(), 0_u64, 0);
        loop {
            let page = self.changes(&since).await?;
            if since == "0" {
                self.progress.set_total(page.pending.saturating_add(page.rows as u64));
            }
            for wanted in page.revisions.chunks(REVISIONS) {
                self.copy(wanted).await?;
                self.progress.draw(done, self.written);
            }
            done += page.rows as u64;
            let gone = mem::take(&mut self.gone);
            if page.rows < CHANGES {
                late += 1;
                // A document that was edited before its revision was read has a later place in the feed.
                if gone.is_empty() || late > LATE_PAGES {
                    gone.iter().for_each(|(id, rev)| self.leave_out(id, rev, GONE));
                    return Ok(());
                }
            }
            if page.last_seq == since {
                return Err(DumpError::Answer);
            }
            since = page.last_seq;
        }
    }

    async fn changes(&mut self, since: &str) -> Result<Changes, DumpError> {
        let since = encode_segment(since);
        let path = format!("/{}/_changes?style=all_docs&limit={CHANGES}&since={since}", self.database);
        let answer = self.connection.call(Method::GET, &path, Bytes::new()).await?;
        if answer.status != 200 {
            return Err(DumpError::Refused { status: answer.status, text: answer.text() });
        }
        Changes::read(&answer.body).ok_or(DumpError::Answer)
    }

    /// Writes these revisions: those without attachments first, then the others in groups, and each with large
    /// attachments alone.
    async fn copy(&mut self, wanted: &[(String, String)]) -> Result<(), DumpError> {
        let mut attached = Vec::new();
        self.read(wanted, Some(&mut attached)).await?;
        let (mut group, mut group_bytes) = (Vec::new(), 0);
        for RevisionWithAttachments { id, rev, bytes } in attached {
            if bytes > INLINE_BYTES {
                self.large(&id, &rev).await?;
                continue;
            }
            group.push((id, rev));
            group_bytes += bytes;
            if group_bytes >= GROUP_BYTES {
                self.read(&mem::take(&mut group), None).await?;
                group_bytes = 0;
            }
        }
        self.read(&group, None).await
    }

    /// Writes these revisions with their attachments; with `attached` those with attachments are only added to it.
    async fn read(
        &mut self,
        mut wanted: &[(String, String)],
        mut attached: Option<&mut Vec<RevisionWithAttachments>>,
    ) -> Result<(), DumpError> {
        while !wanted.is_empty() {
            let read = self.revisions(wanted, attached.as_deref_mut()).await?;
            wanted = wanted.get(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes a revision, and its attachments on lines of their own.
    async fn large(&mut self, id: &str, rev: &str) -> Result<(), DumpError> {
        let document = format!("/{}/{}", self.database, document_path(id));
        let rev_text = encode_segment(rev);
        let path = format!("{document}?rev={rev_text}&revs=true&att_encoding_info=true");
        let answer = self.connection.call(Method::GET, &path, Bytes::new()).await?;
        match answer.status {
            200 => {}
            // Edited, or purged, since the feed named it.
            404 => {
                self.gone.push((id.to_owned(), rev.to_owned()));
                return Ok(());
            }
            _ => {
                let text = format!("{} {}", answer.status, answer.text());
                return Err(DumpError::Revision { id: id.to_owned(), rev: rev.to_owned(), text });
            }
        }
        let (text, following) = dump_format::with_following(&answer.body).ok_or(DumpError::Answer)?;
        write_line(&mut self.output, &text, false)?;
        for part in following {
            if !self.attachment(&document, &rev_text, &part).await? {
                self.output.write_all(VOID_LINE)?;
                self.gone.push((id.to_owned(), rev.to_owned()));
                return Ok(());
            }
        }
        self.written += 1;
        Ok(())
    }

    /// Writes the data of an attachment. Returns false if the revision no longer exists.
    async fn attachment(&mut self, document: &str, rev: &str, part: &FollowingAttachment) -> Result<bool, DumpError> {
        let name = part.name.split('/').map(encode_segment).collect::<Vec<_>>().join("/");
        let path = format!("{document}/{name}?rev={rev}");
        let response = self.connection.send(Method::GET, &path, Bytes::new()).await?;
        match response.status().as_u16() {
            200 => {}
            404 => {
                flatbed_client::Answer::read(response).await?;
                return Ok(false);
            }
            status => {
                let text = flatbed_client::Answer::read(response).await?.text();
                return Err(DumpError::Refused { status, text });
            }
        }
        let (mut body, mut rest, mut length) = (response.into_body(), Vec::<u8>::new(), 0_u64);
        while let Some(frame) = body.frame().await.transpose()? {
            let Ok(data) = frame.into_data() else { continue };
            length += data.len() as u64;
            rest.extend_from_slice(&data);
            let whole = rest.len() - rest.len() % DATA_BYTES;
            for piece in rest.get(..whole).unwrap_or_default().chunks(DATA_BYTES) {
                self.output.write_all(&dump_format::data_line(piece))?;
            }
            rest.drain(..whole);
        }
        if !rest.is_empty() {
            self.output.write_all(&dump_format::data_line(&rest))?;
        }
        if length == part.length { Ok(true) } else { Err(DumpError::Answer) }
    }

    /// Writes the local documents.
    async fn locals(&mut self) -> Result<(), DumpError> {
        let path = format!("/{}/_local_docs?include_docs=true", self.database);
        let mut rows = Rows::of(&mut self.connection, Method::GET, &path, Bytes::new(), b"\"rows\":[").await?;
        while let Some(row) = rows.next().await? {
            if let Some(document) = document(&row) {
                write_line(&mut self.output, document, true)?;
            }
        }
        Ok(())
    }

    /// Writes these revisions up to and including the first that is too large to be read. Returns how many of them are
    /// finished. With `attached` those with attachments are only added to it.
    async fn revisions(
        &mut self,
        wanted: &[(String, String)],
        mut attached: Option<&mut Vec<RevisionWithAttachments>>,
    ) -> Result<usize, DumpError> {
        let docs: Vec<Value> = wanted.iter().map(|(id, rev)| json!({"id": id, "rev": rev})).collect();
        let body = json!({ "docs": docs }).to_string();
        let data = if attached.is_some() { "" } else { "&attachments=true" };
        let path = format!("/{}/_bulk_get?revs=true{data}", self.database);
        let mut rows = Rows::of(&mut self.connection, Method::POST, &path, body.into(), b"\"results\":[").await?;
        for (at, (id, rev)) in wanted.iter().enumerate() {
            let row = match rows.next().await {
                Ok(Some(row)) => row,
                Ok(None) => return Err(DumpError::Answer),
                Err(DumpError::Row(SplitError::TooLarge { .. })) => {
                    // The rest of this answer is not read.
                    self.connection = Connection::open(self.url).await?;
                    self.leave_out(id, rev, TOO_LARGE);
                    return Ok(at + 1);
                }
                Err(error) => return Err(error),
            };
            match revision(&row).ok_or(DumpError::Answer)? {
                Revision::Text(text) if text.len() > LINE_BYTES_MAX => self.leave_out(id, rev, TOO_LARGE),
                Revision::Text(text) => {
                    if let Some(attached) = attached.as_deref_mut()
                        && let Some(bytes) = attached_bytes(text)?
                    {
                        attached.push(RevisionWithAttachments { id: id.clone(), rev: rev.clone(), bytes });
                        continue;
                    }
                    write_line(&mut self.output, text, false)?;
                    self.written += 1;
                }
                // Edited, or purged, since the feed named it.
                Revision::Missing => self.gone.push((id.clone(), rev.clone())),
                Revision::Unreadable(text) => self.leave_out(id, rev, &format!("is refused: {}", text_of(text))),
                Revision::Refused(text) => {
                    return Err(DumpError::Revision { id: id.clone(), rev: rev.clone(), text: text_of(text) });
                }
            }
        }
        // Reads the answer to its end, so that the connection can be reused.
        match rows.next().await? {
            None => Ok(wanted.len()),
            Some(_) => Err(DumpError::Answer),
        }
    }

    fn leave_out(&mut self, id: &str, rev: &str, why: &str) {
        self.left_out += 1;
        self.progress.clear();
        eprintln!("left out: revision {rev} of {id:?} {why}");
    }
}

/// A revision with attachments.
struct RevisionWithAttachments {
    id: String,
    rev: String,
    /// The length of its attachments.
    bytes: u64,
}

/// Returns the length of a revision's attachments; `None` if it has none.
fn attached_bytes(text: &[u8]) -> Result<Option<u64>, DumpError> {
    let attachments = dump_format::attachments(text).ok_or(DumpError::Answer)?;
    // An attachment without a name has no path at which it could be read, so its revision is read in one piece.
    let bytes_max = if attachments.contains_key("") { INLINE_BYTES } else { u64::MAX };
    let lengths = attachments.values().map(|stub| stub["length"].as_u64().unwrap_or(0));
    let bytes = lengths.fold(0, u64::saturating_add).min(bytes_max);
    Ok(Some(bytes).filter(|_| !attachments.is_empty()))
}

/// A page of the changes feed.
struct Changes {
    /// The changed documents.
    rows: usize,
    /// Their leaves, each with its document's id.
    revisions: Vec<(String, String)>,
    last_seq: String,
    /// The number of changes behind the page.
    pending: u64,
}

impl Changes {
    fn read(text: &[u8]) -> Option<Changes> {
        let answer: Value = serde_json::from_slice(text).ok()?;
        let rows = answer["results"].as_array()?;
        let mut revisions = Vec::with_capacity(rows.len());
        for row in rows {
            let id = row["id"].as_str()?;
            for leaf in row["changes"].as_array()? {
                revisions.push((id.to_owned(), leaf["rev"].as_str()?.to_owned()));
            }
        }
        // CouchDB 1 has numbers for sequences.
        let last_seq = match answer.get("last_seq")? {
            Value::String(seq) => seq.clone(),
            seq => seq.to_string(),
        };
        Some(Changes { rows: rows.len(), revisions, last_seq, pending: answer["pending"].as_u64().unwrap_or(0) })
    }
}

/// The objects of an array in an answer, read one at a time.
struct Rows {
    body: Incoming,
    /// The text right before the first object.
    mark: &'static [u8],
    /// The beginning of the answer, until the mark has arrived.
    head: Vec<u8>,
    splitter: Option<Splitter>,
    /// The `total_rows` of the head, once parsed.
    total: Option<u64>,
}

impl Rows {
    async fn of(
        connection: &mut Connection,
        method: Method,
        path: &str,
        body: Bytes,
        mark: &'static [u8],
    ) -> Result<Rows, DumpError> {
        let response = connection.send(method, path, body).await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status != 200 {
            let body = body.frame().await.transpose()?.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
            return Err(DumpError::Refused { status, text: flatbed_client::Answer { status, body }.text() });
        }
        Ok(Rows { body, mark, head: Vec::new(), splitter: None, total: None })
    }

    /// The next object; `None` behind the last one.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, DumpError> {
        loop {
            if let Some(splitter) = &mut self.splitter
                && let Some(row) = splitter.next_object()?
            {
                return Ok(Some(row.text.to_vec()));
            }
            let Some(frame) = self.body.frame().await.transpose()? else {
                self.splitter.as_ref().ok_or(DumpError::Answer)?.finish()?;
                return Ok(None);
            };
            let Ok(data) = frame.into_data() else { continue };
            if let Some(splitter) = &mut self.splitter {
                splitter.push(&data);
                continue;
            }
            self.head.extend_from_slice(&data);
            match rows_start(&self.head, self.mark) {
                Some(at) => {
                    self.total = total_rows(&self.head[..at]);
                    let mut splitter = Splitter::inside_array(ROW_BYTES_MAX);
                    splitter.push(&self.head[at..]);
                    self.splitter = Some(splitter);
                    self.head = Vec::new();
                }
                None if self.head.len() > HEAD_BYTES_MAX => return Err(DumpError::Answer),
                None => {}
            }
        }
    }
}

/// The result of `_bulk_get` for a revision.
#[derive(Debug, PartialEq, Eq)]
enum Revision<'r> {
    /// The revision.
    Text(&'r [u8]),
    /// The revision no longer exists.
    Missing,
    /// The server's error for this revision alone, such as that the user may not read it.
    Unreadable(&'r [u8]),
    /// Any other error of the server.
    Refused(&'r [u8]),
}

/// Parses the one revision of a row of `_bulk_get`; `None` if the row has another form.
fn revision(row: &[u8]) -> Option<Revision<'_>> {
    let docs = row.get(member(row, "docs")?.value)?;
    let entry = docs.strip_prefix(b"[")?.strip_suffix(b"]")?;
    if let Some(found) = member(entry, "ok") {
        return Some(Revision::Text(entry.get(found.value)?));
    }
    let error = entry.get(member(entry, "error")?.value)?;
    match error.get(member(error, "error")?.value)? {
        b"\"not_found\"" => Some(Revision::Missing),
        b"\"bad_request\"" | b"\"forbidden\"" => Some(Revision::Unreadable(error)),
        _ => Some(Revision::Refused(error)),
    }
}

/// Bytes as text for a message: at most 500 characters.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(500).collect()
}

/// The offset behind the mark.
fn rows_start(head: &[u8], mark: &[u8]) -> Option<usize> {
    head.windows(mark.len()).take(HEAD_BYTES_MAX).position(|window| window == mark).map(|at| at + mark.len())
}

fn total_rows(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?;
    let (_, rest) = text.split_once("\"total_rows\":")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The document of a row; `None` if it was deleted since the row was written.
fn document(row: &[u8]) -> Option<&[u8]> {
    let value = &row[member(row, "doc")?.value];
    value.starts_with(b"{").then_some(value)
}

fn write_line(output: &mut impl Write, document: &[u8], no_rev: bool) -> io::Result<()> {
    let document = if no_rev { without(document, "_rev") } else { document.into() };
    // A line end in JSON text is white space between tokens: strings have theirs escaped.
    for part in document.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
        match part {
            [text @ .., b'\n' | b'\r'] => {
                output.write_all(text)?;
                output.write_all(b" ")?;
            }
            text => output.write_all(text)?,
        }
    }
    output.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let head = b"{\"total_rows\":12,\"offset\":0,\"rows\":[\r\n{";
        let at = rows_start(head, b"\"rows\":[").unwrap();
        assert_eq!((total_rows(&head[..at]), &head[at..]), (Some(12), &b"\r\n{"[..]));
        assert_eq!(rows_start(b"{\"error\":\"x\"}", b"\"rows\":["), None);
    }

    #[test]
    fn lines() {
        let written = |text: &[u8], no_rev| {
            let mut output = Vec::new();
            write_line(&mut output, text, no_rev).unwrap();
            String::from_utf8(output).unwrap()
        };
        assert_eq!(written(b"{\"_id\":\"a\",\"_rev\":\"1-b\"}", false), "{\"_id\":\"a\",\"_rev\":\"1-b\"}\n");
        assert_eq!(written(b"{\"_id\":\"a\",\"_rev\":\"1-b\"}", true), "{\"_id\":\"a\"}\n");
        assert_eq!(written(b"{\r\n\"a\":1}", false), "{  \"a\":1}\n");
        assert_eq!(document(br#"{"id":"a","value":{"rev":"1-b","deleted":true},"doc":null}"#), None);
    }

    #[test]
    fn revisions_of_bulk_get() {
        let row = br#"{"id":"a","docs":[{"ok":{"_id":"a","docs":[{"error":1}]}}]}"#;
        assert_eq!(revision(row), Some(Revision::Text(br#"{"_id":"a","docs":[{"error":1}]}"#)));
        let gone = br#"{"id":"a","docs":[{"error":{"id":"a","rev":"1-b","error":"not_found","reason":"missing"}}]}"#;
        assert_eq!(revision(gone), Some(Revision::Missing));
        let refused = br#"{"id":"a","docs":[{"error":{"error":"timeout"}}]}"#;
        assert_eq!(revision(refused), Some(Revision::Refused(br#"{"error":"timeout"}"#)));
        // The rest of the database is dumped nevertheless.
        for error in [r#"{"error":"bad_request","reason":"Invalid rev format"}"#, r#"{"error":"forbidden"}"#] {
            let row = format!(r#"{{"id":"a","docs":[{{"error":{error}}}]}}"#);
            assert_eq!(revision(row.as_bytes()), Some(Revision::Unreadable(error.as_bytes())));
        }
        assert_eq!((revision(br#"{"id":"a","docs":[]}"#), revision(b"{}")), (None, None));
    }

    #[test]
    fn what_a_dump_does_not_tell() {
        let said = |info: &str, no_rev| notes(&head_of("db", info.as_bytes()), no_rev, false);
        for nothing in ["", "[]", "{}", r#"{"props":{}}"#, r#"{"props":{"partitioned":false,"run_bytes":0}}"#] {
            assert_eq!(said(nothing, true), Vec::<String>::new(), "{nothing}");
        }
        let parts = "db is partitioned, which the dump does not tell: load it with --partitioned";
        assert_eq!(said(r#"{"props":{"partitioned":true}}"#, true), [parts]);
        assert_eq!(said(r#"{"props":{"partitioned":true}}"#, false), Vec::<String>::new());
        let both = said(r#"{"props":{"partitioned":true,"channels":true}}"#, true);
        assert!(both.len() == 2 && both[1].contains("its sync function") && both[1].contains("(_exp)"), "{both:?}");
    }

    #[test]
    fn lengths_of_attachments() {
        let bytes = |text: &str| attached_bytes(text.as_bytes()).ok();
        assert_eq!((bytes("{}"), bytes(r#"{"_attachments":{}}"#)), (Some(None), Some(None)));
        assert_eq!(bytes(r#"{"_attachments":{"a":{"length":2},"b":{"length":3}}}"#), Some(Some(5)));
        assert_eq!(bytes(r#"{"_attachments":{"":{"length":9000000}}}"#), Some(Some(INLINE_BYTES)));
        assert_eq!(bytes(r#"{"_attachments":[]}"#), None);
    }

    #[test]
    fn pages_of_changes() {
        let text = br#"{"results":[{"seq":"1-x","id":"a","changes":[{"rev":"1-b"},{"rev":"1-c"}],"deleted":true}],
            "last_seq":"1-x","pending":3}"#;
        let page = Changes::read(text).unwrap();
        let leaves = [("a", "1-b"), ("a", "1-c")].map(|(id, rev)| (id.to_owned(), rev.to_owned()));
        assert_eq!((page.rows, page.last_seq.as_str(), page.pending), (1, "1-x", 3));
        assert_eq!(page.revisions, leaves);
        assert_eq!(Changes::read(br#"{"results":[],"last_seq":7}"#).unwrap().last_seq, "7");
        assert!(Changes::read(b"{}").is_none());
    }
}
