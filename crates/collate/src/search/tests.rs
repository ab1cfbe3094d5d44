use std::collections::BTreeMap;

use flatbed_flatten::json::Value;
use proptest::prelude::*;

use super::*;
use crate::collation::Collation;
use crate::key::{cut_to_level, split_within};
use crate::label::between;

/// Short enough that generated keys are cut.
const CUT: usize = 12;

/// Rows by the elements of their keys, the form with label and the document; each with its whole key.
type Rows = BTreeMap<(Vec<u8>, u32), Value<'static>>;

/// Searches with `compare`. Returns the place and the number of rows read.
fn place_of(rows: &Rows, form: &[u8], compare: impl Fn(&Value<'_>) -> Ordering) -> (LabelPlace, usize) {
    let mut search = Search::new();
    for asked in 1.. {
        let SearchRequest { after, before, pivot } = search.ask();
        let mut found: Vec<(&[u8], &Value<'_>)> = rows
            .iter()
            .map(|((element, _), key)| (split_within(element, CUT), key))
            .filter(|((found, label), _)| *found == form && !label.is_empty())
            .map(|((_, label), key)| (label, key))
            .filter(|(label, _)| {
                after.is_none_or(|after| after < *label) && before.is_none_or(|before| *label < before)
            })
            .collect();
        found.sort_by_key(|(label, _)| *label);
        let row = found.iter().find(|(label, _)| *label >= pivot.as_slice()).or(found.last());
        let row = row.map(|(label, key)| (label.to_vec(), compare(key)));
        if let Some(place) = search.saw(row.as_ref().map(|(label, order)| (label.as_slice(), *order))) {
            return (place, asked);
        }
    }
    unreachable!()
}

fn search(collation: &Collation, rows: &Rows, key: &Value<'_>, sort_key: &SortKey) -> (LabelPlace, usize) {
    place_of(rows, sort_key.bytes(), |found| collation.compare(key, found))
}

fn put(collation: &Collation, rows: &mut Rows, key: &Value<'static>, document: u32) {
    let sort_key = collation.sort_key_within(key, CUT);
    let label = sort_key.is_cut().then(|| search(collation, rows, key, &sort_key).0.label().unwrap());
    rows.insert((sort_key.with_label(label.as_deref()).unwrap(), document), key.clone());
}

fn boundary(collation: &Collation, rows: &Rows, key: &Value<'_>, is_behind: bool) -> Boundary {
    let sort_key = collation.sort_key_within(key, CUT);
    let place = sort_key.is_cut().then(|| search(collation, rows, key, &sort_key).0);
    Boundary::of(&sort_key, place.as_ref(), is_behind)
}

/// Long strings with common prefixes, numbers of many digits, and arrays of both.
fn keys() -> impl Strategy<Value = Value<'static>> {
    let text = "(abcdefgh|Abcdefgh|ab)[a-dA-Dá]{0,12}".prop_map(|text| Value::String(text.into()));
    let number = "-?12345678901234567890[0-9]{0,20}".prop_map(|text| Value::Number(text.into()));
    let leaf = prop_oneof![text, number, crate::collation::tests::values()];
    prop_oneof![leaf.clone(), prop::collection::vec(leaf, 0..3).prop_map(Value::Array)]
}

proptest! {
    #[test]
    fn rows_lie_in_the_order_of_their_keys(
        keys in prop::collection::vec(keys(), 1..30),
        sought in prop::collection::vec(keys(), 1..5),
        is_raw in any::<bool>(),
    ) {
        let collation = if is_raw { Collation::raw() } else { Collation::unicode().unwrap() };
        let mut rows = Rows::new();
        // Each key in two documents.
        for (key, document) in keys.iter().zip(0..).chain(keys.iter().rev().zip(100..)) {
            put(&collation, &mut rows, key, document);
        }
        prop_assert_eq!(rows.len(), 2 * keys.len());
        let found: Vec<_> = rows.iter().collect();
        for pair in found.windows(2) {
            let by_key = collation.compare(pair[0].1, pair[1].1);
            // Equal keys have equal elements, and then sort by document.
            prop_assert_eq!(pair[0].0.0.cmp(&pair[1].0.0), by_key);
        }
        // Boundaries of existing and of other keys agree with a comparison of the keys.
        for key in sought.iter().chain(&keys) {
            for is_behind in [false, true] {
                let boundary = boundary(&collation, &rows, key, is_behind);
                for ((element, _), found) in &rows {
                    let order = collation.compare(found, key);
                    let expected = if is_behind { order.is_le() } else { order.is_lt() };
                    prop_assert_eq!(boundary.is_behind(element), expected, "{:?} {:?}", key, found);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn places_by_the_first_items(
        keys in prop::collection::vec(prop::collection::vec(keys(), 0..3).prop_map(Value::Array), 1..20),
        others in prop::collection::vec(keys(), 0..4),
        sought in prop::collection::vec(keys(), 0..3),
        is_raw in any::<bool>(),
    ) {
        let collation = if is_raw { Collation::raw() } else { Collation::unicode().unwrap() };
        let mut rows = Rows::new();
        for (key, document) in keys.iter().chain(&others).zip(0..) {
            put(&collation, &mut rows, key, document);
        }
        for items in keys.iter().chain([&Value::Array(sought)]) {
            let Value::Array(items) = items else { unreachable!() };
            for level in 0..=items.len() {
                let (group, key) = (Value::Array(items[..level].to_vec()), collation.items_key_within(&items[..level], CUT));
                for is_behind in [false, true] {
                    let is_before = |found: &Value<'_>| {
                        let order = collation.compare(&cut_to_level(found, level), &group);
                        if is_behind { order.is_le() } else { order.is_lt() }
                    };
                    let place = key.is_cut().then(|| {
                        place_of(&rows, key.bytes(), |found| {
                            if is_before(found) { Ordering::Greater } else { Ordering::Less }
                        })
                        .0
                    });
                    let boundary = Boundary::of_items(&key, place.as_ref(), is_behind);
                    for ((element, _), found) in &rows {
                        prop_assert_eq!(boundary.is_behind(element), is_before(found), "{:?} {:?}", group, found);
                    }
                }
            }
        }
    }
}

#[test]
fn searches_are_short() {
    let collation = Collation::raw();
    let mut rows = Rows::new();
    let key = |at: u32| Value::String(format!("a long beginning {at:05}").into());
    let mut at = 0;
    for document in 0..500 {
        // Scattered, each once.
        at = (at + 211) % 500;
        put(&collation, &mut rows, &key(at), document);
    }
    for at in 0..500 {
        let sort_key = collation.sort_key_within(&key(at), CUT);
        let (place, asked) = search(&collation, &rows, &key(at), &sort_key);
        assert!(matches!(place, LabelPlace::Label(_)));
        assert!(asked <= 40, "{asked}");
    }
}

/// Searches with levels that each have one of four labels of the level below, offered from the sparsest on. Returns
/// the place, and the numbers of rows and of levels read.
fn place_by_levels(
    labels: &[Vec<u8>],
    levels: &[Vec<Vec<u8>>],
    sought: &[u8],
    rows: &[Vec<u8>],
) -> (LabelPlace, usize, usize) {
    assert!(labels.is_sorted());
    let (mut search, mut asked, mut read) = (Search::new(), 0, 0);
    let mut levels = levels.iter().rev();
    loop {
        while !search.has_pivots()
            && let Some(level) = levels.next()
        {
            read += 1;
            search.offer(level.iter().cloned());
        }
        let SearchRequest { after, before, pivot } = search.ask();
        assert_eq!((after, before), search.between());
        let is_in = |label: &&Vec<u8>| {
            after.is_none_or(|after| after < &label[..]) && before.is_none_or(|before| &label[..] < before)
        };
        let found = rows.iter().filter(is_in).find(|label| **label >= pivot).or(rows.iter().rfind(is_in));
        asked += 1;
        if let Some(place) = search.saw(found.map(|label| (label.as_slice(), sought.cmp(label)))) {
            return (place, asked, read);
        }
        assert!(asked < 10_000);
    }
}

/// Labels in the order of keys that each fall between the last two.
fn bisecting(count: usize) -> Vec<Vec<u8>> {
    let (mut low, mut high) =
        (between(None, None).unwrap(), between(Some(&between(None, None).unwrap()), None).unwrap());
    let mut all = vec![low.clone(), high.clone()];
    for at in 0..count {
        let label = between(Some(&low), Some(&high)).unwrap();
        all.push(label.clone());
        *(if at % 2 == 0 { &mut low } else { &mut high }) = label;
    }
    all.sort();
    all
}

/// Every fourth label, of these every fourth, and so on.
fn levels_of(labels: &[Vec<u8>]) -> Vec<Vec<Vec<u8>>> {
    let mut levels: Vec<Vec<Vec<u8>>> = Vec::new();
    loop {
        let below = levels.last().map_or(labels, Vec::as_slice);
        let next: Vec<_> = below.iter().skip(1).step_by(4).cloned().collect();
        if next.is_empty() {
            return levels;
        }
        levels.push(next);
    }
}

#[test]
fn searches_by_levels_are_short_whatever_the_order() {
    let labels = bisecting(2_000);
    let levels = levels_of(&labels);
    for (at, label) in labels.iter().enumerate().step_by(7) {
        let (place, asked, read) = place_by_levels(&labels, &levels, label, &labels);
        assert_eq!(place, LabelPlace::Label(label.clone()));
        assert!(asked <= 20 && read <= levels.len(), "{at}: {asked}, {read}");
        let behind = [&label[..], &[1]].concat();
        let (place, asked, _) = place_by_levels(&labels, &levels, &behind, &labels);
        assert_eq!(place, LabelPlace::Gap { after: Some(label.clone()), before: labels.get(at + 1).cloned() });
        assert!(asked <= 20, "{at}: {asked}");
    }
    let halved = place_by_levels(&labels, &[], &labels[1_000], &labels).1;
    assert!(halved > 200, "the order does no harm: {halved}");
}

proptest! {
    /// Pivots are hints: they never change the result.
    #[test]
    fn pivots_change_nothing_but_the_way(
        places in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
        pivots in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..10), 0..20),
        gone in prop::collection::vec(any::<bool>(), 60),
        sought in any::<prop::sample::Index>(),
    ) {
        let mut labels: Vec<Vec<u8>> = Vec::new();
        for place in places {
            let at = place.index(labels.len() + 1);
            let after = at.checked_sub(1).map(|at| labels[at].as_slice());
            labels.insert(at, between(after, labels.get(at).map(Vec::as_slice)).unwrap());
        }
        // Levels have labels of removed rows, and lack labels of existing rows.
        let rows: Vec<_> = labels.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(label, _)| label.clone()).collect();
        let mut levels = levels_of(&labels);
        let mut pivots = pivots;
        pivots.sort();
        levels.push(pivots);
        let sought = sought.get(&labels).clone();
        let (place, ..) = place_by_levels(&labels, &levels, &sought, &rows);
        let expected = match rows.binary_search(&sought) {
            Ok(_) => LabelPlace::Label(sought),
            Err(at) => LabelPlace::Gap {
                after: at.checked_sub(1).map(|at| rows[at].clone()),
                before: rows.get(at).cloned(),
            },
        };
        prop_assert_eq!(place, expected);
    }
}

#[test]
fn an_end_of_a_group_is_searched_as_a_key() {
    let collation = Collation::raw();
    let mut rows = Rows::new();
    let key = |first: &str, second: u32| {
        Value::Array(vec![
            Value::String(format!("a long beginning {first}").into()),
            Value::Number(second.to_string().into()),
        ])
    };
    for (document, first) in (0..).zip(["one", "one", "other", "other"]) {
        put(&collation, &mut rows, &key(first, document), document);
    }
    for (first, expected) in [("none", 0), ("one", 2), ("or", 2), ("other", 4), ("p", 4)] {
        // After all keys of the group: those that begin with its items are before it.
        let group = cut_to_level(&key(first, 9), 1);
        let form = collation.sort_key_within(&group, CUT);
        let (place, _) = place_of(&rows, form.bytes(), |found| {
            if collation.compare(&cut_to_level(found, 1), &group).is_le() { Ordering::Greater } else { Ordering::Less }
        });
        let boundary = Boundary::of(&form, Some(&place), true);
        let before = rows.keys().filter(|(element, _)| boundary.is_behind(element)).count();
        assert_eq!(before, expected, "{first}");
    }
}

#[test]
fn boundaries_of_keys_that_are_whole() {
    let key = Collation::raw().sort_key(&Value::Null);
    assert_eq!(Boundary::of(&key, None, false), Boundary::Before(vec![0x31]));
    assert_eq!(Boundary::of(&key, None, true), Boundary::Behind(vec![0x31]));
}

#[test]
fn labels_that_were_seen_are_not_asked_near_again() {
    let mut search = Search::new();
    assert_eq!(search.saw(Some((b"d", Ordering::Greater))), None);
    assert_eq!(search.saw(Some((b"m", Ordering::Less))), None);
    search.offer([b"d".to_vec(), b"m".to_vec()]);
    assert!(!search.has_pivots());
    search.offer([b"d", b"e", b"m"].map(|label| label.to_vec()));
    assert_eq!((search.has_pivots(), search.ask().pivot), (true, b"e".to_vec()));
}
