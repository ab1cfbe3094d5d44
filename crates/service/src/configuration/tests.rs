//! Stored settings, seen by other servers, and values that take precedence.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_layer::{Actor, Layer, LayerOptions};
use flatbed_testkit::{Storage, soon};

use super::*;
use crate::test_store::options;

struct Store {
    storage: Storage,
    manual: ManualClock,
}

impl Store {
    fn new() -> Store {
        Store { storage: Storage::new(), manual: ManualClock::new() }
    }

    /// The configuration of another server.
    async fn open(&self, values: Values, is_ignored: bool) -> Configuration {
        let options = LayerOptions { clock: self.manual.clock(), ..options(&self.storage) };
        let (layer, authority) = Layer::open(self.storage.fdb.clone(), options, None).await.unwrap();
        ACTOR.get_or_init(|| authority.for_job("settings").into());
        Configuration::open(layer, values, is_ignored).await.unwrap()
    }
}

static ACTOR: OnceLock<Actor> = OnceLock::new();

fn by() -> ChangedBy<'static> {
    ChangedBy { actor: ACTOR.get().unwrap(), name: Some("anna"), from: None }
}

#[tokio::test]
async fn others_know_within_a_second_whether_they_ask_or_not() {
    let store = Store::new();
    let (one, other) = (store.open(Values::default(), false).await, store.open(Values::default(), false).await);
    let mut changes = other.changes();
    changes.mark_unchanged();
    assert_eq!(one.set("couch_httpd_auth", "timeout", " 60 ", by()).await.unwrap(), "600");
    assert_eq!(one.now().auth.timeout_s, 60);
    soon(changes.changed()).await.unwrap();
    assert_eq!(other.now().auth.timeout_s, 60);

    assert_eq!(one.set("chttpd_auth", "timeout", "61", by()).await.unwrap(), "60");
    // A second later any caller knows it, without further work.
    store.manual.advance(Duration::from_secs(1));
    other.confirm().await.unwrap();
    assert_eq!(
        other.now().value("chttpd_auth", "timeout").unwrap(),
        Value { text: "61".into(), source: Source::Stored }
    );
    assert_eq!(other.remove("chttpd_auth", "timeout", by()).await.unwrap(), "61");
    assert_eq!(other.now().auth.timeout_s, 600);
    let gone = other.remove("chttpd_auth", "timeout", by()).await;
    assert!(matches!(gone, Err(ChangeError::Setting(SettingError::Unknown))));
}

#[tokio::test]
async fn what_a_server_is_started_with_beats_what_is_stored() {
    let store = Store::new();
    let mut fixed = Values::default();
    fixed.insert("chttpd", "require_valid_user", "true", Source::File).unwrap();
    let (one, other) = (store.open(fixed, false).await, store.open(Values::default(), false).await);
    let refused = one.set("chttpd", "require_valid_user", "false", by()).await.unwrap_err();
    let words =
        "chttpd/require_valid_user is set by the configuration file, which beats what is stored: change it there";
    assert_eq!(refused.to_string(), words);
    other.set("chttpd_auth", "require_valid_user", "false", by()).await.unwrap();
    one.reload().await.unwrap();
    assert!(one.now().auth.require_valid_user && !other.now().auth.require_valid_user);
    for (section, key, text) in [
        ("query_servers", "javascript", "x"),
        ("mine", "a[b", "x"),
        ("mine", "key", "a\nb"),
        ("jwt_auth", "jwks_file", "/etc/passwd"),
        ("chttpd", "enable_cors", "perhaps"),
        ("admins", "a:b", "secret"),
        ("admins", "anna", "-pbkdf2:sha256-cut,off,1"),
        ("admins", "anna", " "),
        ("", "", "x"),
    ] {
        let refused = other.set(section, key, text, by()).await;
        assert!(matches!(refused, Err(ChangeError::Setting(_))), "{section}/{key}: {refused:?}");
    }
    assert_eq!(store.open(Values::default(), false).await.now().values().iter().count(), 1);
}

