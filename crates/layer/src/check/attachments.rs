//! Checks the data of attachments: its keys, its uses, and its digests.

use std::collections::{HashMap, HashSet};

use flatbed_databases::document::attachments::{CHUNKS_READ_AT_ONCE, decode_list};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::keys::KeyRange;
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::check::document::Sums;
use crate::check::{Report, hex, read_keys, run};

/// Checks the data of every digest, and adds its blobs and bytes to the sums. Returns the number of digests and of
/// uses.
pub(crate) async fn check(
    inner: &Inner,
    instance: &Instance,
    sums: &mut Sums,
    report: &mut Report,
) -> Result<(u64, u64)> {
    let keys = &instance.keys;
    let records = read_keys(inner, instance, keys.attachment_data_all(), |key, value| {
        Ok((keys.attachment_digest(key)?, proto::AttachmentData::decode(value)?))
    });
    let uses = read_keys(inner, instance, keys.attachment_uses_all(), |key, _| keys.split_attachment_use(key));
    let (records, uses) = (records.await?, uses.await?);
    let mut used: Vec<&[u8]> = uses.iter().map(|(digest, _)| digest.as_slice()).collect();
    used.dedup();
    for (digest, record) in &records {
        let found = digest_of(inner, instance, &record.blob_id).await?;
        let is_right = found == (record.stored_length, digest.clone());
        let is_used = used.binary_search(&digest.as_slice()).is_ok();
        // A writer may have removed it meanwhile.
        let is_there = |expected| async move {
            let now = run(inner, &mut Record { instance, digest }).await?;
            Ok::<_, flatbed_store::error::Error>(now.as_ref() == Some(expected))
        };
        if (!is_right || !is_used) && is_there(record).await? {
            let what = if is_right { "belongs to no document" } else { "does not have its digest" };
            report.violation(format!("attachment data {} {what}", hex(digest)));
        }
        sums.blobs.insert(record.blob_id.clone());
        sums.stored_bytes += record.stored_length as i64;
    }
    Ok((records.len() as u64, uses.len() as u64))
}

/// Checks the queue of lists that were removed from documents. Returns the number of lists, and the number of rows for
/// data that waits there to be freed and that its document no longer has.
pub(crate) async fn waiting(inner: &Inner, instance: &Instance) -> Result<(u64, u64)> {
    let keys = &instance.keys;
    let entries = read_keys(inner, instance, keys.released_all(), |key, value| {
        Ok((keys.split_released(key)?.0, decode_list(value)?))
    });
    let mut waiting: HashMap<String, HashSet<[u8; 32]>> = HashMap::new();
    let entries = entries.await?;
    let lists = entries.len() as u64;
    for (id, list) in entries {
        waiting.entry(id).or_default().extend(list.iter().map(|attachment| *attachment.digest()));
    }
    let mut rows = 0;
    for (id, mut digests) in waiting {
        let lists = read_keys(inner, instance, keys.document(&id).attachment_lists(), |_, value| decode_list(value));
        for attachment in lists.await?.iter().flatten() {
            digests.remove(attachment.digest());
        }
        for digest in &digests {
            rows += u64::from(run(inner, &mut ReadUse { instance, digest, id: &id }).await?);
        }
    }
    Ok((lists, rows))
}

struct ReadUse<'a> {
    instance: &'a Instance,
    digest: &'a [u8],
    id: &'a str,
}

impl Operation for ReadUse<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        Ok(trx.get(&self.instance.keys.attachment_use(self.digest, self.id), true).await?.is_some())
    }
}

async fn digest_of(inner: &Inner, instance: &Instance, blob_id: &[u8]) -> Result<(u64, Vec<u8>)> {
    let (mut length, mut hash) = (0, Sha256::new());
    let mut range = instance.keys.blob_rows(blob_id);
    loop {
        let chunks = run(inner, &mut Chunks { range: &range }).await?;
        for (_, chunk) in &chunks {
            length += chunk.len() as u64;
            hash.update(chunk);
        }
        match chunks.last() {
            Some((key, _)) => range.begin = [key.as_slice(), &[0]].concat(),
            None => return Ok((length, hash.finalize().to_vec())),
        }
    }
}

struct Chunks<'a> {
    range: &'a KeyRange,
}

impl Operation for Chunks<'_> {
    type Output = Vec<(Vec<u8>, Vec<u8>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        Ok(trx.range(self.range, true).page(CHUNKS_READ_AT_ONCE).await?.to_vec())
    }
}

struct Record<'a> {
    instance: &'a Instance,
    digest: &'a [u8],
}

impl Operation for Record<'_> {
    type Output = Option<proto::AttachmentData>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let found = trx.get(&self.instance.keys.attachment_data(self.digest), true).await?;
        Ok(found.map(|bytes| proto::AttachmentData::decode(&*bytes)).transpose()?)
    }
}
