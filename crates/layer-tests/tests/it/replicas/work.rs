//! The concurrent tasks of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flatbed_layer::{AttachmentEdit, Database, Error, GetOptions, OpenRevs, Refusal, RevId};

use super::model::{Content, Kind, Model, kind};
use super::replica::{Write, leaves};
use crate::support::{Layer, Random};

/// One of the tasks.
pub struct Worker {
    pub layer: Layer,
    pub db: Database,
    pub random: Random,
    pub model: Model,
    /// The limits of revisions to choose from.
    pub revs_limits: Vec<u64>,
    /// Unique among concurrent tasks.
    pub number: u64,
    /// The next number of a tag.
    pub next: Arc<AtomicU64>,
}

impl Worker {
    pub async fn run(mut self, operations: u64) {
        for _ in 0..operations {
            match self.random.below(100) {
                0..8 => self.edit_own().await,
                8..25 => self.edit_leaf().await,
                25..37 => self.delete_leaf().await,
                37..42 => self.resolve().await,
                42..52 => self.create().await,
                52..77 => self.replicate().await,
                77..85 => self.bulk().await,
                85..92 => self.look().await,
                92..97 => self.purge().await,
                97..99 => self.db.compact().await.expect("a compaction begins"),
                _ => self.maintain().await,
            }
        }
    }

    fn any_id(&mut self) -> String {
        match self.random.below(24) {
            20 | 21 => format!("p{}", self.random.below(3)),
            22 | 23 => format!("c{}", self.random.below(2)),
            number => format!("d{number:02}"),
        }
    }

