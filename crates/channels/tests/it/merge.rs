//! The merge returns the same rows as an evaluation of each document.

use std::collections::BTreeSet;

use flatbed_channels::{
    DirectGrant, DocumentState, FeedRow, FeedScope, GrantedItem, HELD_MAX, HeldChannels, Merge, Periods, Position,
    RowKind, Stamp,
};
use proptest::prelude::*;

use crate::model::{Database, Event, event, read};

fn of_all(database: &Database, scope: &FeedScope, since: Position) -> Vec<FeedRow> {
    let rows = database.docs.iter().filter_map(|(doc, state)| scope.row_of(&doc.to_string(), state));
    let mut rows: Vec<_> = rows.filter(|row| row.position > since).collect();
    rows.sort_by_key(|row| row.position);
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn rows_are_those_of_the_documents(
        events in prop::collection::vec(event(), 0..40),
        since in any::<(u8, Option<u8>)>(),
        flags in any::<[bool; 3]>(),
        limit in 1..9_usize,
    ) {
        let mut database = Database::default();
        events.iter().for_each(|event| database.happens(event));
        let [few, with_lost, active_only] = flags;
        let at = |number: u8| Stamp::of(u64::from(number) % (database.seq + 2));
        let since = Position { at: at(since.0), of: since.1.map(at) };
        let scope = FeedScope { active_only, ..database.scope(with_lost) };
        let expected = of_all(&database, &scope, since);
        let (rows, stands) = read(&mut database, scope.clone(), since, usize::MAX, few, |_| {});
        prop_assert_eq!(&rows, &expected);
        prop_assert!(stands >= since && (stands == Position::at(database.last_seq()) || stands == since));
        // In pages, each from the position of the one before.
        let mut paged = Vec::new();
        let mut place = since;
        loop {
            let (page, stands) = read(&mut database, scope.clone(), place, limit, few, |_| {});
            let is_last = page.len() < limit;
            paged.extend(page);
            place = stands;
            if is_last {
                break;
            }
        }
        prop_assert_eq!(&paged, &expected);
        prop_assert!(place >= Position::at(database.last_seq()) || place == since);
    }
}

fn written(doc: usize, channels: &[&str]) -> Event {
    Event::Write {
        doc,
        channels: channels.iter().map(|name| (*name).to_owned()).collect(),
        deleted: false,
        gives: None,
    }
}

/// `(place, document, removed from)`
fn shown(rows: &[FeedRow]) -> Vec<(String, &str, String)> {
    let number = |stamp: Stamp| (0..99).find(|at| Stamp::of(*at) == stamp).map(|at| at.to_string()).unwrap_or_default();
    rows.iter().map(|row| (row.position.text(number), &*row.doc, row.removed.join(","))).collect()
}

fn row(place: &str, doc: &'static str, removed: &str) -> (String, &'static str, String) {
    (place.to_owned(), doc, removed.to_owned())
}

/// Sync Gateway's "a channel given later brings its older documents under the grant's sequence", each document once.
#[test]
fn a_channel_that_is_given_later() {
    let mut database = Database::default();
    let give = |channel: &str| Event::Give { channel: channel.into(), by: 0 };
    for event in [
        give("A"),
        written(1, &["B"]),
        written(2, &["A"]),
        written(3, &["B"]),
        written(4, &["A", "B"]),
        give("B"),
        written(5, &["B"]),
    ] {
        database.happens(&event);
    }
    let scope = FeedScope { user: Some(Stamp::of(6)), ..database.scope(false) };
    let (rows, _) = read(&mut database, scope.clone(), Position::BEGIN, 99, true, |_| {});
    let all = [
        row("3", "2", ""),
        row("5", "4", ""),
        row("6:2", "1", ""),
        row("6:4", "3", ""),
        row("6", "", ""),
        row("7", "5", ""),
    ];
    assert_eq!(shown(&rows), all);
    assert_eq!(rows[4].kind, RowKind::User);
    for (at, row) in rows.iter().enumerate() {
        let (rest, _) = read(&mut database, scope.clone(), row.position, 99, true, |_| {});
        assert_eq!(shown(&rest), all[at + 1..]);
    }
}

/// "A document that leaves both of a user's channels at once, and one that leaves one and stays in the other"
#[test]
fn documents_that_leave() {
    let mut database = Database::default();
    let give = |channel: &str| Event::Give { channel: channel.into(), by: 0 };
    for event in [
        give("A"),
        give("B"),
        written(1, &["A", "B"]),
        written(2, &["A", "B"]),
        written(1, &["C"]),
        written(2, &["A", "C"]),
    ] {
        database.happens(&event);
    }
    let mut of = |scope: FeedScope| {
        let (rows, _) = read(&mut database, scope, Position::BEGIN, 99, true, |_| {});
        shown(&rows).into_iter().map(|(place, doc, removed)| (place, doc.to_owned(), removed)).collect::<Vec<_>>()
    };
    let own = |rows: &[(String, &str, String)]| {
        rows.iter().map(|(place, doc, removed)| (place.clone(), (*doc).to_owned(), removed.clone())).collect::<Vec<_>>()
    };
    let since_ever = |channels: &[&str]| FeedScope {
        held: HeldChannels::since_ever(channels.iter().copied()),
        ..FeedScope::default()
    };
    assert_eq!(of(since_ever(&["A", "B"])), own(&[row("5", "1", "A,B"), row("6", "2", "B")]));
    assert_eq!(of(since_ever(&["B"])), own(&[row("5", "1", "B"), row("6", "2", "B")]));
    assert_eq!(of(since_ever(&["A"])), own(&[row("5", "1", "A"), row("6", "2", "")]));
    assert_eq!(of(FeedScope { active_only: true, ..since_ever(&["A", "B"]) }), own(&[row("6", "2", "B")]));
    assert_eq!(of(since_ever(&["nosuch"])), own(&[]));
}

