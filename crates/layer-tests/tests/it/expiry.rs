//! Expiry of documents.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::{Layer, Open, Store, all_changes, assert_clean, get, put};
use flatbed_channels::{Expiry, Grant, GrantedItem, Grantee, PrincipalKind};
use flatbed_layer::channels::{PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    BackgroundOptions, ChannelsOptions, CreateOptions, Database, Document, Edit, Error, GetOptions, Judge, Judgement,
    LayerOptions, NotFound, ProposedWrite, Refusal, RevId, Rule, User, Verdict, WrittenRevision,
};
use flatbed_testkit::until;
use futures_util::future::BoxFuture;

async fn create(layer: &Layer) -> Database {
    create_with(layer, ChannelsOptions::default()).await
}

async fn create_with(layer: &Layer, channels: ChannelsOptions) -> Database {
    let channels = Some(channels);
    layer.create_database("db", &CreateOptions { channels, ..CreateOptions::default() }).await.expect("created");
    let user = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    flatbed_layer::Layer::database(layer, "db", user.through(Arc::new(Open))).asked_by(ReadPrincipal::All)
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
    let WrittenRevision { rev } = db.update(&ends("over", None, -5)).await.expect("written");
    db.update(&ends("later", None, 3_600)).await.expect("written");
    assert!(is_deleted(get(&db, "over").await));
    assert_eq!(get(&db, "later").await.expect("a document"), r#"{"channels":"A","n":1}"#);
    // An edit without a parent creates the document again, on top of the expired revision.
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
    // An expired document that was written again stays.
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

/// Does the background work that is due now or within two minutes.
async fn bury(layer: &Layer) {
    let options = BackgroundOptions { ahead: Duration::from_secs(120), ..BackgroundOptions::default() };
    layer.background(options).round().await.expect("a round");
}

#[tokio::test]
async fn what_has_ended_goes_where_another_server_has_changed_what_judges() {
    let store = Store::new();
    let (layer, other) = (store.layer_alone().await, store.layer_alone().await);
    let db = create(&layer).await;
    let over: Vec<Edit<'_>> = (0..10).map(|at| ends(&format!("over{at}"), None, -5)).collect();
    assert!(db.bulk_update(&over).await.expect("outcomes").iter().all(|outcome| outcome.is_ok()));
    // The other server has cached the database's earlier state.
    other.database("db").exists().await.expect("read");
    layer.database("db").set_security(br#"{"members":{"roles":["a"]}}"#).await.expect("set");
    bury(&other).await;
    assert_eq!(db.info().await.expect("figures").doc_count, 0);
    let rows = all_changes(&db).await;
    assert!(rows.len() == 10 && rows.iter().all(|row| row.deleted));
    let routing = db.routings(&["over0".to_owned()]).await.expect("read").remove(0).expect("a document");
    assert_eq!((routing.verdict.channels, routing.verdict.expires_at_ms), (["A".to_owned()].into(), None));
    assert_clean(&layer, &db).await;
}

/// A sync function for any text: the document `key` grants the user `alice` the channel `A`, and all other documents
/// are in that channel.
struct KeyGives;

impl Judge for KeyGives {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(KeyGives)
    }

    fn sync_function(&self, _: &str, _: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(KeyGives))
    }

    fn check_sync_function<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for KeyGives {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let channel = "A".to_owned();
        // A resync judges a tombstone, too, before or after the expiry.
        let verdict = match &*write.edit.id {
            "key" if !write.edit.deleted => {
                let grant = Grant { to: Grantee::User("alice".to_owned()), what: GrantedItem::Channel(channel) };
                Verdict { grants: [grant].into(), ..Verdict::default() }
            }
            _ => Verdict { channels: [channel].into(), ..Verdict::default() },
        };
        Box::pin(async move { Ok(verdict) })
    }
}

/// The change by another server since this one last read the database's record.
#[derive(Debug)]
enum Changed {
    Security,
    SyncFunction,
}

#[tokio::test]
async fn what_an_ended_document_gave_goes_where_another_server_has_changed_what_judges() {
    for changed in [Changed::Security, Changed::SyncFunction] {
        let store = Store::new();
        let alone = async || {
            let options = LayerOptions { root: store.root.clone(), ..LayerOptions::default() };
            Layer::open_alone(store.fdb.clone(), options, Some(Arc::new(KeyGives))).await.expect("the layer opens")
        };
        let (layer, other) = (alone().await, alone().await);
        let db = create_with(&layer, ChannelsOptions { sync: Some("first".to_owned()) }).await;
        let alice = PrincipalWrite {
            kind: PrincipalKind::User,
            name: "alice".to_owned(),
            email: String::new(),
            is_disabled: false,
            admin_channels: BTreeSet::new(),
            admin_roles: BTreeSet::new(),
            signs_in: Some(SignsIn::Password(b"{}".to_vec())),
            is_new: true,
        };
        db.put_principal(&alice).await.expect("written");
        put(&db, "secret", None, "{}").await.expect("written");
        db.update(&ends("key", None, -5)).await.expect("written");
        // Returns at which servers alice may read it. The read also caches the record at the other server.
        let may_read = async || {
            let mut may_read = [false; 2];
            for (may_read, layer) in may_read.iter_mut().zip([&layer, &other]) {
                let reader = layer.database("db").reader().asked_by(ReadPrincipal::Principal("alice".into()));
                *may_read = reader.get("secret", &GetOptions::default()).await.is_ok();
            }
            may_read
        };
        assert_eq!(may_read().await, [true, true], "{changed:?}");
        match changed {
            Changed::Security => db.set_security(br#"{"members":{"roles":["a"]}}"#).await.expect("set"),
            Changed::SyncFunction => db.set_sync_function(Some("second")).await.expect("set"),
        }
        bury(&other).await;
        let key = all_changes(&db).await.into_iter().find(|row| row.id == "key").expect("a row");
        assert!(key.deleted, "{changed:?}");
        assert_eq!(db.info().await.expect("figures").doc_count, 1, "{changed:?}");
        assert_eq!(may_read().await, [false, false], "{changed:?}");
        assert_clean(&layer, &db).await;
    }
}

/// As after a clock that was set back between the look at the due work and the work.
#[tokio::test]
async fn work_that_is_done_leaves_nothing_of_what_it_was_due_for() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer).await;
    db.update(&ends("soon", None, 30)).await.expect("written");
    bury(&layer).await;
    assert_eq!(db.info().await.expect("figures").doc_count, 0);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn what_has_ended_goes_where_another_server_has_given_the_database_channels() {
    let store = Store::new();
    let (layer, other) = (store.layer_alone().await, store.layer_alone().await);
    layer.create_database("db", &CreateOptions::default()).await.expect("created");
    other.database("db").exists().await.expect("read");
    layer.database("db").set_sync_function(None).await.expect("channels");
    // The resync of no documents finishes.
    bury(&layer).await;
    let user = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    let db = flatbed_layer::Layer::database(&layer, "db", user.through(Arc::new(Open)));
    let db = db.asked_by(ReadPrincipal::All);
    db.update(&ends("over", None, -5)).await.expect("written");
    bury(&other).await;
    assert_eq!(db.info().await.expect("figures").doc_count, 0);
    assert_clean(&layer, &db).await;
}
