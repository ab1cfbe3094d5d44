//! The answer of `_explain`: the chosen index, how it is read, and why the others were not chosen.

use flatbed_flatten::json::Value;

use crate::choose::{Catalog, Choice, Unusable, choose, is_named};
use crate::error::MangoError;
use crate::find::Find;
use crate::index::Index;
use crate::normal::member;
use crate::options::{number, object, text};
use crate::plan::{covers, covers_answer, fields_of, selects_nothing};
use crate::ranges::{indexable_fields, shown_ids, shown_keys};

/// Answers `_explain`.
///
/// # Errors
/// In CouchDB's words: the named index cannot be used, and no other may be.
pub fn explain(find: &Find, catalog: &Catalog<'_>) -> Result<Value<'static>, MangoError> {
    explain_unless(find, catalog, &|| false)
}

/// Answers `_explain` like [`explain`], and stops when `stop` returns true before an index.
///
/// # Errors
/// As [`explain`], and if it was stopped.
pub fn explain_unless(
    find: &Find,
    catalog: &Catalog<'_>,
    stop: &dyn Fn() -> bool,
) -> Result<Value<'static>, MangoError> {
    let choice = choose(find, catalog, true, stop)?;
    let best = choice.best();
    let mut members: Vec<(&'static str, Value<'static>)> = vec![
        ("dbname", text(catalog.database)),
        ("index", best.map_or(Value::Null, |best| best.index.to_json())),
        ("partitioned", Value::Bool(catalog.partitioned)),
        ("selector", find.selector.to_json()),
        ("opts", find.options()),
        ("limit", number(find.limit)),
        ("skip", number(find.skip)),
        ("fields", find.field_names()),
        ("index_candidates", candidates(find, &choice)),
        ("selector_hints", hints(find)),
    ];
    if let Some(best) = best {
        let covering = covers(best.index, find);
        let (start, end) = match best.ranges.as_slice() {
            _ if selects_nothing(&choice, find.selector.normal()) => (Value::Null, Value::Null),
            [range] if best.index.is_all_docs() => shown_ids(range),
            ranges => shown_keys(ranges),
        };
        members.push(("mrargs", arguments(find, covering, start, end)));
        members.push(("covering", Value::Bool(covering)));
    }
    Ok(Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect()))
}

fn arguments(find: &Find, covering: bool, start: Value<'static>, end: Value<'static>) -> Value<'static> {
    let (start, end) = if find.sort.descending { (end, start) } else { (start, end) };
    object([
        ("include_docs", Value::Bool(find.r == 1 && !covering)),
        ("view_type", text("map")),
        ("reduce", Value::Bool(false)),
        ("partition", find.partition.as_deref().map_or(Value::Null, text)),
        ("start_key", start),
        ("end_key", end),
        ("direction", text(if find.sort.descending { "rev" } else { "fwd" })),
        ("stable", Value::Bool(find.stable || find.stale_ok)),
        ("update", Value::Bool(!find.may_be_stale())),
        ("conflicts", if find.conflicts { Value::Bool(true) } else { text("undefined") }),
    ])
}

/// Returns the fields that an index could help with.
fn hints(find: &Find) -> Value<'static> {
    let selector = find.selector.normal();
    let indexable = indexable_fields(selector);
    let mut others = fields_of(selector);
    others.retain(|name| indexable.binary_search(name).is_err());
    others.sort_unstable();
    others.dedup();
    let names = |names: &[&str]| Value::Array(names.iter().map(|name| text(name)).collect());
    Value::Array(vec![object([
        ("type", text("json")),
        ("indexable_fields", names(&indexable)),
        ("unindexable_fields", names(&others)),
    ])])
}

#[derive(Default)]
struct Analysis {
    /// True if no check excluded the index.
    usable: bool,
    /// The first reason found, which is the only one shown.
    reason: Option<&'static str>,
    ranking: u64,
}