#[tokio::test]
async fn values_of_the_start_are_replaced() {
    let store = Store::new();
    let fixed = |timeout: &str, level: Option<&str>| {
        let mut fixed = Values::default();
        fixed.insert("chttpd_auth", "timeout", timeout, Source::File).unwrap();
        level.into_iter().for_each(|level| fixed.insert("log", "level", level, Source::File).unwrap());
        fixed
    };
    let (one, other) =
        (store.open(fixed("60", Some("debug")), false).await, store.open(Values::default(), false).await);
    other.set("log", "level", "warn", by()).await.unwrap();
    one.reload().await.unwrap();
    assert_eq!((one.now().auth.timeout_s, one.now().log.level.as_str()), (60, "debug"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    one.on_change(move |settings| noted.lock().unwrap().push(settings.auth.timeout_s));
    // The stored level applies once the file has none.
    one.replace_fixed(fixed("61", None)).await;
    assert_eq!((one.now().auth.timeout_s, one.now().log.level.as_str()), (61, "warn"));
    assert!(matches!(one.set("chttpd_auth", "timeout", "9", by()).await, Err(ChangeError::Fixed { .. })));
    // Equal values make a new snapshot, too.
    let before = one.now();
    one.replace_fixed(fixed("61", None)).await;
    assert!(!Arc::ptr_eq(&before, &one.now()) && before == one.now());
    one.replace_fixed(Values::default()).await;
    assert_eq!(*seen.lock().unwrap(), [60, 61, 61, 600]);
    assert!(one.set("chttpd_auth", "timeout", "9", by()).await.is_ok());
    // Later changes of the store keep the replaced values.
    one.replace_fixed(fixed("62", None)).await;
    other.set("log", "level", "error", by()).await.unwrap();
    one.reload().await.unwrap();
    assert_eq!((one.now().auth.timeout_s, one.now().log.level.as_str()), (62, "error"));
}

#[tokio::test]
async fn a_server_whose_file_loses_the_last_administrator_stays_closed() {
    let store = Store::new();
    let mut fixed = Values::default();
    let hash = flatbed_auth::PasswordHash::new("secret", &[7; flatbed_auth::SALT_BYTES]).to_string();
    fixed.insert("admins", "anna", &hash, Source::File).unwrap();
    let configuration = store.open(fixed, false).await;
    assert!(configuration.is_fixed_admin("anna"));
    configuration.replace_fixed(Values::default()).await;
    assert!(!configuration.is_fixed_admin("anna"));
    assert_eq!(configuration.now().admins.keys().collect::<Vec<_>>(), [""]);
}

#[tokio::test]
async fn administrators() {
    let store = Store::new();
    let (one, other) = (store.open(Values::default(), false).await, store.open(Values::default(), false).await);
    assert!(other.now().admins.is_empty());
    assert_eq!(one.set("admins", "anna", "secret", by()).await.unwrap(), "");
    store.manual.advance(Duration::from_secs(1));
    other.confirm().await.unwrap();
    assert!(other.now().admins["anna"].as_ref().unwrap().verify("secret"));
    assert!(!one.now().shown_value("admins", "anna").unwrap().contains("secret"));
    assert!(matches!(other.remove("admins", "anna", by()).await, Err(ChangeError::LastAdmin)));
    // A hash is stored as it is.
    let hash = one.now().shown_value("admins", "anna").unwrap();
    one.set("admins", "bea", &hash, by()).await.unwrap();
    assert_eq!(one.now().admins["bea"], one.now().admins["anna"]);
    assert_eq!(one.remove("admins", "anna", by()).await.unwrap(), hash);

    // A server that ignores stored values can repair them.
    let mending = store.open(Values::default(), true).await;
    assert!(mending.now().admins.is_empty() && mending.has_stored_admins().await.unwrap());
    mending.set("admins", "carl", "secret", by()).await.unwrap();
    assert!(mending.now().admins.is_empty());
    other.reload().await.unwrap();
    assert!(other.now().admins.contains_key("carl"));
    let mut named = Values::default();
    named.insert("admins", "dora", &hash, Source::Environment).unwrap();
    let guarded = store.open(named, false).await;
    assert_eq!(guarded.now().admins.len(), 3);
    guarded.remove("admins", "bea", by()).await.unwrap();
    guarded.remove("admins", "carl", by()).await.unwrap();
    // A server that had administrators does not open while it runs.
    other.reload().await.unwrap();
    assert_eq!(other.now().admins.keys().collect::<Vec<_>>(), [""]);
    assert!(store.open(Values::default(), false).await.now().admins.is_empty());
}

#[tokio::test]
async fn listeners_come_before_whoever_waits() {
    let store = Store::new();
    let configuration = store.open(Values::default(), false).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    configuration.on_change(move |settings| noted.lock().unwrap().push(settings.log.level.clone()));
    configuration.set("log", "level", "warning", by()).await.unwrap();
    configuration.set("other", "key", "x", by()).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["info", "warn", "warn"]);
    assert_eq!(configuration.now().shown_value("other", "key").as_deref(), Some("x"));
}

#[tokio::test]
async fn settings_of_any_name_are_stored_and_listed() {
    let store = Store::new();
    let configuration = store.open(Values::default(), false).await;
    assert_eq!(configuration.set("couchdb", "max_dbs_open", " 7 ", by()).await.unwrap(), "");
    assert_eq!(configuration.set("couchdb", "max_dbs_open", "8", by()).await.unwrap(), "7");
    assert_eq!(configuration.set("couchdb", "single_node", "true", by()).await.unwrap(), "true");
    assert_eq!(configuration.set("httpd", "enable_cors", "true", by()).await.unwrap(), "false");
    configuration.set("couch_httpd_auth", "secret", "s", by()).await.unwrap();
    let now = configuration.now();
    let shown = now.shown();
    assert_eq!((shown["couchdb"]["max_dbs_open"].as_str(), now.cors.is_enabled), ("8", true));
    for section in ["httpd", "chttpd"] {
        assert_eq!(shown[section]["enable_cors"], "true");
    }
    let unused = now.shown_unused();
    let names: Vec<(&str, &str)> =
        unused.iter().flat_map(|(section, keys)| keys.keys().map(|key| (section.as_str(), key.as_str()))).collect();
    assert_eq!(names, [("chttpd_auth", "secret"), ("couchdb", "max_dbs_open")]);
    assert_eq!(unused["chttpd_auth"]["secret"], "***");
    assert_eq!(configuration.remove("couchdb", "max_dbs_open", by()).await.unwrap(), "8");
    // A file with a name of no setting is refused, since it may be misspelt.
    assert!(Values::default().insert("couchdb", "max_dbs_open", "8", Source::File).is_err());
}
