//! Writes are judged by the sync function that the database has at their commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{Layer, Open, Store, assert_clean, delete, get, put, soon};
use flatbed_channels::PrincipalKind;
use flatbed_layer::channels::{PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    ChannelsOptions, CreateOptions, Database, DesignFault, Document, Edit, Error, Judge, Judgement, ProposedWrite,
    Refusal, Result, RevId, Rule, SYNC_FUNCTION_BYTES_MAX, SyncFunctionInfo, User, Verdict,
};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// Sync functions of a few words: `no` refuses all, `old` refuses with the replaced document, and others accept. A
/// function with the word `slow` waits after its reads.
#[derive(Clone)]
struct Functions {
    asked: Arc<Semaphore>,
    may_answer: Arc<Semaphore>,
}

impl Functions {
    fn new() -> Functions {
        Functions { asked: Arc::new(Semaphore::new(0)), may_answer: Arc::new(Semaphore::new(0)) }
    }
}

struct Function(Functions, String);

impl Judge for Functions {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(Function(self.clone(), "validator".to_owned()))
    }

    fn sync_function(&self, _: &str, source: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(Function(self.clone(), source.to_owned())))
    }

    fn check_sync_function<'a>(
        &'a self,
        _: &'a str,
        source: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        let reason = source.to_owned();
        Box::pin(async move {
            match &*reason {
                "broken" => Err(Refusal::InvalidDesign { what: DesignFault::Compilation, reason }),
                _ => Ok(()),
            }
        })
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for Function {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let rejected = |status, reason: String| Err(Refusal::Rejected { status, reason });
        Box::pin(async move {
            let Function(functions, source) = self;
            if source.starts_with("needs slow") || source == "slow" {
                functions.asked.add_permits(1);
                functions.may_answer.acquire().await.expect("open").forget();
            }
            if let Some(channel) = source.strip_prefix("needs ")
                && let Some(writer) = write.writer
            {
                let is_there = writer.channels.contains(channel);
                return if is_there { Ok(Verdict::default()) } else { rejected(403, writer.name.clone()) };
            }
            match (&**source, write.old) {
                ("no", _) => rejected(403, "no".to_owned()),
                ("old", None) => rejected(418, "new".to_owned()),
                ("old", Some(old)) => rejected(418, format!("{} {}", old.deleted, old.rev.generation())),
                ("validator", old) => Err(Refusal::Forbidden(format!("validator {}", old.is_some()))),
                (channel, _) => Ok(Verdict { channels: [channel.to_owned()].into(), ..Verdict::default() }),
            }
        })
    }
}

async fn create(layer: &Layer, sync: Option<&str>) -> Database {
    let channels = Some(ChannelsOptions { sync: sync.map(str::to_owned) });
    layer.create_database("db", &CreateOptions { channels, ..CreateOptions::default() }).await.expect("created");
    administrator(layer)
}

fn administrator(layer: &Layer) -> Database {
    let user = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    flatbed_layer::Layer::database(layer, "db", user.through(Arc::new(Open))).asked_by(ReadPrincipal::All)
}

fn written_by(layer: &Layer, asker: ReadPrincipal) -> Database {
    layer.written_by("db", "account").asked_by(asker)
}

async fn alice(db: &Database, channels: &[&str], is_disabled: bool) {
    let write = PrincipalWrite {
        kind: PrincipalKind::User,
        name: "alice".to_owned(),
        email: String::new(),
        is_disabled,
        admin_channels: channels.iter().map(|channel| (*channel).to_owned()).collect(),
        admin_roles: BTreeSet::default(),
        signs_in: Some(SignsIn::Password(b"{}".to_vec())),
        is_new: false,
    };
    db.put_principal(&write).await.expect("written");
}

async fn replicate(db: &Database, id: &str, history: &[&str]) -> Result<()> {
    let history = history.iter().map(|rev| rev.parse().expect("a revision")).collect();
    let body = parse(b"{}", &Limits::default()).expect("JSON");
    let (parent, deleted, expiry, attachments) = (None, false, None, Vec::new());
    let edit = Edit { id: id.into(), parent, history: Some(history), deleted, expiry, attachments, body };
    db.update(&edit).await.map(drop)
}

