//! Transfers one batch of changes: reads the revisions that the target lacks from the source and writes them to the
//! target.
//!
//! It holds the batch's ids and revisions, one revision being cut out of the source's answer ([`REVISION_BYTES_MAX`]),
//! and revisions to be written ([`WRITE_BYTES`] and one more), within the memory of all replications. Reading from the
//! source pauses while the target writes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_client::split::Splitter;
use flatbed_flatten::json::{Array, Limits, Object, Value, name, parse};
use hyper::Method;

use crate::asked::{RevisionRequest, is_ancestry_of};
use crate::attachments::{self, RevisionWithSize, Stubs};
use crate::error::{Error, Result};
use crate::memory::{NoRoom, PageRoom, Room, Share};
use crate::peer::Peer;
use crate::pool::Answer;
use crate::raw;
use crate::stats::{Progress, Tally, add};

/// The longest revision in a source's answer, including small attachments, in bytes.
pub(crate) const REVISION_BYTES_MAX: usize = 64 << 20;

/// The longest replicated document id, and the longest revision, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 2_048;
pub(crate) const REV_BYTES_MAX: usize = 1_024;

/// The most bytes of ids and revisions in one request. The id is repeated for each of its revisions.
const ASKED_BYTES: usize = 256 << 10;
const ASKED_COUNT: usize = 1_000;

/// The bytes of revisions per write. Servers limit the body of a request.
const WRITE_BYTES: usize = 2 << 20;

const WRITE_COUNT: usize = 500;

/// The bytes of attachments up to which revisions are fetched together with them.
const ATTACHED_BYTES: u64 = 8 << 20;

const TRIES: u32 = 5;

/// The pause after the first attempt, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Change {
    pub(crate) id: Arc<str>,
    pub(crate) revs: Vec<String>,
}

/// A revision of a document to be copied.
pub(crate) type MissingRevision = (Arc<str>, String);

/// The shared state of all batches of a replication.
pub(crate) struct Transfer {
    pub(crate) source: Arc<Peer>,
    pub(crate) target: Arc<Peer>,
    pub(crate) progress: Arc<Progress>,
    /// True if the source lacks `_bulk_get`.
    lacks_bulk_get: AtomicBool,
    /// True if the target rejects multipart.
    pub(crate) lacks_multipart: AtomicBool,
}

impl Transfer {
    pub(crate) fn new(source: Arc<Peer>, target: Arc<Peer>, progress: Arc<Progress>) -> Transfer {
        let (lacks_bulk_get, lacks_multipart) = Default::default();
        Transfer { source, target, progress, lacks_bulk_get, lacks_multipart }
    }

    /// Copies the missing revisions of a batch, whose page holds memory meanwhile. Revisions that the target refuses
    /// are counted, as in CouchDB.
    pub(crate) async fn batch(&self, changes: Vec<Change>, _page: Arc<PageRoom>) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        for at in 1.. {
            let mut tally = Tally::new(&self.progress);
            let room = self.source.memory.room();
            let copied = async {
                let missing = self.missing(&changes, at == 1, &room).await?;
                self.copy(missing, &mut tally, &room).await
            };
            let done = tokio::select! {
                done = copied => done,
                () = room.overdue() => Err(self.source.no_room(NoRoom::Now)),
            };
            let Err(error) = done else { return Ok(()) };
            // Its memory is not kept during the pause.
            drop(room);
            tally.take_back();
            if !error.is_transient() || at >= TRIES {
                return Err(error);
            }
            tracing::debug!(%error, "a batch of a replication is retried");
            self.source.clock.sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }

    async fn missing(&self, changes: &[Change], count: bool, room: &Arc<Room>) -> Result<Vec<MissingRevision>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        // A document that was edited while the source listed its changes may occur twice: names are merged.
        let mut asked: BTreeMap<&Arc<str>, BTreeSet<&str>> = BTreeMap::new();
        for change in changes {
            asked.entry(&change.id).or_default().extend(change.revs.iter().map(String::as_str));
        }
        let body = Object::text(|body| {
            for (id, revs) in &asked {
                body.array(&***id).strings(revs.iter().copied());
            }
        });
        let checked = asked.values().map(BTreeSet::len).sum();
        let mut share = Share::new(room);
        share.set(body.len()).await.map_err(|error| self.target.no_room(error))?;
        let answer = self.target.call_in(room, Method::POST, "/_revs_diff", Some(body.into())).await?;
        drop(share);
        if answer.status != 200 {
            return Err(self.target.refused("_revs_diff", &answer));
        }
        let tree = answer.json().await.map_err(|error| self.target.no_room(error))?;
        let Value::Object(documents) = &tree.value else {
            return Err(self.target.protocol("the answer to _revs_diff is no object"));
        };
        let mut wanted = Vec::new();
        let found: HashMap<&str, &Value<'_>> = documents.iter().map(|(id, found)| (id.as_ref(), found)).collect();
        for (id, revs) in &asked {
            let Some(Value::Array(missing)) = found.get(&***id).and_then(|found| found.get("missing")) else {
                continue;
            };
            // Only requested revisions are read from the source.
            let missing: HashSet<&str> = missing.iter().filter_map(Value::as_str).collect();
            let revs = revs.iter().filter(|rev| missing.contains(*rev));
            wanted.extend(revs.map(|rev| (Arc::clone(id), (*rev).to_owned())));
        }
        if count {
            add(&self.progress.missing_checked, checked);
            add(&self.progress.missing_found, wanted.len());
        }
        Ok(wanted)
    }

    async fn copy(&self, wanted: Vec<MissingRevision>, tally: &mut Tally<'_>, room: &Arc<Room>) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut outbox = Outbox { docs: Vec::new(), bytes: 0, tally, share: Share::new(room), full: None };
        let copied = async {
            let mut rest = &wanted[..];
            while !rest.is_empty() {
                let (asked, behind) = rest.split_at(asked_at_once(rest));
                self.copy_into(asked, &mut outbox).await?;
                rest = behind;
            }
            Result::Ok(())
        };
        match copied.await {
            Ok(()) => self.write(&mut outbox).await?,
            // Revisions that arrived before the connection broke are not requested again.
            Err(error) if error.is_transient() => return self.write(&mut outbox).await.and(Err(error)),
            Err(error) => return Err(error),
        }
        outbox.full.take().map_or(Ok(()), Err)
    }

    async fn copy_into(&self, wanted: &[MissingRevision], outbox: &mut Outbox<'_, '_>) -> Result<()> {
        let mut later = Vec::new();
        self.fetch(wanted, false, outbox, &mut later).await?;
        let mut group = Vec::new();
        let mut group_bytes = 0;
        for attached in later {
            if outbox.full.is_some() {
                return Ok(());
            }
            if attached.is_large() {
                // Revisions are independent, so their order does not matter.
                let room = outbox.share.room().clone();
                match attachments::copy(self, &attached.wanted, outbox.tally, &room).await {
                    Err(error) if error.is_storage_full() => outbox.full = Some(error),
                    copied => copied?,
                }
                continue;
            }
            group_bytes += attached.bytes;
            group.push(attached.wanted);
            if group_bytes >= ATTACHED_BYTES {
                self.fetch(&group, true, outbox, &mut Vec::new()).await?;
                (group, group_bytes) = Default::default();
            }
        }
        if !group.is_empty() && outbox.full.is_none() {
            self.fetch(&group, true, outbox, &mut Vec::new()).await?;
        }
        Ok(())
    }

    /// Fetches revisions. Those with attachments are only collected in `later` unless `with_attachments`.
    async fn fetch(
        &self,
        wanted: &[MissingRevision],
        with_attachments: bool,
        outbox: &mut Outbox<'_, '_>,
        later: &mut Vec<RevisionWithSize>,
    ) -> Result<()> {
        let mut take =
            FetchSink { with_attachments, asked: RevisionRequest::new(wanted), outbox, later, later_bytes: 0 };
        let room = take.outbox.share.room().clone();
        if !self.lacks_bulk_get.load(Ordering::Relaxed) {
            add(&self.progress.bulk_get_attempts, wanted.len());
            if let Some(answer) = self.bulk_get(wanted, with_attachments, &room).await? {
                let count = self.read(answer, &mut take).await?;
                add(&self.progress.bulk_get_docs, count);
                return if take.asked.all_answered() { Ok(()) } else { Err(self.left_out()) };
            }
            self.lacks_bulk_get.store(true, Ordering::Relaxed);
        }
        for (id, rev) in wanted {
            let list = Array::text(|revs| {
                revs.string(rev);
            });
            let list = encode_segment(&String::from_utf8_lossy(&list));
            let attachments = if with_attachments { "&attachments=true" } else { "" };
            let path = format!("{}?revs=true&latest=true&open_revs={list}{attachments}", Peer::document_path(id));
            let answer = self.source.send_once(Method::GET, &path, None).await?;
            if answer.status == 404 {
                self.source.whole(&room, answer).await?;
                take.asked.answer(id);
                continue;
            }
            if answer.status != 200 {
                let answer = self.source.whole(&room, answer).await?;
                return Err(self.source.refused("a document", &answer));
            }
            // Rows without a revision refer to the requested one.
            self.read(answer, &mut take).await?;
            take.asked.answer(id);
        }
        Ok(())
    }

    fn left_out(&self) -> Error {
        self.source.protocol("an answer leaves out a requested document")
    }

    /// Requests revisions in bulk. `None`: the source lacks `_bulk_get`.
    async fn bulk_get(
        &self,
        wanted: &[MissingRevision],
        with_attachments: bool,
        room: &Arc<Room>,
    ) -> Result<Option<Answer>> {
        let body = Object::text(|body| {
            let mut docs = body.array("docs");
            for (id, rev) in wanted {
                docs.object().string(name!("id"), id).string(name!("rev"), rev);
            }
        });
        let attachments = if with_attachments { "&attachments=true" } else { "" };
        let path = format!("/_bulk_get?revs=true&latest=true{attachments}");
        let answer = self.source.send_once(Method::POST, &path, Some(body.into())).await?;
        match answer.status.as_u16() {
            200 => Ok(Some(answer)),
            // 406: Sync Gateway answers in multipart alone.
            400 | 404 | 405 | 406 | 501 => {
                // Reads the answer to its end, so that the connection can be reused.
                self.source.whole(room, answer).await?;
                Ok(None)
            }
            _ => {
                let answer = self.source.whole(room, answer).await?;
                Err(self.source.refused("_bulk_get", &answer))
            }
        }
    }

    /// Cuts an arriving answer into revisions: the rows of `{"results":[...]}`, or those of `[...]`.
    async fn read(&self, mut answer: Answer, take: &mut FetchSink<'_, '_, '_>) -> Result<usize> {
        let mut splitter = Splitter::inside_array(REVISION_BYTES_MAX);
        let (mut inside, mut count, mut idle_bytes) = (false, 0, 0);
        let mut buffer = Share::new(take.outbox.share.room());
        let no_room = |error| self.source.no_room(error);
        let broken = |_| self.source.protocol("a list of revisions is not well-formed, or one is too large");
        while let Some(mut piece) = answer.piece().await.map_err(|reason| self.source.broken(reason))? {
            self.progress.note_bytes(piece.len());
            // The text between rows is bounded like a row.
            idle_bytes += piece.len();
            if idle_bytes > REVISION_BYTES_MAX {
                return Err(self.source.protocol("a list of revisions has no end"));
            }
            if !inside {
                let Some(at) = piece.iter().position(|byte| *byte == b'[') else { continue };
                piece = piece.split_off(at + 1);
                inside = true;
            }
            buffer.set(splitter.room_with(piece.len())).await.map_err(no_room)?;
            splitter.push(&piece);
            while let Some(row) = splitter.next_object().map_err(broken)? {
                idle_bytes = 0;
                // As text, and in the body of a request.
                let bytes = 2 * (take.outbox.bytes + row.text.len()) + take.later_bytes;
                take.outbox.share.set(bytes).await.map_err(no_room)?;
                count += self.take(row.text, take)?;
                if take.outbox.is_full() {
                    self.write(take.outbox).await?;
                }
            }
        }
        // An answer without an end was interrupted.
        if !inside || splitter.finish().is_err() {
            return Err(self.source.broken("a list of revisions broke off"));
        }
        Ok(count)
    }

    /// Processes a row: `{"id":...,"docs":[{"ok":...}]}`, or an item of `docs`.
    fn take(&self, row: &[u8], take: &mut FetchSink<'_, '_, '_>) -> Result<usize> {
        let malformed = || self.source.protocol("a revision is not well-formed");
        if !take.asked.has_room() {
            return Err(self.source.protocol("a list of revisions has more rows than were requested"));
        }
        let members = raw::object(row).ok_or_else(malformed)?;
        let mut count = 0;
        for (name, value) in members {
            match name.as_str() {
                "id" => take.asked.answer(&string_of(value).ok_or_else(malformed)?),
                "docs" => {
                    for item in raw::items(value).ok_or_else(malformed)? {
                        count += self.take(item, take)?;
                    }
                }
                "ok" => {
                    count += 1;
                    self.take_revision(value, take)?;
                }
                "error" => {
                    let error = raw::member(value, "error").unwrap_or_default();
                    // A revision that was purged or compacted meanwhile is no longer a leaf.
                    if error != b"\"not_found\"" {
                        return Err(Error::Status {
                            what: format!("a revision of {}", self.source.shown),
                            status: 500,
                            error: String::from_utf8_lossy(error).trim_matches('"').chars().take(500).collect(),
                            reason: String::new(),
                        });
                    }
                }
                _ => {}
            }
        }
        Ok(count)
    }

    fn take_revision(&self, text: &[u8], take: &mut FetchSink<'_, '_, '_>) -> Result<()> {
        let malformed = || self.source.protocol("a revision is not well-formed");
        let found = Revision::of(text).ok_or_else(malformed)?;
        if !found.has_its_ancestry() {
            return Err(self.source.protocol("a revision has the ancestry of another one"));
        }
        let Revision { id, rev, revisions, attachments } = found;
        if !take.asked.is_asked_for(&id, &rev, revisions) {
            return Err(self.source.protocol("the source sent a revision that was not asked for"));
        }
        take.asked.answer(&id);
        let attachments = match attachments {
            Some(attachments) => attachments::stubs_of(attachments).ok_or_else(malformed)?,
            None => Stubs::Empty,
        };
        match attachments {
            Stubs::Bytes(bytes) if !take.with_attachments => {
                let id = take.asked.id(&id).ok_or_else(malformed)?;
                take.later_bytes += rev.len() + size_of::<RevisionWithSize>();
                take.later.push(RevisionWithSize { wanted: (id, rev), bytes });
            }
            _ => {
                take.outbox.tally.read(1);
                take.outbox.push(Bytes::copy_from_slice(text));
            }
        }
        Ok(())
    }

    async fn write(&self, outbox: &mut Outbox<'_, '_>) -> Result<()> {
        // A body that is too long for the target is split in halves.
        let mut parts = vec![outbox.empty()];
        while let Some(mut part) = parts.pop() {
            if outbox.full.is_some() {
                part.retain(|doc| is_deletion(doc));
            }
            if part.is_empty() {
                continue;
            }
            let body = Object::text(|body| {
                let mut docs = body.bool("new_edits", false).array("docs");
                for doc in &part {
                    docs.raw(doc);
                }
            });
            let room = outbox.share.room();
            let answer = self.target.call_in(room, Method::POST, "/_bulk_docs", Some(body.into())).await?;
            match answer.status {
                200..=202 => {
                    let tree = answer.json().await.map_err(|error| self.target.no_room(error))?;
                    let failed = match &tree.value {
                        Value::Array(rows) => rows.iter().filter(|row| row.get("error").is_some()).count(),
                        _ => return Err(self.target.protocol("the answer to _bulk_docs is no array")),
                    };
                    outbox.tally.written(part.len().saturating_sub(failed));
                    outbox.tally.refused(failed.min(part.len()));
                }
                413 if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                // The target refuses the document itself.
                400 | 412 | 413 if part.len() == 1 => outbox.tally.refused(1),
                400 | 412 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                // Deletions may still succeed, and may free storage.
                507 if outbox.full.is_none() => {
                    outbox.full = Some(self.target.refused("_bulk_docs", &answer));
                    parts.push(part);
                }
                _ => return Err(self.target.refused("_bulk_docs", &answer)),
            }
        }
        outbox.share.set(0).await.map_err(|error| self.target.no_room(error))
    }
}

