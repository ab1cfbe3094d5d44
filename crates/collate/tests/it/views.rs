//! CouchDB's recorded answers of views, recomputed from sort keys and reduction states.

use std::collections::BTreeMap;

use flatbed_collate::reduce::{ReduceState, Reducer};
use flatbed_collate::{Boundary, Collation, arrange, cut_to_level, group_prefix};
use flatbed_flatten::json::{self, Limits, Value, parse};

use super::map;

/// Scenarios whose views `map` can evaluate, and the number of their answers that are compared.
const SCENARIOS: [(&str, usize); 12] = [
    ("rows as text", 13),
    ("ranges", 45),
    ("order of all kinds of keys", 15),
    ("tricky strings sorted", 9),
    ("grouping", 25),
    ("sums", 11),
    ("sums that cannot be", 18),
    ("suffixed and unknown built-in reduces", 4),
    ("counts and statistics", 15),
    ("statistics that cannot be", 11),
    ("other built-in reduces", 18),
    ("one key often from one document", 5),
];

/// Answers that CouchDB breaks off with an Erlang term, while this service returns no error or one in words.
const BREAKS_OFF: [&str; 3] =
    ["/{db}/_design/mixno/_view/v", "/{db}/_design/mixno/_view/v?group=true", "/{db}/_design/arrodd/_view/v"];

/// A row: the element of its key, its key and its value.
struct Row {
    element: Vec<u8>,
    id: String,
    spelling: u32,
    key: Value<'static>,
    value: Value<'static>,
}

#[derive(Default)]
struct Database {
    documents: BTreeMap<String, Value<'static>>,
}

/// An answer: its status, and its body.
type Answer = (u16, Value<'static>);

fn value(text: &str) -> Value<'static> {
    parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
}

fn object(members: Vec<(&'static str, Value<'static>)>) -> Value<'static> {
    Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

impl Database {
    fn put(&mut self, document: Value<'static>) {
        let id = document.get("_id").and_then(Value::as_str).unwrap().to_owned();
        self.documents.insert(id, document);
    }

    fn view(&self, design: &Value<'_>, name: &str) -> Option<(Collation, Vec<Row>)> {
        let view = design.get("views")?.get(name)?;
        let is_raw = view.get("options").and_then(|options| options.get("collation")?.as_str()) == Some("raw");
        let collation = if is_raw { Collation::raw() } else { Collation::unicode().unwrap() };
        let mut rows = Vec::new();
        for (id, document) in self.documents.iter().filter(|(id, _)| !id.starts_with('_')) {
            let emitted = map::rows(view.get("map")?.as_str()?, document)?;
            let (keys, values): (Vec<_>, Vec<_>) = emitted.into_iter().unzip();
            for arranged in arrange(&collation, &keys, |rows| rows.iter().map(|at| values[*at].clone()).collect()) {
                let (key, value) = (keys[arranged.at].clone(), values[arranged.at].clone());
                let element = arranged.sort_key.with_label(None).unwrap();
                rows.push(Row { element, id: id.clone(), spelling: arranged.tail.spelling, key, value });
            }
        }
        // Stable: rows of one document and key stay as they were arranged.
        rows.sort_by(|a, b| (&a.element, &a.id, a.spelling).cmp(&(&b.element, &b.id, b.spelling)));
        Some((collation, rows))
    }

