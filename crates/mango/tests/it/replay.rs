//! Replays `mango.jsonl`, and Mango's part of `queries.jsonl`, against a database in memory: documents in a map,
//! indexes computed on each read, plans executed row by row.

use std::borrow::Cow;
use std::collections::BTreeMap;

use flatbed_flatten::json::{Value, to_string};
use flatbed_mango::{
    BESIDE, Bookmark, Catalog, ExecutionStats, Find, IdRange, Index, IndexRequest, Listing, MangoError, Plan,
    Projector, Source, bulk_delete_answer, compare, design_id, explain, find_index, parse_bulk_delete, plan, tail,
    without_index,
};

use crate::json;
use crate::recorded::{Step, items, scenario};

type Answered = Result<Value<'static>, MangoError>;

pub(crate) struct Database {
    name: String,
    partitioned: bool,
    documents: BTreeMap<String, Value<'static>>,
    /// The losing leaves.
    conflicts: BTreeMap<String, Vec<Value<'static>>>,
}

fn set(document: &mut Value<'static>, name: &str, value: Value<'static>) {
    let Value::Object(members) = document else { panic!("no object") };
    match members.iter_mut().find(|(found, _)| found == name) {
        Some((_, found)) => *found = value,
        None => members.push((Cow::Owned(name.to_owned()), value)),
    }
}

fn string(value: &str) -> Value<'static> {
    Value::String(value.to_owned().into())
}

