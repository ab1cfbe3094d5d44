//! Attachments: lists of them in revisions, and their data, which lies once however many documents have it.
//!
//! A revision's list names each attachment's data by its digest. A record tells where the data of a digest lies, and a
//! row for each document says that the document has it in one of its revisions. Whoever adds such a row reads the record
//! with conflict; whoever takes the last row away clears the record: so both cannot happen at once, and no count can go
//! wrong in a retry.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_kit::Room;
use flatbed_revtree::RevId;
use foundationdb::future::FdbSlice;
use futures_util::future::BoxFuture;
use prost::Message;

use crate::document::body::begin_read;
use crate::document::edit::Edit;
use crate::document::release;
use crate::document::staging;
use crate::document::upload::Uploaded;
use crate::error::{Error, NotFound, Refusal, Result};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::keys::{DocumentKeys, KeyRange, take_rev};
use crate::store::proto;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// The list of a revision's attachments takes at most this many bytes: it is the value of one key.
const LIST_BYTES_MAX: usize = 90_000;

/// What an attachment takes in the list beside its name and media type, at least: two digests.
const ENTRY_BYTES_MIN: usize = 48;

/// Whether attachments, given as the lengths of name and media type, may find room in one revision: to be asked before
/// their data is stored.
///
/// # Errors
/// [`Refusal::AttachmentTooLarge`]
pub fn check_list(attachments: impl Iterator<Item = (usize, usize)>) -> std::result::Result<(), Refusal> {
    let bytes: usize = attachments.map(|(name, kind)| name + kind + ENTRY_BYTES_MIN).sum();
    if bytes <= LIST_BYTES_MAX { Ok(()) } else { Err(Refusal::AttachmentTooLarge { bytes_max: LIST_BYTES_MAX as u64 }) }
}

/// Chunks of an attachment that are read in one transaction.
pub(crate) const CHUNKS_READ_AT_ONCE: usize = 8;

/// An attachment of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub content_type: String,
    /// The generation of the revision that brought it.
    pub revpos: u64,
    /// MD5 of the bytes stored: CouchDB's digest.
    pub md5: [u8; 16],
    /// Bytes without an encoding.
    pub length: u64,
    /// Bytes stored.
    pub stored_length: u64,
    /// What is stored is its gzip.
    pub gzip: bool,
    digest: [u8; 32],
}

/// A `revpos` as a client writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revpos {
    /// A generation.
    Generation(u64),
    /// What no attachment has: a negative number, a fraction, or no number.
    Impossible,
}

impl Revpos {
    /// The generation, if it is one.
    pub fn generation(self) -> Option<u64> {
        match self {
            Revpos::Generation(generation) => Some(generation),
            Revpos::Impossible => None,
        }
    }
}

/// An attachment as an edit has it.
#[derive(Debug, Clone, PartialEq)]
pub enum AttachmentEdit {
    /// The one of the same name that is there already.
    Stub {
        /// What the client says of the generation that brought it; `None`: nothing, and any is meant.
        revpos: Option<Revpos>,
    },
    /// One that another document has, as it stands there.
    Copy(Attachment),
    /// New data.
    Data {
        /// Its media type.
        content_type: String,
        /// The generation that brought it, from another replica; an edit of a client brings it itself.
        revpos: Option<u64>,
        /// Its data, staged.
        data: Uploaded,
    },
}

impl Attachment {
    fn encode(&self) -> proto::Attachment {
        proto::Attachment {
            name: self.name.clone(),
            content_type: self.content_type.clone(),
            revpos: self.revpos,
            digest: self.digest.to_vec(),
            md5: self.md5.to_vec(),
            length: self.length,
            stored_length: self.stored_length,
            gzip: self.gzip,
        }
    }

    fn decode(message: proto::Attachment) -> Result<Attachment> {
        let bad = |_| Error::Corrupt("an attachment cannot be read".into());
        Ok(Attachment {
            name: message.name,
            content_type: message.content_type,
            revpos: message.revpos,
            md5: message.md5.try_into().map_err(bad)?,
            length: message.length,
            stored_length: message.stored_length,
            gzip: message.gzip,
            digest: message.digest.try_into().map_err(bad)?,
        })
    }