/// Nothing else reports documents that change while a lost channel is read.
#[test]
fn what_moves_ahead_of_a_loss_is_told() {
    let mut database = Database::default();
    let give = |channel: &str| Event::Give { channel: channel.into(), by: 0 };
    for event in [give("B"), written(1, &["B"]), Event::Take { channel: "B".into(), by: 0 }] {
        database.happens(&event);
    }
    let scope = database.scope(true);
    // The document leaves the channel after the page that was read.
    let mut moved = false;
    let (rows, stands) = read(&mut database, scope, Position::at(Stamp::of(2)), 99, true, |database| {
        if !std::mem::replace(&mut moved, true) {
            database.happens(&written(1, &[]));
        }
    });
    assert_eq!(shown(&rows), [row("3:2", "1", "")]);
    assert_eq!((rows[0].kind, stands), (RowKind::Revoked, Position::at(Stamp::of(3))));
    // Nothing is reported if it is visible in another channel, unchanged or as a tombstone.
    database.happens(&written(2, &["B", "!"]));
    let scope = database.scope(true);
    let (rows, _) = read(&mut database, scope, Position::at(Stamp::of(3)), 99, true, |_| {});
    assert_eq!(shown(&rows), [row("5", "2", "")]);
}

/// A document of two channels that were lost at once has one row.
#[test]
fn channels_that_were_lost_at_once() {
    let mut database = Database::default();
    let role = |channel: &str| Event::Role { channel: channel.into(), has: true };
    let member = |is| Event::Member { is };
    for event in [
        Event::Exists { does: true },
        role("A"),
        role("B"),
        member(true),
        written(1, &["A", "B"]),
        written(1, &["B"]),
        written(1, &["B"]),
        member(false),
    ] {
        database.happens(&event);
    }
    let scope = database.scope(true);
    let (rows, _) = read(&mut database, scope, Position::at(Stamp::of(5)), 99, true, |_| {});
    assert_eq!(shown(&rows), [row("8:7", "1", "")]);
}

/// A user who has lost a channel gets rows of its documents at that time, regardless of their later channels, and
/// none of documents that entered after the loss.
#[test]
fn what_comes_behind_a_loss_is_not_told() {
    let mut database = Database::default();
    let give = |channel: &str| Event::Give { channel: channel.into(), by: 0 };
    for event in [
        give("B"),
        written(1, &["B"]),
        written(2, &["B"]),
        written(3, &["B"]),
        Event::Take { channel: "B".into(), by: 0 },
        written(2, &["B", "C"]),
        written(4, &["B"]),
        written(3, &["C"]),
        written(4, &[]),
        written(5, &["B"]),
    ] {
        database.happens(&event);
    }
    for at in [Position::BEGIN, Position::at(Stamp::of(3))] {
        let scope = database.scope(true);
        let (rows, _) = read(&mut database, scope, at, 99, true, |_| {});
        assert_eq!(shown(&rows), [row("5:2", "1", ""), row("5:6", "2", ""), row("5:8", "3", "")]);
    }
    // The user does not learn of later deletions.
    database.happens(&Event::Write { doc: 3, channels: ["C".to_owned()].into(), deleted: true, gives: None });
    database.happens(&Event::Write { doc: 2, channels: ["B".to_owned()].into(), deleted: true, gives: None });
    let scope = database.scope(true);
    let (rows, _) = read(&mut database, scope, Position::BEGIN, 99, true, |_| {});
    assert_eq!(shown(&rows), [row("5:2", "1", ""), row("5:8", "3", ""), row("5:12", "2", "")]);
    assert!(rows.iter().all(|row| row.kind == RowKind::Revoked && !row.deleted));
    // A departure and return since the loss changes nothing, and a later document was never the user's.
    for event in [written(1, &[]), written(1, &["B"]), written(5, &[]), written(5, &["B"])] {
        database.happens(&event);
    }
    let scope = database.scope(true);
    let (rows, _) = read(&mut database, scope, Position::BEGIN, 99, true, |_| {});
    assert_eq!(shown(&rows), [row("5:8", "3", ""), row("5:12", "2", ""), row("5:14", "1", "")]);
    // Nor does a document that enters and leaves before the next grant get a row.
    for event in [written(6, &["B"]), written(6, &[]), give("B")] {
        database.happens(&event);
    }
    let scope = database.scope(true);
    let (rows, _) = read(&mut database, scope, Position::at(Stamp::of(5)), 99, true, |_| {});
    let rows = rows.iter().filter(|row| row.kind == RowKind::Revoked).map(|row| &*row.doc);
    assert_eq!(rows.collect::<Vec<_>>(), ["3", "2"]);
}

