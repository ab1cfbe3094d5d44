//! Attachments: lists of them in revisions, and their data, stored once for all documents.
//!
//! A revision's list names each attachment's data by its digest. A record holds the place of a digest's data, and a row
//! for each document says that one of its revisions has the data. A transaction that adds such a row reads the record
//! with conflict, and a transaction that removes the last row clears the record. So the two exclude each other, and no
//! counter can go wrong in a retry.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_kit::CleanupBudget;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, NotFound, Refusal, Result};
use flatbed_store::keys::{DocumentKeys, KeyRange, take_rev};
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use foundationdb::future::FdbSlice;
use futures_util::future::BoxFuture;
use prost::Message;

use crate::document::body::begin_read;
use crate::document::edit::Edit;
use crate::document::release;
use crate::document::staging;
use crate::document::upload::StagedUpload;
use crate::instance::Instance;
use crate::server::Inner;

/// Byte limit of the list of a revision's attachments, which is the value of one key.
const LIST_BYTES_MAX: usize = 90_000;

/// The least bytes of an attachment in the list beside its name and media type: two digests.
const ENTRY_BYTES_MIN: usize = 48;

/// Checks whether a list of attachments, given as the lengths of names and media types, can fit one revision, before
/// their data is stored.
///
/// # Errors
/// [`Refusal::AttachmentTooLarge`]
pub fn check_list(attachments: impl Iterator<Item = (usize, usize)>) -> std::result::Result<(), Refusal> {
    let bytes: usize = attachments.map(|(name, kind)| name + kind + ENTRY_BYTES_MIN).sum();
    if bytes <= LIST_BYTES_MAX { Ok(()) } else { Err(Refusal::AttachmentTooLarge { bytes_max: LIST_BYTES_MAX as u64 }) }
}

/// Chunks of an attachment that one transaction reads.
pub const CHUNKS_READ_AT_ONCE: usize = 8;

/// An attachment of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub content_type: String,
    /// The generation of the revision that brought it.
    pub revpos: u64,
    /// MD5 of the stored bytes: CouchDB's digest.
    pub md5: [u8; 16],
    /// Length in bytes, decoded.
    pub length: u64,
    /// Length in bytes as stored.
    pub stored_length: u64,
    /// True if the stored bytes are gzip.
    pub gzip: bool,
    digest: [u8; 32],
}

/// A `revpos` as a client wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revpos {
    /// A generation.
    Generation(u64),
    /// A value that no attachment has: negative, a fraction, or not a number.
    Impossible,
}

impl Revpos {
    /// Returns the generation, if it is one.
    pub fn generation(self) -> Option<u64> {
        match self {
            Revpos::Generation(generation) => Some(generation),
            Revpos::Impossible => None,
        }
    }
}