    /// The digest that names the stored data.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Reads a list from its record.
pub(crate) fn decode_list(bytes: &[u8]) -> Result<Vec<Attachment>> {
    proto::AttachmentList::decode(bytes)?.attachments.into_iter().map(Attachment::decode).collect()
}

/// The attachments of a revision that has any.
pub(crate) async fn list(trx: &Transaction, keys: &DocumentKeys, rev: &RevId) -> Result<Vec<Attachment>> {
    begin_list(trx, keys, rev).await
}

/// The same, asked for when this is called.
fn begin_list(
    trx: &Transaction,
    keys: &DocumentKeys,
    rev: &RevId,
) -> impl Future<Output = Result<Vec<Attachment>>> + Send + use<> {
    let bytes = trx.get(&keys.attachments(rev), true);
    async move { bytes.await?.map_or_else(|| Ok(Vec::new()), |bytes| decode_list(&bytes)) }
}

/// A list that is being read.
pub(crate) type ListRead = BoxFuture<'static, Result<Vec<Attachment>>>;

/// Asks for the list in which the stubs of a client's edit are looked for, if it has any and names its parent.
pub(crate) fn begin_parents_list(trx: &Transaction, keys: &DocumentKeys, edit: &Edit<'_>) -> Option<ListRead> {
    let parent = edit.parent.as_ref().filter(|_| edit.history.is_none() && has_stubs(&edit.attachments))?;
    Some(Box::pin(begin_list(trx, keys, parent)))
}

/// Whether any attachment is one that the document has already.
pub(crate) fn has_stubs(edits: &[(String, AttachmentEdit)]) -> bool {
    edits.iter().any(|(_, edit)| matches!(edit, AttachmentEdit::Stub { .. }))
}

/// A document's lists by revision, up to about so many bytes of them, and whether they are all.
pub(crate) async fn lists(
    trx: &Transaction,
    keys: &DocumentKeys,
    bytes_max: u64,
) -> Result<(Vec<(RevId, Vec<Attachment>)>, bool)> {
    let range = keys.attachment_lists();
    let prefix_bytes = range.begin.len();
    let mut lists = Vec::new();
    let (pages, are_all) = begin_read(trx, range).up_to(trx, bytes_max).await?;
    for row in pages.iter().flat_map(|page| page.iter()) {
        let (rev, _) = take_rev(row.key().get(prefix_bytes..).unwrap_or_default())?;
        lists.push((rev, decode_list(row.value())?));
    }
    Ok((lists, are_all))
}

/// What an edit's attachments are made of.
pub(crate) struct Resolve<'a> {
    pub id: &'a str,
    pub edits: &'a [(String, AttachmentEdit)],
    /// Where stubs are looked for, the best first.
    pub known: &'a [Vec<Attachment>],
    pub generation: u64,
    /// Whether another replica made the revision.
    pub is_foreign: bool,
}

impl Resolve<'_> {
    /// The list of the new revision.
    pub(crate) fn run(&self) -> std::result::Result<Vec<Attachment>, Refusal> {
        let mut list = Vec::with_capacity(self.edits.len());
        for (name, edit) in self.edits {
            list.push(match edit {
                AttachmentEdit::Stub { revpos } => self.stub(name, *revpos)?,
                AttachmentEdit::Copy(attachment) => Attachment { name: name.clone(), ..attachment.clone() },
                AttachmentEdit::Data { content_type, revpos, data } => Attachment {
                    name: name.clone(),
                    content_type: content_type.clone(),
                    revpos: revpos.filter(|_| self.is_foreign).unwrap_or(self.generation),
                    md5: data.md5,
                    length: data.length,
                    stored_length: data.stored_length,
                    gzip: data.gzip,
                    digest: data.digest,
                },
            });
        }
        Ok(list)
    }

    /// The attachment that a stub refers to. An attachment of another generation than the stub names does not match.
    fn stub(&self, name: &str, revpos: Option<Revpos>) -> std::result::Result<Attachment, Refusal> {
        let mut named = self.known.iter().flatten().filter(|attachment| attachment.name == name);
        let found = named.find(|attachment| revpos.is_none_or(|revpos| revpos.generation() == Some(attachment.revpos)));
        let missing = || Refusal::MissingStub { id: self.id.to_owned(), name: name.to_owned() };
        found.cloned().ok_or_else(missing)
    }
}

