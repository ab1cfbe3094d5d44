use proptest::prelude::*;

use super::*;

fn channel(name: &str, since: u64) -> DirectGrant {
    DirectGrant { what: GrantedItem::Channel(name.into()), periods: Periods::since(Stamp::of(since)) }
}

fn in_role(name: &str, since: u64) -> DirectGrant {
    DirectGrant { what: GrantedItem::Role(name.into()), periods: Periods::since(Stamp::of(since)) }
}

fn periods(all: &[(u64, u64)]) -> Periods {
    let until = |until: u64| (until > 0).then(|| Stamp::of(until));
    Periods::new(all.iter().map(|(from, to)| Period { from: Stamp::of(*from), until: until(*to) }).collect())
}

fn number(stamp: Stamp) -> u64 {
    (0..100).find(|at| Stamp::of(*at) == stamp).unwrap()
}

fn shown<'a>(all: impl Iterator<Item = (&'a str, Stamp)>) -> Vec<(&'a str, u64)> {
    all.map(|(name, since)| (name, number(since))).collect()
}

#[test]
fn the_first_grant_counts_and_of_roles_the_last_thing_that_was_needed() {
    let role = |name: &str| {
        let channels =
            |all: &[(&str, u64)]| all.iter().map(|(name, at)| ((*name).into(), periods(&[(*at, 0)]))).collect();
        match name {
            "r" => Some(RoleRows { exists: periods(&[(3, 0)]), channels: channels(&[("R", 2), ("A", 2), ("S", 9)]) }),
            "q" => Some(RoleRows { exists: periods(&[(1, 0)]), channels: channels(&[("S", 1), ("R", 1)]) }),
            _ => None,
        }
    };
    let rows =
        [channel("A", 7), channel("A", 5), in_role("r", 1), in_role("q", 8), in_role("none", 4), in_role("q", 6)];
    let held = HeldChannels::of(rows, role);
    assert_eq!(shown(held.own()), [("!", 0), ("A", 5)]);
    assert_eq!(shown(held.channels()), [("!", 0), ("A", 3), ("R", 3), ("S", 6)]);
    assert_eq!(shown(held.roles()), [("none", 4), ("q", 6), ("r", 1)]);
    assert_eq!((held.since("A"), held.since("X"), held.has_all()), (Some(Stamp::of(3)), None, false));
    assert_eq!((held.cut(), held.lost()), (0, &[][..]));
    assert_eq!(shown(HeldChannels::everybody().channels()), [("!", 0)]);
    assert_eq!(HeldChannels::of([], role), HeldChannels::everybody());
    assert_eq!(shown(HeldChannels::nothing().channels()), []);
}

#[test]
fn a_channel_that_is_had_in_several_ways_is_had_without_a_break() {
    let of = |own: &[(u64, u64)], member: &[(u64, u64)], exists: &[(u64, u64)]| {
        let row = DirectGrant { what: GrantedItem::Channel("A".into()), periods: periods(own) };
        let member = DirectGrant { what: GrantedItem::Role("r".into()), periods: periods(member) };
        let role =
            |_: &str| Some(RoleRows { exists: periods(exists), channels: vec![("A".into(), periods(&[(1, 0)]))] });
        let held = HeldChannels::of([row, member], role);
        (held.since("A").map(number), held.lost().first().map(|lost| number(lost.at)))
    };
    assert_eq!(of(&[(2, 6)], &[(5, 0)], &[(1, 0)]), (Some(2), None));
    assert_eq!(of(&[(2, 6)], &[(6, 0)], &[(1, 0)]), (Some(2), None));
    assert_eq!(of(&[(2, 6)], &[(7, 0)], &[(1, 0)]), (Some(7), Some(6)));
    assert_eq!(of(&[(2, 6), (9, 0)], &[(5, 10)], &[(1, 0)]), (Some(2), None));
    assert_eq!(of(&[(2, 6)], &[(5, 0)], &[(1, 8)]), (None, Some(8)));
    assert_eq!(of(&[(2, 6)], &[(5, 0)], &[(1, 3), (7, 0)]), (Some(7), Some(6)));
    assert_eq!(of(&[], &[(5, 0)], &[]), (None, None));
}

