//! A user's rights are checked as of the commit: the gate is asked about the current `_security`, and the user's
//! document must be the one that was judged.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Layer, Store, assert_clean, create, get, put, soon};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    AttachmentEdit, ChangesQuery, CreateOptions, Database, DatabaseSecurity, Edit, Error, Gate, GetOptions,
    LayerOptions, LocalDocument, LocalEdit, Refusal, Result, RevId, SettingFence, Since, StoredSettings, USERS, User,
    UserFence,
};
use flatbed_testkit::{pass, until};
use futures_util::future::join_all;

/// Admits the names that `_security` lists, separated by commas; without one, all users.
#[derive(Debug)]
struct Listed(String);

impl Gate for Listed {
    fn judge(&self, security: &DatabaseSecurity) -> std::result::Result<(), Refusal> {
        let names = security.parsed(|bytes| {
            let text = String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            text.split(',').map(str::to_owned).collect::<HashSet<_>>()
        });
        let is_let_in = security.bytes().is_none() || names.contains(&self.0);
        if is_let_in { Ok(()) } else { Err(Refusal::Unauthorized(self.0.clone())) }
    }
}

fn by(layer: &Layer, database: &str, name: &str, rev: Option<&RevId>) -> Database {
    let fence = Some(UserFence { name: name.to_owned(), rev: rev.cloned() });
    let user = User { name: Some(name.to_owned()), fence, ..User::default() };
    (**layer).database(database, user.through(Arc::new(Listed(name.to_owned()))))
}

/// Returns a database for an administrator with the currently stored setting, or with the one that was `found`; `None`:
/// there are no administrators.
async fn by_setting(layer: &Layer, database: &str, found: Option<(&str, &str)>) -> Database {
    let (state, _) = layer.stored_settings(None).await.unwrap();
    let (settings, name) = (layer.stored_settings(None).await.unwrap().1.unwrap(), found.map(|(name, _)| name));
    let is_so = match found {
        Some((name, text)) => settings.get(&("admins".to_owned(), name.to_owned())).is_some_and(|is| is == text),
        None => !settings.keys().any(|(section, _)| section == "admins"),
    };
    // A setting that differs from the stored one must be read.
    let setting = Some(Arc::new(SettingFence::new(is_so.then_some(state), "admins", found)));
    let user = User { name: name.map(str::to_owned), setting, ..User::default() };
    (**layer).database(database, user.through(Arc::new(Everyone)))
}

/// Stores an administrator, or removes it.
async fn set(layer: &Layer, text: Option<&str>) {
    let change = |settings: &mut StoredSettings| {
        let name = ("admins".to_owned(), "anna".to_owned());
        Ok::<_, std::convert::Infallible>(match text {
            Some(text) => settings.insert(name, text.to_owned()),
            None => settings.remove(&name),
        })
    };
    // With faults the result may be unknown, so it is retried; the change is idempotent.
    while layer.change_settings(&layer.actor().clone().into(), change).await.is_err() {}
}

/// Admits all users.
#[derive(Debug)]
struct Everyone;

impl Gate for Everyone {
    fn judge(&self, _: &DatabaseSecurity) -> std::result::Result<(), Refusal> {
        Ok(())
    }
}

fn edit(id: &str) -> Edit<'_> {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
}

