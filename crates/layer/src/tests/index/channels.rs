//! Documents that are written, change channels, conflict, expire and are removed, at two layers and under faults: their
//! entries in channels are those of their winners, by the checker and by the raw keys.
#![cfg(test)]

mod left;
mod over;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flatbed_channels::{ChannelDeparture, ChannelEntry, Grant, GrantedItem, Grantee, Routing};
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::body::begin_read;
use flatbed_databases::document::edit::{Document, Edit, EditParts, GetOptions};
use flatbed_databases::document::verdict::Verdict;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_operations::index::channels::*;
use flatbed_operations::index::definitions::write_record;
use flatbed_operations::index::maintainers::IndexContext;
use flatbed_operations::judge::judgement::{Judge, Judgement, ProposedWrite, Rule};
use flatbed_operations::write::batch::resolved;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::ChannelPart;
use flatbed_store::records::Info;
use flatbed_store::seq::{STAMP_BYTES, Seq};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::{proto, transaction};
use flatbed_testkit::{Random, Storage, until};
use futures_util::future::BoxFuture;
use prost::Message;

use crate::handle::{Database, Layer};
use crate::resync::ResyncAction;
use crate::tests::index::random::with_faults;

const START: ResyncAction = ResyncAction::Start { is_exclusive: false, is_anew: false };

/// Routes like a database without a function; `gives` names users who get channels, `ends` is a second of Unix time.
pub(crate) struct ByBody;

impl Judge for ByBody {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(ByBody)
    }

    fn of_database(&self, _: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(ByBody))
    }

    /// `source`: the member that names the channels.
    fn sync_function(&self, _: &str, source: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(ByMember(source.to_owned())))
    }

    fn check_sync_function<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn caller(&self) -> u64 {
        0
    }
}

/// Routes by the member of this name; refuses documents without it, and grants `eve` the channel if an old revision
/// exists.
struct ByMember(String);

impl Rule for ByMember {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let Some(Value::String(channel)) = write.edit.body.get(&self.0) else {
            return Box::pin(async { Err(Refusal::Forbidden("no channel".to_owned())) });
        };
        let grant = Grant { to: Grantee::User("eve".to_owned()), what: GrantedItem::Channel(channel.to_string()) };
        let grants = write.old.map(|_| grant).into_iter().collect();
        let channels = [channel.to_string()].into();
        Box::pin(async move { Ok(Verdict { channels, grants, ..Verdict::default() }) })
    }
}

pub(crate) fn routing_of(body: &Value<'_>) -> Routing {
    let mut routing = Routing::without_function(body).unwrap();
    if let Some(Value::String(name)) = body.get("gives") {
        let grant = Grant { to: Grantee::User(name.to_string()), what: GrantedItem::Channel("G".to_owned()) };
        routing.grants.insert(grant);
    }
    if let Some(Value::Number(second)) = body.get("ends") {
        routing.expires_at = Some(second.parse().unwrap());
    }
    routing
}

fn verdict_of(routing: Routing) -> Verdict {
    let expires_at_ms = routing.expires_at.map(|second| second * 1_000);
    Verdict { channels: routing.channels, grants: routing.grants, expires_at_ms, writer: None }
}

impl Rule for ByBody {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        Box::pin(async move { Ok(verdict_of(routing_of(&write.edit.body))) })
    }
}

struct Give<'a>(&'a Database);

impl Operation for Give<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let inner = &*self.0.inner;
        let instance = inner.resolve_for_write(trx, &self.0.name).await?;
        let record = proto::DatabaseRecord { channels: instance.channels() + 1, ..instance.record.clone() };
        write_record(&IndexContext { inner, trx, instance: &instance }, record)
    }
}

pub(crate) async fn give_channels(db: &Database) {
    transaction::write(&db.inner.db, &db.inner.metrics, &mut Give(db)).await.unwrap();
}