    fn tag(&mut self) -> String {
        format!("t{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn content(&mut self, deleted: bool) -> Content {
        if deleted && self.random.below(2) == 0 {
            return Content::bare_tombstone();
        }
        let tag = self.tag();
        Content::new(tag, deleted, &mut self.random)
    }

    async fn tips(&self, id: &str) -> Vec<(RevId, bool)> {
        let options = GetOptions { no_body: true, ..GetOptions::default() };
        let (found, _) = self.db.open_revs(id, &OpenRevs::All, 0, false, &options).await.expect("read");
        found.into_iter().flatten().map(|document| (document.rev, document.deleted)).collect()
    }

    async fn any_leaf(&mut self, id: &str, living: bool) -> Option<RevId> {
        let mut tips = self.tips(id).await;
        tips.retain(|(_, deleted)| !living || !deleted);
        if tips.is_empty() {
            return None;
        }
        Some(tips.swap_remove(self.random.below(tips.len() as u64) as usize).0)
    }

    /// Makes an edit as a client does, with new attachments or those of the parent.
    async fn write(&mut self, id: &str, parent: Option<RevId>, mut content: Content) -> Write {
        let before = parent.as_ref().and_then(|parent| self.model.of(id, |known| known.content(parent).cloned()));
        let keeps = before.filter(|before| !before.attachments.is_empty() && !content.deleted);
        if let Some(before) = keeps.filter(|_| self.random.below(2) == 0) {
            content.attachments.clone_from(&before.attachments);
            let mut write = Write::new(id, parent, None, content);
            let stub = |(name, _): &(String, u64)| (name.clone(), AttachmentEdit::Stub { revpos: None });
            write.attachments = before.attachments.iter().map(stub).collect();
            return write;
        }
        let mut write = Write::new(id, parent, None, content);
        write.upload(&self.db, None).await;
        write
    }

    /// Writes, and records acknowledged writes.
    async fn send(&mut self, writes: Vec<Write>) {
        for write in &writes {
            self.model.of(&write.id, |known| {
                let ancestors = write.history.as_ref().and_then(|path| path.first()).map(|rev| known.line(rev));
                let ancestors = ancestors.into_iter().flatten().skip(1);
                known.attempt(&write.content, write.parent.iter().cloned().chain(ancestors).collect::<Vec<_>>());
            });
        }
        let edits: Vec<_> = writes.iter().map(Write::edit).collect();
        let results = match edits.as_slice() {
            // As a client with one document to write.
            [edit] => match self.db.update(edit).await {
                Ok(updated) => Ok(vec![Ok(updated)]),
                Err(Error::Refused(refusal)) => Ok(vec![Err(refusal)]),
                Err(error) => Err(error),
            },
            _ => self.db.bulk_update(&edits).await,
        };
        let results = match results {
            // On a slow machine a write is given up after half a minute, and its result is unknown.
            Err(Error::Storage(error)) => {
                println!("  a write was given up: {error}");
                writes.iter().for_each(|write| self.model.of(&write.id, |known| known.doubt()));
                return;
            }
            results => results.expect("a bulk"),
        };
        for (write, result) in writes.iter().zip(results) {
            match result {
                Ok(updated) => {
                    self.model.of(&write.id, |known| {
                        known.acknowledge(updated.rev.clone(), write.parent.as_ref(), &write.content);
                    });
                    if write.parent.is_none() && write.history.is_none() && updated.rev.generation() > 1 {
                        self.learn(&write.id, &updated.rev).await;
                    }
                }
                Err(Refusal::UploadSwept) => discard(&self.db, write).await,
                Err(Refusal::Conflict) if write.history.is_none() => discard(&self.db, write).await,
                // The parent was purged with its attachments.
                Err(Refusal::MissingStub { .. }) if kind(&write.id) == Kind::Purged => discard(&self.db, write).await,
                Err(error) => panic!("{}: {error}", write.id),
            }
        }
    }

    /// Reads the parent of a write that named none.
    async fn learn(&self, id: &str, rev: &RevId) {
        let options = GetOptions { no_body: true, revs: true, latest: true, ..GetOptions::default() };
        let wanted = OpenRevs::Some(vec![rev.clone()]);
        let (found, _) = self.db.open_revs(id, &wanted, 0, false, &options).await.expect("read");
        for document in found.into_iter().flatten() {
            let line = document.revisions.expect("its line");
            if let Some(at) = line.iter().position(|other| other == rev)
                && let Some(parent) = line.get(at + 1)
            {
                let content = self.model.of(id, |known| known.content(rev).cloned()).expect("acknowledged");
                self.model.of(id, |known| known.acknowledge(rev.clone(), Some(parent), &content));
            }
        }
    }

    /// Edits a document that no other task writes: each edit must succeed.
    async fn edit_own(&mut self) {
        let id = format!("o{:02}", self.number);
        let mut parent = self.any_leaf(&id, false).await;
        for _ in 0..4 {
            let content = self.content(false);
            let write = Write::new(&id, parent.clone(), None, Content { attachments: Vec::new(), ..content });
            self.send(vec![write]).await;
            let made = self.any_leaf(&id, false).await;
            assert!(made.is_some() && made != parent, "{id}: nobody else edits {parent:?}");
            parent = made;
        }
    }

    async fn edit_leaf(&mut self) {
        let id = self.any_id();
        let Some(parent) = self.any_leaf(&id, false).await else { return };
        let content = self.content(false);
        let write = self.write(&id, Some(parent), content).await;
        self.send(vec![write]).await;
    }

    async fn delete_leaf(&mut self) {
        let id = self.any_id();
        let Some(parent) = self.any_leaf(&id, true).await else { return };
        let content = self.content(true);
        let write = self.write(&id, Some(parent), content).await;
        self.send(vec![write]).await;
    }

    /// Deletes all conflicting leaves but one in one request of several edits of the document.
    async fn resolve(&mut self) {
        let id = self.any_id();
        let mut tips = self.tips(&id).await;
        tips.retain(|(_, deleted)| !deleted);
        let mut writes = Vec::new();
        for (parent, _) in tips.into_iter().skip(1) {
            let content = self.content(true);
            writes.push(self.write(&id, Some(parent), content).await);
        }
        self.send(writes).await;
    }

    /// Writes a document's first revision, or one on its tombstone.
    async fn create(&mut self) {
        let id = self.any_id();
        let content = self.content(false);
        let write = self.write(&id, None, content).await;
        self.send(vec![write]).await;
    }

    /// Writes revisions of other replicas, new and repeated ones.
    async fn replicate(&mut self) {
        let mut writes = Vec::new();
        let ids = 1 + self.random.below(3);
        for _ in 0..ids {
            let id = self.any_id();
            let kind = kind(&id);
            let tags: Vec<String> = (0..1 + self.random.below(4)).map(|_| self.tag()).collect();
            let random = &mut self.random;
            self.model.of(&id, |known| {
                let mut revs: Vec<RevId> = tags.into_iter().map(|tag| known.make_foreign(tag, kind, random)).collect();
                revs.extend(known.any_foreign(random));
                // The omitted ones are known only by their descendants, until they come.
                revs.retain(|_| random.below(3) > 0);
                for rev in revs {
                    let path = known.path(&rev, kind, random);
                    let content = known.content(&rev).cloned().expect("made");
                    writes.push(Write::new(&id, None, Some(path), content));
                }
            });
        }
        for write in &mut writes {
            write.upload(&self.db, None).await;
        }
        self.send(writes).await;
    }

    /// Edits many documents in one request.
    async fn bulk(&mut self) {
        let mut writes = Vec::new();
        for _ in 0..6 {
            let id = self.any_id();
            let parent = self.any_leaf(&id, false).await;
            let deleted = parent.is_some() && self.random.below(3) == 0;
            let content = self.content(deleted);
            writes.push(self.write(&id, parent, content).await);
        }
        self.send(writes).await;
    }

    /// Reads all current leaves of a document.
    async fn look(&mut self) {
        let id = self.any_id();
        // A purged revision may come again with another body.
        if kind(&id) != Kind::Honest {
            return;
        }
        for leaf in leaves(&self.db, &id).await.unwrap_or_default() {
            self.model.of(&id, |known| known.look_at(&id, &leaf));
        }
    }

    async fn purge(&mut self) {
        let id = format!("p{}", self.random.below(3));
        let tips: Vec<RevId> = self.tips(&id).await.into_iter().map(|(rev, _)| rev).collect();
        let wanted: Vec<RevId> = tips.into_iter().filter(|_| self.random.below(2) == 0).collect();
        // Sometimes it is dropped in between, as by a crash.
        let patience = if self.random.below(3) == 0 { self.random.below(30) } else { 60_000 };
        let purge = self.db.purge(&id, &wanted);
        let Ok(purged) = tokio::time::timeout(Duration::from_millis(patience), purge).await else { return };
        let purged = purged.expect("purged");
        assert!(purged.iter().all(|rev| wanted.contains(rev)), "{purged:?} of {wanted:?}");
    }

    async fn maintain(&mut self) {
        if self.random.below(4) == 0 {
            self.layer.sweep_broken_uploads(Duration::ZERO).await.expect("swept");
        }
        let limit = self.revs_limits[self.random.below(self.revs_limits.len() as u64) as usize];
        self.db.set_revs_limit(limit).await.expect("set");
    }
}

async fn discard(db: &Database, write: &Write) {
    for (_, edit) in &write.attachments {
        if let AttachmentEdit::Data { data, .. } = edit {
            db.discard(data).await;
        }
    }
}