/// The attachments of a new revision, with what its transaction has read of their data.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    pub list: Vec<Attachment>,
    /// Of each that is no stub: where data of its digest lies, if there is any.
    stored: Vec<Option<Vec<u8>>>,
}

impl From<Vec<Attachment>> for Attached {
    fn from(list: Vec<Attachment>) -> Attached {
        Attached { list, stored: Vec::new() }
    }
}

/// The total length of attachments in bytes, decoded.
pub(crate) fn length_of(list: &[Attachment]) -> u64 {
    list.iter().map(|attachment| attachment.length).fold(0, u64::saturating_add)
}

impl Attached {
    /// The total length in bytes, decoded.
    pub(crate) fn bytes(&self) -> u64 {
        length_of(&self.list)
    }

    /// Whether the list can be written: nothing is, yet. All that is to be known is read at once.
    ///
    /// # Errors
    /// [`Refusal::AttachmentTooLarge`], [`Refusal::UploadSwept`].
    pub(crate) async fn check(
        &mut self,
        trx: &Transaction,
        instance: &Instance,
        edits: &[(String, AttachmentEdit)],
    ) -> Result<()> {
        if encode_list(&self.list).len() > LIST_BYTES_MAX {
            return Err(Refusal::AttachmentTooLarge { bytes_max: LIST_BYTES_MAX as u64 }.into());
        }
        let keys = &instance.keys;
        let reads = self.list.iter().zip(edits).map(|(attachment, (_, edit))| {
            let staged = match edit {
                AttachmentEdit::Stub { .. } => return None,
                AttachmentEdit::Copy(_) => None,
                AttachmentEdit::Data { data, .. } => Some(trx.get(&keys.staged(&data.blob_id), false)),
            };
            Some((staged, trx.get(&keys.attachment_data(attachment.digest()), false)))
        });
        let reads: Vec<_> = reads.collect();
        self.stored = Vec::with_capacity(reads.len());
        for (read, (_, edit)) in reads.into_iter().zip(edits) {
            let Some((staged, record)) = read else {
                self.stored.push(None);
                continue;
            };
            let record = record.await?.map(|record| proto::AttachmentData::decode(&*record)).transpose()?;
            let is_there = match (edit, staged) {
                (AttachmentEdit::Data { data, .. }, Some(staged)) => {
                    staged.await?.is_some() && data.instance == instance.id()
                }
                _ => record.is_some(),
            };
            if !is_there {
                return Err(Refusal::UploadSwept.into());
            }
            self.stored.push(record.map(|record| record.blob_id));
        }
        Ok(())
    }
}

/// What an edit's attachments take in the transaction that writes them, about.
pub(crate) fn edits_bytes(id: &str, edits: &[(String, AttachmentEdit)]) -> u64 {
    let bytes = |(name, edit): &(String, AttachmentEdit)| match edit {
        AttachmentEdit::Stub { .. } => name.len() + 150,
        AttachmentEdit::Copy(_) | AttachmentEdit::Data { .. } => name.len() + 3 * id.len() + 900,
    };
    edits.iter().map(bytes).sum::<usize>() as u64
}

fn encode_list(attachments: &[Attachment]) -> Vec<u8> {
    proto::AttachmentList { attachments: attachments.iter().map(Attachment::encode).collect() }.encode_to_vec()
}