#[test]
fn periods_are_kept_up_to_a_number() {
    let mut kept = Periods::default().taken(Stamp::of(1));
    assert_eq!((kept.open(), kept.lost()), (None, None));
    for at in 0..PERIODS_MAX as u64 + 2 {
        kept = kept.given(Stamp::of(10 * at + 1));
        assert_eq!(kept.clone().given(Stamp::of(10 * at + 2)), kept);
        assert_eq!(kept.open(), Some(Stamp::of(10 * at + 1)));
        kept = kept.taken(Stamp::of(10 * at + 5));
        assert_eq!(kept.clone().taken(Stamp::of(10 * at + 6)), kept);
        assert_eq!((kept.open(), kept.lost()), (None, Some(Stamp::of(10 * at + 5))));
    }
    assert_eq!(kept.all().len(), PERIODS_MAX);
    assert_eq!(kept.all()[0].from, Stamp::of(21));
    let again = kept.given(Stamp::of(99));
    assert_eq!(
        (again.open(), again.lost(), again.all().len()),
        (Some(Stamp::of(99)), Some(Stamp::of(95)), PERIODS_MAX)
    );
    // A period that ends before a change begins, or with the change that begins the range, does not overlap.
    let had = periods(&[(3, 5), (8, 0)]);
    let overlaps = [(1, 3), (1, 4), (4, 5), (5, 8), (5, 9)]
        .map(|(from, until)| had.has_overlap(Stamp::of(from), Some(Stamp::of(until))));
    assert_eq!(overlaps, [false, true, true, false, true]);
    assert!(had.has_overlap(Stamp::of(90), None) && !periods(&[(3, 5)]).has_overlap(Stamp::of(5), None));
    // An empty period is ignored.
    assert_eq!(periods(&[(3, 3), (5, 7), (6, 9)]), periods(&[(5, 9)]));
}

#[test]
fn a_feed_may_be_of_some_channels() {
    let gone = DirectGrant { what: GrantedItem::Channel("C".into()), periods: periods(&[(1, 2)]) };
    let again = DirectGrant { what: GrantedItem::Channel("B".into()), periods: periods(&[(1, 2), (3, 0)]) };
    let held = HeldChannels::of([channel("A", 1), again, gone, in_role("none", 4)], |_| None);
    assert_eq!(held.lost().iter().map(|lost| &*lost.channel).collect::<Vec<_>>(), ["B", "C"]);
    let some = held.only(["B", "X", "!", "C"]);
    assert_eq!(shown(some.channels()), [("!", 0), ("B", 3)]);
    let lost = |channel: &str, had: &[(u64, u64)]| LostChannel {
        channel: channel.into(),
        had: periods(had),
        at: Stamp::of(had.last().expect("one").1),
    };
    assert_eq!(some.lost(), [lost("B", &[(1, 2)]), lost("C", &[(1, 2)])]);
    // A loss of `*` is a loss of each channel, whatever was held by name before.
    let all = DirectGrant { what: GrantedItem::Channel("*".into()), periods: periods(&[(3, 5)]) };
    let gone = DirectGrant { what: GrantedItem::Channel("C".into()), periods: periods(&[(1, 2)]) };
    let lost_all = HeldChannels::of([all, gone], |_| None);
    assert_eq!(lost_all.only(["C", "D"]).lost(), [lost("C", &[(1, 2), (3, 5)]), lost("D", &[(3, 5)])]);
    assert_eq!(held.only(["X", "*"]), held);
    assert_eq!(held.only([]).channels().count(), 0);
    let all = HeldChannels::of([channel("A", 1), channel("*", 2)], |_| None);
    assert!(all.has_all() && !all.only(["A", "X"]).has_all());
    assert_eq!(shown(all.only(["A", "X"]).channels()), [("A", 1), ("X", 2)]);
    // A grant by name does not begin later than that of `*`.
    let all_first = HeldChannels::of([channel("A", 2), channel("*", 1)], |_| None);
    assert_eq!(shown(all_first.only(["A", "X"]).channels()), [("A", 1), ("X", 1)]);
    assert_eq!(shown(HeldChannels::since_ever(["B", "A"]).channels()), [("A", 0), ("B", 0)]);
}