/// The relevant members of a revision's text.
pub(crate) struct Revision<'t> {
    pub(crate) id: String,
    pub(crate) rev: String,
    revisions: Option<&'t [u8]>,
    attachments: Option<&'t [u8]>,
}

impl Revision<'_> {
    /// Parses a revision. `None`: malformed, or ambiguous.
    pub(crate) fn of(text: &[u8]) -> Option<Revision<'_>> {
        let members = raw::special(text)?;
        let find = |wanted: &str| members.iter().find(|(name, _)| *name == wanted.as_bytes()).map(|(_, value)| *value);
        let (id, rev) = (string_of(find("_id")?)?, string_of(find("_rev")?)?);
        if rev.len() > REV_BYTES_MAX {
            return None;
        }
        Some(Revision { id, rev, revisions: find("_revisions"), attachments: find("_attachments") })
    }

    pub(crate) fn has_its_ancestry(&self) -> bool {
        self.revisions.is_none_or(|revisions| is_ancestry_of(&self.rev, revisions))
    }
}

/// The destination of fetched revisions.
struct FetchSink<'a, 't, 'p> {
    with_attachments: bool,
    asked: RevisionRequest<'a>,
    outbox: &'a mut Outbox<'t, 'p>,
    later: &'a mut Vec<RevisionWithSize>,
    later_bytes: usize,
}