/// Writes a new revision's list after [`Attached::check`]; new data that is there already is not kept twice. Returns by how
/// much the stored bytes grew.
pub(crate) fn put(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    id: &str,
    rev: &RevId,
    attached: &Attached,
    edits: &[(String, AttachmentEdit)],
) -> i64 {
    if attached.list.is_empty() {
        return 0;
    }
    trx.set(&keys.attachments(rev), &encode_list(&attached.list));
    let mut grown = 0;
    // What this edit itself has brought, under another name.
    let mut brought: HashMap<&[u8; 32], &[u8]> = HashMap::new();
    for (at, (attachment, (_, edit))) in attached.list.iter().zip(edits).enumerate() {
        match edit {
            // A list of the document has it, and the document's row with it: whoever takes these away conflicts on the info.
            AttachmentEdit::Stub { .. } => continue,
            AttachmentEdit::Copy(_) => {}
            AttachmentEdit::Data { data, .. } => {
                staging::take(trx, &instance.keys, &data.blob_id);
                let there = attached.stored.get(at).and_then(Option::as_deref);
                match there.or(brought.get(attachment.digest()).copied()) {
                    // One upload under two names: the record points at these very rows.
                    Some(blob_id) if blob_id == data.blob_id => {}
                    Some(_) => {
                        let rows = instance.keys.blob_rows(&data.blob_id);
                        trx.clear_range(&rows.begin, &rows.end);
                    }
                    None => {
                        let (blob_id, stored_length) = (data.blob_id.clone(), data.stored_length);
                        let record = proto::AttachmentData { blob_id, stored_length }.encode_to_vec();
                        trx.set(&instance.keys.attachment_data(attachment.digest()), &record);
                        brought.insert(attachment.digest(), &data.blob_id);
                        grown += stored_length as i64;
                    }
                }
            }
        }
        trx.set(&instance.keys.attachment_use(attachment.digest(), id), b"");
    }
    grown
}

/// A document's lists are looked at by the transaction that takes one away if they take no more than this, in bytes.
const LISTS_AT_ONCE_BYTES_MAX: u64 = 200_000;

/// What such a transaction frees at once, in bytes of what it writes.
const FREED_AT_ONCE_BYTES_MAX: u64 = 150_000;

/// What freeing one digest takes in a transaction, about: its row and the data, with their conflict ranges.
pub(crate) fn free_bytes(id: &str) -> u64 {
    (6 * id.len() + 700) as u64
}

/// What taking a list away takes in a transaction at most, beside what is freed.
pub(crate) fn list_bytes(key_bytes: usize, list: &[u8]) -> u64 {
    (3 * key_bytes + list.len() + 200) as u64
}

/// Drops the lists of revisions that a transaction takes away, given as they are stored, and the data that no document has
/// now: at once where the document has few lists, else in steps (see [`release`]). Returns how many stored bytes
/// went. It sees what the transaction has written so far.
pub(crate) async fn drop_lists(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    id: &str,
    gone: &[(RevId, FdbSlice)],
    room: &Room,
) -> Result<i64> {
    if gone.is_empty() {
        return Ok(0);
    }
    let mut digests = HashSet::new();
    for (rev, list) in gone {
        trx.clear(&keys.attachments(rev));
        digests.extend(decode_list(list)?.iter().map(|attachment| *attachment.digest()));
    }
    // Without those that are gone: the transaction sees what it has cleared.
    let (kept, are_all) = lists(trx, keys, LISTS_AT_ONCE_BYTES_MAX).await?;
    for attachment in kept.iter().flat_map(|(_, list)| list) {
        digests.remove(attachment.digest());
    }
    let bytes = digests.len() as u64 * free_bytes(id);
    if !are_all || bytes > FREED_AT_ONCE_BYTES_MAX.min(room.left()) {
        for (_, list) in gone {
            release::put(trx, instance, id, list)?;
        }
        return Ok(0);
    }
    room.take(bytes);
    let freed = digests.iter().map(|digest| free(trx, instance, id, digest));
    Ok(futures_util::future::try_join_all(freed).await?.into_iter().sum())
}

