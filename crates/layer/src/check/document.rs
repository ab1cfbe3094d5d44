//! Checks one document and everything that belongs to it, in one transaction.

use std::collections::{HashMap, HashSet};

use flatbed_databases::document::attachments::{Attachment, decode_list, length_of};
use flatbed_databases::document::body::{BODY_BYTES_MAX, begin_read, row_bytes};
use flatbed_databases::document::edit::partition_of;
use flatbed_databases::document::tree::{Leaf, Segments};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::DecodeError;
use flatbed_operations::index::channels::ChannelDepartures;
use flatbed_operations::index::kinds::DefinedIndex;
use flatbed_operations::index::maintainers::IndexContext;
use flatbed_operations::index::partitions::{self, PartitionSums};
use flatbed_operations::index::{all_docs, by_seq, channels};
use flatbed_revtree::{DocumentId, RevId, Tree};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, DocumentPart, take_int, take_rev};
use flatbed_store::proto;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord, decode_ancestry};
use flatbed_store::transaction::Transaction;
use tokio::sync::Semaphore;

use crate::check::hex;

/// The size of a document's revisions above which the checker skips it.
const DOCUMENT_BYTES_MAX: u64 = 64 * BODY_BYTES_MAX;

#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub documents: u64,
    pub deleted_documents: u64,
    pub external_bytes: i64,
    pub stored_bytes: i64,
    pub superseded_bytes: i64,
    pub blobs: HashSet<Vec<u8>>,
    /// The sum of the documents' distinct attachment data.
    pub attachment_uses: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, other: Sums) {
        self.documents += other.documents;
        self.deleted_documents += other.deleted_documents;
        self.external_bytes += other.external_bytes;
        self.stored_bytes += other.stored_bytes;
        self.superseded_bytes += other.superseded_bytes;
        self.blobs.extend(other.blobs);
        self.attachment_uses += other.attachment_uses;
    }

    /// Returns the recounted value of a counter; `None`: a recount does not determine it.
    pub(crate) fn counter(&self, counter: Counter) -> Option<i64> {
        Some(match counter {
            Counter::Documents => self.documents as i64,
            Counter::DeletedDocuments => self.deleted_documents as i64,
            Counter::ExternalBytes => self.external_bytes,
            Counter::StoredBytes => self.stored_bytes,
            Counter::SupersededBytes => self.superseded_bytes,
            Counter::Purges => return None,
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct DocumentReport {
    pub keys: u64,
    pub violations: Vec<String>,
    pub sums: Sums,
    pub partition: Option<(String, PartitionSums)>,
}

impl DocumentReport {
    pub(crate) fn stray(key: &[u8]) -> Self {
        DocumentReport {
            keys: 1,
            violations: vec![format!("key {} is no document's", hex(key))],
            ..DocumentReport::default()
        }
    }
}

pub(crate) struct DocumentCheck<'a> {
    pub inner: &'a Inner,
    pub instance: &'a Instance,
    pub trx: &'a Transaction,
    pub id: &'a str,
    /// The database's own, as of the transaction.
    pub indexes: &'a [DefinedIndex],
    /// The progress of compactions, as of the transaction.
    pub compacted: &'a proto::Compacted,
    /// True if the database has channels, as of the transaction.
    pub has_channels: bool,
    pub large: &'a Semaphore,
}

type BodyRows = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Default)]
struct Parts {
    info: Option<Vec<u8>>,
    body: BodyRows,
    leaves: Vec<(bool, RevId, Vec<u8>)>,
    records: HashMap<RevId, RevisionRecord>,
    bodies: HashMap<RevId, BodyRows>,
    segments: Vec<(Vec<u8>, Vec<u8>)>,
    attachments: HashMap<RevId, Vec<Attachment>>,
}