    /// `None` for an unsupported query.
    fn query(&self, design: &str, view: &str, query: &str) -> Option<Answer> {
        let design = self.documents.get(&format!("_design/{design}"))?;
        let reducer_of = |view: &Value<'_>| {
            view.get("reduce").and_then(Value::as_str).map(|source| Reducer::from_name(source).unwrap().unwrap())
        };
        // An error of one view's statistics fails all views.
        let Some(Value::Object(views)) = design.get("views") else { return None };
        for (name, definition) in views {
            if let Some(reducer) = reducer_of(definition) {
                let (_, rows) = self.view(design, name)?;
                if let Err(error) = reduced(reducer, &rows.iter().collect::<Vec<_>>()) {
                    let error = vec![
                        ("error", Value::String(error.error.into())),
                        ("reason", Value::String(error.reason.into())),
                    ];
                    return Some((500, object(error)));
                }
            }
        }
        let reducer = reducer_of(design.get("views")?.get(view)?);
        let (collation, mut rows) = self.view(design, view)?;
        let parameters = Parameters::of(query)?;
        if parameters.is_descending {
            // Rows of one document and spelling keep their order.
            rows.sort_by(|a, b| (&b.element, &b.id, b.spelling).cmp(&(&a.element, &a.id, a.spelling)));
        }
        let ranges: Vec<(Option<Value<'static>>, Option<Value<'static>>)> = match &parameters.keys {
            Some(keys) => {
                let mut ranges: Vec<_> = keys.iter().map(|key| (Some(key.clone()), Some(key.clone()))).collect();
                if parameters.is_descending {
                    ranges.reverse();
                }
                ranges
            }
            None => vec![(parameters.start.clone(), parameters.end.clone())],
        };
        let mut first = None;
        let mut found: Vec<Vec<&Row>> = Vec::new();
        for (start, end) in &ranges {
            let is_in = |row: &&Row| parameters.has(&collation, row, start.as_ref(), end.as_ref());
            first = first.or(rows.iter().position(|row| is_in(&row)));
            found.push(rows.iter().filter(is_in).collect());
        }
        let pages = |items: Vec<Value<'static>>| {
            Value::Array(items.into_iter().skip(parameters.skip).take(parameters.limit).collect())
        };
        if let Some(reducer) = reducer.filter(|_| parameters.reduces) {
            let mut answered = Vec::new();
            for range in found {
                answered.extend(groups(reducer, &collation, &parameters, range, ranges.len() > 1)?);
            }
            return Some((200, object(vec![("rows", pages(answered))])));
        }
        let total = rows.len();
        let before = || match ranges.as_slice() {
            [(start, _)] => {
                rows.iter().take_while(|row| !parameters.has(&collation, row, start.as_ref(), None)).count()
            }
            _ => 0,
        };
        let offset = (first.unwrap_or_else(before) + parameters.skip).min(total);
        let rows = found.into_iter().flatten().map(|row| {
            object(vec![
                ("id", Value::String(row.id.clone().into())),
                ("key", row.key.clone()),
                ("value", row.value.clone()),
            ])
        });
        let count = |count: usize| Value::Number(count.to_string().into());
        Some((
            200,
            object(vec![("total_rows", count(total)), ("offset", count(offset)), ("rows", pages(rows.collect()))]),
        ))
    }
}

/// The result of rows in reading order, from merged states.
fn reduced(reducer: Reducer, rows: &[&Row]) -> Result<Value<'static>, flatbed_collate::reduce::ReduceError> {
    let unicode = Collation::unicode().unwrap();
    let mut sum = ReduceState::default();
    let mut in_order: Vec<&&Row> = rows.iter().collect();
    in_order.sort_by(|a, b| (&a.element, &a.id).cmp(&(&b.element, &b.id)));
    // CouchDB reduces so few rows at once; merged states give the same, except for the wording of errors.
    in_order.iter().for_each(|row| sum.add(reducer, &unicode, &row.key, &row.value));
    let mut halves = ReduceState::default();
    for half in in_order.chunks(in_order.len().div_ceil(2).max(1)) {
        let mut state = ReduceState::default();
        half.iter().for_each(|row| state.add(reducer, &unicode, &row.key, &row.value));
        let mut stored = Vec::new();
        state.encode(&mut stored);
        halves.merge(reducer, &unicode, &ReduceState::decode(&mut stored.as_slice()).unwrap());
    }
    let (at_once, merged) = (sum.finish(), halves.finish());
    match (&at_once, &merged) {
        (Ok(Some(a)), Ok(Some(b))) if a.get("error").is_some() => assert!(b.get("error").is_some()),
        (Err(_), Err(_)) => {}
        _ => assert_eq!(at_once, merged, "{reducer:?}"),
    }
    at_once.map(|value| value.expect("a value that was kept"))
}