/// An attachment in an edit.
#[derive(Debug, Clone, PartialEq)]
pub enum AttachmentEdit {
    /// The existing one of the same name.
    Stub {
        /// The generation of the stub by the client; `None` matches any.
        revpos: Option<Revpos>,
    },
    /// An attachment of another document.
    Copy(Attachment),
    /// New data.
    Data {
        /// Its media type.
        content_type: String,
        /// The generation that brought it, for an edit of another replica; otherwise the edit itself brings it.
        revpos: Option<u64>,
        /// Its staged data.
        data: StagedUpload,
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

    /// Returns the digest that names the stored data.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

pub fn decode_list(bytes: &[u8]) -> Result<Vec<Attachment>> {
    proto::AttachmentList::decode(bytes)?.attachments.into_iter().map(Attachment::decode).collect()
}

/// Reads the attachments of a revision that has any.
pub async fn list(trx: &Transaction, keys: &DocumentKeys, rev: &RevId) -> Result<Vec<Attachment>> {
    begin_list(trx, keys, rev).await
}

/// Requests the attachments of a revision that has any.
fn begin_list(
    trx: &Transaction,
    keys: &DocumentKeys,
    rev: &RevId,
) -> impl Future<Output = Result<Vec<Attachment>>> + Send + use<> {
    let bytes = trx.get(&keys.attachments(rev), true);
    async move { bytes.await?.map_or_else(|| Ok(Vec::new()), |bytes| decode_list(&bytes)) }
}

pub type ListRead = BoxFuture<'static, Result<Vec<Attachment>>>;

/// Requests the list in which the stubs of a client's edit are looked up, if it has stubs and a parent.
pub fn begin_parents_list(trx: &Transaction, keys: &DocumentKeys, edit: &Edit<'_>) -> Option<ListRead> {
    let parent = edit.parent.as_ref().filter(|_| edit.history.is_none() && has_stubs(&edit.attachments))?;
    Some(Box::pin(begin_list(trx, keys, parent)))
}

/// Returns whether an edit refers to existing attachments.
pub fn has_stubs(edits: &[(String, AttachmentEdit)]) -> bool {
    edits.iter().any(|(_, edit)| matches!(edit, AttachmentEdit::Stub { .. }))
}

/// Reads a document's lists by revision up to about `bytes_max` bytes, and returns whether they are all.
pub async fn lists(
    trx: &Transaction,
    keys: &DocumentKeys,
    bytes_max: u64,
) -> Result<(Vec<(RevId, Vec<Attachment>)>, bool)> {
    let range = keys.attachment_lists();
    let prefix_bytes = range.begin.len();
    let mut lists = Vec::new();
    let (pages, are_all) = begin_read(trx, range).read_up_to(trx, bytes_max).await?;
    for row in pages.iter().flat_map(|page| page.iter()) {
        let (rev, _) = take_rev(row.key().get(prefix_bytes..).unwrap_or_default())?;
        lists.push((rev, decode_list(row.value())?));
    }
    Ok((lists, are_all))
}

/// Makes an edit's list of attachments.
pub struct Resolve<'a> {
    pub id: &'a str,
    pub edits: &'a [(String, AttachmentEdit)],
    /// The lists in which stubs are looked up, the best first.
    pub known: &'a [Vec<Attachment>],
    pub generation: u64,
    /// True if another replica made the revision.
    pub is_foreign: bool,
}

impl Resolve<'_> {
    /// Returns the list of the new revision.
    pub fn run(&self) -> std::result::Result<Vec<Attachment>, Refusal> {
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

    /// Returns the attachment that a stub refers to. An attachment of another generation than the stub names does not
    /// match.
    fn stub(&self, name: &str, revpos: Option<Revpos>) -> std::result::Result<Attachment, Refusal> {
        let mut named = self.known.iter().flatten().filter(|attachment| attachment.name == name);
        let found = named.find(|attachment| revpos.is_none_or(|revpos| revpos.generation() == Some(attachment.revpos)));
        let missing = || Refusal::MissingStub { id: self.id.to_owned(), name: name.to_owned() };
        found.cloned().ok_or_else(missing)
    }
}

/// The attachments of a new revision, with the reads of their data.
#[derive(Debug, Default)]
pub struct NewAttachments {
    pub list: Vec<Attachment>,
    /// The place of the data of each digest, for attachments that are not stubs; `None` if it is not stored yet.
    stored: Vec<Option<Vec<u8>>>,
}

impl From<Vec<Attachment>> for NewAttachments {
    fn from(list: Vec<Attachment>) -> NewAttachments {
        NewAttachments { list, stored: Vec::new() }
    }
}

/// Returns the total length of attachments in bytes, decoded.
pub fn length_of(list: &[Attachment]) -> u64 {
    list.iter().map(|attachment| attachment.length).fold(0, u64::saturating_add)
}

impl NewAttachments {
    /// Returns the total length in bytes, decoded.
    pub fn bytes(&self) -> u64 {
        length_of(&self.list)
    }