/// Takes a digest's data away from a document of whose lists none has it, and the data if no other document has it.
/// Returns how many stored bytes went.
pub(crate) async fn free(trx: &Transaction, instance: &Instance, id: &str, digest: &[u8; 32]) -> Result<i64> {
    trx.clear(&instance.keys.attachment_use(digest, id));
    let uses = instance.keys.attachment_uses(digest);
    // Beside the one that this transaction has cleared.
    if trx.range(&uses, false).any().await? {
        return Ok(0);
    }
    let record_key = instance.keys.attachment_data(digest);
    let Some(record) = trx.get(&record_key, false).await? else { return Ok(0) };
    let record = proto::AttachmentData::decode(&*record)?;
    trx.clear(&record_key);
    let rows = instance.keys.blob_rows(&record.blob_id);
    trx.clear_range(&rows.begin, &rows.end);
    Ok(record.stored_length as i64)
}

/// Where an attachment's data lies.
#[derive(Debug, Clone)]
pub(crate) struct AttachmentPlace {
    /// Its description.
    pub attachment: Attachment,
    instance: Arc<Instance>,
    blob_id: Vec<u8>,
}

impl AttachmentPlace {
    /// Finds an attachment of a revision that is there.
    ///
    /// # Errors
    /// [`Refusal::AttachmentNotFound`]
    pub(crate) async fn find(
        trx: &Transaction,
        instance: Arc<Instance>,
        keys: &DocumentKeys,
        rev: &RevId,
        name: &str,
    ) -> Result<AttachmentPlace> {
        let list = list(trx, keys, rev).await?;
        let found = list.into_iter().find(|attachment| attachment.name == name);
        let attachment = found.ok_or(Refusal::AttachmentNotFound)?;
        let record = trx.get(&instance.keys.attachment_data(attachment.digest()), true).await?;
        let record = record.ok_or_else(|| Error::Corrupt("an attachment's data is gone".into()))?;
        let blob_id = proto::AttachmentData::decode(&*record)?.blob_id;
        Ok(AttachmentPlace { attachment, instance, blob_id })
    }
}

/// Reads some of an attachment's stored bytes, from a chunk on.
pub(crate) struct ReadChunks<'a> {
    pub inner: &'a Inner,
    pub place: &'a AttachmentPlace,
    /// The number of the first chunk.
    pub from: u32,
}

impl Operation for ReadChunks<'_> {
    /// The first chunks; none at the end.
    type Output = Vec<Vec<u8>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, &self.place.instance.name).await?;
        if instance.id() != self.place.instance.id() {
            return Err(Error::DatabaseNotFound);
        }
        let rows = instance.keys.blob_rows(&self.place.blob_id);
        let begin = [&instance.keys.blob(&self.place.blob_id)[..], &self.from.to_be_bytes()].concat();
        let range = KeyRange { begin, end: rows.end };
        let page = trx.range(&range, true).page(CHUNKS_READ_AT_ONCE).await?;
        Ok(page.iter().map(|row| row.value().to_vec()).collect())
    }
}

/// An attachment's stored bytes, read chunk by chunk.
pub struct AttachmentReader {
    database: crate::handle::Reader,
    place: AttachmentPlace,
    next: u32,
    left: u64,
}

impl AttachmentReader {
    pub(crate) fn new(database: crate::handle::Reader, place: AttachmentPlace) -> AttachmentReader {
        let left = place.attachment.stored_length;
        AttachmentReader { database, place, next: 0, left }
    }

    /// The attachment's description.
    pub fn attachment(&self) -> &Attachment {
        &self.place.attachment
    }

    /// More of its stored bytes; `None` at the end.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`] when the data was removed meanwhile.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut read = ReadChunks { inner: &self.database.inner, place: &self.place, from: self.next };
        let chunks = self.database.read(&mut read).await?;
        self.next += u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let bytes = chunks.concat();
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) if !bytes.is_empty() => {
                self.left = left;
                Ok(Some(bytes))
            }
            // It went with its last document while it was read.
            _ => Err(Refusal::DocumentNotFound(NotFound::Missing).into()),
        }
    }
}