async fn user(users: &Database, name: &str, parent: Option<&RevId>) -> RevId {
    put(users, &format!("org.couchdb.user:{name}"), parent, &format!(r#"{{"name":"{name}"}}"#)).await.unwrap()
}

/// Writes in each possible way, for the actor of the database.
async fn all_ways(db: &Database, new: &Database, revs: &[RevId]) -> Vec<Result<()>> {
    let local = LocalDocument { id: "l".into(), revision: 1, body: Vec::new() };
    let edits = [LocalEdit::Put(local.clone())];
    let one = [edit("bulk")];
    let bulk = db.bulk_update(&one).await.map(|mut outcomes| outcomes.remove(0));
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(700_000));
    let upload = async |bytes: usize| {
        let mut upload = db.upload("image/png", false).await?;
        upload.write(&vec![7; bytes]).await?;
        let (uploaded, unstaged) = upload.complete().await?;
        db.stage(&unstaged.into_iter().collect::<Vec<_>>()).await?;
        db.discard(&uploaded).await;
        Ok(())
    };
    vec![
        db.update(&edit("one")).await.map(drop),
        bulk.and_then(|outcome| Ok(outcome.map(drop)?)),
        put(db, "large", None, &large).await.map(drop),
        db.put_local(&local).await,
        db.edit_locals(&edits).await.map(drop),
        db.delete_local("l").await.map(drop),
        upload(10).await,
        upload(2_000_000).await,
        db.purge("old", revs).await.map(drop),
        db.set_revs_limit(77).await,
        db.set_purged_infos_limit(78).await,
        db.compact().await,
        db.view_cleanup().await,
        db.set_security(b"anna,bob").await,
        new.create(&CreateOptions::default()).await,
        new.delete().await,
    ]
}

fn refusal(done: Result<()>) -> Option<Refusal> {
    match done {
        Ok(()) => None,
        Err(Error::Refused(refusal)) => Some(refusal),
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn every_way_to_write_is_judged_in_its_transaction() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer, "db", None).await;
    let old = put(&db, "old", None, "{}").await.unwrap();
    // While `_users` does not exist, users have no documents.
    let anna = |rev: Option<&RevId>| (by(&layer, "db", "anna", rev), by(&layer, "new", "anna", rev));
    let nobodys: RevId = "1-967a00dff5e02add41819138abb3284d".parse().unwrap();
    let changed = |mut done: Vec<Result<()>>| {
        // The database that was not created cannot be deleted.
        assert!(matches!(done.pop(), Some(Err(Error::DatabaseNotFound))));
        done.into_iter().map(refusal).enumerate().for_each(|(at, refusal)| {
            assert_eq!(refusal, Some(Refusal::UserChanged), "{at}");
        });
    };
    let (there, new) = anna(Some(&nobodys));
    changed(all_ways(&there, &new, &[]).await);
    let (there, _) = anna(None);
    there.update(&edit("without users")).await.unwrap();
    let users = create(&layer, USERS, None).await;
    there.update(&edit("without her")).await.unwrap();
    let first = user(&users, "anna", None).await;
    let (there, new) = anna(None);
    changed(all_ways(&there, &new, &[]).await);
    let second = user(&users, "anna", Some(&first)).await;
    let (there, new) = anna(Some(&first));
    changed(all_ways(&there, &new, &[]).await);
    let (there, new) = anna(Some(&second));
    for (at, done) in all_ways(&there, &new, &[old]).await.into_iter().enumerate() {
        assert!(done.is_ok(), "{at}: {done:?}");
    }
    // The last of these has listed her name, which is now removed.
    db.set_security(b"bob").await.unwrap();
    let done = all_ways(&there, &new, &[]).await;
    let last = done.len() - 2;
    for (at, done) in done.into_iter().enumerate().take(last) {
        assert_eq!(refusal(done), Some(Refusal::Unauthorized("anna".into())), "{at}");
    }
    assert!(db.get("one", &GetOptions::default()).await.is_ok());
    assert_eq!(layer.security("db").await.unwrap().bytes(), Some(b"bob".as_slice()));
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn attachments_of_one_who_may_no_longer_write_come_into_no_document() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer, "db", None).await;
    let anna = by(&layer, "db", "anna", None);
    let mut upload = anna.upload("image/png", false).await.unwrap();
    upload.write(&[7; 2_000_000]).await.unwrap();
    let uploaded = upload.finish().await.unwrap();
    db.set_security(b"bob").await.unwrap();
    let data = AttachmentEdit::Data { content_type: "image/png".into(), revpos: None, data: uploaded };
    let refused = anna.update(&Edit { attachments: vec![("a".to_owned(), data)], ..edit("d") }).await.map(drop);
    assert_eq!(refusal(refused), Some(Refusal::Unauthorized("anna".into())));
    assert_clean(&layer, &db).await;
}

