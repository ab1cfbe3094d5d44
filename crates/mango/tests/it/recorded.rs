//! Recorded answers of CouchDB 3.5 (`tests/couchdb-answers`).

use flatbed_flatten::json::Value;

use crate::json;

pub(crate) struct Step {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Option<String>,
    pub(crate) status: u16,
    pub(crate) answer: Value<'static>,
}

fn recorded(file: &str) -> String {
    let path = format!("{}/../../tests/couchdb-answers/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

pub(crate) fn names(file: &str) -> Vec<String> {
    let name = |line: &str| json(line).get("name").and_then(Value::as_str).unwrap().to_owned();
    recorded(file).lines().map(name).collect()
}

pub(crate) fn scenario(file: &str, name: &str) -> Vec<Step> {
    let recorded = recorded(file);
    let found = recorded.lines().map(json).find(|scenario| scenario.get("name").unwrap().as_str() == Some(name));
    let scenario = found.unwrap_or_else(|| panic!("no scenario {name}"));
    let Some(Value::Array(steps)) = scenario.get("steps").cloned() else { panic!("no steps") };
    let step = |step: Value<'static>| {
        let Value::Array(parts) = step else { panic!("no step") };
        let [Value::Array(request), answer] = parts.as_slice() else { panic!("no request and answer") };
        let part = |at: usize| request.get(at).and_then(Value::as_str).map(str::to_owned);
        let Some(Value::Number(status)) = answer.get("status") else { panic!("no status") };
        Step {
            method: part(0).unwrap(),
            path: part(1).unwrap(),
            body: part(3),
            status: status.parse().unwrap(),
            answer: answer.get("body").unwrap().clone(),
        }
    };
    steps.into_iter().map(step).collect()
}

pub(crate) fn items<'v>(value: &'v Value<'static>, name: &str) -> &'v [Value<'static>] {
    match value.get(name) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}
