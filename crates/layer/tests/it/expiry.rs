//! Documents that end.

use std::time::{Duration, UNIX_EPOCH};

use crate::support::{Layer, Open, Store, all_changes, assert_clean, get, put};
use flatbed_channels::Expiry;
use flatbed_layer::channels::Asker;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    BackgroundOptions, ChannelsOptions, CreateOptions, Database, Edit, Error, NotFound, Refusal, RevId, Updated, User,
};
use flatbed_testkit::until;

async fn create(layer: &Layer) -> Database {
    let channels = Some(ChannelsOptions::default());
    layer.create_database("db", &CreateOptions { channels, ..CreateOptions::default() }).await.expect("created");
    let user = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    flatbed_layer::Layer::database(layer, "db", user.through(std::sync::Arc::new(Open))).asked_by(Asker::All)
}

fn ends(id: &str, parent: Option<RevId>, in_s: i64) -> Edit<'static> {
    let now = UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    Edit {
        id: id.to_owned().into(),
        parent,
        history: None,
        deleted: false,
        expiry: Some(Expiry::At(now.saturating_add_signed(in_s))),
        attachments: Vec::new(),
        body: parse(br#"{"channels":"A","n":1}"#, &Limits::default()).expect("JSON").into_owned(),
    }
}

fn is_deleted<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Refused(Refusal::DocumentNotFound(NotFound::Deleted))))
}

#[tokio::test]
async fn nobody_finds_what_has_ended() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer).await;
    let Updated { rev } = db.update(&ends("over", None, -5)).await.expect("written");
    db.update(&ends("later", None, 3_600)).await.expect("written");
    assert!(is_deleted(get(&db, "over").await));
    assert_eq!(get(&db, "later").await.expect("a document"), r#"{"channels":"A","n":1}"#);
    // What is written without a revision begins it again, upon the one that has ended.
    let again = put(&db, "over", None, r#"{"n":2}"#).await.expect("written");
    assert_eq!((rev.generation(), again.generation()), (1, 2));
    assert_eq!(get(&db, "over").await.expect("a document"), r#"{"n":2}"#);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn what_has_ended_becomes_tombstones_in_its_channels() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer).await;
    let over: Vec<Edit<'_>> = (0..700).map(|at| ends(&format!("over{at:03}"), None, -5 - at % 3)).collect();
    assert!(db.bulk_update(&over).await.expect("outcomes").iter().all(|outcome| outcome.is_ok()));
    db.update(&ends("later", None, 24 * 3_600)).await.expect("written");
    put(&db, "ever", None, r#"{"channels":"A"}"#).await.expect("written");
    // One that has ended and was written again stays.
    put(&db, "over007", None, "{}").await.expect("written");
    let options = BackgroundOptions { ahead: Duration::from_secs(120), ..BackgroundOptions::default() };
    let background = layer.background(options);
    background.start();
    until("they are tombstones", async || db.info().await.expect("figures").doc_count == 3).await;
    background.stop().await;
    let rows = all_changes(&db).await;
    assert_eq!(rows.iter().filter(|row| row.deleted).count(), 699);
    let ids = ["over000", "over699", "later"].map(str::to_owned);
    let routings = db.routings(&ids).await.expect("read");
    for (routing, is_over) in routings.into_iter().zip([true, true, false]) {
        let routing = routing.expect("a document");
        assert_eq!((routing.deleted, routing.verdict.channels), (is_over, ["A".to_owned()].into()));
        assert_eq!(routing.verdict.expires_at_ms.is_none(), is_over);
    }
    assert_clean(&layer, &db).await;
}