struct Outbox<'t, 'p> {
    docs: Vec<Bytes>,
    bytes: usize,
    tally: &'t mut Tally<'p>,
    /// The memory, part of the batch's room.
    share: Share,
    /// The answer of a target without storage: only deletions are written then.
    full: Option<Error>,
}

/// Returns whether a revision's text is a deletion.
fn is_deletion(doc: &[u8]) -> bool {
    raw::special(doc).is_some_and(|members| members.iter().any(|member| *member == (&b"_deleted"[..], &b"true"[..])))
}

/// Returns the number of revisions in the next request, at least one.
fn asked_at_once(wanted: &[MissingRevision]) -> usize {
    let mut bytes_left = ASKED_BYTES;
    let fits = |(id, rev): &&MissingRevision| {
        let fits = bytes_left.checked_sub(id.len() + rev.len() + 20);
        bytes_left = fits.unwrap_or(0);
        fits.is_some()
    };
    wanted.iter().take(ASKED_COUNT).take_while(fits).count().max(1)
}

impl Outbox<'_, '_> {
    fn push(&mut self, doc: Bytes) {
        self.bytes += doc.len();
        self.docs.push(doc);
    }

    fn is_full(&self) -> bool {
        self.bytes >= WRITE_BYTES || self.docs.len() >= WRITE_COUNT
    }

    fn empty(&mut self) -> Vec<Bytes> {
        self.bytes = 0;
        std::mem::take(&mut self.docs)
    }
}

pub(crate) fn string_of(text: &[u8]) -> Option<String> {
    parse(text, &Limits::default()).ok()?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_told_from_other_revisions() {
        assert!(is_deletion(br#"{"_id":"a","_rev":"2-b","_deleted": true ,"x":1}"#));
        for other in
            [r#"{"_id":"a","_rev":"1-a"}"#, r#"{"_id":"a","_deleted":false}"#, r#"{"x":{"_deleted":true}}"#, "{"]
        {
            assert!(!is_deletion(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_target_without_storage_is_not_asked_again_soon() {
        let status =
            |status| Error::Status { what: String::new(), status, error: String::new(), reason: String::new() };
        assert!(status(507).is_storage_full() && !status(507).is_transient() && !status(507).is_permanent());
        assert!(status(503).is_transient() && !status(503).is_storage_full());
    }
}
