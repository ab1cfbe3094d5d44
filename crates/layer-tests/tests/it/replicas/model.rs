//! The knowledge of the test's tasks: attempted and acknowledged writes, and parents of revisions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use flatbed_layer::RevId;

use super::replica::Leaf;
use crate::support::Random;

/// The content of a revision, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// A tag in the body; unique for each write except for tombstones without a body, which have none.
    pub tag: String,
    pub deleted: bool,
    /// The members as JSON text, without braces.
    pub body: String,
    /// Names, and the numbers of their data.
    pub attachments: Vec<(String, u64)>,
}

impl Content {
    pub fn new(tag: String, deleted: bool, random: &mut Random) -> Content {
        let size = match random.below(200) {
            0 => 430_000,
            1..5 => 20_000,
            5..30 => 4_000,
            _ => random.below(100),
        };
        let fill: String = (0..size).map(|_| char::from(b"abcdefghijklmnop"[random.below(16) as usize])).collect();
        let count = if deleted { 0 } else { 2_u64.saturating_sub(random.below(12)) };
        let attachments = (0..count).map(|number| (format!("a{number}"), random.below(6))).collect();
        Content { body: format!(r#""tag":"{tag}","fill":"{fill}""#), tag, deleted, attachments }
    }

    /// Creates the tombstone of a client that sends only `_deleted`.
    pub fn bare_tombstone() -> Content {
        Content { tag: String::new(), deleted: true, body: String::new(), attachments: Vec::new() }
    }
}

fn tag_of(body: &str) -> &str {
    body.strip_prefix(r#""tag":""#).and_then(|rest| rest.split('"').next()).unwrap_or_default()
}

/// The expectation for a document at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Consistent histories: each acknowledged revision must exist.
    Honest,
    /// Some of its leaves are purged.
    Purged,
    /// Its replicas contradict each other about parents.
    Contradictory,
}

pub fn kind(id: &str) -> Kind {
    match id.as_bytes().first() {
        Some(b'p') => Kind::Purged,
        Some(b'c') => Kind::Contradictory,
        _ => Kind::Honest,
    }
}

#[derive(Debug, Default)]
pub struct Known {
    /// The parents of revisions, as far as a path has named them.
    parents: HashMap<RevId, RevId>,
    attempted: HashMap<String, Content>,
    /// Revisions with settled content: acknowledged ones, and those of other replicas.
    contents: HashMap<RevId, Content>,
    acknowledged: HashSet<RevId>,
    /// Revisions on which a write was made or attempted.
    built_on: HashSet<RevId>,
    /// Revisions of other replicas.
    foreign: Vec<RevId>,
    /// True if a write of it has an unknown result.
    is_in_doubt: bool,
}

impl Known {
    /// Returns the revision and its known ancestors, newest first.
    pub fn line(&self, rev: &RevId) -> Vec<RevId> {
        let mut line = vec![rev.clone()];
        while let Some(parent) = line.last().and_then(|last| self.parents.get(last)) {
            line.push(parent.clone());
        }
        line
    }

    pub fn content(&self, rev: &RevId) -> Option<&Content> {
        self.contents.get(rev)
    }

    /// Records a write before it is sent.
    pub fn attempt(&mut self, content: &Content, built_on: impl IntoIterator<Item = RevId>) {
        self.attempted.insert(content.tag.clone(), content.clone());
        self.built_on.extend(built_on);
    }

    /// Records an acknowledged write.
    pub fn acknowledge(&mut self, rev: RevId, parent: Option<&RevId>, content: &Content) {
        if let Some(parent) = parent {
            self.parents.insert(rev.clone(), parent.clone());
        }
        if let Some(before) = self.contents.insert(rev.clone(), content.clone()) {
            assert_eq!(before, *content, "{rev} was made with two contents");
        }
        self.acknowledged.insert(rev);
    }

    /// Records a write with an unknown result.
    pub fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// Makes a revision of another replica, on one from here or on one of its own.
    pub fn make_foreign(&mut self, tag: String, kind: Kind, random: &mut Random) -> RevId {
        let mut candidates: Vec<RevId> = self.contents.keys().cloned().collect();
        // The order of a map differs between runs.
        candidates.sort_unstable();
        candidates.reverse();
        let parent = match random.below(8) {
            0 => None,
            // Late ones more often than early ones.
            _ => candidates.get(random.below(1 + random.clone().below(1 + candidates.len() as u64)) as usize).cloned(),
        };
        let generation = parent.as_ref().map_or(0, RevId::generation) + 1;
        if kind == Kind::Contradictory {
            let rev: RevId =
                format!("{}-{}", 1 + random.below(8), ["a", "b", "c", "d"][random.below(4) as usize]).parse().unwrap();
            if !self.contents.contains_key(&rev) {
                let deleted = random.below(4) == 0;
                self.contents.insert(rev.clone(), Content::new(tag, deleted, random));
                self.foreign.push(rev.clone());
            }
            return rev;
        }
        let hash = match random.below(20) {
            0 => format!("{tag}-{}", "z".repeat(400)),
            1..8 => tag.clone(),
            _ => format!("{:016x}{:016x}", random.below(u64::MAX), random.below(u64::MAX)),
        };
        let rev: RevId = format!("{generation}-{hash}").parse().unwrap();
        if let Some(parent) = parent {
            self.parents.insert(rev.clone(), parent);
        }
        let deleted = random.below(4) == 0;
        self.contents.insert(rev.clone(), Content::new(tag, deleted, random));
        self.foreign.push(rev.clone());
        rev
    }

    /// Returns an earlier revision of another replica.
    pub fn any_foreign(&self, random: &mut Random) -> Option<RevId> {
        self.foreign.get(random.below(1 + self.foreign.len() as u64) as usize).cloned()
    }

    /// Returns the path with which another replica presents a revision: all known ancestors, or only the nearest.
    pub fn path(&self, rev: &RevId, kind: Kind, random: &mut Random) -> Vec<RevId> {
        let mut path = self.line(rev);
        if kind == Kind::Contradictory {
            let below = (1..rev.generation()).rev();
            let any = |generation| format!("{generation}-{}", ["a", "b", "c", "d"][random.below(4) as usize]);
            path.truncate(1);
            path.extend(below.map(any).map(|rev| rev.parse::<RevId>().unwrap()));
        }
        if random.below(5) < 2 {
            path.truncate(1 + random.below(path.len() as u64) as usize);
        }
        path
    }

    /// Checks the result of a read: a write must have made it, and no earlier result may contradict it.
    pub fn look_at(&mut self, id: &str, leaf: &Leaf) {
        let rev = &leaf.line[0];
        let tag = tag_of(&leaf.content.body);
        let attempted = self.attempted.get(tag).unwrap_or_else(|| panic!("{id} {rev}: nobody wrote {tag:?}"));
        assert!(*attempted == leaf.content, "{id} {rev} is not as it was written: {:?}", leaf.content);
        if let Some(settled) = self.contents.get(rev) {
            assert!(*settled == leaf.content, "{id} {rev} has the content of another revision: {:?}", leaf.content);
        }
        if kind(id) == Kind::Contradictory {
            return;
        }
        for (child, parent) in leaf.line.iter().zip(leaf.line.iter().skip(1)) {
            let known = self.parents.entry(child.clone()).or_insert_with(|| parent.clone());
            assert_eq!(known, parent, "{id}: the parent of {child}");
        }
    }

    /// Checks the end: every acknowledged revision exists, down to the smallest limit of revisions, and no other one
    /// does, since a write that was applied twice, or refused after it was applied, would be unknown here.
    pub fn account(&self, id: &str, leaves: &[Leaf], revs_limit_min: u64) {
        let present: HashSet<&RevId> = leaves.iter().flat_map(|leaf| &leaf.line).collect();
        let tips: HashSet<&RevId> = leaves.iter().map(|leaf| &leaf.line[0]).collect();
        // Only the tree knows the ancestors of a contradiction, and it forgets those beyond the limit.
        if kind(id) == Kind::Purged || (kind(id) == Kind::Contradictory && revs_limit_min < 30) {
            return;
        }
        if kind(id) == Kind::Honest && !self.is_in_doubt {
            let unknown = present.iter().find(|rev| !self.contents.contains_key(rev));
            assert!(unknown.is_none(), "{id}: {unknown:?} is there, and was acknowledged to nobody");
        }
        let lines: Vec<Vec<RevId>> = tips.iter().map(|tip| self.line(tip)).collect();
        for rev in &self.acknowledged {
            if !present.contains(rev) {
                let is_stemmed = lines.iter().any(|line| {
                    line.iter().position(|other| other == rev).is_some_and(|depth| depth as u64 >= revs_limit_min)
                });
                assert!(is_stemmed, "{id}: {rev} was acknowledged, and is neither a leaf nor below one: {tips:?}");
            }
            let content = &self.contents[rev];
            // A write that named no parent may have extended a tombstone.
            if kind(id) == Kind::Honest && !content.deleted && !self.built_on.contains(rev) {
                assert!(tips.contains(rev), "{id}: nobody wrote on {rev}, and it is no leaf: {tips:?}");
            }
        }
    }
}

/// The model, shared by all tasks.
#[derive(Debug, Clone, Default)]
pub struct Model(Arc<Mutex<BTreeMap<String, Known>>>);

impl Model {
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap()
    }

    /// Locks the knowledge of a document for a moment.
    pub fn of<T>(&self, id: &str, look: impl FnOnce(&mut Known) -> T) -> T {
        look(self.lock().entry(id.to_owned()).or_default())
    }
}