/// Returns the members of a document from which indexes are maintained.
fn body_of(document: &Value<'static>) -> Value<'static> {
    let Value::Object(mut members) = document.clone() else { panic!("no object") };
    members.retain(|(name, _)| !BESIDE.contains(&name.as_ref()));
    Value::Object(members)
}

fn id_of(document: &Value<'_>) -> String {
    document.get("_id").and_then(Value::as_str).unwrap().to_owned()
}

impl Database {
    pub(crate) fn new(partitioned: bool) -> Database {
        Database { name: "db".to_owned(), partitioned, documents: BTreeMap::new(), conflicts: BTreeMap::new() }
    }

    fn indexes(&self) -> Vec<Index> {
        let of = |(id, document): (&String, &Value<'static>)| Index::of_design_document(id, document, self.partitioned);
        let designs = self.documents.iter().filter(|(id, _)| id.starts_with("_design/"));
        std::iter::once(Index::all_docs()).chain(designs.flat_map(of)).collect()
    }

    pub(crate) fn put(&mut self, id: &str, mut document: Value<'static>, rev: &str) {
        set(&mut document, "_id", string(id));
        set(&mut document, "_rev", string(rev));
        if document.get("_attachments").is_some() {
            let stub = r#"{"f":{"content_type":"text/plain","revpos":1,"digest":"md5-QTVOnBwGnrw6Tx9YG1ZRyA==","length":2,"stub":true}}"#;
            set(&mut document, "_attachments", json(stub));
        }
        if document.get("_deleted").is_some() {
            self.documents.remove(id);
        } else if let Some(other) = self.documents.get(id)
            && let Some(Value::String(other_rev)) = other.get("_rev")
            && document.get("_revisions").is_some()
        {
            let loser = if other_rev.as_ref() < rev { other_rev.to_string() } else { rev.to_owned() };
            self.conflicts.entry(id.to_owned()).or_default().push(string(&loser));
            if loser != rev {
                self.documents.insert(id.to_owned(), document);
            }
        } else {
            self.documents.insert(id.to_owned(), document);
        }
        if let Some(Value::Object(members)) = self.documents.get_mut(id) {
            members.retain(|(name, _)| name != "_revisions");
        }
    }

    fn read(&self, id: &str, find: &Find) -> Value<'static> {
        let mut document = self.documents.get(id).unwrap().clone();
        if let Some(conflicts) = self.conflicts.get(id).filter(|_| find.conflicts) {
            set(&mut document, "_conflicts", Value::Array(conflicts.clone()));
        }
        document
    }

    pub(crate) fn post_index(&mut self, body: &Value<'_>) -> Answered {
        let request = IndexRequest::parse(body, &|| false)?;
        let put = request.put_into(self.documents.get(request.ddoc()), self.partitioned)?;
        let created = put.is_some();
        if let Some(document) = put {
            self.put(request.ddoc(), document, "1-x");
        }
        Ok(request.answer(created))
    }

    pub(crate) fn drop_index(&mut self, ddoc: &str, name: &str) {
        match without_index(self.documents.get(ddoc).unwrap(), name) {
            Some(left) => self.put(ddoc, left, "2-x"),
            None => drop(self.documents.remove(ddoc)),
        }
    }

    fn rows(&self, plan: &Plan<'_>, find: &Find) -> Vec<(Value<'static>, String)> {
        let partition = find.partition.as_ref().map(|partition| format!("{partition}:"));
        let ids = self.documents.keys().filter(|id| partition.as_ref().is_none_or(|prefix| id.starts_with(prefix)));
        let mut rows = Vec::new();
        for id in ids {
            match &plan.source {
                Source::Nothing => {}
                Source::Ids(ranges) => {
                    use std::ops::RangeBounds;
                    if ranges.iter().any(|IdRange { start, end }| (start.as_ref(), end.as_ref()).contains(id)) {
                        rows.push((string(id), id.clone()));
                    }
                }
                Source::Keys(ranges) => {
                    if let Some(key) = plan.index.key(&body_of(&self.documents[id]), &|| false).unwrap()
                        && let count @ 1.. = ranges.iter().filter(|range| range.has(&key)).count()
                    {
                        assert_eq!(count, 1, "ranges overlap");
                        rows.push((Value::Array(key), id.clone()));
                    }
                }
            }
        }
        let order = |a: &(Value<'_>, String), b: &(Value<'_>, String)| match plan.source {
            Source::Keys(_) => compare(&a.0, &b.0).then_with(|| a.1.cmp(&b.1)),
            _ => a.1.cmp(&b.1),
        };
        rows.sort_by(order);
        if let Some(after) = &plan.after {
            let after = (after.key.clone(), after.id.clone());
            rows.retain(|row| if plan.reverse { order(row, &after).is_lt() } else { order(row, &after).is_gt() });
        }
        if plan.reverse {
            rows.reverse();
        }
        rows
    }

    pub(crate) fn find(&self, body: &Value<'_>, partition: Option<&str>) -> Answered {
        let find = Find::parse(body, partition, &|| false)?;
        let indexes = self.indexes();
        let catalog = Catalog { database: &self.name, partitioned: self.partitioned, indexes: &indexes };
        let plan = plan(&find, &catalog)?;
        let mut answer = Value::Object(Vec::new());
        if plan.source == Source::Nothing {
            set(&mut answer, "docs", Value::Array(Vec::new()));
            return Ok(answer);
        }
        let mut stats = ExecutionStats::default();
        let (mut skip, mut limit, mut last, mut docs) = (find.skip, find.limit, None, Vec::new());
        for (key, id) in self.rows(&plan, &find) {
            stats.keys_examined += 1;
            let document = match (&plan.source, &key) {
                (Source::Keys(_), Value::Array(key)) if plan.covering => plan.document_of(&id, key),
                _ => {
                    stats.docs_examined += 1;
                    self.read(&id, &find)
                }
            };
            // A covering row must show the same as the document itself.
            let whole = self.read(&id, &find);
            let is_selected = plan.residual.as_ref().is_none_or(|residual| residual.matches(&document));
            assert_eq!(is_selected, find.selector.matches(&whole), "{}", to_string(&whole));
            if id.starts_with("_design/") || !is_selected {
                continue;
            }
            if limit == 0 {
                break;
            }
            last = Some(Bookmark { id, key });
            if skip > 0 {
                skip -= 1;
                continue;
            }
            limit -= 1;
            stats.results_returned += 1;
            let fields = find.fields.as_ref();
            assert_eq!(
                fields.map(|fields| Projector::new(fields).project(&document)),
                fields.map(|fields| Projector::new(fields).project(&whole))
            );
            docs.push(fields.map_or(document, |fields| Projector::new(fields).project(&whole)));
        }
        set(&mut answer, "docs", Value::Array(docs));
        let bookmark = Bookmark::of_answer(last.as_ref(), find.bookmark.as_deref());
        for (name, value) in tail(&find, plan.index, &bookmark, &stats) {
            set(&mut answer, name, value);
        }
        Ok(answer)
    }

    pub(crate) fn explain(&self, body: &Value<'_>, partition: Option<&str>) -> Answered {
        let find = Find::parse(body, partition, &|| false)?;
        let indexes = self.indexes();
        explain(&find, &Catalog { database: &self.name, partitioned: self.partitioned, indexes: &indexes })
    }

    /// Returns the rows of an index as a view does, or their number.
    fn view(&self, ddoc: &str, name: &str, reduce: bool) -> Value<'static> {
        let indexes = self.indexes();
        let index = find_index(&indexes, ddoc, "json", name).unwrap();
        let key = |document: &Value<'static>| {
            index.key(document, &|| false).unwrap().map(|key| (Value::Array(key), id_of(document)))
        };
        let mut rows: Vec<_> = self.documents.values().filter_map(key).collect();
        rows.sort_by(|a, b| compare(&a.0, &b.0).then_with(|| a.1.cmp(&b.1)));
        let count = rows.len();
        if reduce {
            return json(&format!(r#"{{"rows":[{{"key":null,"value":{count}}}]}}"#));
        }
        let row = |(key, id): (Value<'static>, String)| {
            json(&format!(r#"{{"id":{},"key":{},"value":null}}"#, to_string(&string(&id)), to_string(&key)))
        };
        let rows = Value::Array(rows.into_iter().map(row).collect());
        json(&format!(r#"{{"total_rows":{count},"offset":0,"rows":{}}}"#, to_string(&rows)))
    }

    /// Answers a step. `None`: the request is not one of Mango's.
    pub(crate) fn answer(&mut self, step: &Step, path: &str, body: Option<&str>) -> Option<(u16, Value<'static>)> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<String> = path.split('/').skip(2).map(|part| part.replace("%2F", "/")).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (partition, parts) = match parts.as_slice() {
            ["_partition", partition, rest @ ..] => (Some(*partition), rest),
            rest => (None, rest),
        };
        let body = body.and_then(|body| flatbed_flatten::json::parse(body.as_bytes(), &Default::default()).ok());
        let body = body.map(Value::into_owned);
        let answered = match (step.method.as_str(), parts, body) {
            ("POST", ["_bulk_docs"], Some(body)) => {
                for document in items(&body, "docs") {
                    let id = id_of(document);
                    let answers = match &step.answer {
                        Value::Array(answers) => answers.as_slice(),
                        _ => &[],
                    };
                    let rev = answers
                        .iter()
                        .find(|answer| id_of_answer(answer) == Some(&id))
                        .and_then(|answer| answer.get("rev"));
                    let rev = rev.or(document.get("_rev")).and_then(Value::as_str).unwrap_or("1-x").to_owned();
                    self.put(&id, document.clone(), &rev);
                }
                return None;
            }
            ("PUT", id, Some(body)) if !matches!(id, ["_index" | "_find", ..]) => {
                let rev = step.answer.get("rev").and_then(Value::as_str).unwrap_or("1-x").to_owned();
                self.put(&id.join("/"), body, &rev);
                return None;
            }
            ("DELETE", [id], _) => {
                self.documents.remove(*id);
                return None;
            }
            ("POST", ["_index"], Some(body)) => self.post_index(&body),
            ("GET", ["_index"], _) => {
                let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                Listing::parse(pairs).map(|listing| listing.answer(&self.indexes()))
            }
            ("DELETE", ["_index", ddoc @ .., kind, name], _) if !ddoc.is_empty() => {
                let found = find_index(&self.indexes(), &ddoc.join("/"), kind, name)
                    .map(|index| index.ddoc().unwrap().to_owned());
                found.map(|ddoc| {
                    self.drop_index(&ddoc, name);
                    json(r#"{"ok":true}"#)
                })
            }
            ("POST", ["_index", "_bulk_delete"], Some(body)) => parse_bulk_delete(&body).map(|ids| {
                let mut deleted = Vec::new();
                for id in ids {
                    let names: Vec<_> = self
                        .indexes()
                        .iter()
                        .filter(|index| index.ddoc() == Some(&id))
                        .map(|index| index.name().to_owned())
                        .collect();
                    names.iter().for_each(|name| self.drop_index(&id, name));
                    deleted.push((id, if names.is_empty() { Err("not_found") } else { Ok(()) }));
                }
                bulk_delete_answer(&deleted)
            }),
            ("GET", ["_design", ddoc], _) => {
                let mut document = self.documents.get(&design_id(ddoc))?.clone();
                set(&mut document, "_rev", step.answer.get("_rev")?.clone());
                Ok(document)
            }
            ("GET", ["_design", ddoc, "_view", name], _) => Ok(self.view(ddoc, name, query.is_empty())),
            ("POST", ["_find"], Some(body)) => self.find(&body, partition),
            ("POST", ["_explain"], Some(body)) => self.explain(&body, partition),
            _ => return None,
        };
        Some(match answered {
            Ok(answer) => (200, answer),
            Err(refused) => {
                let mut answer = Value::Object(Vec::new());
                set(&mut answer, "error", string(refused.error));
                set(&mut answer, "reason", string(&refused.reason));
                (refused.status, answer)
            }
        })
    }
}

fn id_of_answer<'v>(answer: &'v Value<'_>) -> Option<&'v str> {
    answer.get("id").and_then(Value::as_str)
}

/// Compares an answer with the recorded one, in which `~` stands for a value that differs between servers.
fn agrees(recorded: &Value<'_>, answer: &Value<'_>) -> bool {
    match (recorded, answer) {
        (Value::String(text), _) if text == "~" => true,
        (Value::String(text), Value::String(other)) if text == "DB" => !other.is_empty(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agrees(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            let members = |members: &[(Cow<'_, str>, Value<'_>)]| {
                let mut names: Vec<String> = members.iter().map(|(name, _)| name.to_string()).collect();
                names.sort();
                names.retain(|name| name != "ref");
                names
            };
            let all = |name: &String| agrees(recorded.get(name).unwrap(), answer.get(name).unwrap());
            members(a) == members(b) && members(a).iter().all(all)
        }
        (Value::Number(a), Value::Number(b)) => a.parse::<f64>() == b.parse::<f64>(),
        (a, b) => a == b,
    }
}

/// Fills in a request's references to earlier answers.
fn filled(template: &str, answers: &[Value<'static>]) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once("{at") {
        let (hole, after) = behind.split_once('}').unwrap();
        let (at, member) = hole.split_once(':').unwrap();
        let value = answers[at.parse::<usize>().unwrap()].get(member).and_then(Value::as_str).unwrap();
        out.push_str(before);
        out.push_str(value);
        rest = after;
    }
    (out + rest).replace("{db}", "db")
}

/// Compares the answers of a scenario except `others`, which differ on purpose.
fn replay(name: &str, least: usize, others: &[&str]) {
    replay_of("mango", name, least, others);
}

fn replay_of(file: &str, name: &str, least: usize, others: &[&str]) {
    let partitioned = name.ends_with("partitioned database");
    let mut database = Database::new(partitioned);
    let (mut answers, mut differ, mut compared) = (Vec::new(), Vec::new(), 0);
    for step in scenario(file, name) {
        let path = filled(&step.path, &answers);
        let body = step.body.as_deref().map(|body| filled(body, &answers));
        // Errors about content types, databases and methods come from the surface.
        let is_surface = matches!(step.status, 415 | 405) || !path.starts_with("/db/");
        let answered = if is_surface { None } else { database.answer(&step, &path, body.as_deref()) };
        let Some((status, answer)) = answered else {
            answers.push(step.answer);
            continue;
        };
        compared += 1;
        let shown = format!("{} {} {}", step.method, step.path, step.body.as_deref().unwrap_or_default());
        let is_equal = status == step.status && agrees(&step.answer, &answer);
        if !is_equal {
            println!(
                "{shown}\n  recorded {} {}\n  answered {status} {}",
                step.status,
                to_string(&step.answer),
                to_string(&answer)
            );
            differ.push(shown);
        }
        answers.push(answer);
    }
    let found: Vec<&str> = differ.iter().map(String::as_str).collect();
    assert_eq!(found, others, "{name}");
    assert!(compared >= least, "{compared} of {name}");
}

#[test]
fn a_first_look() {
    replay_of("queries", "mango", 26, &[]);
}

#[test]
fn making_and_listing_indexes() {
    replay("making and listing indexes", 30, &[]);
}

#[test]
fn indexes_that_are_refused() {
    replay("indexes that are refused", 39, &[]);
}

#[test]
fn comparisons() {
    replay("comparisons", 40, &[]);
}

#[test]
fn arrays_strings_and_numbers() {
    // CouchDB fails when a document has a number; Flatbed refuses the selector.
    let differ = [r#"POST /{db}/_find {"selector":{"n":{"$mod":[0,1]}},"fields":["_id"]}"#];
    replay("arrays, strings and numbers", 40, &differ);
}

#[test]
fn joined_conditions() {
    replay("joining conditions", 36, &[]);
}

#[test]
fn selectors_that_are_refused() {
    replay("selectors that are refused", 40, &[]);
}

#[test]
fn what_comes_back() {
    replay("what comes back", 25, &[]);
}

#[test]
fn sorting() {
    replay("sorting", 20, &[]);
}

#[test]
fn pages() {
    // CouchDB skips the row of a bookmark by its position. If that row is no longer selected, CouchDB skips a row that
    // it should answer.
    let differ =
        [r#"POST /{db}/_find {"selector":{"n":{"$gt":1}},"limit":1,"fields":["_id"],"bookmark":"{at6:bookmark}"}"#];
    replay("pages", 10, &differ);
}

#[test]
fn an_empty_pages_bookmark() {
    replay("an empty page's bookmark", 4, &[]);
}

#[test]
fn which_index_is_taken() {
    replay("which index is taken", 40, &[]);
}

#[test]
fn warnings() {
    // CouchDB reads the whole index for an `$in`.
    let differ = [r#"POST /{db}/_find {"selector":{"n":{"$in":[1,2]}},"fields":["_id"],"execution_stats":true}"#];
    replay("warnings", 8, &differ);
}

#[test]
fn conflicts_and_deletions() {
    replay("mango over conflicts and deletions", 10, &[]);
}

#[test]
fn indexed_rows() {
    replay("indexed rows", 14, &[]);
}

#[test]
fn a_partitioned_database() {
    replay("mango on a partitioned database", 10, &[]);
}
