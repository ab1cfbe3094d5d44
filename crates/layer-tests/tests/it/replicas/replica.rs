//! Reads all leaves of a database as a replicator does, and writes them to another one.

use std::collections::{BTreeMap, HashMap};

use flatbed_layer::json::{Limits, Value, parse};
use flatbed_layer::{AttachmentEdit, Database, Edit, Error, GetOptions, OpenRevs, Refusal, RevId};

use super::model::Content;
use crate::support::{Random, all_changes, braces};

/// A leaf as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The leaf and its ancestors, newest first.
    pub line: Vec<RevId>,
    pub content: Content,
    /// The revpos of each attachment.
    pub revpos: Vec<u64>,
}

/// Returns the data of an attachment, by number.
pub fn attachment_data(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    let size = [10, 3_000, 100_000][number as usize % 3];
    (0..size).map(|_| random.below(256) as u8).collect()
}

async fn number_of(db: &Database, id: &str, rev: &RevId, name: &str) -> Result<u64, Error> {
    let mut reader = db.attachment(id, Some(rev), name).await?;
    let mut bytes = Vec::new();
    while let Some(more) = reader.next().await? {
        bytes.extend(more);
    }
    Ok((0..6).find(|number| attachment_data(*number) == bytes).expect("data that somebody uploaded"))
}

/// Reads all leaves of a document; `None` if one was removed during the read, which only happens beside writers.
pub async fn leaves(db: &Database, id: &str) -> Option<Vec<Leaf>> {
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let (mut documents, mut count) = (Vec::new(), 1);
    while documents.len() < count {
        let (found, all) = db.open_revs(id, &OpenRevs::All, documents.len(), false, &options).await.expect("read");
        count = all;
        if found.is_empty() && documents.len() < count {
            return None;
        }
        documents.extend(found.into_iter().map(|document| document.expect("a leaf")));
    }
    let mut leaves = Vec::new();
    for document in documents {
        let body = String::from_utf8(document.body).expect("UTF-8");
        let tag = body.strip_prefix(r#""tag":""#).and_then(|rest| rest.split('"').next()).unwrap_or_default().into();
        let mut attachments = Vec::new();
        for attachment in &document.attachments {
            match number_of(db, id, &document.rev, &attachment.name).await {
                Ok(number) => attachments.push((attachment.name.clone(), number)),
                Err(Error::Refused(Refusal::DocumentNotFound(_))) => return None,
                Err(error) => panic!("{id} {}: {error}", document.rev),
            }
        }
        let revpos = document.attachments.iter().map(|attachment| attachment.revpos).collect();
        let line = document.revisions.expect("its line");
        leaves.push(Leaf { line, content: Content { tag, deleted: document.deleted, body, attachments }, revpos });
    }
    leaves.sort_by(|a, b| (!b.content.deleted, &b.line[0]).cmp(&(!a.content.deleted, &a.line[0])));
    Some(leaves)
}

/// Reads all documents with all their leaves, the winner first, while there are no writers.
pub async fn everything(db: &Database) -> BTreeMap<String, Vec<Leaf>> {
    let mut documents = BTreeMap::new();
    for row in all_changes(db).await {
        let leaves = leaves(db, &row.id).await.expect("nobody writes");
        let best = &leaves[0];
        assert_eq!((&row.rev, row.deleted), (&best.line[0], best.content.deleted), "{}: the winner in by-seq", row.id);
        let tombstone = GetOptions { tombstone: true, ..GetOptions::default() };
        let shown = db.get(&row.id, &tombstone).await.expect("the winner");
        assert_eq!(
            (shown.rev, shown.deleted, braces(&shown.body)),
            (row.rev, row.deleted, format!("{{{}}}", best.content.body))
        );
        documents.insert(row.id, leaves);
    }
    documents
}

/// A revision to be written.
pub struct Write {
    pub id: String,
    pub parent: Option<RevId>,
    pub history: Option<Vec<RevId>>,
    pub content: Content,
    pub attachments: Vec<(String, AttachmentEdit)>,
    text: String,
}

impl Write {
    pub fn new(id: &str, parent: Option<RevId>, history: Option<Vec<RevId>>, content: Content) -> Write {
        let text = format!("{{{}}}", content.body);
        Write { id: id.to_owned(), parent, history, content, attachments: Vec::new(), text }
    }

    /// Uploads the data of all attachments; `revpos`: that of the source.
    pub async fn upload(&mut self, db: &Database, revpos: Option<&[u64]>) {
        for (at, (name, number)) in self.content.attachments.iter().enumerate() {
            let content_type = "application/octet-stream";
            let mut upload = db.upload(content_type, false).await.expect("an upload");
            upload.write(&attachment_data(*number)).await.expect("uploaded");
            let data = upload.finish().await.expect("uploaded");
            let revpos = revpos.map(|revpos| revpos[at]);
            let edit = AttachmentEdit::Data { content_type: content_type.into(), revpos, data };
            self.attachments.push((name.clone(), edit));
        }
    }

    pub fn edit(&self) -> Edit<'_> {
        let body: Value<'_> = parse(self.text.as_bytes(), &Limits::default()).expect("JSON");
        Edit {
            expiry: None,
            id: self.id.as_str().into(),
            parent: self.parent.clone(),
            history: self.history.clone(),
            deleted: self.content.deleted,
            attachments: self.attachments.clone(),
            body,
        }
    }
}

