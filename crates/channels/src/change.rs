//! The effect of a change of a document's winner on its channels.

use std::collections::{BTreeMap, BTreeSet};

use crate::held::Periods;
use crate::position::Stamp;

/// A document's channels over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentState {
    /// The sequence of its newest change.
    pub seq: Stamp,
    /// The winning revision.
    pub rev: String,
    /// True if the winner is a tombstone.
    pub deleted: bool,
    /// The channels of the winner.
    pub channels: BTreeSet<String>,
    /// The change with which it entered each of these channels without leaving since, if known.
    pub since: BTreeMap<String, Stamp>,
    /// The channels that it has left.
    pub left: BTreeMap<String, ChannelDeparture>,
    /// The remembered earlier periods in the channels that it is in or has left.
    pub earlier: BTreeMap<String, Periods>,
    /// The change that created the document, if known. Users with all channels also see documents without channels.
    pub born: Option<Stamp>,
}

/// A document's departure from a channel. Later edits do not change it, until the document enters the channel again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelDeparture {
    /// The sequence of the departure.
    pub seq: Stamp,
    /// The winning revision at the departure.
    pub rev: String,
    /// True if that is a tombstone.
    pub deleted: bool,
    /// The change with which the document had entered the channel, if known.
    pub since: Option<Stamp>,
}

/// The effect of a change on the entries of channels, each of a channel and a sequence. New entries have the change's
/// sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// Removed entries: of channels that the document was in, and of channels that it had left and enters again.
    pub cleared: Vec<(String, Stamp)>,
    /// The channels of the document after the change.
    pub entered: Vec<String>,
    /// Channels that it leaves: each gets a removal entry in its index and one in the document's own map.
    pub left: Vec<String>,
    /// Channels that it had left and enters again: their entries in the document's own map are removed.
    pub returned: Vec<String>,
}

/// Compares the channels of a document before and after a change. `left` are the channels that it had left, with the
/// sequences.
///
/// A tombstone is in its own channels, like any revision.
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
    /// Returns a document's state after a change, and the effect of the change.
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
        let gone = |channel: &String| ChannelDeparture { seq, rev: rev.clone(), deleted, since: was_since(channel) };
        left.extend(moves.left.iter().map(|channel| (channel.clone(), gone(channel))));
        // If the entry into a channel is unknown, it stays unknown.
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
        let gone = ChannelDeparture { seq: Stamp::of(2), rev: "2-b".into(), deleted: false, since: Some(Stamp::of(1)) };
        assert_eq!(second.left, [("A".to_owned(), gone.clone())].into());
        // A departure stays as it is.
        let (third, _) = DocumentState::changed(Some(&second), Stamp::of(3), "3-c", true, set(&[]));
        let deleted =
            ChannelDeparture { seq: Stamp::of(3), rev: "3-c".into(), deleted: true, since: Some(Stamp::of(1)) };
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
        // An unknown entry stays unknown.
        let (old, _) = DocumentState::changed(None, Stamp::of(1), "1-a", false, set(&["A", "B"]));
        let old = DocumentState { since: BTreeMap::new(), born: None, ..old };
        let (next, _) = DocumentState::changed(Some(&old), Stamp::of(2), "2-b", false, set(&["A", "C"]));
        assert_eq!((since(&next), next.left["B"].since), (vec![("C".to_owned(), Stamp::of(2))], None));
        let (back, _) = DocumentState::changed(Some(&next), Stamp::of(3), "3-c", false, set(&["B"]));
        assert_eq!((back.earlier, back.born), (BTreeMap::new(), None));
    }

    proptest! {
        /// The entries after all effects are those of the state.
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
