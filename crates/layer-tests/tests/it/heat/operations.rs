//! Operations of a thousand databases, each by name of the layer's function.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::heat::tally::{Called, Tally};
use crate::support::{Layer, Open, put};
use flatbed_channels::{Expiry, PrincipalKind};
use flatbed_clock::ManualClock;
use flatbed_jobs::LeaseRenewal;
use flatbed_layer::channels::{PrincipalSession, PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    AllDocsQuery, AttachmentEdit, ChangesQuery, ChannelsOptions, CreateOptions, Database, Edit, FindOptions,
    GetOptions, LocalDocument, LocalEdit, OpenRevs, ResyncAction, RevId, StoredSettings, User, ViewQuery, ViewUpdate,
};
use flatbed_testkit::pass;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

/// Operations under way at once.
const AT_ONCE: usize = 64;

/// The time that passes with each operation.
const TICK: Duration = Duration::from_millis(1);

/// The use of a database. Each has a quarter of all databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Plain,
    Channels,
    Indexes,
    Leases,
}

impl Family {
    const ALL: [Family; 4] = [Family::Plain, Family::Channels, Family::Indexes, Family::Leases];

    /// Definitions, settings and deletions, which are rare.
    pub const fn definitions(self) -> &'static [&'static str] {
        match self {
            Family::Plain => &[
                "create",
                "delete",
                "create",
                "set_security",
                "change_security",
                "set_revs_limit",
                "set_purged_infos_limit",
                "compact",
            ],
            Family::Channels => &["create", "set_sync_function", "set_offline", "resync", "put_principal"],
            Family::Indexes => &["create", "update a view", "update an index", "view"],
            Family::Leases => &["create"],
        }
    }

    /// Writes of data.
    pub const fn writes(self) -> &'static [&'static str] {
        match self {
            Family::Plain => &[
                "update",
                "update again",
                "bulk_update",
                "stage",
                "upload",
                "renew_uploads",
                "discard",
                "purge",
                "put_local",
                "edit_locals",
                "delete_local",
            ],
            Family::Channels => &[
                "put_principal again",
                "begin_principal_session",
                "update",
                "update again",
                "update that expires",
                "put_local",
                "prolong_principal_session",
                "end_principal_session",
                "end_principal_sessions",
                "delete_principal",
            ],
            Family::Indexes => {
                &["update", "view", "update again", "bulk_update", "view", "purge", "update", "view", "view_cleanup"]
            }
            Family::Leases => &[
                "update",
                "take_lease",
                "take_document_lease",
                "hold_lease",
                "hold_lease_after",
                "hold_leases_after",
                "drop_lease",
                "update again",
                "purge",
                "drop_document_lease",
            ],
        }
    }

    /// Reads.
    pub const fn reads(self) -> &'static [&'static str] {
        match self {
            Family::Plain => {
                &["get", "get_many", "open_revs", "changes", "all_docs", "all_docs_keys", "info", "attachment"]
            }
            Family::Channels => {
                &["get", "changes", "all_docs", "get_local", "list_local", "principal", "security", "info"]
            }
            Family::Indexes => &["get", "find", "view", "changes", "json_indexes", "view_info", "update_seq", "exists"],
            Family::Leases => {
                &["get", "leases", "missing_revs", "partition_info", "purged_infos", "changes", "info", "get"]
            }
        }
    }
}

/// A database under test.
pub struct Subject {
    caller: u64,
    name: String,
    family: Family,
    db: Database,
    /// The newest revision of `p:d`.
    rev: Mutex<Option<RevId>>,
}

/// A server and its databases.
pub struct Heated {
    pub layer: Layer,
    pub clock: ManualClock,
    pub tally: Tally,
    pub subjects: Vec<Subject>,
    /// The functions that were called.
    pub called: Mutex<BTreeSet<String>>,
}

impl Heated {
    pub fn new(layer: Layer, clock: ManualClock, tally: Tally, databases: u64) -> Heated {
        let root = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
        let subject = |number: u64| {
            // Names and callers in no order of the databases' creation.
            let name = format!("d{:08x}", (number as u32).wrapping_mul(0x9e37_79b1));
            let family = Family::ALL[number as usize % Family::ALL.len()];
            let db = match family {
                Family::Channels => {
                    (*layer).database(&name, root.clone().through(Arc::new(Open))).asked_by(ReadPrincipal::All)
                }
                _ => layer.database(&name),
            };
            Subject { caller: number + 1, name, family, db, rev: Mutex::default() }
        };
        let subjects = (0..databases).map(subject).collect();
        Heated { layer, clock, tally, subjects, called: Mutex::default() }
    }