/// Writes all leaves to several handles of one target, in random order and parts, some twice.
pub async fn copy(source: &BTreeMap<String, Vec<Leaf>>, targets: &[Database], seed: u64) {
    let mut random = Random(seed);
    let mut rest: Vec<(String, Leaf)> = Vec::new();
    for (id, leaves) in source {
        for leaf in leaves {
            let times = if random.below(5) == 0 { 2 } else { 1 };
            rest.extend(std::iter::repeat_n((id.clone(), leaf.clone()), times));
        }
    }
    let mut tasks = Vec::new();
    while !rest.is_empty() {
        let count = 1 + random.below(40);
        let piece: Vec<_> = (0..count.min(rest.len() as u64))
            .map(|_| rest.swap_remove(random.below(rest.len() as u64) as usize))
            .collect();
        let db = targets[random.below(targets.len() as u64) as usize].clone();
        tasks.push(tokio::spawn(async move {
            let mut writes = Vec::new();
            for (id, leaf) in piece {
                let mut write = Write::new(&id, None, Some(leaf.line), leaf.content);
                write.upload(&db, Some(&leaf.revpos)).await;
                writes.push(write);
            }
            let edits: Vec<_> = writes.iter().map(Write::edit).collect();
            for (write, result) in writes.iter().zip(db.bulk_update(&edits).await.expect("bulk")) {
                let expected = write.history.as_ref().and_then(|path| path.first());
                assert_eq!(Some(&result.expect("replicated").rev), expected, "{}", write.id);
            }
        }));
        if tasks.len() > 6 {
            tasks.remove(0).await.expect("a piece");
        }
    }
    for task in tasks {
        task.await.expect("a piece");
    }
}

/// Checks that both have the same documents, leaf for leaf. A line may be longer in the copy, if branches of the source
/// were shortened at different times, but never shorter or different.
pub fn assert_equal(source: &BTreeMap<String, Vec<Leaf>>, copy: &BTreeMap<String, Vec<Leaf>>, lines_too: bool) {
    assert_eq!(source.keys().collect::<Vec<_>>(), copy.keys().collect::<Vec<_>>());
    for (id, leaves) in source {
        let tips = |leaves: &[Leaf]| leaves.iter().map(|leaf| leaf.line[0].clone()).collect::<Vec<_>>();
        assert_eq!(tips(leaves), tips(&copy[id]), "{id}: leaves, the winner first");
        let copies: HashMap<_, _> = copy[id].iter().map(|leaf| (&leaf.line[0], leaf)).collect();
        for leaf in leaves {
            let other = copies[&leaf.line[0]];
            assert_eq!(leaf.content, other.content, "{id} {}", leaf.line[0]);
            assert_eq!(leaf.revpos, other.revpos, "{id} {}", leaf.line[0]);
            if lines_too {
                assert_eq!(leaf.line, other.line, "{id}");
            } else {
                assert!(other.line.starts_with(&leaf.line), "{id}: {:?} became {:?}", leaf.line, other.line);
            }
        }
    }
}