fn groups(
    reducer: Reducer,
    collation: &Collation,
    parameters: &Parameters,
    rows: Vec<&Row>,
    has_many_keys: bool,
) -> Option<Vec<Value<'static>>> {
    if rows.is_empty() {
        return Some(Vec::new());
    }
    let row =
        |key: Value<'static>, rows: &[&Row]| object(vec![("key", key), ("value", reduced(reducer, rows).unwrap())]);
    let level = match parameters.level {
        Some(0) | None if has_many_keys => return None,
        Some(0) | None => return Some(vec![row(Value::Null, &rows)]),
        Some(level) => level,
    };
    let groups = rows.chunk_by(|a, b| {
        let is_same = group_prefix(collation, &a.element, level) == group_prefix(collation, &b.element, level);
        let keys = [cut_to_level(&a.key, level), cut_to_level(&b.key, level)];
        assert_eq!(is_same, collation.compare(&keys[0], &keys[1]).is_eq());
        is_same
    });
    Some(groups.map(|group| row(cut_to_level(&group[0].key, level), group)).collect())
}

#[derive(Debug)]
struct Parameters {
    start: Option<Value<'static>>,
    end: Option<Value<'static>>,
    keys: Option<Vec<Value<'static>>>,
    start_id: Option<String>,
    end_id: Option<String>,
    inclusive_end: bool,
    is_descending: bool,
    skip: usize,
    limit: usize,
    level: Option<usize>,
    reduces: bool,
}

impl Parameters {
    fn of(query: &str) -> Option<Parameters> {
        let mut parameters = Parameters {
            start: None,
            end: None,
            keys: None,
            start_id: None,
            end_id: None,
            inclusive_end: true,
            is_descending: false,
            skip: 0,
            limit: usize::MAX,
            level: None,
            reduces: true,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, given) = pair.split_once('=')?;
            match name {
                "key" => {
                    parameters.start = Some(value(given));
                    parameters.end = Some(value(given));
                }
                "startkey" | "start_key" => parameters.start = Some(value(given)),
                "endkey" | "end_key" => parameters.end = Some(value(given)),
                "keys" => {
                    let Value::Array(keys) = value(given) else { return None };
                    parameters.keys = Some(keys);
                }
                "startkey_docid" | "start_key_doc_id" => parameters.start_id = Some(given.to_owned()),
                "endkey_docid" | "end_key_doc_id" => parameters.end_id = Some(given.to_owned()),
                "inclusive_end" => parameters.inclusive_end = given == "true",
                "descending" => parameters.is_descending = given == "true",
                "skip" => parameters.skip = given.parse().ok()?,
                "limit" => parameters.limit = given.parse().ok()?,
                "group" => parameters.level = (given == "true").then_some(usize::MAX),
                "group_level" => parameters.level = given.parse().ok(),
                "reduce" => parameters.reduces = given == "true",
                _ => return None,
            }
        }
        Some(parameters)
    }

    /// Returns whether a row is between two keys, by its boundaries.
    fn has(&self, collation: &Collation, row: &Row, start: Option<&Value<'_>>, end: Option<&Value<'_>>) -> bool {
        // The position of the row relative to the rows with a key: before, among, or after them.
        let side = |key: &Value<'_>| {
            let key = collation.sort_key(key);
            let is_before = Boundary::of(&key, None, false).is_behind(&row.element);
            let is_behind = !Boundary::of(&key, None, true).is_behind(&row.element);
            let order = i32::from(is_behind) - i32::from(is_before);
            if self.is_descending { -order } else { order }
        };
        let by_id = |id: &Option<String>| {
            let order = id.as_ref().map_or(0, |id| row.id.as_str().cmp(id) as i32);
            if self.is_descending { -order } else { order }
        };
        let is_behind_start = start.is_none_or(|key| side(key) > 0 || side(key) == 0 && by_id(&self.start_id) >= 0);
        let is_before_end = end.is_none_or(|key| match side(key) {
            0 if !self.inclusive_end && self.end_id.is_some() => by_id(&self.end_id) < 0,
            0 => self.inclusive_end && by_id(&self.end_id) <= 0,
            order => order < 0,
        });
        is_behind_start && is_before_end
    }
}

