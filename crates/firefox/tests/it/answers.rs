//! All recorded answers of Mozilla's server, replayed. Each is equal, or is listed here with the reason for the
//! difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flatbed_clock::ManualClock;
use flatbed_http::Proxies;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::scripts::{Script, hundredths};
use crate::support::{Answer, Disk, Options, Running, recorded};

/// A deliberate difference.
struct Difference {
    scenario: &'static str,
    /// The step, from 1.
    step: usize,
    #[allow(dead_code, reason = "for who reads this")]
    reason: &'static str,
    /// A line sent after it, so that later answers can be compared; its answer must be the recorded one.
    instead: Option<&'static str>,
}

/// Differences that clients rely on: among 687 answers.
const DIFFERENCES: [Difference; 1] = [Difference {
    scenario: "signing: what passes",
    step: 7,
    reason: "a hash that is given is compared with the body: 401",
    instead: Some(r#"PUT ~/storage/bookmarks/a auth=hash {"payload":"2"}"#),
}];

/// Differences that no client relies on, or that backends differ in: among 26 answers.
const QUIRKS: [Difference; 8] = [
    quirk("quirk: limit 0", 3, "nothing was listed, so there is nothing to go on behind"),
    quirk("quirk: sort=none", 3, "no such order is documented: 400"),
    quirk(SWALLOWS, 4, "a write to an object that has expired makes a new one"),
    quirk(SWALLOWS, 6, "the same: it has no sortindex"),
    quirk("quirk: an id twice in a batch changes the batch's other objects", 4, "each object has its own payload"),
    quirk("quirk: old iOS versions are sent away", 1, "no version is"),
    quirk("quirk: old iOS versions are sent away", 3, "no version is"),
    quirk("quirk: the front page", 1, "a text says what is to be set in Firefox"),
];

const SWALLOWS: &str = "quirk: an expired object that was not yet purged swallows a write without ttl";

const fn quirk(scenario: &'static str, step: usize, reason: &'static str) -> Difference {
    Difference { scenario, step, reason, instead: None }
}

/// The headers that are compared, besides those that a scenario names.
const HEADERS: [&str; 21] = [
    "content-type",
    "x-last-modified",
    "x-weave-timestamp",
    "x-weave-records",
    "x-weave-next-offset",
    "x-weave-bytes",
    "x-weave-total-records",
    "x-weave-total-bytes",
    "x-weave-quota-remaining",
    "x-weave-backoff",
    "x-weave-alert",
    "retry-after",
    "allow",
    "location",
    "www-authenticate",
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-max-age",
    "access-control-expose-headers",
    "access-control-allow-credentials",
];

/// Headers whose value is a list without an order.
const SETS: [&str; 4] =
    ["allow", "access-control-allow-methods", "access-control-allow-headers", "access-control-expose-headers"];

/// The values of a scenario's names.
#[derive(Default)]
struct Bound {
    /// Times, in hundredths of a second; `t1` is before `t2`.
    times: BTreeMap<u32, i64>,
    /// The latest server time.
    now: i64,
    batches: BTreeMap<String, String>,
}

impl Bound {
    fn time(&mut self, name: u32, time: i64) -> Result<(), String> {
        if let Some(known) = self.times.get(&name) {
            return if *known == time { Ok(()) } else { Err(format!("{time} is not t{name} = {known}")) };
        }
        if let Some((other, known)) = self.times.iter().find(|(other, known)| (**other < name) != (**known < time)) {
            return Err(format!("t{name} = {time} stands wrong to t{other} = {known}"));
        }
        self.times.insert(name, time);
        Ok(())
    }

    fn now(&mut self, now: i64) -> Result<(), String> {
        if let Some(later) = self.times.values().chain([&self.now]).find(|time| **time > now) {
            return Err(format!("{now} is before {later}"));
        }
        self.now = now;
        Ok(())
    }
}

/// Returns an answer in the recorded form, without names for times and ids.
fn tidy(answer: &Answer, options: &Value) -> Value {
    let named = options["headers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut headers = Map::new();
    for name in HEADERS.into_iter().chain(named) {
        let Some(mut value) = answer.header(name) else { continue };
        if SETS.contains(&name) {
            let lower = |item: &str| if name.ends_with("headers") { item.to_lowercase() } else { item.to_owned() };
            let items: BTreeSet<String> = value.split(',').map(|item| lower(item.trim())).collect();
            value = items.into_iter().collect::<Vec<_>>().join(", ");
        }
        headers.insert(name.to_owned(), value.into());
    }
    if headers.get("x-weave-timestamp").is_some_and(|now| Some(now) == headers.get("x-last-modified")) {
        headers.insert("x-weave-timestamp".to_owned(), "= x-last-modified".into());
    }
    let mut tidy = json!({"status": answer.status, "headers": headers});
    let kind = answer.header("content-type").unwrap_or_default();
    let text = String::from_utf8_lossy(&answer.body);
    let body = |value: Value| shorten(arrange(value, options));
    match (kind.split(';').next(), serde_json::from_str(&text)) {
        (Some("application/json"), Ok(value)) => tidy["json"] = body(value),
        (Some("application/newlines"), _) => {
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into()));
            tidy["lines"] = lines.map(shorten).collect();
            assert!(text.is_empty() || text.ends_with('\n'), "no newline at the end of {text}");
        }
        _ => tidy["text"] = text.into(),
    }
    tidy
}