fn rejection<T: std::fmt::Debug>(result: Result<T>) -> (u16, String) {
    match result {
        Err(Error::Refused(Refusal::Rejected { status, reason })) => (status, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_write_is_judged_by_the_function_that_it_is_committed_under() {
    let store = Store::new();
    let functions = Functions::new();
    let (one, two) = (store.layer_judged_by(functions.clone()).await, store.layer_judged_by(functions.clone()).await);
    let db = create(&one, Some("slow")).await;
    // Accepted by the old function at either server and not committed yet: single writes, bulk writes, and
    // all-or-nothing.
    let mut writers = Vec::new();
    for (at, layer) in [&one, &two].into_iter().enumerate() {
        let db = administrator(layer);
        for id in ["one", "other"] {
            let db = db.clone();
            writers.push(tokio::spawn(async move { put(&db, &format!("{id}{at}"), None, "{}").await.map(drop) }));
        }
        writers.push(tokio::spawn(async move { replicate(&db, &format!("r{at}"), &["1-a"]).await }));
    }
    soon(functions.asked.acquire_many(6)).await.expect("asked").forget();
    db.set_sync_function(Some("no")).await.expect("set");
    functions.may_answer.add_permits(100);
    for writer in writers {
        assert_eq!(rejection(soon(writer).await.expect("no panic")), (403, "no".to_owned()));
    }
    assert!(get(&db, "one0").await.is_err());
    assert_eq!(db.info().await.expect("figures").doc_count, 0);
    assert_clean(&one, &db).await;
}

#[tokio::test]
async fn a_function_holds_for_the_next_write_everywhere() {
    let store = Store::new();
    let functions = Functions::new();
    let (one, two) = (store.layer_judged_by(functions.clone()).await, store.layer_judged_by(functions.clone()).await);
    let db = create(&one, None).await;
    let writers = [&one, &two].map(administrator);
    for round in 0..3 {
        for (source, is_open) in [("no", false), ("yes", true)] {
            db.set_sync_function(Some(source)).await.expect("set");
            for (at, writer) in writers.iter().enumerate() {
                let result = put(writer, &format!("{round}-{at}"), None, "{}").await;
                assert_eq!(result.is_ok(), is_open, "{source}: {result:?}");
            }
        }
    }
    let before = db.sync_function().await.expect("read").expect("channels");
    assert_eq!((before.source.as_deref(), before.number), (Some("yes"), 7));
    assert!(before.since_ms > 0);
    // An equal function changes nothing, nor does an invalid one.
    db.set_sync_function(Some("yes")).await.expect("set");
    let broken = db.set_sync_function(Some("broken")).await;
    assert!(matches!(&broken, Err(Error::Refused(Refusal::InvalidDesign { .. }))), "{broken:?}");
    let long = db.set_sync_function(Some(&"x".repeat(SYNC_FUNCTION_BYTES_MAX + 1))).await;
    assert!(matches!(&long, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{long:?}");
    assert_eq!(administrator(&two).sync_function().await.expect("read"), Some(before));
    db.set_sync_function(None).await.expect("set");
    let default = administrator(&two).sync_function().await.expect("read").expect("channels");
    assert_eq!((default.source, default.number), (None, 8));
    assert_clean(&two, &db).await;
}

#[tokio::test]
async fn who_may_not_write_does_not_learn_what_is_there() {
    let store = Store::new();
    let layer = store.layer_judged_by(Functions::new()).await;
    let db = create(&layer, Some("yes")).await;
    let rev = put(&db, "there", None, "{}").await.expect("written");
    db.set_sync_function(Some("no")).await.expect("set");
    let no = (403, "no".to_owned());
    let nowhere: RevId = "7-00000000000000000000000000000000".parse().expect("a revision");
    for id in ["there", "nowhere"] {
        for parent in [None, Some(&rev), Some(&nowhere)] {
            assert_eq!(rejection(put(&db, id, parent, "{}").await), no, "{id} on {parent:?}");
        }
        assert_eq!(rejection(replicate(&db, id, &["3-c", "2-b", "1-a"]).await), no, "{id}");
    }
    // A known revision is not written, and so not judged.
    replicate(&db, "there", &[&rev.to_string()]).await.expect("known");
    // Writes of the server, design documents and local documents are not routed.
    put(&layer.database("db"), "server", None, "{}").await.expect("written");
    put(&db, "_design/d", None, "{}").await.expect("written");
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn the_function_sees_what_a_document_replaces() {
    let store = Store::new();
    let layer = store.layer_judged_by(Functions::new()).await;
    let db = create(&layer, Some("yes")).await;
    let first = put(&db, "d", None, "{}").await.expect("written");
    let second = put(&db, "d", Some(&first), "{}").await.expect("written");
    let gone = put(&db, "gone", None, "{}").await.expect("written");
    delete(&db, "gone", &gone).await.expect("deleted");
    db.set_sync_function(Some("old")).await.expect("set");
    let old = |text: &str| (418, text.to_owned());
    assert_eq!(rejection(put(&db, "new", None, "{}").await), old("new"));
    assert_eq!(rejection(put(&db, "d", Some(&second), "{}").await), old("false 2"));
    // With the tombstone, though the edit does not name it, also in a bulk request.
    assert_eq!(rejection(put(&db, "gone", None, "{}").await), old("true 2"));
    let body = parse(b"{}", &Limits::default()).expect("JSON");
    let edit = |id: &'static str| Edit {
        id: id.into(),
        parent: None,
        history: None,
        deleted: false,
        expiry: None,
        attachments: Vec::new(),
        body: body.clone(),
    };
    let edits = [edit("new"), edit("gone"), edit("d")];
    let said: Vec<_> =
        db.bulk_update(&edits).await.expect("outcomes").into_iter().map(|one| one.unwrap_err()).collect();
    let reasons: Vec<String> = said.iter().map(ToString::to_string).collect();
    assert_eq!(reasons, ["new", "true 2", "new"]);
    let line = format!("{},4-d,3-c,{second}", "5-e");
    let line: Vec<&str> = line.split(',').collect();
    assert_eq!(rejection(replicate(&db, "d", &line).await), old("false 2"));
    assert_eq!(rejection(replicate(&db, "elsewhere", &line).await), old("new"));
    // Created again on its tombstone.
    db.set_sync_function(Some("yes")).await.expect("set");
    assert_eq!(put(&db, "gone", None, "{}").await.expect("written").generation(), 3);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn validators_are_asked_behind_the_function() {
    let store = Store::new();
    let layer = store.layer_judged_by(Functions::new()).await;
    let db = create(&layer, Some("no")).await;
    put(&db, "_design/v", None, r#"{"validate_doc_update":"function () {}"}"#).await.expect("written");
    assert_eq!(rejection(put(&db, "d", None, "{}").await), (403, "no".to_owned()));
    db.set_sync_function(Some("yes")).await.expect("set");
    let refused = put(&db, "d", None, "{}").await;
    assert!(
        matches!(&refused, Err(Error::Refused(Refusal::Forbidden(reason))) if reason == "validator false"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn channels_come_with_a_database_or_later() {
    let store = Store::new();
    let functions = Functions::new();
    let layer = store.layer_judged_by(functions.clone()).await;
    let db = create(&layer, None).await;
    let info = SyncFunctionInfo { source: None, number: 1, since_ms: 0 };
    assert_eq!(db.sync_function().await.expect("read"), Some(info));
    // Without a function the document's own channels count.
    put(&db, "d", None, r#"{"channels":["A"]}"#).await.expect("written");
    let illegal = rejection(put(&db, "e", None, r#"{"channels":["A,B"]}"#).await);
    assert_eq!(illegal, (400, r#"Illegal channel name "A,B""#.to_owned()));
    let many: Vec<String> = (0..1_001).map(|at| format!("\"{at}\"")).collect();
    let (status, reason) = rejection(put(&db, "e", None, &format!(r#"{{"channels":[{}]}}"#, many.join(","))).await);
    assert!(status == 403 && reason.contains("1001 channels"), "{status} {reason}");
    let plain = crate::support::create(&layer, "plain", None).await;
    assert_eq!(plain.sync_function().await.expect("read"), None);
    assert!(!plain.info().await.expect("figures").has_channels);
    plain.set_sync_function(Some("yes")).await.expect("set");
    assert!(plain.has_channels().await.expect("read"));
    let system = layer.database("_users");
    let options = CreateOptions { channels: Some(ChannelsOptions::default()), ..CreateOptions::default() };
    let refused = system.create(&options).await;
    assert!(matches!(&refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{refused:?}");
    // A program without functions refuses writes of users that a function must judge, and sets no function.
    let unjudged = store.layer().await;
    db.set_sync_function(Some("yes")).await.expect("set");
    let refused = put(&administrator(&unjudged), "f", None, "{}").await;
    assert!(matches!(&refused, Err(Error::Refused(Refusal::NotJudged { .. }))), "{refused:?}");
    assert!(administrator(&unjudged).set_sync_function(Some("no")).await.is_err());
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn who_writes_is_known_by_what_they_have_when_it_is_committed() {
    let store = Store::new();
    let functions = Functions::new();
    let (one, two) = (store.layer_judged_by(functions.clone()).await, store.layer_judged_by(functions.clone()).await);
    let db = create(&one, Some("needs A")).await;
    let writers = [&one, &two].map(|layer| written_by(layer, ReadPrincipal::Principal("alice".into())));
    for writer in &writers {
        let nobody = put(writer, "nobody", None, "{}").await;
        assert!(matches!(&nobody, Err(Error::Refused(Refusal::Forbidden(_)))), "{nobody:?}");
    }
    // Grants and revocations at one server apply to the next write at each.
    for round in 0..3 {
        for (channels, is_open) in [(&["A"][..], true), (&["B"][..], false)] {
            alice(&db, channels, false).await;
            for (at, writer) in writers.iter().enumerate() {
                let result = put(writer, &format!("{round}-{at}"), None, "{}").await;
                assert_eq!(result.is_ok(), is_open, "{channels:?}: {result:?}");
                assert!(is_open || rejection(result) == (403, "alice".to_owned()));
            }
        }
    }
    // Bulk requests.
    let body = parse(b"{}", &Limits::default()).expect("JSON");
    let [a, b] = ["a", "b"].map(|id| Edit {
        id: id.into(),
        parent: None,
        history: None,
        deleted: false,
        expiry: None,
        attachments: Vec::new(),
        body: body.clone(),
    });
    let edits = [a, b];
    alice(&db, &["A"], false).await;
    assert!(writers[0].bulk_update(&edits).await.expect("outcomes").iter().all(|outcome| outcome.is_ok()));
    alice(&db, &[], false).await;
    let refused = writers[0].bulk_update(&edits).await.expect("outcomes");
    assert!(refused.iter().all(|outcome| outcome.is_err()), "{refused:?}");
    // A disabled user writes nothing, whatever their channels.
    alice(&db, &["A"], true).await;
    let disabled = put(&writers[1], "disabled", None, "{}").await;
    assert!(matches!(&disabled, Err(Error::Refused(Refusal::Forbidden(_)))), "{disabled:?}");
    assert!(writers[1].upload("text/plain", false).await.is_err());
    put(&db, "last", None, "{}").await.expect("written");
    assert_clean(&one, &db).await;
}

#[tokio::test]
async fn rights_that_go_while_a_function_is_asked_are_not_written_by() {
    let store = Store::new();
    let functions = Functions::new();
    let layer = store.layer_judged_by(functions.clone()).await;
    let db = create(&layer, Some("needs slow")).await;
    alice(&db, &["slow"], false).await;
    let writers: Vec<_> = (0..4)
        .map(|at| {
            let writer = written_by(&layer, ReadPrincipal::Principal("alice".into()));
            tokio::spawn(async move { put(&writer, &format!("d{at}"), None, "{}").await })
        })
        .collect();
    soon(functions.asked.acquire_many(4)).await.expect("asked").forget();
    alice(&db, &[], false).await;
    functions.may_answer.add_permits(100);
    for writer in writers {
        assert_eq!(rejection(soon(writer).await.expect("no panic")), (403, "alice".to_owned()));
    }
    // The reverse: a write that the old rights would refuse is judged by the current ones.
    let writer = written_by(&layer, ReadPrincipal::Principal("alice".into()));
    functions.may_answer.forget_permits(1_000);
    let later = tokio::spawn(async move { put(&writer, "later", None, "{}").await });
    while functions.asked.available_permits() < 5 {
        tokio::task::yield_now().await;
    }
    alice(&db, &["slow"], false).await;
    functions.may_answer.add_permits(100);
    assert!(soon(later).await.expect("no panic").is_ok());
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn who_is_no_user_is_a_stranger_or_has_what_everybody_has() {
    let store = Store::new();
    let layer = store.layer_judged_by(Functions::new()).await;
    let db = create(&layer, Some("needs !")).await;
    let account = |is_member| ReadPrincipal::Account { name: "bob".into(), is_member };
    put(&written_by(&layer, account(true)), "member", None, "{}").await.expect("written");
    for (asker, is_named) in
        [(account(false), true), (ReadPrincipal::Principal("bob".into()), true), (ReadPrincipal::Guest, false)]
    {
        let refused = put(&written_by(&layer, asker.clone()), "stranger", None, "{}").await;
        match refused {
            Err(Error::Refused(Refusal::Forbidden(_))) if is_named => {}
            Err(Error::Refused(Refusal::Unauthorized(_))) if !is_named => {}
            other => panic!("{asker:?}: {other:?}"),
        }
    }
    // An anonymous write.
    let unsaid = put(&layer.written_by("db", "root"), "unsaid", None, "{}").await;
    assert!(matches!(&unsaid, Err(Error::Refused(Refusal::Unauthorized(_)))), "{unsaid:?}");
    // Functions see members who are not users under a name that no user has.
    db.set_sync_function(Some("needs A")).await.expect("set");
    assert_eq!(rejection(put(&written_by(&layer, account(true)), "d", None, "{}").await), (403, ":bob".to_owned()));
    let body = parse(b"{}", &Limits::default()).expect("JSON");
    let (parent, history, deleted, expiry, attachments) = (None, None, false, None, Vec::new());
    let edit = Edit { id: "d".into(), parent, history, deleted, expiry, attachments, body };
    assert_eq!(rejection(db.route(&edit, &account(true)).await), (403, ":bob".to_owned()));
    assert_eq!(db.route(&edit, &ReadPrincipal::All).await.expect("routed").channels.len(), 1);
    assert!(get(&db, "d").await.is_err());
}