/// In a shared transaction only the writes of refused users fail.
#[tokio::test(flavor = "multi_thread")]
async fn of_joined_writes_only_those_fail_that_may_not() {
    let store = Store::new();
    let layer = store.layer_with(LayerOptions { single_writes_at_once: Some(1), ..LayerOptions::default() }).await;
    let db = create(&layer, "db", None).await;
    let users = create(&layer, USERS, None).await;
    let (of_anna, of_bob) = (user(&users, "anna", None).await, user(&users, "bob", None).await);
    let of_bob_now = user(&users, "bob", Some(&of_bob)).await;
    db.set_security(b"anna,bob").await.unwrap();
    put(&db, "names", None, r#"{"a":1}"#).await.unwrap();
    let writers = [
        by(&layer, "db", "anna", Some(&of_anna)),
        by(&layer, "db", "bob", Some(&of_bob)),
        by(&layer, "db", "bob", Some(&of_bob_now)),
        by(&layer, "db", "carl", None),
        layer.database("db"),
    ];
    let ids: Vec<String> = (0..100).map(|number| format!("d{number:03}")).collect();
    let writes = ids.iter().enumerate().map(|(at, id)| {
        let db = &writers[at % writers.len()];
        async move { db.update(&edit(id)).await.map(drop) }
    });
    let before = layer.counted("flatbed_joint_documents");
    let done = soon(join_all(writes)).await;
    assert!(layer.counted("flatbed_joint_documents") - before > 50);
    let expected = [None, Some(Refusal::UserChanged), None, Some(Refusal::Unauthorized("carl".to_owned())), None];
    for ((at, done), id) in done.into_iter().enumerate().zip(&ids) {
        let (found, expected) = (refusal(done), expected[at % writers.len()].clone());
        assert_eq!(get(&db, id).await.is_ok(), expected.is_none(), "{id}");
        assert_eq!(found, expected, "{id}");
    }
    assert_clean(&layer, &db).await;
}

/// The way in which a right is revoked.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Security,
    Document,
    Setting,
}

