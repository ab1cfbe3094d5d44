//! What a change of its winner does to a document's channels.

use std::collections::{BTreeMap, BTreeSet};

use crate::held::Periods;
use crate::position::Stamp;

/// What channels know of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentState {
    /// Of its newest change.
    pub seq: Stamp,
    /// Its winner.
    pub rev: String,
    /// Whether that is a tombstone.
    pub deleted: bool,
    /// The channels of the winner.
    pub channels: BTreeSet<String>,
    /// Since which change it is in each of them without a break, where that is known.
    pub since: BTreeMap<String, Stamp>,
    /// Those that it was in before.
    pub left: BTreeMap<String, Left>,
    /// When it was in channels before that, of those that it is in and of those that it has left: what is remembered of it.
    pub earlier: BTreeMap<String, Periods>,
    /// Since which change there is the document, where that is known: what is in no channel is seen by who has all.
    pub born: Option<Stamp>,
}

/// That a document has left a channel. Later edits leave it as it is, until the document enters the channel again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Of the change with which it did.
    pub seq: Stamp,
    /// The winner since then.
    pub rev: String,
    /// Whether that is a tombstone.
    pub deleted: bool,
    /// Since which change the document had been in the channel, where that is known.
    pub since: Option<Stamp>,
}

/// What a change does to entries of channels: each of a channel and a sequence. What is entered has the change's sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// Entries that go: of the channels that the document was in, and of those that it left and is in again.
    pub cleared: Vec<(String, Stamp)>,
    /// Channels that it is in.
    pub entered: Vec<String>,
    /// Channels that it leaves: an entry that says so, and the one in the document's own map.
    pub left: Vec<String>,
    /// Channels that it had left: their entries in the document's own map go.
    pub returned: Vec<String>,
}

/// The channels that a document is in, before and behind a change, and those that it had left, each with the sequence of that.
///
/// A tombstone is in the channels that were said of it, as any revision.
pub fn moves<'a>(
    before: Option<(&BTreeSet<String>, Stamp)>,
    left: impl IntoIterator<Item = (&'a str, Stamp)>,
    after: &BTreeSet<String>,
) -> Moves {
    let mut moves = Moves { entered: after.iter().cloned().collect(), ..Moves::default() };
    if let Some((channels, seq)) = before {
        moves.cleared.extend(channels.iter().map(|channel| (channel.clone(), seq)));
        moves.left.extend(channels.difference(after).cloned());
    }
    for (channel, seq) in left {
        if after.contains(channel) {
            moves.cleared.push((channel.to_owned(), seq));
            moves.returned.push(channel.to_owned());
        }
    }
    moves
}

