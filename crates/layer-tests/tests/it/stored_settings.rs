//! Settings that are stored for all processes of a root.

use std::convert::Infallible;
use std::time::Duration;

use crate::support::{Layer, Store};
use flatbed_clock::{Clock, ManualClock};
use flatbed_layer::renew::renew;
use flatbed_layer::{Error, Refusal, SETTING_BYTES_MAX, STORED_SETTINGS_MAX, StoredSettings, check};
use flatbed_testkit::{is_quiet, metadata_version};

fn name(section: &str, key: &str) -> (String, String) {
    (section.to_owned(), key.to_owned())
}

/// Sets or removes a setting, and returns its old text.
async fn set(layer: &Layer, key: &str, text: Option<&str>) -> flatbed_layer::Result<Option<String>> {
    let change = |settings: &mut StoredSettings| {
        Ok::<_, Infallible>(match text {
            Some(text) => settings.insert(name("section", key), text.to_owned()),
            None => settings.remove(&name("section", key)),
        })
    };
    Ok(layer.change_settings(&layer.actor().clone().into(), change).await?.unwrap_or_else(|never| match never {}))
}

#[tokio::test]
async fn another_process_finds_a_change() {
    let store = Store::new();
    let manual = ManualClock::new();
    let (one, other) = (store.layer_alone().await, store.layer_alone_at(&manual).await);
    let (state, settings) = other.stored_settings(None).await.unwrap();
    assert_eq!(settings, Some(StoredSettings::new()));
    assert_eq!(other.stored_settings(Some(&state)).await.unwrap().1, None);

    assert_eq!(set(&one, "k\0é", Some("x")).await.unwrap(), None);
    let (second, settings) = other.stored_settings(Some(&state)).await.unwrap();
    assert_eq!(settings, Some([(name("section", "k\0é"), "x".to_owned())].into()));
    // Another change bumps the metadata version: the settings are unchanged.
    one.create_database("db", &Default::default()).await.unwrap();
    let quiet = metadata_version(&store.fdb).await;
    let (third, settings) = other.stored_settings(Some(&second)).await.unwrap();
    assert_eq!(settings, None);
    // A change without effect writes nothing.
    assert_eq!(set(&one, "k\0é", Some("x")).await.unwrap().as_deref(), Some("x"));
    assert_eq!(other.stored_settings(Some(&third)).await.unwrap().1, None);
    // Their state is known for a second without a read, and longer while there are other operations.
    assert!(other.are_settings_known(&third));
    manual.advance(Duration::from_secs(1));
    assert!(!other.are_settings_known(&third));
    other.database("db").exists().await.unwrap();
    other.database("db").exists().await.unwrap();
    assert!(other.are_settings_known(&third) || !is_quiet(&store.fdb, &quiet).await);
    assert!(check::check_namespaces(&one).await.unwrap().is_clean());

    renew(&store.fdb, &store.root, &Clock::system()).await.unwrap();
    assert_eq!(other.stored_settings(None).await.unwrap().1.map(|settings| settings.len()), Some(1));
    assert_eq!(set(&one, "k\0é", None).await.unwrap().as_deref(), Some("x"));
    assert_eq!(other.stored_settings(Some(&third)).await.unwrap().1, Some(StoredSettings::new()));
    assert!(check::check_namespaces(&one).await.unwrap().is_clean());
}

#[tokio::test]
async fn there_are_bounds() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let refused =
        |done: flatbed_layer::Result<Option<String>>| matches!(done, Err(Error::Refused(Refusal::InvalidSetting(_))));
    assert!(refused(set(&layer, "k", Some(&"x".repeat(SETTING_BYTES_MAX + 1))).await));
    assert!(refused(set(&layer, &"k".repeat(601), Some("x")).await));
    let fill = |bytes: usize, count: usize| {
        move |settings: &mut StoredSettings| {
            *settings = (0..count).map(|n| (name("s", &n.to_string()), "x".repeat(bytes))).collect();
            Ok::<_, Infallible>(())
        }
    };
    for (bytes, count, fits) in [
        (1, STORED_SETTINGS_MAX, true),
        (1, STORED_SETTINGS_MAX + 1, false),
        (SETTING_BYTES_MAX, 24, true),
        (SETTING_BYTES_MAX, 26, false),
    ] {
        let done = layer.change_settings(&layer.actor().clone().into(), fill(bytes, count)).await;
        assert_eq!(done.is_ok(), fits, "{count} of {bytes}");
        if fits {
            assert_eq!(layer.stored_settings(None).await.unwrap().1.unwrap().len(), count);
        }
    }
    let by = layer.actor().clone().into();
    let unwanted = layer.change_settings(&by, |settings| {
        settings.clear();
        Err::<(), _>("no")
    });
    assert_eq!(unwanted.await.unwrap(), Err("no"));
    assert_eq!(layer.stored_settings(None).await.unwrap().1.unwrap().len(), 24);
    assert!(check::check_namespaces(&layer).await.unwrap().is_clean());
}

/// Each change takes effect once, though commits fail or have unknown results.
#[tokio::test]
async fn changes_take_place_once() {
    let Some(store) = Store::with_faults(0.1, 7) else { return };
    let layer = store.layer_alone().await;
    let count = |settings: &mut StoredSettings| {
        let number = settings.get(&name("s", "n")).map_or(0, |text| text.parse::<u32>().unwrap());
        settings.insert(name("s", "n"), (number + 1).to_string());
        Ok::<_, Infallible>(number)
    };
    for expected in 0..60 {
        assert_eq!(layer.change_settings(&layer.actor().clone().into(), count).await.unwrap(), Ok(expected));
    }
}