/// Another server revokes a right while its user writes without pause: no write commits after the revocation was
/// acknowledged.
async fn is_never_behind(store: &Store, what: What) {
    let (here, there) = (store.layer().await, store.layer().await);
    let db = create(&here, "db", None).await;
    let users = create(&here, USERS, None).await;
    let mut rev = user(&users, "anna", None).await;
    let number = AtomicU64::new(0);
    let mut written = 0;
    for round in 0..5 {
        // As a client that authenticates again.
        db.set_security(b"anna,bob").await.unwrap();
        let text = format!("hash {round}");
        set(&there, Some(&text)).await;
        let anna = match what {
            What::Setting => by_setting(&here, "db", Some(("anna", &text))).await,
            _ => by(&here, "db", "anna", Some(&rev)),
        };
        let bob = by(&here, "db", "bob", None);
        let has_ended = AtomicBool::new(false);
        // The count of each writer.
        let counts: [AtomicU64; 11] = Default::default();
        let write = async |db: &Database, name: &str, at: usize| {
            let mut count = 0;
            loop {
                // Loaded before the write: a slow write that began earlier may have committed before the revocation.
                let is_last = has_ended.load(Ordering::Relaxed);
                let id = format!("{name} {}", number.fetch_add(1, Ordering::Relaxed));
                match db.update(&edit(&id)).await.map(drop) {
                    Ok(()) if is_last => return (count, None),
                    // An attempt with an unknown result may have failed for good.
                    Ok(()) | Err(Error::Storage(_)) => count += 1,
                    refused => return (count, refusal(refused)),
                }
                counts[at].store(count, Ordering::Relaxed);
            }
        };
        let change = async {
            let is_at_it = |count: &AtomicU64| count.load(Ordering::Relaxed) > 2;
            until("all write", async || counts.iter().all(is_at_it)).await;
            match what {
                What::Document => rev = user(&there.database(USERS), "anna", Some(&rev)).await,
                What::Security => there.database("db").set_security(b"bob").await.unwrap(),
                What::Setting => set(&there, None).await,
            }
            let changed = there.database("db").update_seq().await.unwrap();
            pass(Duration::from_millis(50)).await;
            has_ended.store(true, Ordering::Relaxed);
            changed
        };
        let (by_anna, by_bob) = ((0..8).map(|at| write(&anna, "anna", at)), (8..11).map(|at| write(&bob, "bob", at)));
        let (changed, by_anna, by_bob) =
            soon(futures_util::future::join3(change, join_all(by_anna), join_all(by_bob))).await;
        let expected = match what {
            What::Security => Refusal::Unauthorized("anna".into()),
            What::Document | What::Setting => Refusal::UserChanged,
        };
        for (count, refusal) in by_anna {
            assert_eq!(refusal.as_ref(), Some(&expected), "round {round}");
            written += count;
        }
        assert!(by_bob.iter().all(|(count, refusal)| *count > 0 && refusal.is_none()), "{by_bob:?}");
        let mut behind = db.changes(ChangesQuery { since: Since::after(changed), ..ChangesQuery::default() });
        loop {
            let page = behind.next_page().await.unwrap();
            let annas = page.rows.iter().find(|row| row.id.starts_with("anna"));
            assert!(annas.is_none(), "round {round}: {annas:?}");
            if page.at_end {
                break;
            }
        }
    }
    assert!(written > 0);
    assert_clean(&here, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_behind_a_change_of_security() {
    is_never_behind(&Store::new(), What::Security).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_behind_a_change_of_the_user() {
    is_never_behind(&Store::new(), What::Document).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_behind_a_change_of_the_setting() {
    is_never_behind(&Store::new(), What::Setting).await;
}

/// An administrator from the stored settings writes in each way; without administrators all users do.
#[tokio::test]
async fn a_stored_setting_is_judged_in_the_transaction() {
    let store = Store::new();
    let (layer, other) = (store.layer_alone().await, store.layer_alone().await);
    create(&layer, "db", None).await;
    let change = async |by: &Database| {
        let change = |settings: &mut StoredSettings| {
            Ok::<_, std::convert::Infallible>(settings.insert(("log".into(), "level".into()), "info".into()))
        };
        layer.change_settings(by.actor(), change).await.map(drop)
    };
    let all = async |found: Option<(&str, &str)>| {
        let (there, new) = (by_setting(&layer, "db", found).await, by_setting(&layer, "new", found).await);
        let mut done = all_ways(&there, &new, &[]).await;
        done.push(change(&there).await);
        done
    };
    let refused = |done: Vec<Result<()>>| {
        let is_refused =
            |done: &Result<()>| matches!(done, Err(Error::Refused(Refusal::UserChanged) | Error::DatabaseNotFound));
        assert!(done.iter().all(is_refused), "{done:?}");
    };
    let allowed = |done: Vec<Result<()>>| {
        // There is nothing to purge, and each document exists after the first time.
        let is_allowed = |done: &Result<()>| !matches!(done, Err(Error::Refused(Refusal::UserChanged)));
        assert!(done.iter().all(is_allowed), "{done:?}");
    };
    refused(all(Some(("anna", "hash"))).await);
    allowed(all(None).await);
    let (open, new) = (by_setting(&layer, "db", None).await, by_setting(&layer, "new", None).await);
    set(&other, Some("hash")).await;
    // With a setting that was found before, of a state that still seems current.
    refused(
        [
            open.update(&edit("behind")).await.map(drop),
            new.create(&CreateOptions::default()).await,
            change(&open).await,
        ]
        .into(),
    );
    refused(all(None).await);
    refused(all(Some(("anna", "another"))).await);
    let anna = by_setting(&layer, "db", Some(("anna", "hash"))).await;
    anna.update(&edit("as it was found")).await.unwrap();
    // After a change of another setting or of a database the setting is read, and is unchanged.
    let change_another = |settings: &mut StoredSettings| {
        Ok::<_, std::convert::Infallible>(settings.insert(("log".into(), "level".into()), "debug".into()))
    };
    other.change_settings(&other.actor().clone().into(), change_another).await.unwrap().unwrap();
    anna.update(&edit("beside another setting")).await.unwrap();
    set(&other, None).await;
    refused([anna.update(&edit("behind")).await.map(drop), anna.delete().await, change(&anna).await].into());
    refused([anna.set_security(b"{}").await, anna.set_revs_limit(8).await].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_where_commits_fail_and_their_results_are_unknown() {
    for seed in 0..2 {
        let Some(store) = Store::with_faults(0.1, seed) else { return };
        is_never_behind(&store, if seed == 0 { What::Setting } else { What::Security }).await;
    }
}