async fn database(has_channels: bool) -> ([Database; 2], Storage) {
    let (layer, authority, storage) = crate::tests::fenced::layer_judged_by(Some(Arc::new(ByBody))).await;
    let server = layer.database("db", authority.for_job("test"));
    if has_channels {
        give_channels(&server).await;
    }
    ([server, layer.database("db", crate::tests::fenced::user("anna")).asked_by(ReadPrincipal::All)], storage)
}

fn of_user(db: &Database) -> Database {
    Layer { inner: Arc::clone(&db.inner) }
        .database(&db.name, crate::tests::fenced::user("anna"))
        .asked_by(ReadPrincipal::All)
}

fn edit<'e>(id: &'e str, parent: Option<RevId>, body: &'e str) -> Edit<'e> {
    let EditParts { deleted, body, .. } =
        EditParts::from_json(parse(body.as_bytes(), &Limits::default()).unwrap(), &flatbed_clock::Clock::system())
            .unwrap();
    Edit { id: id.into(), parent, history: None, deleted, expiry: None, attachments: Vec::new(), body }
}

async fn put(db: &Database, id: &str, parent: Option<&RevId>, body: &str) -> RevId {
    db.update(&edit(id, parent.cloned(), body)).await.unwrap().rev
}

async fn replicate(db: &Database, id: &str, path: &[&str], body: &str) {
    let history = Some(path.iter().map(|rev| rev.parse().unwrap()).collect());
    let results = db.bulk_update(&[Edit { history, ..edit(id, None, body) }]).await.unwrap();
    assert!(results.iter().all(|result| result.is_ok()), "{results:?}");
}

