//! Checks that no index changes an answer: every recorded selector runs on the documents of its scenario without an
//! index, and with each index that covers it, partial ones too.

use flatbed_flatten::json::{Value, parse, to_string};
use flatbed_mango::Selector;

use crate::json;
use crate::recorded::{items, names, scenario};
use crate::replay::Database;

/// Further selectors: members outside of bodies, the document as a whole, and prefixes that collate differently from
/// strings that begin with them.
const OTHERS: [&str; 18] = [
    r#"{"_attachments":{"$exists":true}}"#,
    r#"{"_attachments":{"$exists":false},"n":{"$gt":0}}"#,
    r#"{"_attachments.f.length":{"$gt":1}}"#,
    r#"{"_conflicts":{"$exists":true}}"#,
    r#"{"_conflicts":{"$exists":false},"n":{"$gt":0}}"#,
    r#"{"_conflicts.0":{"$gt":null},"n":{"$gt":0}}"#,
    r#"{"_conflicts":{"$size":1}}"#,
    r#"{"\\_conflicts":{"$exists":true}}"#,
    r#"{"n":{"$gt":0},"$or":[{"_conflicts":{"$exists":true}},{"_attachments":{"$exists":true}}]}"#,
    r#"{"n":{"$gt":0},"$and":[{"$keyMapMatch":{"$eq":"_attachments"}}]}"#,
    r#"{"n":{"$gt":0},"$nor":[{"$keyMapMatch":{"$eq":"_conflicts"}}]}"#,
    r#"{"_deleted_conflicts":{"$exists":true}}"#,
    r#"{"_deleted_conflicts":{"$exists":false},"n":{"$gt":0}}"#,
    r#"{"_local_seq":{"$gt":null}}"#,
    r#"{"_revisions":{"$exists":true}}"#,
    r#"{"_rev":{"$gt":"1-"}}"#,
    r#"{"s":{"$beginsWith":"\u0438"}}"#,
    r#"{"s":{"$beginsWith":"\u0e40","$lt":"\u0e40"}}"#,
];

const DOCUMENTS: [(&str, &str); 6] = [
    ("a", r#"{"n":1,"_attachments":{"f":{"data":"aGk="}}}"#),
    ("b", r#"{"n":2,"s":"\u0438\u0306"}"#),
    ("c", r#"{"n":3,"s":"\u0438x"}"#),
    ("d", r#"{"n":4,"s":"\u0e40\u0e01"}"#),
    ("e", r#"{"n":0}"#),
    ("f", r#"{"s":"\u0e40"}"#),
];

fn fields_of(selector: &Value<'_>, fields: &mut Vec<String>) {
    match selector {
        Value::Array(items) => items.iter().for_each(|item| fields_of(item, fields)),
        Value::Object(members) => {
            for (name, inner) in members {
                if name.starts_with('$') {
                    fields_of(inner, fields);
                } else if !name.is_empty() && !fields.contains(&name.to_string()) {
                    fields.push(name.to_string());
                }
            }
        }
        _ => {}
    }
}

fn ids(database: &Database, request: &str) -> Option<(Vec<String>, bool)> {
    let answer = database.find(&json(request), None).ok()?;
    let id = |document: &Value<'_>| document.get("_id").and_then(Value::as_str).unwrap().to_owned();
    let mut ids: Vec<String> = items(&answer, "docs").iter().map(id).collect();
    ids.sort();
    Some((ids, answer.get("warning").is_none()))
}

/// Runs a selector without and with indexes, and returns the number of times an index was used.
fn ask(database: &mut Database, selector: &Value<'_>) -> usize {
    let Ok(compiled) = Selector::new(selector) else { return 0 };
    let mut fields = Vec::new();
    fields_of(&compiled.to_json(), &mut fields);
    let selector = to_string(selector);
    let request = |rest: &str| format!(r#"{{"selector":{selector},"limit":1000,"conflicts":true{rest}}}"#);
    let Some((expected, _)) = ids(database, &request("")) else { return 0 };
    let mut lists: Vec<Vec<String>> = fields.iter().map(|field| vec![field.clone()]).collect();
    if fields.len() > 1 {
        lists.push(fields.clone());
        lists.push(fields.iter().rev().cloned().collect());
    }
    lists.extend(fields.first().map(|field| vec![field.clone(), "_id".to_owned()]).filter(|_| fields != ["_id"]));
    let mut used = 0;
    for (at, list) in lists.iter().enumerate() {
        let list = to_string(&Value::Array(list.iter().map(|field| Value::String(field.as_str().into())).collect()));
        for partial in ["", r#","partial_filter_selector":"#] {
            let filter = if partial.is_empty() { "" } else { selector.as_str() };
            let index = format!(r#"{{"index":{{"fields":{list}{partial}{filter}}},"ddoc":"i","name":"i"}}"#);
            if database.post_index(&json(&index)).is_err() {
                continue;
            }
            let answered = if at % 2 == 0 { "" } else { r#","fields":["_id"]"# };
            let found = ids(database, &request(&format!(r#","use_index":["i","i"]{answered}"#)));
            database.drop_index("_design/i", "i");
            let Some((found, is_without_warning)) = found else { panic!("{selector} by {index}") };
            assert_eq!(found, expected, "{selector} by {index}");
            used += usize::from(is_without_warning);
        }
    }
    used
}

#[test]
fn recorded_selectors_are_answered_alike_without_and_with_an_index() {
    let mut used = 0;
    for name in names("mango") {
        let mut database = Database::new(false);
        let steps = scenario("mango", &name);
        let writes = |path: &str| path.starts_with("/db/") && !path.starts_with("/db/_") || path == "/db/_bulk_docs";
        for step in &steps {
            let path = step.path.replace("{db}", "db");
            if writes(&path) && step.status < 300 {
                database.answer(step, &path, step.body.as_deref());
            }
        }
        let mut asked = Vec::new();
        for step in steps.iter().filter(|step| step.status == 200) {
            let body = step.body.as_deref().and_then(|body| parse(body.as_bytes(), &Default::default()).ok());
            let selector = body.as_ref().and_then(|body| body.get("selector"));
            if let Some(selector) = selector.filter(|selector| !asked.contains(&to_string(selector))) {
                asked.push(to_string(selector));
                used += ask(&mut database, selector);
            }
        }
    }
    assert!(used > 100, "{used}");
}

#[test]
fn what_no_body_says_is_answered_alike_too() {
    let mut database = Database::new(false);
    for (id, document) in DOCUMENTS {
        database.put(id, json(document), "1-a");
    }
    // The losing revision.
    database.put("c", json(r#"{"n":3,"_revisions":{"start":1,"ids":["0"]}}"#), "1-0");
    for selector in OTHERS {
        ask(&mut database, &json(selector));
    }
    let (found, _) = ids(&database, r#"{"selector":{"_conflicts":{"$exists":true}},"conflicts":true}"#).unwrap();
    assert_eq!(found, ["c"]);
    let (found, _) = ids(&database, r#"{"selector":{"s":{"$beginsWith":"\u0438"}}}"#).unwrap();
    assert_eq!(found, ["b", "c"]);
}