/// A document that leaves a channel with the very change that grants it again.
#[test]
fn what_leaves_with_the_change_that_gives_again_is_told() {
    let mut database = Database::default();
    let give = |channel: &str| Event::Give { channel: channel.into(), by: 0 };
    for event in [
        give("A"),
        give("B"),
        written(1, &["A", "B"]),
        Event::Take { channel: "B".into(), by: 0 },
        written(1, &["B"]),
        Event::Write { doc: 1, channels: [].into(), deleted: false, gives: Some("B".to_owned()) },
    ] {
        database.happens(&event);
    }
    for at in 3..6 {
        let scope = database.scope(true);
        let (rows, _) = read(&mut database, scope, Position::at(Stamp::of(at)), 99, true, |_| {});
        assert_eq!(shown(&rows), [row("6:6", "1", "")], "behind {at}");
        assert_eq!(rows[0].kind, RowKind::Revoked);
    }
}

/// A document that enters a channel with the very change that revokes it, and leaves while the feed is read: the user
/// has never seen it.
#[test]
fn what_comes_with_the_change_that_loses_is_not_told() {
    let mut database = Database::default();
    let gives = Event::Write { doc: 1, channels: [].into(), deleted: false, gives: Some("A".to_owned()) };
    [gives, written(1, &["A"])].iter().for_each(|event| database.happens(event));
    let scope = database.scope(true);
    let mut meanwhile = vec![written(1, &[])];
    let happens = |database: &mut Database| meanwhile.drain(..).for_each(|event| database.happens(&event));
    let (rows, _) = read(&mut database, scope, Position::default(), 99, true, happens);
    assert_eq!(rows, []);
}

/// The user's own record is a row up to the end of the range, and not beyond.
#[test]
fn the_users_record_is_a_row_of_its_time() {
    let mut database = Database::default();
    database.happens(&Event::Give { channel: "A".into(), by: 0 });
    for (user, count) in [(1, 1), (2, 0)] {
        let scope = FeedScope { user: Some(Stamp::of(user)), ..database.scope(false) };
        let (rows, stands) = read(&mut database, scope, Position::BEGIN, 99, true, |_| {});
        assert_eq!((rows.len(), stands), (count, Position::at(Stamp::of(1))));
    }
}

/// A tombstone that is older than the grant of its channel is not visible there: a user who had the document in
/// another way gets a row of the deletion.
#[test]
fn a_tombstone_that_came_before_its_channel() {
    let mut database = Database::default();
    let give = |channel: &str| Event::Give { channel: channel.into(), by: 0 };
    let tombstone = match written(1, &["B", "C"]) {
        Event::Write { doc, channels, gives, .. } => Event::Write { doc, channels, deleted: true, gives },
        other => other,
    };
    for event in [give("B"), written(1, &["B"]), tombstone, give("C"), Event::Take { channel: "B".into(), by: 0 }] {
        database.happens(&event);
    }
    let scope = database.scope(true);
    let (rows, _) = read(&mut database, scope, Position::at(Stamp::of(2)), 99, true, |_| {});
    assert_eq!(shown(&rows), [row("5:3", "1", "")]);
    assert!(rows[0].kind == RowKind::Revoked && rows[0].deleted);
}

/// With very many lost channels that are held again, the start of a merge and the judgement of a document do not
/// compare each channel with each other one.
#[test]
fn very_many_channels_that_were_lost() {
    let periods = Periods::since(Stamp::of(1)).taken(Stamp::of(2)).given(Stamp::of(4));
    let names = (1..HELD_MAX).map(|n| GrantedItem::Channel(format!("c{n}")));
    let held = HeldChannels::of(names.map(|what| DirectGrant { what, periods: periods.clone() }), |_| None);
    assert_eq!((held.cut(), held.lost().len()), (0, HELD_MAX - 1));
    let scope = FeedScope { revocations: true, held, ..FeedScope::default() };
    for n in 1..1_000 {
        let channels: BTreeSet<String> = [format!("c{n}")].into();
        let (before, _) = DocumentState::changed(None, Stamp::of(1), "1-a".to_owned(), false, channels);
        let (state, _) = DocumentState::changed(Some(&before), Stamp::of(3), "2-a".to_owned(), false, BTreeSet::new());
        let row = scope.row_of("doc", &state).unwrap();
        assert_eq!((row.kind, row.position), (RowKind::Revoked, Position::within(Stamp::of(4), Stamp::of(3))));
    }
    // The documents at the second grant, the changes since, and the public channel.
    assert_eq!(Merge::new(scope, Position::BEGIN, Stamp::of(9)).streams(), 2 * (HELD_MAX - 1) + 1);
}