#[test]
fn what_came_first_counts() {
    let many = (0..=HELD_MAX as u64).map(|at| channel(&format!("c{at}"), HELD_MAX as u64 * 2 - at));
    let held = HeldChannels::of(many, |_| None);
    // Two grants beyond the limit, with the public channel.
    assert_eq!((held.channels().count(), held.own().count(), held.cut()), (HELD_MAX, HELD_MAX, 2));
    assert!(held.since("!").is_some() && held.since("c10000").is_some());
    assert_eq!((held.since("c0"), held.since("c1")), (None, None));
    let roles = (0..1_002).map(|at| in_role(&format!("r{at:04}"), 5));
    let held = HeldChannels::of(roles, |_| None);
    assert_eq!((held.roles().count(), held.roles().last().unwrap().0, held.cut()), (1_000, "r0999", 2));
}

fn some_periods() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..9_u64, 0..9_u64), 0..4)
}

proptest! {
    /// A channel that is held by name or through `*` counts as held since the last moment at which it was held by
    /// neither.
    #[test]
    fn a_feed_of_a_channel_begins_where_it_was_had_in_any_way(one in some_periods(), two in some_periods()) {
        let row = |name: &str, of: &[(u64, u64)]| DirectGrant {
            what: GrantedItem::Channel(name.into()),
            periods: periods(of),
        };
        let within = |all: &[(u64, u64)], at: u64| all.iter().any(|(from, to)| *from <= at && (at < *to || *to == 0));
        let has = |at: u64| within(&one, at) || within(&two, at);
        let only = HeldChannels::of([row("A", &one), row("*", &two)], |_| None).only(["A"]);
        let since = has(9).then(|| (0..9).rev().find(|at| !has(*at)).map_or(0, |at| at + 1));
        prop_assert_eq!(only.since("A").map(number), since);
        let lost = (1..10).rev().find(|at| has(at - 1) && !has(*at));
        prop_assert_eq!(only.lost().first().map(|lost| number(lost.at)), lost);
        for lost in only.lost() {
            let had = |at| lost.had.has_overlap(Stamp::of(at), Some(Stamp::of(at + 1)));
            prop_assert!((0..9).all(|at| had(at) == (has(at) && since.is_none_or(|since| at < since))));
        }
    }

    /// Union and intersection agree with sets of moments.
    #[test]
    fn periods_are_sets_of_moments(one in some_periods(), two in some_periods()) {
        let has = |of: &Periods, at: u64| {
            let at = Stamp::of(at);
            of.all().iter().any(|period| period.from <= at && period.until.is_none_or(|until| at < until))
        };
        let within = |all: &[(u64, u64)], at: u64| all.iter().any(|(from, to)| *from <= at && (at < *to || *to == 0));
        let (a, b) = (periods(&one), periods(&two));
        for at in 0..10 {
            prop_assert_eq!(has(&a, at), within(&one, at));
            prop_assert_eq!(has(&a.and(&b), at), within(&one, at) && within(&two, at));
            prop_assert_eq!(has(&a.clone().or(b.clone()), at), within(&one, at) || within(&two, at));
        }
        prop_assert!(a.all().windows(2).all(|pair| pair[0].until < Some(pair[1].from)));
    }
}