/// Removes values that vary between runs, and sorts unordered values.
fn arrange(mut value: Value, options: &Value) -> Value {
    let blank = options["blank"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in blank {
        if let Some(member) = value.get_mut(name) {
            *member = "~".into();
        }
    }
    if let Some(failed) = value.get_mut("failed").and_then(Value::as_object_mut) {
        for reason in
            failed.values_mut().filter(|reason| !reason.as_str().is_some_and(|text| text.starts_with("retry")))
        {
            *reason = "(a reason)".into();
        }
    }
    let sort = |list: &mut Value| {
        if let Some(list) = list.as_array_mut().filter(|list| list.iter().all(Value::is_string)) {
            list.sort_by_key(Value::to_string);
        }
    };
    if options["unordered"].as_bool() == Some(true) {
        if let Some(success) = value.get_mut("success") {
            sort(success);
        }
        sort(&mut value);
    }
    value
}

/// Replaces a long text of one letter by its length.
fn shorten(value: Value) -> Value {
    match value {
        Value::String(text) => {
            let (first, count) = (text.chars().next(), text.chars().count());
            match first {
                Some(first) if count > 200 && text.chars().all(|letter| letter == first) => {
                    format!("({first} * {count})").into()
                }
                _ => text.into(),
            }
        }
        Value::Array(items) => items.into_iter().map(shorten).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, shorten(value))).collect::<Map<_, _>>().into()
        }
        value => value,
    }
}

/// Compares a value; a difference goes to `bad`.
fn compare(want: &Value, got: &Value, key: &str, bound: &mut Bound, bad: &mut Vec<String>) {
    let time_of = |value: &Value| match value {
        Value::String(text) => hundredths(text),
        Value::Number(number) => hundredths(&number.to_string()),
        _ => None,
    };
    let mut hold = |result: Result<(), String>| bad.extend(result.err().map(|error| format!("{key}: {error}")));
    match (want, got) {
        (Value::String(name), _) if key == "x-weave-timestamp" && name == "now" => {
            if got.as_str() != Some("= x-last-modified") {
                hold(time_of(got).ok_or("no time".to_owned()).and_then(|now| bound.now(now)));
            }
        }
        (Value::String(name), _) if name.strip_prefix('t').is_some_and(|number| number.parse::<u32>().is_ok()) => {
            let number = name[1..].parse().unwrap();
            hold(time_of(got).ok_or(format!("{got} is no time")).and_then(|time| bound.time(number, time)));
        }
        // Offsets are opaque, and differ from Mozilla's.
        (Value::String(_), Value::String(offset)) if key == "x-weave-next-offset" => {
            hold(if offset.is_empty() { Err("empty".to_owned()) } else { Ok(()) });
        }
        (Value::String(name), Value::String(batch)) if key == "batch" => {
            let known = bound.batches.entry(name.clone()).or_insert_with(|| batch.clone());
            hold(if known == batch { Ok(()) } else { Err(format!("{batch} is not {name}")) });
        }
        (Value::Object(want), Value::Object(got)) => {
            let names: BTreeSet<&String> = want.keys().chain(got.keys()).collect();
            for name in names {
                match (want.get(name), got.get(name)) {
                    (Some(want), Some(got)) => compare(want, got, name, bound, bad),
                    (want, got) => bad.push(format!("{name}: {got:?}, wanted {want:?}")),
                }
            }
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            for (want, got) in want.iter().zip(got) {
                compare(want, got, "", bound, bad);
            }
        }
        (Value::Number(want), Value::Number(got)) => {
            hold(if want.as_f64() == got.as_f64() { Ok(()) } else { Err(format!("{got}, wanted {want}")) });
        }
        _ => hold(if want == got { Ok(()) } else { Err(format!("{got}, wanted {want}")) }),
    }
}

