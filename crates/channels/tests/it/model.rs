//! A model of a database in memory: documents, their channels, and a user whose channels change.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{
    ChannelEntry, DirectGrant, DocumentState, FeedRow, FeedScope, GrantedItem, HeldChannels, Merge, MergeStep, Periods,
    Position, RoleRows, Source, Stamp,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A document changes, and grants the user a channel; without channels only users with all channels see it.
    Write { doc: usize, channels: BTreeSet<String>, deleted: bool, gives: Option<String> },
    /// The document's channels are computed again, or an edit repeats it.
    Again { doc: usize },
    /// The document is purged.
    Purge { doc: usize },
    /// One of several granters grants the user a channel.
    Give { channel: String, by: usize },
    /// The granter revokes it.
    Take { channel: String, by: usize },
    /// The user's role gets a channel, or loses it.
    Role { channel: String, has: bool },
    /// The user is added to the role, or removed.
    Member { is: bool },
    /// The role is created, or deleted.
    Exists { does: bool },
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let channel = || "[A-D!*]";
    prop_oneof![
        8 => (0..6_usize, prop::collection::btree_set("[A-D!*]", 0..4), prop::bool::weighted(0.2), prop::option::weighted(0.2, channel()))
            .prop_map(|(doc, channels, deleted, gives)| Event::Write { doc, channels, deleted, gives }),
        1 => (0..6_usize).prop_map(|doc| Event::Again { doc }),
        1 => (0..6_usize).prop_map(|doc| Event::Purge { doc }),
        3 => (channel(), 0..2_usize).prop_map(|(channel, by)| Event::Give { channel, by }),
        2 => (channel(), 0..2_usize).prop_map(|(channel, by)| Event::Take { channel, by }),
        1 => ("[A-D]", any::<bool>()).prop_map(|(channel, has)| Event::Role { channel, has }),
        1 => any::<bool>().prop_map(|is| Event::Member { is }),
        1 => any::<bool>().prop_map(|does| Event::Exists { does }),
    ]
}

/// The granters are numbered: administrators first, documents from here on.
const BY_DOCUMENTS: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Database {
    pub(crate) docs: BTreeMap<usize, DocumentState>,
    /// Each channel with its granter.
    given: BTreeSet<(String, usize)>,
    own: BTreeMap<String, Periods>,
    role: BTreeMap<String, Periods>,
    role_exists: Periods,
    member: Periods,
    pub(crate) seq: u64,
    /// All documents that the user has ever seen, and the tombstones.
    pub(crate) ever_seen: BTreeSet<String>,
}

impl Database {
    pub(crate) fn last_seq(&self) -> Stamp {
        Stamp::of(self.seq)
    }

    pub(crate) fn held(&self) -> HeldChannels {
        let row = |what, periods: &Periods| DirectGrant { what, periods: periods.clone() };
        let rows = self.own.iter().map(|(channel, periods)| row(GrantedItem::Channel(channel.clone()), periods));
        HeldChannels::of(rows.chain([row(GrantedItem::Role("r".into()), &self.member)]), |_| {
            let channels = self.role.iter().map(|(name, periods)| (name.clone(), periods.clone())).collect();
            Some(RoleRows { exists: self.role_exists.clone(), channels })
        })
    }

    pub(crate) fn scope(&self, with_lost: bool) -> FeedScope {
        FeedScope { held: self.held(), revocations: with_lost, user: None, active_only: false }
    }

    /// The visible documents without tombstones, by revision.
    pub(crate) fn seen(&self) -> BTreeMap<String, String> {
        let held = self.held();
        let seen = self
            .docs
            .iter()
            .filter(|(_, state)| !state.deleted && held.can_see(state.channels.iter().map(String::as_str)));
        seen.map(|(doc, state)| (doc.to_string(), state.rev.clone())).collect()
    }

    /// True if the event does not change the user's channels.
    pub(crate) fn changes_documents_alone(&self, event: &Event) -> bool {
        match event {
            Event::Again { .. } => true,
            Event::Write { doc, gives: None, .. } => !self.given.iter().any(|(_, by)| *by == BY_DOCUMENTS + doc),
            _ => false,
        }
    }