    /// Checks whether the list can be written, with all reads at once. Writes nothing.
    ///
    /// # Errors
    /// [`Refusal::AttachmentTooLarge`], [`Refusal::UploadSwept`].
    pub async fn check(
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

/// Returns the approximate bytes that an edit's attachments take in its transaction.
pub fn edits_bytes(id: &str, edits: &[(String, AttachmentEdit)]) -> u64 {
    let bytes = |(name, edit): &(String, AttachmentEdit)| match edit {
        AttachmentEdit::Stub { .. } => name.len() + 150,
        AttachmentEdit::Copy(_) | AttachmentEdit::Data { .. } => name.len() + 3 * id.len() + 900,
    };
    edits.iter().map(bytes).sum::<usize>() as u64
}

fn encode_list(attachments: &[Attachment]) -> Vec<u8> {
    proto::AttachmentList { attachments: attachments.iter().map(Attachment::encode).collect() }.encode_to_vec()
}

/// Writes a new revision's list after [`NewAttachments::check`], and stores only data that is not stored yet. Returns
/// by how much the stored bytes grew.
pub fn put(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    id: &str,
    rev: &RevId,
    attached: &NewAttachments,
    edits: &[(String, AttachmentEdit)],
) -> i64 {
    if attached.list.is_empty() {
        return 0;
    }
    trx.set(&keys.attachments(rev), &encode_list(&attached.list));
    let mut grown = 0;
    // Data of this edit under another name.
    let mut brought: HashMap<&[u8; 32], &[u8]> = HashMap::new();
    for (at, (attachment, (_, edit))) in attached.list.iter().zip(edits).enumerate() {
        match edit {
            // A list of the document has it, and so its row exists: a concurrent removal conflicts on the info.
            AttachmentEdit::Stub { .. } => continue,
            AttachmentEdit::Copy(_) => {}
            AttachmentEdit::Data { data, .. } => {
                staging::take(trx, &instance.keys, &data.blob_id);
                let there = attached.stored.get(at).and_then(Option::as_deref);
                match there.or(brought.get(attachment.digest()).copied()) {
                    // One upload under two names: the record names these rows.
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

/// Bytes of a document's lists up to which the transaction that removes one reads them itself.
const LISTS_AT_ONCE_BYTES_MAX: u64 = 200_000;

/// Bytes of writes with which such a transaction frees data itself.
const FREED_AT_ONCE_BYTES_MAX: u64 = 150_000;

/// Returns the approximate bytes that freeing a digest takes in a transaction: its row and the data, with their
/// conflict ranges.
pub fn free_bytes(id: &str) -> u64 {
    (6 * id.len() + 700) as u64
}

/// Returns the bytes that removing a list takes in a transaction, beside the freed data.
pub fn list_bytes(key_bytes: usize, list: &[u8]) -> u64 {
    (3 * key_bytes + list.len() + 200) as u64
}

/// Drops the lists of revisions that the transaction removes, given as stored, and the data that no document has any
/// more: at once if the document has few lists, else in steps (see [`release`]). Returns the freed bytes. It sees the
/// transaction's earlier writes.
pub async fn drop_lists(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    id: &str,
    gone: &[(RevId, FdbSlice)],
    room: &CleanupBudget,
) -> Result<i64> {
    if gone.is_empty() {
        return Ok(0);
    }
    let mut digests = HashSet::new();
    for (rev, list) in gone {
        trx.clear(&keys.attachments(rev));
        digests.extend(decode_list(list)?.iter().map(|attachment| *attachment.digest()));
    }
    // Without the removed lists: the transaction sees its own clears.
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

/// Removes a document's row of a digest that none of its lists has, and the data if no other document has it. Returns
/// the freed bytes.
pub async fn free(trx: &Transaction, instance: &Instance, id: &str, digest: &[u8; 32]) -> Result<i64> {
    trx.clear(&instance.keys.attachment_use(digest, id));
    let uses = instance.keys.attachment_uses(digest);
    // Other rows than the one that this transaction has cleared.
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

#[derive(Debug, Clone)]
pub struct AttachmentPlace {
    /// Its description.
    pub attachment: Attachment,
    instance: Arc<Instance>,
    blob_id: Vec<u8>,
}

impl AttachmentPlace {
    /// Finds an attachment of an existing revision.
    ///
    /// # Errors
    /// [`Refusal::AttachmentNotFound`]
    pub async fn find(
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

/// Reads stored bytes of an attachment, starting with a chunk.
pub struct ReadChunks<'a> {
    pub inner: &'a Inner,
    pub place: &'a AttachmentPlace,
    /// The number of the first chunk.
    pub from: u32,
}

impl Operation for ReadChunks<'_> {
    /// The first chunks; empty at the end.
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

/// Reads an attachment's stored bytes chunk by chunk.
pub struct AttachmentReader {
    database: crate::handles::ReadHandle,
    place: AttachmentPlace,
    next: u32,
    left: u64,
}

impl AttachmentReader {
    pub fn new(database: crate::handles::ReadHandle, place: AttachmentPlace) -> AttachmentReader {
        let left = place.attachment.stored_length;
        AttachmentReader { database, place, next: 0, left }
    }

    /// Returns the attachment's description.
    pub fn attachment(&self) -> &Attachment {
        &self.place.attachment
    }

    /// Returns the next stored bytes; `None` at the end.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`] if the data was removed meanwhile.
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
            // Its last document was removed during the read.
            _ => Err(Refusal::DocumentNotFound(NotFound::Missing).into()),
        }
    }
}