pub(crate) async fn assert_clean(db: &Database) {
    let report = crate::check::check_database(db, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// Describes all keys of channels; a sequence is shown as the generation of the revision written at it.
async fn keys_of(db: &Database) -> Vec<String> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let range = instance.keys.subspace(flatbed_store::keys::Subspace::Channels);
    let mut found = Vec::new();
    for page in begin_read(&trx, range).finish(&trx, 10_000_000).await.unwrap() {
        for row in &page {
            let generation = |rev: &str| rev.split_once('-').unwrap().0.to_owned();
            found.push(match instance.keys.split_channels(row.key()).unwrap() {
                ChannelPart::Entry { channel, .. } => {
                    let entry = ChannelEntry::decode(row.value()).unwrap();
                    let flags = [(entry.deleted, " deleted"), (entry.removed, " removed")];
                    let flags: String = flags.into_iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
                    let channels = entry.channels.map_or("many".to_owned(), |channels| channels.join(","));
                    format!("{channel}: {}@{}{flags} [{channels}]", entry.doc, generation(&entry.rev))
                }
                ChannelPart::Document { channel, id } => {
                    let entry = proto::AllDocsEntry::decode(row.value()).unwrap();
                    format!("{channel} has {id}@{}", entry.winner.unwrap().generation)
                }
                ChannelPart::Left { id, channel } => {
                    let left = ChannelDeparture::decode(row.value()).unwrap();
                    format!("{id} left {channel}@{}", generation(&left.rev))
                }
                ChannelPart::End { second, id } => format!("{id} ends {second}"),
                ChannelPart::Stays { id, channel } => {
                    format!("{id} was in {channel}, {}", decode_stays(row.value()).unwrap().all().len())
                }
                part => format!("{part:?}"),
            });
        }
    }
    found
}

#[tokio::test]
async fn entries_follow_the_winner() {
    let ([server, db], _storage) = database(true).await;
    let first = put(&db, "d", None, r#"{"channels":["A","B"],"ends":9}"#).await;
    assert_eq!(keys_of(&db).await, ["A: d@1 [A,B]", "B: d@1 [A,B]", "A has d@1", "B has d@1", "d ends 9"]);
    let second = put(&db, "d", Some(&first), r#"{"channels":["B"],"ends":9}"#).await;
    let gone = ["A: d@2 removed [B]", "B: d@2 [B]", "B has d@2", "d left A@2", "d ends 9"];
    assert_eq!(keys_of(&db).await, gone);
    assert_clean(&db).await;
    // A losing leaf, and a winning one.
    replicate(&db, "d", &["1-0"], r#"{"channels":["C"]}"#).await;
    assert_eq!(keys_of(&db).await, gone);
    replicate(&db, "d", &["4-f", "3-f"], r#"{"channels":["A","C"],"gives":"bob"}"#).await;
    let won = ["A: d@4 [A,C]", "B: d@4 removed [A,C]", "C: d@4 [A,C]", "A has d@4", "C has d@4", "d left B@4"];
    assert_eq!(keys_of(&db).await, [&won[..], &["d was in A, 1"]].concat());
    assert_clean(&db).await;
    // The former winner wins again, at a new sequence: channels that were left stay left.
    server.purge("d", &["4-f".parse().unwrap()]).await.unwrap();
    let back =
        ["A: d@2 removed [B]", "B: d@2 [B]", "C: d@2 removed [B]", "B has d@2", "d left A@2", "d left C@2", "d ends 9"];
    assert_eq!(keys_of(&db).await, [&back[..], &["d was in A, 1", "d was in B, 1"]].concat());
    assert_clean(&db).await;
    // A tombstone is in its channels, is not listed, and does not expire.
    server.purge("d", &["1-0".parse().unwrap()]).await.unwrap();
    let third = put(&db, "d", Some(&second), r#"{"_deleted":true,"channels":["C"],"ends":9}"#).await;
    let deleted =
        ["A: d@2 removed [B]", "B: d@3 deleted removed [C]", "C: d@3 deleted [C]", "d left A@2", "d left B@3"];
    assert_eq!(keys_of(&db).await, [&deleted[..], &["d was in A, 1", "d was in B, 1", "d was in C, 1"]].concat());
    assert_clean(&db).await;
    put(&db, "d", Some(&third), "{}").await;
    put(&db, "e", None, r#"{"channels":"A"}"#).await;
    assert_clean(&db).await;
    let rev = db.get("d", &GetOptions::default()).await.unwrap().rev;
    server.purge("d", &[rev]).await.unwrap();
    assert_eq!(keys_of(&db).await, ["A: e@1 [A]", "A has e@1"]);
    assert_clean(&db).await;
}

#[tokio::test]
async fn what_the_server_writes_is_in_no_channel_and_what_was_there_before_is_not_entered() {
    let ([server, db], _storage) = database(false).await;
    let old = put(&db, "old", None, r#"{"channels":"A"}"#).await;
    let other = put(&db, "other", None, r#"{"channels":"A"}"#).await;
    replicate(&db, "other", &["1-00000000000000000000000000000000"], r#"{"channels":"C"}"#).await;
    assert_clean(&db).await;
    give_channels(&server).await;
    assert!(keys_of(&db).await.is_empty());
    assert_clean(&db).await;
    // A losing leaf changes nothing of a document that was not entered.
    replicate(&db, "old", &["1-00000000000000000000000000000000"], r#"{"channels":"B"}"#).await;
    put(&server, "servers", None, r#"{"channels":"A"}"#).await;
    assert!(keys_of(&db).await.is_empty());
    assert_clean(&db).await;
    put(&db, "old", Some(&old), r#"{"channels":["B"]}"#).await;
    put(&db, "other", Some(&other), r#"{"_deleted":true}"#).await;
    assert_eq!(keys_of(&db).await, ["B: old@2 [B]", "C: other@1 [C]", "B has old@2", "C has other@1"]);
    assert_clean(&db).await;
}

#[tokio::test]
async fn many_channels_stand_with_the_record_and_what_was_left_long_ago_is_forgotten() {
    let ([server, db], _storage) = database(true).await;
    let body = |from: usize| {
        let names: Vec<_> = (from..from + 150).map(|n| format!("\"c{n:05}\"")).collect();
        format!(r#"{{"channels":[{}],"gives":"bob"}}"#, names.join(","))
    };
    let mut rev = put(&db, "d", None, &body(0)).await;
    let left = async || {
        let instance = resolved(&db.inner, &db.name).await.unwrap();
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        all_left(&trx, &instance, "d").await.unwrap()
    };
    for step in 1..=7 {
        rev = put(&db, "d", Some(&rev), &body(step * 140)).await;
        assert_clean(&db).await;
    }
    assert_eq!(left().await.len(), 980);
    rev = put(&db, "d", Some(&rev), &body(8 * 140)).await;
    let found = left().await;
    assert_eq!(found.len(), LEFT_KEPT);
    assert!(found.iter().all(|(channel, _)| channel.as_str() >= "c00600"), "the oldest go");
    assert_clean(&db).await;
    // Some that it has left long ago, and some that were forgotten.
    put(&db, "d", Some(&rev), &body(550)).await;
    assert_clean(&db).await;
    let rev = db.get("d", &GetOptions::default()).await.unwrap().rev;
    server.purge("d", &[rev]).await.unwrap();
    assert!(keys_of(&db).await.is_empty());
    assert_clean(&db).await;
}

#[tokio::test]
async fn a_bulk_whose_channels_take_much_goes_in_several_transactions() {
    let ([_, db], _storage) = database(true).await;
    let names = |n: usize| (0..190).map(|c| format!("\"{n:05}-{c:030}\"")).collect::<Vec<_>>().join(",");
    let texts: Vec<_> = (0..120).map(|n| (format!("d{n:03}"), format!(r#"{{"channels":[{}]}}"#, names(n)))).collect();
    let edits: Vec<_> = texts.iter().map(|(id, text)| edit(id, None, text)).collect();
    let results = db.bulk_update(&edits).await.unwrap();
    assert!(results.iter().all(|result| result.is_ok()), "{results:?}");
    // 5 MB are cleared, of which no edit shows a sign.
    let edits: Vec<_> = texts
        .iter()
        .zip(&results)
        .map(|((id, _), result)| edit(id, Some(result.as_ref().unwrap().rev.clone()), r#"{"channels":"A"}"#))
        .collect();
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(|result| result.is_ok()));
    assert_clean(&db).await;
}

#[tokio::test]
async fn the_checker_finds_what_is_wrong() {
    let ([_, db], _storage) = database(true).await;
    let first = put(&db, "d", None, r#"{"channels":["A","B"],"ends":9}"#).await;
    put(&db, "d", Some(&first), r#"{"channels":["B"],"ends":9}"#).await;
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let range = instance.keys.subspace(flatbed_store::keys::Subspace::Channels);
    let begin = || Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let trx = begin();
    let pages = begin_read(&trx, range).finish(&trx, 1_000_000).await.unwrap();
    let rows: Vec<_> =
        pages.iter().flat_map(|page| page.iter()).map(|row| (row.key().to_vec(), row.value().to_vec())).collect();
    assert_eq!(rows.len(), 5);
    let is_clean = async || crate::check::check_database(&db, |_| {}).await.unwrap().is_clean();
    let write = async |change: &dyn Fn(&Transaction)| {
        let trx = begin();
        change(&trx);
        trx.commit().await.unwrap();
    };
    for (key, value) in &rows {
        write(&|trx| trx.clear(key)).await;
        assert!(!is_clean().await, "a key is missed");
        write(&|trx| trx.set(key, b"\xff")).await;
        assert!(!is_clean().await, "another value is seen");
        write(&|trx| trx.set(key, value)).await;
    }
    assert!(is_clean().await);
    let seq = Seq::new(instance.incarnation(), [7; STAMP_BYTES]);
    let keys = &instance.keys;
    let strays = [
        (keys.channel_entry("B", &seq), 1),
        (keys.channel_entry("A", &seq), 0),
        (keys.channel_document("A", "d"), 2),
        (keys.left("d", "B"), 3),
        (keys.left("e", "B"), 3),
        (keys.end_of_document(8, "d"), 4),
        (keys.end_of_document(9, "e"), 4),
    ];
    put(&db, "g", None, r#"{"gives":"bob"}"#).await;
    let what = flatbed_channels::GrantedItem::Channel("G".to_owned());
    let kind = flatbed_channels::PrincipalKind::User;
    for key in [keys.given_by_document(kind, "bob", &what, "g"), keys.periods(kind, "bob", &what)] {
        let value = begin().get(&key, true).await.unwrap().unwrap();
        write(&|trx| trx.clear(&key)).await;
        assert!(!is_clean().await, "{key:?}");
        write(&|trx| trx.set(&key, &value)).await;
    }
    write(&|trx| trx.set(&keys.given_by_document(kind, "eve", &what, "g"), b"")).await;
    assert!(!is_clean().await, "a grant without a document");
    write(&|trx| trx.clear(&keys.given_by_document(kind, "eve", &what, "g"))).await;
    for (key, as_row) in strays {
        write(&|trx| trx.set(&key, &rows[as_row].1)).await;
        assert!(!is_clean().await, "{key:?}");
        write(&|trx| trx.clear(&key)).await;
    }
    assert!(is_clean().await);
}

/// The checker compares the by-seq fields about channels that a document left, on which followers rely.
#[tokio::test]
async fn the_checker_compares_what_by_seq_says_of_channels_that_were_left() {
    let ([_, db], _storage) = database(true).await;
    let first = put(&db, "twice", None, r#"{"channels":["A","B","C"]}"#).await;
    let second = put(&db, "twice", Some(&first), r#"{"channels":["B","C"]}"#).await;
    put(&db, "twice", Some(&second), r#"{"channels":["C"]}"#).await;
    let first = put(&db, "once", None, r#"{"channels":["A"]}"#).await;
    put(&db, "once", Some(&first), "{}").await;
    let first = put(&db, "never", None, r#"{"channels":["A"]}"#).await;
    put(&db, "never", Some(&first), r#"{"channels":["A","B"]}"#).await;
    let first = put(&db, "back", None, r#"{"channels":["A"]}"#).await;
    let second = put(&db, "back", Some(&first), r#"{"channels":["B"]}"#).await;
    put(&db, "back", Some(&second), r#"{"channels":["A","B"]}"#).await;
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let begin = || Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let is_clean = async || crate::check::check_database(&db, |_| {}).await.unwrap().is_clean();
    assert!(is_clean().await);
    for id in ["twice", "once", "never", "back"] {
        let info = begin().get(&instance.keys.document(id).info(), true).await.unwrap().unwrap();
        let info = Info::decode(&info).unwrap();
        let seq = Seq::new(instance.incarnation(), info.stamp);
        let key = instance.buckets.of(info.bucket).unwrap().by_seq(&seq);
        let entry = proto::SequenceEntry::decode(&*begin().get(&key, true).await.unwrap().unwrap()).unwrap();
        assert_eq!((entry.left.is_some(), entry.before.is_empty()), (id == "twice" || id == "once", id != "twice"));
        let put = async |entry: &proto::SequenceEntry| {
            let trx = begin();
            trx.set(&key, &entry.encode_to_vec());
            trx.commit().await.unwrap();
        };
        let named = |names: &[&str], are_elsewhere| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            Some(proto::ChannelNames { names, are_elsewhere })
        };
        let before = |before: &[u8]| proto::SequenceEntry { before: before.to_vec(), ..entry.clone() };
        let left = |left| proto::SequenceEntry { left, ..entry.clone() };
        let mut long_ago = [0; STAMP_BYTES];
        long_ago[STAMP_BYTES - 1] = 1;
        let wrong = [
            before(&[]),
            before(&info.stamp),
            before(&[0xff; STAMP_BYTES]),
            before(&long_ago),
            before(&[7; STAMP_BYTES - 1]),
            left(None),
            left(named(&["A", "B"], false)),
            left(named(&["D"], false)),
            left(named(&[], true)),
        ];
        for wrong in wrong.iter().filter(|wrong| **wrong != entry) {
            put(wrong).await;
            assert!(!is_clean().await, "{id}: {wrong:?} in the place of {entry:?}");
        }
        put(&entry).await;
        assert!(is_clean().await);
    }
}

async fn recomputed(db: &Database) -> BTreeSet<(String, String)> {
    let mut walk = db.all_docs(crate::AllDocsQuery { include_docs: true, ..crate::AllDocsQuery::default() });
    let mut expected = BTreeSet::new();
    while let Some(rows) = walk.next_page().await.unwrap() {
        for document in rows.into_iter().filter_map(|row| row.doc) {
            let text = [b"{", document.body.as_slice(), b"}"].concat();
            let routing = routing_of(&parse(&text, &Limits::default()).unwrap());
            expected.extend(routing.channels.into_iter().map(|channel| (channel, document.id.clone())));
        }
    }
    expected
}

async fn listed(db: &Database) -> BTreeSet<(String, String)> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        let found = begin_read(&trx, instance.keys.channel_documents_all()).finish(&trx, 10_000_000).await;
        let pages = match found {
            Ok(pages) => pages,
            Err(Error::Storage(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        let keys = pages.iter().flat_map(|page| page.iter());
        return keys
            .map(|row| match instance.keys.split_channels(row.key()).unwrap() {
                ChannelPart::Document { channel, id } => (channel, id),
                part => panic!("{part:?}"),
            })
            .collect();
    }
}

fn random_body(random: &mut Random) -> String {
    let names = ["A", "B", "C", "*", "!"];
    let mut channels: Vec<String> =
        names.iter().filter(|_| random.below(3) == 0).map(|name| format!("{name:?}")).collect();
    if random.below(6) == 0 {
        channels.extend((0..20).map(|n| format!("\"many{}\"", n + random.below(3))));
    }
    let mut body = format!(r#"{{"channels":[{}]"#, channels.join(","));
    if random.below(5) == 0 {
        body.push_str(&format!(r#","gives":"u{}""#, random.below(3)));
    }
    if random.below(5) == 0 {
        body.push_str(&format!(r#","ends":{}"#, 9_000_000_000 + random.below(3)));
    }
    if random.below(5) == 0 {
        body.push_str(r#","_deleted":true"#);
    }
    body + "}"
}

async fn writer(db: Database, seed: u64) {
    let mut random = Random(seed);
    let user = of_user(&db);
    for _ in 0..60 {
        let id = format!("d{:02}", random.below(12));
        let winner = match db.get(&id, &GetOptions::default()).await {
            Ok(document) => Some(document.rev),
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => None,
            Err(error) => panic!("{error}"),
        };
        let body = random_body(&mut random);
        let done = match random.below(10) {
            0 => match &winner {
                Some(rev) => db.purge(&id, std::slice::from_ref(rev)).await.map(drop),
                None => Ok(()),
            },
            1 => db.compact().await,
            2 | 3 => {
                let rev = format!("{}-{:032x}", 1 + random.below(4), random.below(1 << 30));
                let history = Some(vec![rev.parse().unwrap()]);
                user.bulk_update(&[Edit { history, ..edit(&id, None, &body) }]).await.map(drop)
            }
            4 => {
                let texts: Vec<_> = (0..4).map(|n| (format!("d{n:02}"), random_body(&mut random))).collect();
                let mut edits = Vec::new();
                for (id, text) in &texts {
                    let parent = db.get(id, &GetOptions::default()).await.ok().map(|document| document.rev);
                    edits.push(edit(id, parent, text));
                }
                user.bulk_update(&edits).await.map(drop)
            }
            _ => user.update(&edit(&id, winner, &body)).await.map(drop),
        };
        match done {
            Ok(()) | Err(Error::Refused(Refusal::Conflict | Refusal::DocumentNotFound(_))) => {}
            Err(Error::Storage(error)) if error.is_maybe_committed() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// `late`: the database gets channels while it is written to.
async fn torture(probability: f64, seed: u64, late: bool) {
    let judge: Arc<dyn Judge> = Arc::new(ByBody);
    let Some(([one, other], _storage)) = with_faults(probability, seed, Some(judge)).await else { return };
    if !late {
        give_channels(&one).await;
    }
    let writers: Vec<_> =
        (0..4).map(|n| tokio::spawn(writer([&one, &other][n % 2].clone(), seed * 100 + n as u64))).collect();
    if late {
        let written = || [&one, &other].map(|db| db.inner.metrics.documents_written.get()).iter().sum::<u64>();
        until("documents are written", async || written() > 20).await;
        give_channels(&other).await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_clean(&one).await;
    if late {
        // Earlier documents are entered, and verdicts of an earlier function replaced.
        loop {
            match one.resync(START).await {
                Ok(_) => break,
                Err(Error::Storage(error)) if error.is_maybe_committed() => {}
                Err(error) => panic!("{error}"),
            }
        }
        let both = futures_util::future::join(resynced(&one), resynced(&other)).await;
        assert_eq!(both, ((), ()));
        assert_eq!(one.resync_state().await.unwrap(), None);
        assert_clean(&one).await;
    }
    let (listed, recomputed) = (listed(&one).await, recomputed(&other).await);
    assert_eq!(listed, recomputed);
}

async fn resynced(db: &Database) {
    loop {
        match crate::resync::resync(db, std::time::Duration::from_secs(60)).await {
            Ok(Some(true)) => return,
            Ok(_) | Err(Error::Storage(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_new_function_comes_to_all_documents() {
    let ([server, db], _storage) = database(false).await;
    let first = put(&db, "a", None, r#"{"x":"X1","channels":"A"}"#).await;
    put(&db, "a", Some(&first), r#"{"x":"X2","y":"Y2","channels":"A"}"#).await;
    let gone = put(&db, "b", None, r#"{"x":"X1","y":"Y1"}"#).await;
    put(&db, "b", Some(&gone), r#"{"_deleted":true,"x":"X2","channels":["B"]}"#).await;
    put(&db, "c", None, r#"{"y":"Y1"}"#).await;
    replicate(&db, "c", &["1-00000000000000000000000000000000"], r#"{"x":"X1","y":"Y0"}"#).await;
    put(&server, "_design/d", None, r#"{"x":"X","channels":"A"}"#).await;
    for n in 0..120 {
        put(&server, &format!("n{n:03}"), None, r#"{"x":"N","y":"N"}"#).await;
    }
    assert_eq!(server.resync_state().await.unwrap(), None);
    assert!(server.resync(START).await.is_err(), "there are no channels");
    server.set_sync_function(None).await.unwrap();
    let state = server.resync_state().await.unwrap().unwrap();
    assert_eq!((state.documents, state.is_stopped), (0, false));
    assert!(keys_of(&db).await.iter().all(|key| key == "Resync" || key == "Function"));
    assert!(server.resync(ResyncAction::Stop).await.unwrap() && !server.resync(ResyncAction::Stop).await.unwrap());
    resynced(&server).await;
    assert_eq!(server.resync_state().await.unwrap().unwrap().documents, 0, "it is stopped");
    assert!(server.resync(START).await.unwrap() && !server.resync(START).await.unwrap());
    resynced(&server).await;
    assert_eq!(server.resync_state().await.unwrap(), None);
    let of_few = async || {
        keys_of(&db).await.into_iter().filter(|key| !key.contains(" n") && key != "Function").collect::<Vec<_>>()
    };
    assert_eq!(of_few().await, ["A: a@2 [A]", "B: b@2 deleted [B]", "A has a@2"]);
    assert_clean(&db).await;
    let seqs = async || db.info().await.unwrap().update_seq;
    server.set_sync_function(Some("x")).await.unwrap();
    let background = crate::background::BackgroundOptions::default();
    let layer = Layer { inner: Arc::clone(&db.inner) };
    let flatbed_databases::actor::Actor::Server(actor) = server.actor().clone() else { panic!("the server") };
    crate::background::Background::new(&layer, actor, background).unwrap().round().await.unwrap();
    assert_eq!(server.resync_state().await.unwrap(), None, "it is work in the background");
    let entered = [
        "A: a@2 removed [X2]",
        "B: b@2 deleted removed [X2]",
        "X2: a@2 [X2]",
        "X2: b@2 deleted [X2]",
        "X2 has a@2",
        "a left A@2",
        "b left B@2",
    ];
    assert_eq!(of_few().await, entered);
    assert_clean(&db).await;
    // Unchanged documents are not written.
    let before = seqs().await;
    server.resync(START).await.unwrap();
    resynced(&server).await;
    assert_eq!(seqs().await, before);
    // A losing leaf was judged, too.
    server.purge("c", &[db.get("c", &GetOptions::default()).await.unwrap().rev]).await.unwrap();
    assert!(of_few().await.contains(&"X1: c@1 [X1]".to_owned()));
    assert_clean(&db).await;
}

/// An exclusive resync closes the database to users until it ends or is stopped, whatever function it continues with;
/// administrators keep access.
#[tokio::test]
async fn an_exclusive_resync_has_the_database_for_itself() {
    const ALONE: ResyncAction = ResyncAction::Start { is_exclusive: true, is_anew: false };
    let ([server, user], _storage) = database(false).await;
    server.set_sync_function(None).await.unwrap();
    for n in 0..60 {
        put(&server, &format!("n{n:03}"), None, r#"{"x":"!","channels":"!"}"#).await;
    }
    resynced(&server).await;
    let member = server.reader().asked_by(ReadPrincipal::Account { name: "anna".into(), is_member: true });
    let written = user.asked_by(ReadPrincipal::Account { name: "anna".into(), is_member: true });
    let reads = async || member.get("n001", &GetOptions::default()).await.map(drop).map_err(|error| error.to_string());
    let writes = async || {
        let edit = edit("w", None, "{}");
        written.update(&edit).await.map(drop).map_err(|error| error.to_string())
    };
    let closed = Refusal::Closed.to_string();
    reads().await.unwrap();
    assert!(server.resync(ALONE).await.unwrap() && !server.resync(ALONE).await.unwrap());
    assert_eq!((reads().await.unwrap_err(), writes().await.unwrap_err()), (closed.clone(), closed.clone()));
    assert!(server.get("n001", &GetOptions::default()).await.is_ok() && server.closed().await.unwrap().is_resyncing);
    server.set_sync_function(Some("x")).await.unwrap();
    assert!(reads().await.is_err() && server.resync_state().await.unwrap().unwrap().is_exclusive);
    assert!(server.resync(ResyncAction::Stop).await.unwrap());
    reads().await.unwrap();
    assert!(server.resync(ALONE).await.unwrap());
    assert!(reads().await.is_err());
    let layer = Layer { inner: Arc::clone(&server.inner) };
    assert_eq!(layer.resyncs(), []);
    let before = layer.inner.metrics.resync_documents.get();
    resynced(&server).await;
    assert_eq!((layer.inner.metrics.resync_documents.get() - before, layer.resyncs()), (60, vec![]));
    reads().await.unwrap();
    assert!(!server.closed().await.unwrap().is_any());
    server.set_offline(true).await.unwrap();
    server.resync(ALONE).await.unwrap();
    resynced(&server).await;
    assert_eq!((reads().await.unwrap_err(), writes().await.unwrap_err()), (closed.clone(), closed));
    server.set_offline(false).await.unwrap();
    reads().await.unwrap();
    assert_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_at_two_layers() {
    torture(0.0, 1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_with_faults() {
    torture(0.05, 2, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_with_shards_while_channels_come() {
    torture(0.05, 3, true).await;
}
