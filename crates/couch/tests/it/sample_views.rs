//! Compares the views that docs/views-and-queries.md defines over the sample with counts of its documents.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{ServerOptions, Store};

const SAMPLE: &str = include_str!("../../../../tests/data/browser-compat-data.jsonl");
const PAGE: &str = include_str!("../../../../docs/views-and-queries.md");

/// Returns the page's design document.
fn design() -> Value {
    let text = PAGE.split("_design/compat -d @- <<'EOF'\n").nth(1).expect("a design document");
    serde_json::from_str(text.split("\nEOF\n").next().expect("its end")).expect("JSON")
}

#[tokio::test]
async fn documented_views_count_the_sample() {
    let documents: Vec<Value> = SAMPLE.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let one = Store::new().serve(ServerOptions::default()).await;
    one.ok("PUT", "/compat", Value::Null).await;
    one.ok("POST", "/compat/_bulk_docs", json!({ "docs": documents })).await;
    one.ok("PUT", "/compat/_design/compat", design()).await;
    let view = |rest: &str| format!("/compat/_design/compat/_view/{rest}");

    let (mut releases, mut of_firefox) = (BTreeMap::new(), BTreeMap::new());
    let (mut parts, mut of_safari): (BTreeMap<(String, String), u64>, Vec<f64>) = Default::default();
    for document in &documents {
        let browser = &document["browser"];
        for release in browser["releases"].as_object().into_iter().flat_map(|releases| releases.values()) {
            let Some(date) = release["release_date"].as_str().filter(|date| !date.is_empty()) else { continue };
            let name = browser["name"].as_str().expect("a name");
            *releases.entry(name).or_insert(0_u64) += 1;
            if name == "Firefox" {
                *of_firefox.entry(date[..4].parse::<u64>().expect("a year")).or_insert(0_u64) += 1;
            }
        }
        if let Some(path) = document["path"].as_array() {
            let part = |at: usize| path[at].as_str().expect("a part").to_owned();
            *parts.entry((part(0), part(1))).or_insert(0) += 1;
        }
        let support = &document["feature"]["__compat"]["support"]["safari"];
        let first = if support.is_array() { &support[0] } else { support };
        of_safari.extend(first["version_added"].as_str().and_then(|version| version.parse::<f64>().ok()));
    }

    let answer = one.ok("GET", &view("releases?group_level=1"), Value::Null).await;
    let mut found: Vec<(String, u64)> = pairs(&answer, |key| key[0].as_str().expect("a name").to_owned());
    found.sort();
    assert_eq!(found, releases.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Vec<_>>());
    let range = "startkey=%5B%22Firefox%22%5D&endkey=%5B%22Firefox%22,%7B%7D%5D";
    let answer = one.ok("GET", &view(&format!("releases?group=true&{range}")), Value::Null).await;
    assert_eq!(pairs(&answer, |key| key[1].as_u64().expect("a year")), Vec::from_iter(of_firefox));
    let answer = one.ok("GET", &view("parts?group_level=2"), Value::Null).await;
    let part = |key: &Value, at: usize| key[at].as_str().expect("a part").to_owned();
    let mut found = pairs(&answer, |key| (part(key, 0), part(key, 1)));
    found.sort();
    assert_eq!(found, Vec::from_iter(parts));
    let answer = one.ok("GET", &view("versions?key=%22safari%22"), Value::Null).await;
    let stats = &answer["rows"][0]["value"];
    assert_eq!(stats["count"], json!(of_safari.len()), "{answer}");
    assert_eq!(stats["max"].as_f64(), of_safari.iter().copied().reduce(f64::max), "{answer}");
    one.stop().await;
}

/// Returns the rows of an answer as pairs of `key(...)` and value.
fn pairs<K>(answer: &Value, key: impl Fn(&Value) -> K) -> Vec<(K, u64)> {
    let rows = answer["rows"].as_array().expect("rows").iter();
    rows.map(|row| (key(&row["key"]), row["value"].as_u64().expect("a number"))).collect()
}