/// Describes all indexes but the chosen one, the last first.
fn candidates(find: &Find, choice: &Choice<'_>) -> Value<'static> {
    let winner = choice.best().map(|best| best.index);
    // These lists are sorted by `compare`, so each lookup is a binary search.
    let usability = |index: &Index| {
        let at = choice.usable.binary_search_by(|(found, _)| found.compare(index)).ok()?;
        choice.usable.get(at).map(|(_, why)| *why)
    };
    let mut places: Vec<(usize, &Index)> = choice.ranked.iter().map(|ranked| ranked.index).enumerate().collect();
    places.sort_by(|(_, a), (_, b)| a.compare(b));
    let place = |index: &Index| {
        let at = places.binary_search_by(|(_, found)| found.compare(index)).ok()?;
        places.get(at).map(|(place, _)| *place)
    };
    let can = |index: &Index| usability(index) == Some(None);
    let in_scope = |index: &Index| usability(index).is_some();
    let is_left = |index: &Index| choice.left.binary_search_by(|left| left.compare(index)).is_ok();
    let is_ranked = |index: &Index| place(index).is_some();
    // A named partial index also counts as examined.
    let is_partial = |index: &Index| index.partial().is_some();
    let is_seen = |index: &Index| !is_partial(index) || is_named(find, index);
    // Each non-empty class moves the next one down.
    let classes: [&dyn Fn(&Index) -> bool; 4] = [
        &|index| is_left(index) && !is_ranked(index),
        &|index| can(index) && !is_left(index),
        &|index| in_scope(index) && !can(index),
        &|index| !is_partial(index) && !in_scope(index),
    ];
    let mut ranks = [choice.ranked.len().max(1) as u64; 5];
    for (at, class) in classes.iter().enumerate() {
        let is_there = choice.all.iter().any(|index| class(index));
        let next = ranks.get(at).copied().unwrap_or(1) + u64::from(is_there);
        if let Some(rank) = ranks.get_mut(at + 1) {
            *rank = next;
        }
    }
    let [unfavored, excluded, unusable, out_of_scope, partial] = ranks;
    let analyse = |index: &Index| -> Analysis {
        let mut analysis = Analysis { usable: true, ..Analysis::default() };
        let mut say = |usable: bool, reason: Option<&'static str>, ranking: u64| {
            analysis.usable &= usable;
            analysis.reason = analysis.reason.or(reason);
            analysis.ranking += ranking;
        };
        if is_partial(index) {
            say(false, Some("is_partial"), partial);
        }
        if !in_scope(index) {
            if is_seen(index) {
                say(false, Some("scope_mismatch"), out_of_scope);
            }
        } else if !can(index) {
            say(false, usability(index).flatten().map(Unusable::name), unusable);
        } else if !is_left(index) {
            say(true, Some("excluded_by_user"), excluded);
        } else if let Some(at) = place(index) {
            let columns = |index: Option<&Index>| index.map_or(0, |index| index.fields().len());
            let reason = match choice.ranked.get(at) {
                Some(ranked) if ranked.distance > 0 => "less_overlap",
                _ if columns(Some(index)) > columns(winner) => "too_many_fields",
                _ => "alphabetically_comes_after",
            };
            say(true, Some(reason), at as u64);
        } else {
            say(true, Some("unfavored_type"), unfavored);
        }
        analysis
    };
    let shown = choice.all.iter().rev().filter(|index| winner != Some(**index)).map(|index| {
        let analysis = analyse(index);
        let covering = if index.is_all_docs() { Value::Null } else { Value::Bool(covers_answer(index, find)) };
        object([
            ("index", index.to_json()),
            (
                "analysis",
                object([
                    ("usable", Value::Bool(analysis.usable)),
                    ("reasons", Value::Array(vec![member("name", text(analysis.reason.unwrap_or_default()))])),
                    ("ranking", number(analysis.ranking)),
                    ("covering", covering),
                ]),
            ),
        ])
    });
    Value::Array(shown.collect())
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;
    use crate::index::COMPARED;

    fn json(text: &str) -> Value<'static> {
        parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
    }

    /// Returns the number of index comparisons that `explain` takes in a database with `count` indexes.
    fn compared(count: usize) -> usize {
        let mut indexes = vec![Index::all_docs()];
        for n in 0..count {
            let field = if n % 2 == 0 { "a" } else { "b" };
            let map = json(&format!(r#"{{"map":{{"fields":{{"{field}":"asc"}}}},"options":{{"def":{{}}}}}}"#));
            indexes.extend(Index::of_map(&format!("_design/{n:04}"), "i", map.get("map").unwrap()));
        }
        assert_eq!(indexes.len(), count + 1);
        let find = Find::parse(&json(r#"{"selector":{"a":{"$gt":1}}}"#), None, &|| false).unwrap();
        let catalog = Catalog { database: "db", partitioned: false, indexes: &indexes };
        COMPARED.set(0);
        let explained = explain(&find, &catalog).unwrap();
        let Some(Value::Array(others)) = explained.get("index_candidates") else { panic!("{explained:?}") };
        assert_eq!(others.len(), count);
        COMPARED.get()
    }

    #[test]
    fn an_explanation_takes_little_more_for_each_index() {
        let (few, many) = (compared(50), compared(800));
        assert!(many < 16 * few * 2, "{few} comparisons among 50 indexes, {many} among 800");
    }
}