impl DocumentCheck<'_> {
    pub(crate) async fn check(self) -> Result<DocumentReport> {
        let mut found = DocumentReport::default();
        let mut wrong = Vec::new();
        let parts = self.read(&mut found, &mut wrong).await?;
        match parts.info.as_deref().map(Info::decode) {
            None => wrong.push("it has keys but no info".to_owned()),
            Some(Err(error)) => wrong.push(format!("its info: {error}")),
            Some(Ok(info)) => {
                self.revisions(&info, &parts, &mut wrong);
                self.bodies(&info, &parts, &mut found.sums, &mut wrong).await?;
                let (stamp, compacted) = (info.stamp.as_slice(), self.compacted);
                let is_compacted = stamp <= compacted.stamp.as_slice();
                if is_compacted && found.sums.superseded_bytes > 0 && !compacted.failed.iter().any(|one| one == stamp) {
                    wrong.push("it has superseded bodies behind the progress of compactions".to_owned());
                }
                self.attachments(&info, &parts, &mut found.sums, &mut wrong).await?;
                self.entries(&info, &parts, &mut wrong).await?;
                *if info.deleted { &mut found.sums.deleted_documents } else { &mut found.sums.documents } += 1;
                found.sums.external_bytes += info.external_bytes as i64;
                if self.instance.record.partitioned {
                    match partition_of(self.id) {
                        Some(partition) => found.partition = Some((partition.to_owned(), partitions::sums_of(&info))),
                        None if DocumentId::of(self.id).is_design() => {}
                        None => wrong.push("its id names no partition".to_owned()),
                    }
                }
            }
        }
        found.violations = wrong.into_iter().map(|reason| format!("document {:?}: {reason}", self.id)).collect();
        Ok(found)
    }

    async fn read(&self, found: &mut DocumentReport, wrong: &mut Vec<String>) -> Result<Parts> {
        let keys = &self.instance.keys;
        let whole = keys.document(self.id).whole();
        let mut parts = Parts::default();
        for page in begin_read(self.trx, whole).finish(self.trx, DOCUMENT_BYTES_MAX).await? {
            for row in &page {
                found.keys += 1;
                if let Err(error) = sort_out(keys, row.key(), row.value(), &mut parts) {
                    wrong.push(format!("key {}: {error}", hex(row.key())));
                }
            }
        }
        Ok(parts)
    }

    fn revisions(&self, info: &Info, parts: &Parts, wrong: &mut Vec<String>) {
        if parts.leaves.len() as u64 != u64::from(info.leaf_count) {
            wrong.push(format!("{} leaves, its info says {}", parts.leaves.len(), info.leaf_count));
        }
        let best = parts.leaves.iter().max_by_key(|(deleted, rev, _)| (!deleted, rev));
        if best.is_none_or(|(deleted, rev, _)| *deleted != info.deleted || *rev != info.winner) {
            wrong.push(format!("its winner is not {}", info.winner));
        }
        let mut segments = Segments::default();
        for (key, bytes) in &parts.segments {
            if let Err(error) = segments.read(key, bytes) {
                wrong.push(format!("ancestors {}: {error}", hex(key)));
            }
        }
        let revs_limit = self.instance.revs_limit();
        let mut branches = Vec::new();
        for (deleted, rev, bytes) in &parts.leaves {
            match decode_ancestry(rev, bytes) {
                Err(error) => wrong.push(format!("leaf {rev}: {error}")),
                Ok(ancestry) => {
                    let (count, leaf) = (ancestry.len(), Leaf { rev: rev.clone(), deleted: *deleted, ancestry });
                    let branch = segments.branch(&leaf);
                    // Segments completely beyond the limit are removed; the count includes them.
                    let kept = branch.ancestors.len() as u64;
                    if kept != count && kept + 1 < revs_limit {
                        wrong.push(format!("{kept} ancestors of {rev}, there should be {count}"));
                    }
                    branches.push(branch);
                }
            }
            if parts.records.get(rev).is_none_or(|record| record.body_dropped || record.deleted != *deleted) {
                wrong.push(format!("leaf {rev} has no body, or differs from its record"));
            }
        }
        let tree = Tree::new(branches);
        for (_, rev, _) in &parts.leaves {
            if tree.branches_over(rev).count() != 1 {
                wrong.push(format!("leaf {rev} is an ancestor of another leaf"));
            }
        }
        for rev in parts.records.keys().filter(|rev| !tree.contains(rev)) {
            wrong.push(format!("revision {rev} has a record and no place in the tree"));
        }
    }

    async fn bodies(&self, info: &Info, parts: &Parts, sums: &mut Sums, wrong: &mut Vec<String>) -> Result<()> {
        let empty = BodyRows::new();
        for rev in parts.bodies.keys() {
            let place = parts.records.get(rev).filter(|record| !record.body_dropped).map(|record| &record.place);
            if place != Some(&BodyPlace::Rows) || *rev == info.winner {
                wrong.push(format!("revision {rev} has rows that no record names"));
            }
        }
        for (rev, record) in &parts.records {
            if record.body_dropped {
                continue;
            }
            sums.stored_bytes += record.stored_bytes as i64;
            if !parts.leaves.iter().any(|(_, leaf, _)| leaf == rev) {
                sums.superseded_bytes += record.stored_bytes as i64;
            }
            let winner = *rev == info.winner;
            if winner && (record.place != info.place || record.stored_bytes != info.stored_bytes) {
                wrong.push(format!("record and info of {rev} differ"));
            }
            let (read, _permit);
            let rows = match &record.place {
                BodyPlace::Rows if winner => &parts.body,
                BodyPlace::Rows => parts.bodies.get(rev).unwrap_or(&empty),
                BodyPlace::Blob(blob_id) => {
                    if !sums.blobs.insert(blob_id.clone()) {
                        wrong.push(format!("revision {rev} shares its blob with another"));
                    }
                    // Never closed.
                    _permit = self.large.acquire().await.ok();
                    read = self.blob(blob_id).await?;
                    &read
                }
            };
            self.body(rev, record, rows, wrong).await?;
        }
        if !parts.body.is_empty() && info.place != BodyPlace::Rows {
            wrong.push("it has a latest body beside a blob".to_owned());
        }
        Ok(())
    }

    async fn body(&self, rev: &RevId, record: &RevisionRecord, rows: &BodyRows, wrong: &mut Vec<String>) -> Result<()> {
        let prefix_bytes = self.instance.keys.document(self.id).body().len();
        let stored: u64 = rows.iter().map(|(path, value)| row_bytes(prefix_bytes, path, value)).sum();
        if rows.is_empty() || stored != record.stored_bytes {
            wrong.push(format!("body of {rev} takes {stored} bytes, its record says {}", record.stored_bytes));
        }
        let mut read = self.text_bytes(rows);
        if let Err(DecodeError::UnknownFieldId(_)) = read {
            // A writer may have allocated it after the names were read; otherwise it stays unknown.
            match self.instance.reload_names(self.inner).await {
                Ok(()) | Err(Error::Corrupt(_)) => read = self.text_bytes(rows),
                Err(error) => return Err(error),
            }
        }
        match read {
            Err(error) => wrong.push(format!("body of {rev}: {error}")),
            Ok(found) if found != record.external_bytes => {
                wrong
                    .push(format!("body of {rev} is {found} bytes of JSON, its record says {}", record.external_bytes));
            }
            Ok(_) => {}
        }
        Ok(())
    }

    /// Returns the length of the body's JSON text with braces, and checks every row.
    fn text_bytes(&self, rows: &BodyRows) -> std::result::Result<u64, DecodeError> {
        let pairs = || rows.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
        let names = self.instance.fields.view();
        flatbed_flatten::validate(pairs(), &names)?;
        let mut text = Vec::new();
        flatbed_flatten::write_members(pairs(), &names, &mut text)?;
        Ok(text.len() as u64 + 2)
    }

    /// Checks the lists of attachments; their data is checked for the whole database.
    async fn attachments(&self, info: &Info, parts: &Parts, sums: &mut Sums, wrong: &mut Vec<String>) -> Result<()> {
        for (rev, record) in &parts.records {
            if parts.attachments.contains_key(rev) != (record.has_attachments && !record.body_dropped) {
                wrong.push(format!("the attachments of {rev} differ from its record"));
            }
            let bytes = parts.attachments.get(rev).map(|list| length_of(list));
            if bytes.is_some_and(|bytes| bytes != record.attachment_bytes) {
                wrong.push(format!("the attachments of {rev} are not as long as its record says"));
            }
            if *rev == info.winner && record.has_attachments != info.has_attachments {
                wrong.push(format!("record and info of {rev} differ"));
            }
        }
        for rev in parts.attachments.keys().filter(|rev| !parts.records.contains_key(rev)) {
            wrong.push(format!("revision {rev} has attachments and no record"));
        }
        let digests: HashSet<_> = parts.attachments.values().flatten().map(Attachment::digest).collect();
        for digest in &digests {
            let keys = &self.instance.keys;
            let used = self.trx.get(&keys.attachment_use(*digest, self.id), true);
            let data = self.trx.get(&keys.attachment_data(*digest), true);
            if used.await?.is_none() || data.await?.is_none() {
                wrong.push(format!("attachment data {} is missing, or lacks its use", hex(*digest)));
            }
        }
        sums.attachment_uses += digests.len() as u64;
        Ok(())
    }

    async fn blob(&self, blob_id: &[u8]) -> Result<BodyRows> {
        let rows =
            flatbed_databases::document::body::read_rows(self.trx, self.instance.keys.blob_rows(blob_id)).await?;
        Ok(rows.iter().map(|(path, value)| (path.to_vec(), value.to_vec())).collect())
    }

    async fn entries(&self, info: &Info, parts: &Parts, wrong: &mut Vec<String>) -> Result<()> {
        let (trx, instance) = (self.trx, self.instance);
        let leaves: HashSet<RevId> = parts.leaves.iter().map(|(_, rev, _)| rev.clone()).collect();
        let left = match ChannelDepartures::read(trx, instance, self.id, info).await {
            Err(Error::Corrupt(reason)) => {
                wrong.push(reason);
                ChannelDepartures::default()
            }
            left => left?,
        };
        wrong.extend(by_seq::check_document(trx, instance, self.id, info, &leaves, &left).await?);
        wrong.extend(all_docs::check_document(trx, instance, self.id, info).await?);
        let said = parts.records.get(&info.winner).and_then(|record| record.verdict.as_ref());
        wrong.extend(channels::check_document(trx, instance, self.id, info, said, self.has_channels, &left).await?);
        for index in self.indexes {
            let within = IndexContext { inner: self.inner, trx, instance };
            wrong.extend(index.check_document(&within, self.id, info).await?);
        }
        Ok(())
    }
}

fn sort_out(keys: &flatbed_store::keys::Keys, key: &[u8], value: &[u8], parts: &mut Parts) -> Result<()> {
    let (_, part, rest) = keys.split_document(key)?;
    match part {
        DocumentPart::Info => parts.info = Some(value.to_vec()),
        DocumentPart::Body => parts.body.push((rest.to_vec(), value.to_vec())),
        DocumentPart::Leaf => {
            let (not_deleted, rest) = take_int(rest)?;
            parts.leaves.push((not_deleted == 0, take_rev(rest)?.0, value.to_vec()));
        }
        DocumentPart::Revision => {
            parts.records.insert(take_rev(rest)?.0, RevisionRecord::decode(value)?);
        }
        DocumentPart::RevisionBody => {
            let (rev, path) = take_rev(rest)?;
            parts.bodies.entry(rev).or_default().push((path.to_vec(), value.to_vec()));
        }
        DocumentPart::Attachments => {
            parts.attachments.insert(take_rev(rest)?.0, decode_list(value)?);
        }
        DocumentPart::Ancestors => parts.segments.push((rest.to_vec(), value.to_vec())),
    }
    Ok(())
}