    pub(crate) fn happens(&mut self, event: &Event) {
        self.seq += 1;
        let seq = self.last_seq();
        let change = |periods: &mut Periods, has: bool| {
            let before = std::mem::take(periods);
            *periods = if has { before.given(seq) } else { before.taken(seq) };
        };
        match event {
            Event::Write { doc, channels, deleted, gives } => {
                self.write(*doc, channels.clone(), *deleted);
                let by = BY_DOCUMENTS + doc;
                let (gone, left): (BTreeSet<_>, _) =
                    std::mem::take(&mut self.given).into_iter().partition(|(_, other)| *other == by);
                self.given = left;
                let known: Vec<String> = gone.into_iter().map(|(channel, _)| channel).chain(gives.clone()).collect();
                self.given.extend(gives.clone().map(|channel| (channel, by)));
                for channel in known {
                    let is_given = self.given.iter().any(|(given, _)| *given == channel);
                    change(self.own.entry(channel).or_default(), is_given);
                }
            }
            Event::Again { doc } => {
                if let Some(DocumentState { channels, deleted, .. }) = self.docs.get(doc).cloned() {
                    self.write(*doc, channels, deleted);
                }
            }
            Event::Purge { doc } => {
                self.docs.remove(doc);
            }
            Event::Give { channel, by } => {
                self.given.insert((channel.clone(), *by));
                change(self.own.entry(channel.clone()).or_default(), true);
            }
            Event::Take { channel, by } => {
                self.given.remove(&(channel.clone(), *by));
                let is_given = self.given.iter().any(|(given, _)| given == channel);
                change(self.own.entry(channel.clone()).or_default(), is_given);
            }
            Event::Role { channel, has } => change(self.role.entry(channel.clone()).or_default(), *has),
            Event::Member { is } => change(&mut self.member, *is),
            Event::Exists { does } => change(&mut self.role_exists, *does),
        }
        let held = self.held();
        let seen = self.docs.iter().filter(|(_, state)| held.can_see(state.channels.iter().map(String::as_str)));
        self.ever_seen.extend(seen.map(|(doc, _)| doc.to_string()));
    }

    fn write(&mut self, doc: usize, channels: BTreeSet<String>, deleted: bool) {
        let before = self.docs.get(&doc);
        let (state, _) = DocumentState::changed(before, self.last_seq(), format!("{}-x", self.seq), deleted, channels);
        self.docs.insert(doc, state);
    }

    /// The entries of a channel's index, or of all documents.
    fn entries(&self, source: &Source, few: bool) -> Vec<(Stamp, ChannelEntry)> {
        let mut entries = Vec::new();
        for (doc, state) in &self.docs {
            let channels = few.then(|| state.channels.iter().cloned().collect::<Vec<_>>());
            let entry = |rev: &String, deleted, removed, channels| ChannelEntry {
                doc: doc.to_string(),
                rev: rev.clone(),
                deleted,
                removed,
                channels,
                ends_at_ms: None,
            };
            let is_in = match source {
                Source::All => true,
                Source::Channel(channel) => state.channels.contains(channel),
            };
            if is_in {
                entries.push((state.seq, entry(&state.rev, state.deleted, false, channels)));
            } else if let Source::Channel(channel) = source {
                entries
                    .extend(state.left.get(channel).map(|left| (left.seq, entry(&left.rev, left.deleted, true, None))));
            }
        }
        entries.sort_by_key(|(seq, _)| *seq);
        entries
    }
}

/// Reads at most `limit` rows of a feed in small pages of storage, with the events of `meanwhile` between them.
pub(crate) fn read(
    database: &mut Database,
    scope: FeedScope,
    since: Position,
    limit: usize,
    few: bool,
    mut meanwhile: impl FnMut(&mut Database),
) -> (Vec<FeedRow>, Position) {
    let mut merge = Merge::new(scope, since, database.last_seq());
    let mut rows = Vec::new();
    while rows.len() < limit {
        match merge.step() {
            MergeStep::Row(row) => {
                rows.push(row);
                // As a caller that keeps an idle merge does.
                merge.forget_beyond(rows.len() % 4);
                assert!(merge.held_entries() <= rows.len() % 4);
            }
            MergeStep::Ask(asked) => {
                let state = asked.doc.parse().ok().and_then(|doc: usize| database.docs.get(&doc));
                rows.extend(merge.answer(&asked, state));
            }
            MergeStep::Read => {
                // Two rows of the first two streams that want any; at times also of streams that hold an entry.
                let low = rows.len() % 3;
                let wants: Vec<_> = merge
                    .wants(|_| low)
                    .into_iter()
                    .take(2)
                    .map(|want| (want.stream, want.source.clone(), want.after, want.until))
                    .collect();
                assert!(!wants.is_empty(), "something is to be read");
                for (stream, source, after, until) in wants {
                    let entries = database.entries(&source, few);
                    let mut left = entries.into_iter().filter(|(seq, _)| *seq > after && *seq <= until);
                    let page: Vec<_> = left.by_ref().take(2).collect();
                    let at_end = left.next().is_none();
                    merge.give(stream, page, at_end);
                }
                meanwhile(database);
            }
            MergeStep::End => break,
        }
    }
    (rows, merge.stands())
}
