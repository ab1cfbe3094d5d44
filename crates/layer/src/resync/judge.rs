//! Judges the documents of a page by the new function, many in a call.

use flatbed_databases::document::attachments::AttachmentEdit;
use flatbed_databases::document::body::to_json;
use flatbed_databases::document::edit::{Document, Edit, GetOptions};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::judge::ask::{all_routed, route_edit};
use flatbed_operations::judge::judgement::Judgement;
use flatbed_operations::read::get::plain;
use flatbed_revtree::{DocumentId, RevId};
use flatbed_store::error::{Error, Refusal, Result};
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use tokio::sync::Semaphore;

use crate::handle::Reader;
use crate::resync::page::ScannedDocument;

/// The documents that are read one by one at once.
const ASKED_AT_ONCE: usize = 4;

/// The judgement of a document's leaves.
#[derive(Default)]
pub(super) struct Answers {
    /// The leaves with another verdict than before, by their places.
    pub(super) changed: Vec<(usize, Verdict)>,
    pub(super) refused: u64,
}

impl Answers {
    /// Adds the judgement of the leaf at a place.
    fn add(&mut self, document: &ScannedDocument, at: usize, judgement: Judgement) -> Result<()> {
        let (Some((deleted, _)), Some(said)) = (document.leaves.get(at), document.said.get(at)) else { return Ok(()) };
        let now = match judgement {
            Ok(now) => now,
            Err(refusal @ Refusal::NotJudged { .. }) => return Err(refusal.into()),
            Err(_) => {
                self.refused += 1;
                return Ok(());
            }
        };
        // The author is recorded, and so is an expiry that the client set: whether the client or the function set it is
        // not recorded.
        let has_end = !deleted && !DocumentId::of(&document.id).is_design();
        let expires_at_ms = now.expires_at_ms.or(said.expires_at_ms).filter(|_| has_end);
        let now = Verdict { writer: said.writer.clone(), expires_at_ms, ..now };
        if now != *said {
            self.changed.push((at, now));
        }
        Ok(())
    }
}

/// Judges documents. `calls`: permits to call the function.
pub(super) async fn judge(
    database: &Reader,
    instance: &Instance,
    documents: &[ScannedDocument],
    calls: &Semaphore,
) -> Result<Vec<Answers>> {
    let inner = &database.handle.inner;
    let mut answers: Vec<Answers> = documents.iter().map(|_| Answers::default()).collect();
    let (mut places, mut texts, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (at, document) in documents.iter().enumerate() {
        let is_design = DocumentId::of(&document.id).is_design();
        match (&document.whole, answers.get_mut(at)) {
            // Writes of design documents are not judged, either.
            (_, Some(answers)) if is_design => {
                for leaf in 0..document.leaves.len() {
                    answers.add(document, leaf, Ok(Verdict::default()))?;
                }
            }
            (Some(whole), _) => {
                let body = to_json(inner, instance, &whole.body).await?;
                let old = match &whole.old {
                    Some((deleted, rows)) => Some((*deleted, to_json(inner, instance, rows).await?)),
                    None => None,
                };
                let parent = whole.parent.clone();
                let old = old.zip(parent.clone());
                let old = old.map(|((deleted, body), rev)| plain(&document.id, rev, deleted, body));
                places.push(at);
                texts.push(([b"{", body.as_slice(), b"}"].concat(), parent, old));
            }
            (None, _) => others.push((at, document)),
        }
    }
    let mut edits = Vec::with_capacity(texts.len());
    for (at, (text, parent, old)) in places.iter().zip(&mut texts) {
        let Some(ScannedDocument { id, info, .. }) = documents.get(*at) else { continue };
        let (parent, old) = (parent.take(), old.take());
        edits.push((edit(id, info.deleted, parent, text)?, old));
    }
    if !edits.is_empty() {
        // The semaphore is never closed.
        let _call = calls.acquire().await.ok();
        let said = all_routed(&database.handle, instance, &edits).await?;
        for (at, judgement) in places.iter().zip(said) {
            if let (Some(document), Some(answers)) = (documents.get(*at), answers.get_mut(*at)) {
                answers.add(document, 0, judgement)?;
            }
        }
    }
    let others: Vec<BoxFuture<'_, Result<(usize, Answers)>>> = others
        .into_iter()
        .map(|(at, document)| {
            Box::pin(async move { Ok((at, all_leaves(database, instance, document, calls).await?)) }) as _
        })
        .collect();
    let mut others = iter(others).buffer_unordered(ASKED_AT_ONCE);
    while let Some((at, judged)) = others.try_next().await? {
        if let Some(answers) = answers.get_mut(at) {
            *answers = judged;
        }
    }
    drop(others);
    Ok(answers)
}

fn edit<'e>(id: &'e str, deleted: bool, parent: Option<RevId>, text: &'e [u8]) -> Result<Edit<'e>> {
    let body = parse(text, &Limits::default()).map_err(|error| Error::Corrupt(format!("body of {id:?}: {error}")))?;
    Ok(Edit { id: id.into(), parent, history: None, deleted, expiry: None, attachments: Vec::new(), body })
}

/// Judges all leaves of a document in order, each with reads of its own.
async fn all_leaves(
    database: &Reader,
    instance: &Instance,
    document: &ScannedDocument,
    calls: &Semaphore,
) -> Result<Answers> {
    let mut answers = Answers::default();
    for (at, (deleted, rev)) in document.leaves.iter().enumerate() {
        // `None`: the revision is gone, so the document has changed.
        if let Some(judgement) = leaf(database, instance, &document.id, (*deleted, rev), calls).await? {
            answers.add(document, at, judgement)?;
        }
    }
    Ok(answers)
}

async fn leaf(
    database: &Reader,
    instance: &Instance,
    id: &str,
    (deleted, rev): (bool, &RevId),
    calls: &Semaphore,
) -> Result<Option<Judgement>> {
    // The semaphores are never closed.
    let _reading = database.handle.inner.turns.judged_reads.acquire().await.ok();
    let Some(document) = revision(database, id, rev).await? else { return Ok(None) };
    let parent = document.revisions.as_ref().and_then(|revisions| revisions.get(1)).cloned();
    let old = match &parent {
        Some(parent) => revision(database, id, parent).await?,
        None => None,
    };
    let text = [b"{", document.body.as_slice(), b"}"].concat();
    let attachments = document.attachments.into_iter();
    let attachments =
        attachments.map(|attachment| (attachment.name.clone(), AttachmentEdit::Copy(attachment))).collect();
    let edit = Edit { attachments, ..edit(id, deleted, parent, &text)? };
    let _call = calls.acquire().await.ok();
    match route_edit(&database.handle, instance, &edit, old.as_ref(), None).await {
        Ok(judgement) => Ok(Some(judgement)),
        Err(Error::Refused(refusal)) => Ok(Some(Err(refusal))),
        Err(error) => Err(error),
    }
}

async fn revision(database: &Reader, id: &str, rev: &RevId) -> Result<Option<Document>> {
    let options = GetOptions { rev: Some(rev.clone()), revs: true, ..GetOptions::default() };
    match database.get(id, &options).await {
        Ok(document) => Ok(Some(document)),
        Err(Error::Refused(Refusal::DocumentNotFound(_))) => Ok(None),
        Err(error) => Err(error),
    }
}