impl DocumentState {
    /// A document's state behind a change, and what the change does.
    pub fn changed(
        before: Option<&DocumentState>,
        seq: Stamp,
        rev: impl Into<String>,
        deleted: bool,
        channels: BTreeSet<String>,
    ) -> (DocumentState, Moves) {
        let rev = rev.into();
        let mut left = before.map(|state| state.left.clone()).unwrap_or_default();
        let moves = moves(
            before.map(|state| (&state.channels, state.seq)),
            left.iter().map(|(channel, left)| (&**channel, left.seq)),
            &channels,
        );
        let mut earlier = before.map(|state| state.earlier.clone()).unwrap_or_default();
        for channel in &moves.returned {
            if let Some((from, gone)) = left.get(channel).and_then(|left| Some((left.since?, left.seq))) {
                let known = earlier.entry(channel.clone()).or_default();
                *known = std::mem::take(known).and_from(from, gone);
            }
        }
        left.retain(|channel, _| !channels.contains(channel));
        let was_since = |channel: &str| before.and_then(|before| before.since.get(channel)).copied();
        let gone = |channel: &String| Left { seq, rev: rev.clone(), deleted, since: was_since(channel) };
        left.extend(moves.left.iter().map(|channel| (channel.clone(), gone(channel))));
        // Of one that it was in and of which nobody knows since when, nobody does.
        let is_new = |channel: &String| before.is_none_or(|before| !before.channels.contains(channel));
        let since = channels
            .iter()
            .filter_map(|channel| Some((channel.clone(), if is_new(channel) { seq } else { was_since(channel)? })));
        let since = since.collect();
        let born = before.map_or(Some(seq), |before| before.born);
        (DocumentState { seq, rev, deleted, channels, since, left, earlier, born }, moves)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_document_that_comes_and_goes() {
        let (first, moves) = DocumentState::changed(None, Stamp::of(1), "1-a", false, set(&["A", "B"]));
        assert_eq!(moves, Moves { entered: vec!["A".into(), "B".into()], ..Moves::default() });
        let (second, moves) = DocumentState::changed(Some(&first), Stamp::of(2), "2-b", false, set(&["B"]));
        assert_eq!(
            moves,
            Moves {
                cleared: vec![("A".into(), Stamp::of(1)), ("B".into(), Stamp::of(1))],
                entered: vec!["B".into()],
                left: vec!["A".into()],
                returned: Vec::new(),
            }
        );
        let since =
            |first: &DocumentState| first.since.iter().map(|(name, at)| (name.clone(), *at)).collect::<Vec<_>>();
        assert_eq!(since(&second), [("B".to_owned(), Stamp::of(1))]);
        let gone = Left { seq: Stamp::of(2), rev: "2-b".into(), deleted: false, since: Some(Stamp::of(1)) };
        assert_eq!(second.left, [("A".to_owned(), gone.clone())].into());
        // What was left stays as it is.
        let (third, _) = DocumentState::changed(Some(&second), Stamp::of(3), "3-c", true, set(&[]));
        let deleted = Left { seq: Stamp::of(3), rev: "3-c".into(), deleted: true, since: Some(Stamp::of(1)) };
        assert_eq!(third.left, [("A".to_owned(), gone), ("B".to_owned(), deleted)].into());
        let (fourth, moves) = DocumentState::changed(Some(&third), Stamp::of(4), "4-d", false, set(&["A"]));
        assert_eq!(
            moves,
            Moves {
                cleared: vec![("A".into(), Stamp::of(2))],
                entered: vec!["A".into()],
                left: Vec::new(),
                returned: vec!["A".into()],
            }
        );
        assert_eq!(fourth.left.keys().collect::<Vec<_>>(), ["B"]);
        assert_eq!(since(&fourth), [("A".to_owned(), Stamp::of(4))], "it was away");
        let earlier = Periods::default().and_from(Stamp::of(1), Stamp::of(2));
        assert_eq!((&fourth.earlier, fourth.born), (&[("A".to_owned(), earlier)].into(), Some(Stamp::of(1))));
        // What is not known stays so.
        let (old, _) = DocumentState::changed(None, Stamp::of(1), "1-a", false, set(&["A", "B"]));
        let old = DocumentState { since: BTreeMap::new(), born: None, ..old };
        let (next, _) = DocumentState::changed(Some(&old), Stamp::of(2), "2-b", false, set(&["A", "C"]));
        assert_eq!((since(&next), next.left["B"].since), (vec![("C".to_owned(), Stamp::of(2))], None));
        let (back, _) = DocumentState::changed(Some(&next), Stamp::of(3), "3-c", false, set(&["B"]));
        assert_eq!((back.earlier, back.born), (BTreeMap::new(), None));
    }

    proptest! {
        /// Entries that were moved along are those that the state says.
        #[test]
        fn entries_follow_the_state(changes in prop::collection::vec((prop::collection::btree_set("[A-E]", 0..5), any::<bool>()), 1..20)) {
            let mut state: Option<DocumentState> = None;
            let mut entries = BTreeSet::new();
            for (at, (channels, deleted)) in changes.into_iter().enumerate() {
                let seq = Stamp::of(at as u64 + 1);
                let (next, moves) = DocumentState::changed(state.as_ref(), seq, format!("{at}-x"), deleted, channels);
                for (channel, seq) in moves.cleared {
                    let gone = [false, true].map(|left| entries.remove(&(channel.clone(), seq, left)));
                    prop_assert_eq!(gone.into_iter().filter(|gone| *gone).count(), 1, "exactly one lay there");
                }
                entries.extend(moves.entered.into_iter().map(|channel| (channel, seq, false)));
                entries.extend(moves.left.into_iter().map(|channel| (channel, seq, true)));
                let now = next.channels.iter().map(|channel| (channel.clone(), next.seq, false));
                let left = next.left.iter().map(|(channel, left)| (channel.clone(), left.seq, true));
                prop_assert_eq!(&entries, &now.chain(left).collect::<BTreeSet<_>>());
                state = Some(next);
            }
        }
    }
}