/// The difference, with numbers compared by value and members in order.
fn difference(expected: &Answer, found: &Answer) -> Option<String> {
    let same = |a: &Value<'_>, b: &Value<'_>| Collation::raw().compare(a, b).is_eq();
    let members: &[&str] = if expected.0 == 200 { &["total_rows", "rows"] } else { &["error", "reason"] };
    let offset = match (expected.1.get("offset"), found.1.get("offset")) {
        // Blanked if the scenario does not keep it.
        (Some(Value::String(_)) | None, _) => true,
        (Some(a), b) => b.is_some_and(|b| same(a, b)),
    };
    let is_same = expected.0 == found.0
        && offset
        && members.iter().all(|name| match (expected.1.get(name), found.1.get(name)) {
            (Some(a), Some(b)) => same(a, b),
            (None, None) => true,
            _ => false,
        });
    (!is_same).then(|| {
        format!(
            "expected {} {}\nfound    {} {}",
            expected.0,
            json::to_string(&expected.1),
            found.0,
            json::to_string(&found.1)
        )
    })
}

#[test]
fn rows_and_reductions_are_couchdbs() {
    let mut differences = Vec::new();
    let mut counts = BTreeMap::new();
    for scenario in super::recorded("views.jsonl") {
        let name = scenario.get("name").and_then(Value::as_str).unwrap().to_owned();
        let Some((name, _)) = SCENARIOS.iter().find(|(known, _)| *known == name) else { continue };
        let mut database = Database::default();
        let Some(Value::Array(steps)) = scenario.get("steps") else { panic!("{name}") };
        for step in steps {
            let Value::Array(step) = step else { panic!("{name}") };
            let Some(Value::Array(request)) = step.first() else { panic!("{name}") };
            let (method, path) = (request[0].as_str().unwrap(), request[1].as_str().unwrap());
            let Some(Value::Number(status)) = step[1].get("status") else { panic!("{name}") };
            let status: u16 = status.parse().unwrap();
            let document = path.strip_prefix("/{db}/").unwrap();
            match (method, request.get(3).and_then(Value::as_str)) {
                ("POST", Some(body)) if document == "_bulk_docs" => {
                    let Some(Value::Array(documents)) = value(body).get("docs").cloned() else { panic!("{body}") };
                    documents.into_iter().for_each(|document| database.put(document));
                }
                ("PUT", Some(body)) if status == 201 => {
                    let Value::Object(mut members) = value(body) else { panic!("{body}") };
                    members.insert(0, ("_id".into(), Value::String(document.to_owned().into())));
                    database.put(Value::Object(members));
                }
                ("PUT", Some(body)) => {
                    // Refused: for a source with a built-in's name as prefix, with the same message.
                    let views = value(body).get("views").cloned().unwrap();
                    let source = views.get("x").and_then(|view| view.get("reduce")?.as_str().map(str::to_owned));
                    if let Some(Err(error)) = source.map(|source| Reducer::from_name(&source)) {
                        let reason = step[1].get("body").and_then(|body| body.get("reason"));
                        assert_eq!(reason.and_then(Value::as_str), Some(error.to_string().as_str()));
                        *counts.entry(*name).or_insert(0) += 1;
                    }
                }
                ("DELETE", _) => {
                    let id = document.split_once('?').map_or(document, |(id, _)| id);
                    database.documents.remove(id).unwrap();
                }
                // Refused queries are about parameters.
                ("GET", _) if status != 400 && !BREAKS_OFF.contains(&path) => {
                    let (path_alone, query) = path.split_once('?').unwrap_or((path, ""));
                    let parts: Vec<&str> = path_alone.split('/').collect();
                    let ["", "{db}", "_design", design, "_view", view] = parts.as_slice() else { continue };
                    let Some(found) = database.query(design, view, query) else { continue };
                    let body = match step[1].get("body").unwrap() {
                        Value::String(text) => value(text),
                        body => body.clone(),
                    };
                    *counts.entry(*name).or_insert(0) += 1;
                    if let Some(difference) = difference(&(status, body), &found) {
                        differences.push(format!("{name}: {path}\n{difference}"));
                    }
                }
                _ => {}
            }
        }
    }
    assert!(differences.is_empty(), "{} of {counts:?}\n{}", differences.len(), differences.join("\n"));
    assert_eq!(counts, BTreeMap::from(SCENARIOS));
}
