//! The visibility of revisions.

use std::collections::BTreeSet;

use crate::change::DocumentState;
use crate::held::HeldChannels;

/// The visible part of a revision. A losing leaf, an old revision and its attachments are judged by their own
/// channels, never by the winner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The whole revision.
    Whole,
    /// Only the fact that the document left the user's channels with this revision, as an empty body with `_removed`,
    /// since the feed has reported it.
    Removed,
    /// Nothing: the answer is that of a missing revision.
    Hidden,
}

impl HeldChannels {
    /// True if a revision with these channels is visible.
    pub fn can_see<'a>(&self, channels: impl IntoIterator<Item = &'a str>) -> bool {
        self.has_all() || channels.into_iter().any(|channel| self.since(channel).is_some())
    }

    /// Returns the visible part of a revision with these channels.
    pub fn sight(&self, rev: &str, channels: &BTreeSet<String>, document: &DocumentState) -> Sight {
        if self.can_see(channels.iter().map(String::as_str)) {
            return Sight::Whole;
        }
        let said =
            |(channel, since)| document.left.get(channel).is_some_and(|left| left.rev == rev && left.seq > since);
        if self.channels().any(said) { Sight::Removed } else { Sight::Hidden }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::{DirectGrant, Periods};
    use crate::position::Stamp;
    use crate::routing::GrantedItem;

    #[test]
    fn removals_are_seen_by_whom_the_feed_told_of_them() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let (first, _) = DocumentState::changed(None, Stamp::of(1), "1-a", false, set(&["A"]));
        let (second, _) = DocumentState::changed(Some(&first), Stamp::of(5), "2-b", false, set(&["B"]));
        let (third, _) = DocumentState::changed(Some(&second), Stamp::of(6), "3-c", false, set(&["B"]));
        let with = |channel: &str, since| {
            HeldChannels::of(
                [DirectGrant { what: GrantedItem::Channel(channel.into()), periods: Periods::since(Stamp::of(since)) }],
                |_| None,
            )
        };
        let sight = |held: &HeldChannels, rev, channels: &[&str]| held.sight(rev, &set(channels), &third);
        let (early, late, other) = (with("A", 4), with("A", 5), with("C", 0));
        assert_eq!(sight(&early, "1-a", &["A"]), Sight::Whole);
        assert_eq!(sight(&early, "2-b", &["B"]), Sight::Removed);
        // The feed no longer reports it.
        assert_eq!(sight(&early, "3-c", &["B"]), Sight::Hidden);
        assert_eq!(sight(&late, "2-b", &["B"]), Sight::Hidden);
        assert_eq!(sight(&other, "2-b", &["B"]), Sight::Hidden);
        assert_eq!(sight(&other, "2-b", &["!"]), Sight::Whole);
        assert_eq!(sight(&other, "2-b", &["*"]), Sight::Hidden);
        assert_eq!(sight(&with("*", 9), "2-b", &[]), Sight::Whole);
        assert_eq!(sight(&with("B", 9), "2-b", &["B"]), Sight::Whole);
        assert!(!HeldChannels::nothing().can_see(["!"]));
    }
}