    /// Does the operations of all databases, the first of each, then the second, and so on, many at once.
    pub async fn run(&self, operations: impl Fn(Family) -> &'static [&'static str]) {
        let mut failures = Vec::new();
        let rounds = Family::ALL.iter().map(|family| operations(*family).len()).max().unwrap_or_default();
        for round in 0..rounds {
            let mut waiting = self
                .subjects
                .iter()
                .filter_map(|subject| operations(subject.family).get(round).map(|operation| (subject, *operation)));
            let mut running = FuturesUnordered::new();
            loop {
                while running.len() < AT_ONCE
                    && let Some((subject, operation)) = waiting.next()
                {
                    self.clock.advance(TICK);
                    self.tally.operation();
                    // A failure is printed with its place, and the others are still seen.
                    let done = AssertUnwindSafe(self.operate(subject, operation)).catch_unwind();
                    let done = done.map(move |done| done.map_err(|_| (subject.family, operation)));
                    running.push(Called(subject.caller, Box::pin(done)));
                }
                tokio::select! {
                    biased;
                    done = running.next() => match done {
                        Some(Ok(())) => {}
                        Some(Err(failed)) => failures.push(failed),
                        None => break,
                    },
                    // Waits by the clock end at once.
                    () = pass(Duration::from_millis(20)) => self.clock.advance(TICK),
                }
            }
        }
        assert!(failures.is_empty(), "operations that failed: {failures:?}");
    }

    /// Notes the call of a function.
    pub fn call(&self, function: &str) {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).insert(function.to_owned());
    }

    async fn operate(&self, subject: &Subject, operation: &'static str) {
        self.call(operation.split(' ').next().unwrap_or(operation));
        let Subject { db, caller, .. } = subject;
        let (owner, n) = ([7; 16], caller.wrapping_mul(0x9e37_79b1) % 10_000);
        let text = format!(r#"{{"n":{n},"text":"x","channels":["c{}"]}}"#, n % 3);
        match operation {
            "create" => self.create(subject).await,
            "delete" => db.delete().await.unwrap(),
            "set_security" => db.set_security(br#"{"admins":{"names":["a"]}}"#).await.unwrap(),
            "change_security" => db.change_security(|_| Some(b"{}".to_vec())).await.unwrap(),
            "set_revs_limit" => db.set_revs_limit(500).await.unwrap(),
            "set_purged_infos_limit" => db.set_purged_infos_limit(500).await.unwrap(),
            "compact" => db.compact().await.unwrap(),
            "set_sync_function" => db.set_sync_function(None).await.unwrap(),
            "set_offline" => {
                db.set_offline(true).await.unwrap();
                db.set_offline(false).await.unwrap();
            }
            "resync" => ignore(db.resync(ResyncAction::Start { is_exclusive: false, is_anew: false }).await.unwrap()),
            "update a view" => self.design(db, "v", r#"{"n":"asc","text":"asc"}"#).await,
            "update an index" => self.design(db, "i", r#"{"n":"asc"}"#).await,
            "update" => {
                let parent = subject.newest();
                subject.note(put(db, "p:d", parent.as_ref(), &text).await.unwrap());
            }
            "update again" => {
                let rev = put(db, "p:d", subject.newest().as_ref(), r#"{"n":1,"channels":["d"]}"#).await.unwrap();
                subject.note(rev);
            }
            "update that expires" => {
                let at = self.clock.clock().unix_seconds() + 3_600;
                db.update(&Edit { expiry: Some(Expiry::At(at)), ..edit("p:e", None, &text) }).await.unwrap();
            }
            "bulk_update" => {
                for done in db.bulk_update(&[edit("p:b", None, &text), edit("p:c", None, &text)]).await.unwrap() {
                    done.unwrap();
                }
            }
            "stage" => {
                let mut upload = db.upload("text/plain", false).await.unwrap();
                upload.write(text.as_bytes()).await.unwrap();
                let (data, small) = upload.complete().await.unwrap();
                db.stage(&small.into_iter().collect::<Vec<_>>()).await.unwrap();
                let data = AttachmentEdit::Data { content_type: "text/plain".to_owned(), revpos: None, data };
                let attachments = vec![("a".to_owned(), data)];
                db.update(&Edit { attachments, ..edit("p:a", None, "{}") }).await.unwrap();
            }
            "upload" | "renew_uploads" | "discard" => {
                let mut upload = db.upload("text/plain", false).await.unwrap();
                upload.write(text.as_bytes()).await.unwrap();
                let data = upload.finish().await.unwrap();
                db.renew_uploads(std::slice::from_ref(&data)).await.unwrap();
                db.discard(&data).await;
            }
            "purge" => {
                let rev = subject.newest().unwrap();
                assert_eq!(db.purge("p:d", std::slice::from_ref(&rev)).await.unwrap(), [rev]);
                *subject.rev.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            "put_local" => db.put_local(&local()).await.unwrap(),
            "edit_locals" => {
                for done in db.edit_locals(&[LocalEdit::Put(local())]).await.unwrap() {
                    done.unwrap();
                }
            }
            "delete_local" => ignore(db.delete_local("l").await.unwrap()),
            "put_principal" => ignore(db.put_principal(&ann(true)).await.unwrap()),
            "put_principal again" => ignore(db.put_principal(&ann(false)).await.unwrap()),
            "begin_principal_session" => {
                let session = PrincipalSession { name: "ann".into(), generation: 1, ends_at_ms: 5, lasts_ms: 9 };
                ignore(db.begin_principal_session(&[7; 20], &session).await.unwrap());
            }
            "prolong_principal_session" => ignore(db.prolong_principal_session(&[7; 20], 50).await.unwrap()),
            "end_principal_session" => db.end_principal_session(&[7; 20]).await.unwrap(),
            "end_principal_sessions" => assert!(db.end_principal_sessions("ann").await.unwrap()),
            "delete_principal" => assert!(db.delete_principal(PrincipalKind::User, "ann").await.unwrap()),
            "take_lease" => ignore(db.take_lease("l", &owner, None).await.unwrap()),
            "take_document_lease" => assert!(db.take_document_lease("p:d", &owner, None).await.unwrap().is_some()),
            "hold_lease" => assert!(db.hold_lease("l", &owner, b"1", false).await.unwrap()),
            "hold_lease_after" => assert!(db.hold_lease_after("l", &owner, b"2", false, &|_| true).await.unwrap()),
            "hold_leases_after" => {
                let holds = [LeaseRenewal { id: "l".to_owned(), state: b"3".to_vec() }];
                assert_eq!(db.hold_leases_after(&owner, &holds, &|_, _| true).await.unwrap(), [true]);
            }
            "drop_lease" => db.drop_lease("l").await.unwrap(),
            "drop_document_lease" => assert!(db.drop_document_lease("p:d").await.unwrap()),
            "view_cleanup" => db.view_cleanup().await.unwrap(),
            "view" => {
                let view = db.view("_design/v", "v", ViewUpdate::True).await.unwrap();
                view.rows(ViewQuery::default()).next_page().await.unwrap();
            }
            read => self.read(subject, read).await,
        }
    }

    async fn read(&self, Subject { db, name, .. }: &Subject, operation: &str) {
        match operation {
            "get" => ignore(db.get("p:b", &GetOptions::default()).await),
            "get_many" => ignore(db.get_many(&[("p:b".to_owned(), GetOptions::default())]).await.unwrap()),
            "open_revs" => {
                ignore(db.open_revs("p:b", &OpenRevs::All, 0, false, &GetOptions::default()).await.unwrap());
            }
            "changes" => ignore(db.changes(ChangesQuery::default()).next_page().await.unwrap()),
            "all_docs" => ignore(db.all_docs(AllDocsQuery::default()).next_page().await.unwrap()),
            "all_docs_keys" => {
                let keys = ["p:b".to_owned(), "none".to_owned()];
                ignore(db.all_docs_keys(&keys, true, flatbed_layer::Conflicts::No).await.unwrap());
            }
            "info" => ignore(db.info().await.unwrap()),
            "attachment" => {
                let mut reader = db.attachment("p:a", None, "a").await.unwrap();
                while reader.next().await.unwrap().is_some() {}
            }
            "get_local" => ignore(db.get_local("l").await.unwrap()),
            "list_local" => ignore(db.list_local(None, false).await.unwrap()),
            "principal" => ignore(db.principal(PrincipalKind::User, "ann").await.unwrap()),
            "security" => ignore(self.layer.security(name).await.unwrap()),
            "json_indexes" => ignore(db.json_indexes().await.unwrap()),
            "find" => {
                let request = parse(br#"{"selector":{"n":{"$gt":10}}}"#, &Limits::default()).unwrap();
                let find = flatbed_mango::Find::parse(&request, None, &|| false).unwrap();
                let indexes = db.json_indexes().await.unwrap();
                let plan = indexes.plan(name, &find).unwrap();
                let options = FindOptions { limit: 25, ..FindOptions::default() };
                ignore(db.find(&indexes, &plan, options).next_page().await.unwrap());
            }
            "view_info" => ignore(db.view_info("_design/v").await.unwrap()),
            "update_seq" => ignore(db.update_seq().await.unwrap()),
            "exists" => db.exists().await.unwrap(),
            "leases" => ignore(db.leases(None).await.unwrap()),
            "missing_revs" => {
                let wanted = [("p:b".to_owned(), vec!["9-a".parse().unwrap()])];
                ignore(db.missing_revs(&wanted).await.unwrap());
            }
            "partition_info" => ignore(db.partition_info("p").await.unwrap()),
            "purged_infos" => ignore(db.purged_infos(None).await.unwrap()),
            unknown => panic!("{unknown} has no operation"),
        }
    }

    async fn create(&self, Subject { family, db, .. }: &Subject) {
        let channels = (*family == Family::Channels).then(ChannelsOptions::default);
        let partitioned = *family == Family::Leases;
        db.create(&CreateOptions { channels, partitioned, ..CreateOptions::default() }).await.unwrap();
    }

    async fn design(&self, db: &Database, name: &str, fields: &str) {
        let view = format!(r#"{{"map":{{"fields":{fields}}},"reduce":"_count","options":{{"def":{{}}}}}}"#);
        let text = format!(r#"{{"language":"query","views":{{"{name}":{view}}}}}"#);
        put(db, &format!("_design/{name}"), None, &text).await.unwrap();
    }

    /// Does the operations of the whole store, each once.
    pub async fn of_all(&self) {
        let layer = &self.layer;
        for function in
            ["sign_in_state", "rotate_secret", "change_settings", "sweep_broken_uploads", "sweep_database_updates"]
        {
            self.call(function);
            self.tally.operation();
        }
        layer.sign_in_state().await.unwrap();
        layer.rotate_secret().await.unwrap();
        let change = |settings: &mut StoredSettings| {
            Ok::<_, Infallible>(settings.insert(("s".to_owned(), "k".to_owned()), "x".to_owned()))
        };
        ignore(layer.change_settings(&layer.actor().clone().into(), change).await.unwrap());
        layer.sweep_broken_uploads(Duration::from_secs(3_600)).await.unwrap();
        layer.sweep_database_updates(Duration::from_secs(3_600)).await.unwrap();
    }
}

impl Subject {
    fn newest(&self) -> Option<RevId> {
        self.rev.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, rev: RevId) {
        *self.rev.lock().unwrap_or_else(PoisonError::into_inner) = Some(rev);
    }
}

/// Drops a result that does not matter.
fn ignore<T>(_: T) {}

fn edit<'a>(id: &'a str, parent: Option<RevId>, text: &'a str) -> Edit<'a> {
    let body = parse(text.as_bytes(), &Limits::default()).expect("JSON");
    Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments: Vec::new(), body }
}

fn local() -> LocalDocument {
    LocalDocument { id: "l".into(), revision: 1, body: b"\"a\":1".to_vec() }
}

/// A user, with another channel when it is changed.
fn ann(is_new: bool) -> PrincipalWrite {
    PrincipalWrite {
        kind: PrincipalKind::User,
        name: "ann".to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: [if is_new { "c1" } else { "c2" }.to_owned()].into(),
        admin_roles: BTreeSet::new(),
        signs_in: is_new.then(|| SignsIn::Password(b"{}".to_vec())),
        is_new,
    }
}
