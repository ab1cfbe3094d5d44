//! `docs/couchdb-settings.md`: each of its settings does what the page says.

use crate::support::{Client, ServerOptions, Store};
use flatbed_service::configuration::{SettingEffect, couchdb_settings, effect};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../../docs/couchdb-settings.md");
const CONFIG: &str = "/_node/_local/_config";

/// A row of the page's tables of settings.
struct SettingRow {
    section: String,
    key: String,
    default: String,
    /// The words about the effect.
    effect: String,
}

/// The rows of the tables below the heading `heading`, or of all.
fn rows(heading: &str) -> Vec<SettingRow> {
    let part = PAGE.split_once(heading).expect("a heading").1;
    let part = if heading.is_empty() { part } else { part.split("\n## ").next().unwrap_or_default() };
    let cell = |text: &str| text.trim().trim_matches('`').replace("\\|", "|");
    let row = |line: &str| match line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>()[..] {
        [section, key, default, told] => {
            Some(SettingRow { section: cell(section), key: cell(key), default: cell(default), effect: told.to_owned() })
        }
        _ => None,
    };
    part.lines().filter_map(row).collect()
}

/// The page's words for what a setting does.
fn words(section: &str, key: &str) -> String {
    match effect(section, key) {
        SettingEffect::Implemented => "implemented".to_owned(),
        SettingEffect::Alias(section, key) => format!("mapped to `{section}/{key}`"),
        SettingEffect::Fixed(value) => format!("no effect; always `{value}`"),
        SettingEffect::AtStart(name) => format!("no effect; `{name}` at the start"),
        SettingEffect::Unused => "no effect".to_owned(),
        SettingEffect::Closed => "refused".to_owned(),
    }
}

fn path(row: &SettingRow) -> String {
    let encoded = |text: &str| text.replace('%', "%25").replace('|', "%7C").replace('*', "%2A").replace('$', "%24");
    format!("{CONFIG}/{}/{}", encoded(&row.section), encoded(&row.key))
}

#[test]
fn the_page_has_the_settings_of_the_registry() {
    let page: Vec<(String, String, String)> =
        rows("## Settings of default.ini").into_iter().map(|row| (row.section, row.key, row.default)).collect();
    let registry: Vec<(String, String, String)> = couchdb_settings()
        .iter()
        .map(|&(section, key, default)| (section.to_owned(), key.to_owned(), default.to_owned()))
        .collect();
    assert_eq!(page, registry);
    for row in rows("") {
        assert_eq!(row.effect, words(&row.section, &row.key), "{}/{}", row.section, row.key);
    }
}

/// Settings whose values are secrets, which no answer shows.
const HIDDEN: [&str; 5] =
    ["chttpd_auth/secret", "couch_httpd_auth/secret", "nouveau/ssl_password", "replicator/password", "ssl/password"];

/// The value that a test sets: the one that applies, or one of the user's.
async fn value_of(client: &mut Client, path: &str) -> String {
    let now = client.call("GET", path, &[], b"").await;
    if now.status == 200 { now.json().as_str().unwrap_or_default().to_owned() } else { "x".to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_does_what_the_page_says() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let mut client = server.connect().await;
    for row in rows("") {
        let (path, name) = (path(&row), format!("{}/{}", row.section, row.key));
        // Flatbed behaves as with the value that a setting always has.
        let always = row.effect.split_once("always `").map(|(_, value)| value.trim_matches('`').to_owned());
        let value = value_of(&mut client, &path).await;
        let value = if always.as_ref() == Some(&value) { "other".to_owned() } else { value };
        let put = client.call("PUT", &path, &[], json!(value).to_string().as_bytes()).await;
        if row.effect == "refused" {
            assert_eq!((put.status, put.text("error").as_str()), (403, "forbidden"), "{name}");
            continue;
        }
        assert_eq!(put.status, 200, "{name}: {put:?}");
        let is_unused = row.effect.starts_with("no effect");
        assert_eq!(put.header("warning").is_some_and(|warning| warning.contains(&name)), is_unused, "{name}: {put:?}");
        let listed = client.call("GET", CONFIG, &[], b"").await.json();
        let shown = if HIDDEN.contains(&name.as_str()) { "***" } else { &value };
        assert_eq!(listed[&row.section][&row.key], json!(shown), "{name}");
        let unused = client.call("GET", &format!("{CONFIG}?unused=true"), &[], b"").await.json();
        let listed = unused.as_object().map_or(0, |sections| sections.values().filter_map(Value::as_object).count());
        assert_eq!(listed > 0, is_unused, "{name}: {unused}");
        if let Some(always) = always {
            let put = client.call("PUT", &path, &[], json!(always).to_string().as_bytes()).await;
            assert_eq!((put.status, put.header("warning")), (200, None), "{name}");
        }
        assert_eq!(client.call("DELETE", &path, &[], b"").await.status, 200, "{name}");
    }
    server.stop().await;
}