fn differs(step: &Value, answer: &Answer, options: &Value, bound: &mut Bound) -> Vec<String> {
    let mut want = step.as_object().unwrap().clone();
    want.remove("request");
    let mut bad = Vec::new();
    compare(&want.into(), &tidy(answer, options), "", bound, &mut bad);
    bad
}

/// Replays one scenario. Returns its number of answers and their defects.
async fn replay(scenario: Value, mut script: Script, differences: &'static [Difference]) -> (usize, Vec<String>) {
    let name = scenario["scenario"].as_str().unwrap();
    let (options, mut bound, mut count, mut wrong) = (&scenario["options"], Bound::default(), 0, Vec::new());
    for (index, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        let line = step["request"].as_str().unwrap();
        let at = || format!("{name} {}: {line:.200}", index + 1);
        let difference = differences.iter().find(|known| known.scenario == name && known.step == index + 1);
        let mut answer = None;
        if let Some(difference) = difference {
            let given = match difference.instead {
                Some(_) => script.try_step(line).await.unwrap(),
                None => script.step(line).await.unwrap(),
            };
            // Names that it might bind are not kept.
            if differs(step, &given, options, &mut Bound::default()).is_empty() {
                wrong.push(format!("{}\n    is equal, though it is listed", at()));
            }
            match difference.instead {
                Some(instead) => answer = script.step(instead).await,
                None => count += 1,
            }
        } else {
            answer = script.step(line).await;
        }
        let Some(answer) = answer else { continue };
        count += 1;
        let bad = differs(step, &answer, options, &mut bound);
        if !bad.is_empty() {
            wrong.push(format!("{}\n    {}", at(), bad.join("\n    ")));
        }
    }
    (count, wrong)
}

/// Replays the scenarios of files, each at servers with a clock of their own, and returns the number of answers.
async fn replay_all(files: &[&str], differences: &'static [Difference]) -> usize {
    let disk = Disk::new();
    let proxies = |writes_forwarded| {
        let forwarding = "127.0.0.0/8".parse().unwrap();
        Proxies { forwarding, writes_forwarded, ..Proxies::default() }
    };
    let at_once = Arc::new(Semaphore::new(8));
    let mut tasks = JoinSet::new();
    for scenario in files.iter().flat_map(|file| recorded(file)) {
        let (disk, at_once) = (disk.clone(), at_once.clone());
        tasks.spawn(async move {
            let _permit = at_once.acquire().await.unwrap();
            let clock = ManualClock::new();
            let start = async |writes_forwarded| {
                let (proxies, clock) = (proxies(writes_forwarded), clock.clock());
                Running::on(&disk, Options { proxies, clock, ..Options::default() }).await
            };
            let (server, forwarded) = (start(false).await, start(true).await);
            let script = Script::new(server.address, forwarded.address, clock.clone());
            let replayed = replay(scenario, script, differences).await;
            server.stop().await;
            forwarded.stop().await;
            replayed
        });
    }
    let (mut count, mut wrong) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (answers, of_it) = done.unwrap();
        count += answers;
        wrong.extend(of_it);
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{} of {count} answers differ:\n{}", wrong.len(), wrong.join("\n"));
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_answers() {
    let files = ["info", "objects", "lists", "conditional", "batch", "limits", "auth", "cors"];
    let files = files.map(|file| format!("{file}.jsonl"));
    assert_eq!(replay_all(&files.each_ref().map(String::as_str), &DIFFERENCES).await, 687);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_quirks() {
    assert_eq!(replay_all(&["quirks.jsonl"], &QUIRKS).await, 26);
}
