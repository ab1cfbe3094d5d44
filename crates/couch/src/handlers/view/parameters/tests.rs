use super::*;

const RECORDED: &str = include_str!("../../../../../../tests/couchdb-answers/views.jsonl");

/// Returns the steps of a scenario: method, path, body; status and body of the answer.
fn steps(scenario: &str) -> Vec<(String, String, Option<String>, u64, Value<'static>)> {
    let parse = |line: &'static str| json::parse(line.as_bytes(), &Limits::default()).unwrap();
    let mut scenarios = RECORDED.lines().map(parse);
    let found = scenarios.find(|found| found.get("name").and_then(Value::as_str) == Some(scenario)).unwrap();
    let items = |value: &Value<'static>| match value {
        Value::Array(items) => items.clone(),
        _ => panic!("{value:?}"),
    };
    let text = |value: &Value<'_>| value.as_str().unwrap().to_owned();
    let mut steps = Vec::new();
    for step in items(found.get("steps").unwrap()) {
        let (asked, answer) = (items(&items(&step)[0]), items(&step)[1].clone());
        let Some(Value::Number(status)) = answer.get("status") else { panic!("no status") };
        let body = answer.get("body").unwrap().clone();
        let sent = asked[3].as_str().map(str::to_owned);
        steps.push((text(&asked[0]), text(&asked[1]), sent, status.parse().unwrap(), body));
    }
    steps
}

/// The part of a view's order that the recordings need: null, numbers, strings, arrays of numbers.
fn compare(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    let place = |value: &Value<'_>| match value {
        Value::Null => 0,
        Value::Number(_) => 1,
        Value::String(_) => 2,
        _ => 3,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.parse::<f64>().unwrap().total_cmp(&b.parse::<f64>().unwrap()),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let order = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
            order.unwrap_or(a.len().cmp(&b.len()))
        }
        _ => place(a).cmp(&place(b)),
    }
}

fn refused(method: &str, path: &str, body: Option<&str>, has_reduce: bool) -> Result<Parameters> {
    let query = Query::parse(path.split_once('?').map(|(_, query)| query))?;
    let parameters = match (method, body) {
        ("POST", body) => {
            let body = crate::handlers::bulk::object(body.unwrap_or_default().as_bytes())?;
            Parameters::of_body(&body, &query)?
        }
        _ => Parameters::of_query(&query)?,
    };
    parameters.check(parameters.rows(has_reduce))?;
    parameters.check_range(compare)?;
    Ok(parameters)
}

/// Checks that each query of a scenario is refused with the recorded reason, or accepted.
fn replay(scenario: &str, reduces: &[&str], passed_over: &[&str]) {
    let mut count = 0;
    for (method, path, body, status, answer) in steps(scenario) {
        let Some((_, view)) = path.split_once("/_view/") else { continue };
        if !matches!(method.as_str(), "GET" | "POST") || passed_over.iter().any(|part| path.contains(part)) {
            continue;
        }
        if status == 405 {
            continue;
        }
        let view = view.split('?').next().unwrap();
        let found = refused(&method, &path, body.as_deref(), reduces.contains(&view));
        let reason = |name| answer.get(name).and_then(Value::as_str).unwrap_or_default();
        match found {
            Ok(_) => assert_eq!(status, 200, "{method} {path} {body:?}"),
            Err(failure) => {
                let found = (u64::from(failure.status.as_u16()), &*failure.error, failure.reason.as_str());
                assert_eq!(found, (status, reason("error"), reason("reason")), "{method} {path} {body:?}");
            }
        }
        count += 1;
    }
    assert!(count > 5, "{scenario}: {count}");
}

#[test]
fn parameters_are_refused_as_recorded() {
    // Queries that other code refuses: the router the path, the view the partition, the shell the media type.
    let elsewhere = ["/m/", "zero", "none", "partition=", "queries"];
    replay("parameters that are refused", &["r"], &elsewhere);
    replay("ranges", &[], &[]);
    replay("grouping", &["d"], &[]);
    replay("freshness", &["r"], &[]);
    replay("documents and joins in rows", &["type"], &[]);
}

#[test]
fn posted_parameters_are_refused_as_recorded() {
    let body = |body: &str| refused("POST", "", Some(body), true);
    for (method, path, sent, status, answer) in steps("posted parameters").into_iter().skip(2) {
        if status == 415 {
            continue;
        }
        match refused(&method, &path, sent.as_deref(), true) {
            Ok(_) => assert_eq!(status, 200, "{path} {sent:?}"),
            Err(failure) => {
                assert_eq!(status, u64::from(failure.status.as_u16()), "{path} {sent:?}");
                assert_eq!(Some(failure.reason.as_str()), answer.get("reason").and_then(Value::as_str));
            }
        }
    }
    assert_eq!(body(r#"{"limit":-1}"#).unwrap_err().reason, "Invalid value for positive integer: -1");
    assert_eq!(body(r#"{"limit":1.0}"#).unwrap_err().reason, "Invalid value for integer: 1.0");
    assert_eq!(body(r#"{"descending":""}"#).unwrap_err().reason, "Invalid boolean parameter: []");
    assert_eq!(body(r#"{"startkey_docid":[]}"#).unwrap_err().reason, "`start_key_docid` must be a string.");
    assert_eq!(body(r#"{"update":true,"stable":false}"#).unwrap().update, ViewUpdate::True);
    assert_eq!(body(r#"{"skip":123456789012345678901234567890}"#).unwrap().skip, u64::MAX);
    let too_large = "Limit is too large, must not exceed 576460752303423487";
    assert_eq!(body(r#"{"limit":123456789012345678901234567890}"#).unwrap_err().reason, too_large);
}

#[test]
fn the_last_of_several_wins_and_the_query_string_beats_the_body() {
    let read = |query: &str, body: &str| refused("POST", &format!("?{query}"), Some(body), false).unwrap();
    let number = |text: &'static str| Some(Value::Number(text.into()));
    let found = read("startkey=3&key=2", "{}");
    assert_eq!((found.start, found.end), (number("2"), number("2")));
    let found = read("key=1&startkey=0", "{}");
    assert_eq!((found.start, found.end), (number("0"), number("1")));
    let found = read("limit=2", r#"{"limit":1,"skip":7}"#);
    assert_eq!((found.limit, found.skip), (Some(2), 7));
    let found = read("", r#"{"keys":[5]}"#);
    assert_eq!((found.start, found.end, found.keys), (number("5"), number("5"), None));
    let found = read("keys=[5]&key=6", "{}");
    assert_eq!((found.start, found.keys), (number("6"), None));
    assert!(refused("GET", "?keys=[5,6]&key=6", None, false).is_err());
    let found = read("keys=[]", "{}");
    assert_eq!((found.start, found.end, found.keys), (None, None, Some(Value::Array(Vec::new()))));
}

#[test]
fn among_several_queries_each_beats_the_query_string() {
    let query = Query::parse(Some("limit=1&group=true&skip=2")).unwrap();
    let one = |text: &str| {
        let value = json::parse(text.as_bytes(), &Limits::default()).unwrap().into_owned();
        Parameters::of_one(&query, &value)
    };
    let found = one(r#"{"limit":5}"#).unwrap();
    assert_eq!((found.limit, found.skip), (Some(5), 2));
    assert_eq!(found.check(Rows::Reduced).unwrap(), Grouping::All);
    assert_eq!(one(r#"{"group_level":2}"#).unwrap().check(Rows::Reduced).unwrap(), Grouping::Level(2));
    assert_eq!(one("1").unwrap_err().status.as_u16(), 400);
}
