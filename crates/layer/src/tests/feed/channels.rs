//! A client reads its feed from time to time, in pages of any length, while data and rights change, and ends with
//! exactly the documents that the user may see. The tests write the keys one by one, so that all sequences are small
//! and known.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use flatbed_channels::{
    ALL, ChannelEntry, DocumentState, FeedRow, FeedScope, GrantedItem, HeldChannels, Moves, Periods, Position,
    PrincipalKind, RowKind as Told, Stamp,
};
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::instance::Instance;
use flatbed_feeds::feed::source::AnySource;
use flatbed_feeds::feed::source::channels::counting::EXACT_MAX;
use flatbed_feeds::feed::source::channels::*;
use flatbed_store::records::{RevisionRecord, revision_message, since::ChannelsSince};
use flatbed_store::{keys::pack_principal, proto};
use flatbed_testkit::{number, within};
use foundationdb::Transaction as Raw;
use proptest::prelude::*;
use proptest::{strategy::ValueTree, test_runner::TestRunner};
use prost::Message;

use crate::{
    ChangeRow, Changes, ChangesQuery, CreateOptions, Database, Documents, Extras, FeedPosition, FollowOutcome, Layer,
    Refusal, RevId, RowKind, Scope, Seq, Since,
};

const USER: &str = "alice";
const ROLE: &str = "r";

/// Shorter than the interval after which followers read by themselves.
const FOLLOWS_IN: Duration = Duration::from_secs(20);

/// A change of data or rights.
#[derive(Debug, Clone)]
enum Event {
    /// A document changes, and gives the user a channel.
    Write { doc: usize, channels: BTreeSet<String>, deleted: bool },
    /// A document is purged.
    Purge { doc: usize },
    /// The user gains or loses a channel.
    Own { channel: String, has: bool },
    /// The user's role gains or loses a channel.
    OfRole { channel: String, has: bool },
    /// The user gains or loses the role.
    Member { is: bool },
    /// The role is created or deleted.
    Exists { does: bool },
    /// An administrator changes the user's record.
    Record { disabled: bool },
}

fn event() -> impl Strategy<Value = Event> {
    // More names than an entry has.
    let channels = prop::collection::btree_set(
        prop_oneof![9 => "[A-D!*]", 1 => Just("E".repeat(150)), 1 => Just("F".repeat(150))],
        0..4,
    );
    prop_oneof![
        9 => (0..7_usize, channels, prop::bool::weighted(0.2)).prop_map(|(doc, channels, deleted)| Event::Write { doc, channels, deleted }),
        1 => (0..7_usize).prop_map(|doc| Event::Purge { doc }),
        4 => ("[A-D!*]", any::<bool>()).prop_map(|(channel, has)| Event::Own { channel, has }),
        1 => ("[A-D]", any::<bool>()).prop_map(|(channel, has)| Event::OfRole { channel, has }),
        1 => any::<bool>().prop_map(|is| Event::Member { is }),
        1 => any::<bool>().prop_map(|does| Event::Exists { does }),
        1 => Just(Event::Record { disabled: false }),
    ]
}

/// An event, or a read of a page by the client, from its position or from the beginning.
#[derive(Debug, Clone)]
enum Moment {
    Happens(Event),
    Page { anew: bool, limit: Option<u64> },
}

fn moment() -> impl Strategy<Value = Moment> {
    let limit = prop_oneof![2 => Just(None), 1 => (1..6_u64).prop_map(Some)];
    prop_oneof![
        3 => event().prop_map(Moment::Happens),
        2 => (any::<bool>(), limit).prop_map(|(anew, limit)| Moment::Page { anew, limit }),
    ]
}

/// A database whose keys the test writes.
struct Store {
    db: Database,
    instance: Arc<Instance>,
    seq: u64,
    docs: BTreeMap<usize, DocumentState>,
    own: BTreeMap<GrantedItem, Periods>,
    of_role: BTreeMap<GrantedItem, Periods>,
    record: Stamp,
    purged: BTreeSet<String>,
}

impl Store {
    async fn new(layer: &Layer, db: Database, shards: Option<u32>) -> Store {
        db.create(&CreateOptions { shards, ..CreateOptions::default() }).await.unwrap();
        crate::tests::fenced::give_channels(&db).await;
        let instance = flatbed_operations::write::batch::instance_of(&layer.inner, &db.name).await.unwrap();
        let (docs, own, of_role, purged) = Default::default();
        let mut store = Store { db, instance, seq: 0, docs, own, of_role, record: Stamp::ZERO, purged };
        store.happens(&Event::Record { disabled: false }).await;
        store
    }

    fn seq(&self, stamp: Stamp) -> Seq {
        Seq::new(self.instance.incarnation(), stamp.0)
    }

    fn held(&self) -> HeldChannels {
        let rows = self
            .own
            .iter()
            .map(|(what, periods)| flatbed_channels::DirectGrant { what: what.clone(), periods: periods.clone() });
        HeldChannels::of(rows, |_| {
            let mut of_role = flatbed_channels::RoleRows::default();
            for (what, periods) in &self.of_role {
                match what {
                    GrantedItem::Role(_) => of_role.exists = periods.clone(),
                    GrantedItem::Channel(name) => of_role.channels.push((name.clone(), periods.clone())),
                }
            }
            Some(of_role)
        })
    }

    /// Returns the revisions of the documents that the user sees, without deletions.
    fn seen(&self) -> BTreeMap<String, String> {
        let held = self.held();
        let is_seen = |state: &DocumentState| !state.deleted && held.can_see(state.channels.iter().map(String::as_str));
        let seen = self.docs.iter().filter(|(_, state)| is_seen(state));
        seen.map(|(doc, state)| (id(*doc), state.rev.clone())).collect()
    }

    fn rows(&self, scope: &FeedScope, since: Position) -> Vec<FeedRow> {
        let mut rows: Vec<_> = self.docs.iter().filter_map(|(doc, state)| scope.row_of(&id(*doc), state)).collect();
        rows.extend(scope.user.map(|at| FeedRow {
            position: Position::at(at),
            kind: Told::User,
            doc: String::new(),
            rev: String::new(),
            deleted: false,
            removed: Vec::new(),
        }));
        rows.retain(|row| row.position > since);
        rows.sort_by_key(|row| row.position);
        rows
    }

    async fn happens(&mut self, event: &Event) {
        self.happen([event]).await;
    }

    /// Commits all events at once, so a reader sees all or none.
    async fn happen<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        let trx = self.db.inner.db.create_trx().unwrap();
        for event in events {
            self.happens_in(&trx, event);
        }
        trx.set(&self.instance.buckets.own().last_seq(), &Stamp::of(self.seq).0);
        trx.commit().await.unwrap();
    }

    fn happens_in(&mut self, trx: &Raw, event: &Event) {
        self.seq += 1;
        let seq = Stamp::of(self.seq);
        let channel = |name: &String| GrantedItem::Channel(name.clone());
        match event {
            Event::Write { doc, channels, deleted } => self.write(trx, *doc, channels.clone(), *deleted),
            Event::Purge { doc } => {
                if let Some(state) = self.docs.remove(doc) {
                    self.purge(trx, *doc, &state);
                    self.purged.insert(id(*doc));
                }
            }
            Event::Own { channel: name, has } => self.give(trx, PrincipalKind::User, channel(name), *has),
            Event::Member { is } => self.give(trx, PrincipalKind::User, GrantedItem::Role(ROLE.to_owned()), *is),
            Event::OfRole { channel: name, has } => self.give(trx, PrincipalKind::Role, channel(name), *has),
            Event::Exists { does } => self.give(trx, PrincipalKind::Role, GrantedItem::Role(ROLE.to_owned()), *does),
            Event::Record { disabled } => {
                self.record = seq;
                let disabled = *disabled;
                let record =
                    proto::Principal { exists: true, disabled, changed: seq.0.to_vec(), ..proto::Principal::default() };
                trx.set(&self.instance.keys.principal(PrincipalKind::User, USER), &record.encode_to_vec());
                trx.set(&self.instance.keys.principal_version(PrincipalKind::User, USER), &seq.0);
                self.tell(trx, PrincipalKind::User, USER);
            }
        }
    }

    fn give(&mut self, trx: &Raw, kind: PrincipalKind, what: GrantedItem, has: bool) {
        let (of, name) = if kind == PrincipalKind::User { (&mut self.own, USER) } else { (&mut self.of_role, ROLE) };
        let (seq, periods) = (Stamp::of(self.seq), of.entry(what.clone()).or_default());
        let before = std::mem::take(periods);
        *periods = if has { before.given(seq) } else { before.taken(seq) };
        trx.set(&self.instance.keys.periods(kind, name, &what), &periods.encode());
        trx.set(&self.instance.keys.principal_version(kind, name), &seq.0);
        self.tell(trx, kind, name);
    }

    /// Tells followers that a user or role has changed.
    fn tell(&self, trx: &Raw, kind: PrincipalKind, name: &str) {
        let mut key = self.instance.keys.changed_principals_after(&self.seq(Stamp::of(self.seq))).begin;
        key.pop();
        trx.set(&key, &pack_principal(kind, name, 0));
    }

    fn write(&mut self, trx: &Raw, doc: usize, channels: BTreeSet<String>, deleted: bool) {
        let (keys, buckets) = (&self.instance.keys, &self.instance.buckets);
        let before = self.docs.get(&doc);
        let rev = RevId::new(self.seq, [7; 16]);
        let (state, Moves { cleared, entered, left, returned }) =
            DocumentState::changed(before, Stamp::of(self.seq), rev.to_string(), deleted, channels);
        let (id, document) = (id(doc), keys.document(&id(doc)));
        for (channel, seq) in cleared {
            trx.clear(&keys.channel_entry(&channel, &self.seq(seq)));
        }
        let names = || state.channels.iter().map(String::as_str);
        let names = || names().collect::<Vec<_>>().into_iter();
        let entry = |removed| ChannelEntry::new(&*id, &*state.rev, deleted, removed, names()).encode();
        entered.iter().for_each(|channel| trx.set(&keys.channel_entry(channel, &self.seq(state.seq)), &entry(false)));
        left.iter().for_each(|channel| trx.set(&keys.channel_entry(channel, &self.seq(state.seq)), &entry(true)));
        for channel in &left {
            trx.set(&keys.left(&id, channel), &state.left[channel].encode());
        }
        for channel in &returned {
            trx.clear(&keys.left(&id, channel));
            if let Some(stays) = state.earlier.get(channel) {
                trx.set(&keys.stays(&id, channel), &stays.encode());
            }
        }
        let named = names_of(&state.channels.iter().cloned().collect::<Vec<_>>());
        let each = state.channels.iter().map(|channel| state.since.get(channel).copied());
        let since = ChannelsSince::known(each.chain([state.born]));
        let info = proto::DocumentInfo {
            sequence: state.seq.0.to_vec(),
            winner: Some(revision_message(&rev)),
            deleted,
            leaf_count: 1,
            channels: Some(named.clone()),
            left: state.left.len() as u32,
            since_of: since.places(),
            since: since.stamps(),
            ..proto::DocumentInfo::default()
        };
        trx.set(&document.info(), &info.encode_to_vec());
        let verdict =
            proto::Verdict { channels: state.channels.iter().cloned().collect(), ..proto::Verdict::default() };
        let record = proto::RevisionInfo { deleted, verdict: Some(verdict), ..proto::RevisionInfo::default() };
        assert!(RevisionRecord::decode(&record.encode_to_vec()).is_ok());
        trx.set(&document.revision(&rev), &record.encode_to_vec());
        let entry = proto::SequenceEntry {
            document_id: id.clone(),
            winner: Some(revision_message(&rev)),
            deleted,
            leaf_count: 1,
            channels: Some(named),
            left: Some(names_of(&left)).filter(|_| !left.is_empty()),
            before: before
                .filter(|_| state.left.len() > left.len())
                .map_or_else(Vec::new, |state| state.seq.0.to_vec()),
            ..proto::SequenceEntry::default()
        };
        if let Some(before) = before {
            buckets.all().iter().for_each(|bucket| trx.clear(&bucket.by_seq(&self.seq(before.seq))));
        }
        let bucket = &buckets.all()[self.seq as usize % buckets.all().len()];
        trx.set(&bucket.by_seq(&self.seq(state.seq)), &entry.encode_to_vec());
        self.docs.insert(doc, state);
    }

    fn purge(&self, trx: &Raw, doc: usize, state: &DocumentState) {
        let (keys, buckets) = (&self.instance.keys, &self.instance.buckets);
        trx.clear(&keys.document(&id(doc)).info());
        for channel in &state.channels {
            trx.clear(&keys.channel_entry(channel, &self.seq(state.seq)));
        }
        for (channel, left) in &state.left {
            trx.clear(&keys.channel_entry(channel, &self.seq(left.seq)));
            trx.clear(&keys.left(&id(doc), channel));
        }
        let stays = keys.stays_of(&id(doc));
        trx.clear_range(&stays.begin, &stays.end);
        buckets.all().iter().for_each(|bucket| trx.clear(&bucket.by_seq(&self.seq(state.seq))));
    }

    fn feed(&self, query: ChangesQuery, asker: &ReadPrincipal) -> Changes {
        let source = AnySource::of(&query, asker);
        Changes::from_source((**self.db.reader()).clone(), query, source)
    }
}

/// Encodes names as entries do.
fn names_of(channels: &[String]) -> proto::ChannelNames {
    let are_elsewhere = ChannelEntry::new("", "", false, false, channels.iter().map(String::as_str)).channels.is_none();
    proto::ChannelNames { names: if are_elsewhere { Vec::new() } else { channels.to_vec() }, are_elsewhere }
}

fn id(doc: usize) -> String {
    format!("d{doc}")
}

fn alice() -> ReadPrincipal {
    ReadPrincipal::Principal(USER.into())
}

/// Reads all pages up to the end.
async fn all(changes: &mut Changes) -> Vec<ChangeRow> {
    let mut rows = Vec::new();
    loop {
        let page = changes.next_page().await.unwrap();
        assert!(page.rows.len() <= ROWS_MAX.get());
        rows.extend(page.rows);
        if page.at_end {
            return rows;
        }
    }
}

fn is_of(row: &ChangeRow, expected: &FeedRow, incarnation: u64) -> bool {
    let kind = match expected.kind {
        Told::Changed => RowKind::Changed,
        Told::Removed => RowKind::Lost,
        Told::Revoked => RowKind::Revoked,
        Told::User => return row.kind == RowKind::User && row.id == "_user/alice" && row.leaves.is_empty(),
    };
    let place = FeedPosition::new(incarnation, expected.position);
    row.kind == kind
        && (row.place(), &row.id, row.rev.to_string()) == (place, &expected.doc, expected.rev.clone())
        && (row.deleted, &row.removed) == (expected.deleted, &expected.removed)
        && row.leaves == [row.rev.clone()]
}

#[derive(Default)]
struct Client {
    docs: BTreeMap<String, String>,
    at: Option<FeedPosition>,
    changes: Option<Changes>,
}

impl Client {
    /// Reads a page, and returns whether it was the last.
    async fn page(&mut self, store: &Store, revocations: bool, leaves: bool, anew: bool, limit: Option<u64>) -> bool {
        let since =
            self.at.map_or(Since::Beginning, |at| Since::after(at.to_string().parse::<FeedPosition>().unwrap()));
        let extras = Extras { leaves, documents: Documents::No };
        let query = ChangesQuery { since, limit, revocations, extras, ..ChangesQuery::default() };
        let mut changes = match self.changes.take() {
            Some(changes) if !anew => changes,
            _ => store.feed(query, &alice()),
        };
        let page = changes.next_page().await.unwrap();
        assert!(page.rows.is_sorted_by_key(ChangeRow::place) && self.at.is_none_or(|at| page.last_seq >= at));
        for row in page.rows {
            assert!(self.at.is_none_or(|at| row.place() > at));
            match row.kind {
                RowKind::Changed if !row.deleted => self.docs.insert(row.id, row.rev.to_string()),
                RowKind::Changed | RowKind::Lost | RowKind::Revoked => self.docs.remove(&row.id),
                RowKind::User => None,
            };
        }
        self.at = Some(page.last_seq);
        self.changes = Some(changes).filter(|_| !page.at_end);
        page.at_end
    }
}

#[tokio::test]
async fn who_reads_to_the_end_has_what_they_see() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let mut runner = TestRunner::deterministic();
    let cases = number("FLATBED_TEST_CASES").unwrap_or(60);
    for case in 0..cases {
        let moments = prop::collection::vec(moment(), 0..60).new_tree(&mut runner).unwrap().current();
        let [revocations, leaves, shards] = any::<[bool; 3]>().new_tree(&mut runner).unwrap().current();
        let db = layer.database(&format!("c{case}"), authority.for_job("test"));
        let mut store = Store::new(&layer, db, shards.then_some(3)).await;
        let (mut client, mut has_lost) = (Client::default(), false);
        for moment in &moments {
            match moment {
                Moment::Happens(event) => store.happens(event).await,
                Moment::Page { anew, limit } => drop(client.page(&store, revocations, leaves, *anew, *limit).await),
            }
            has_lost |= !store.held().lost().is_empty();
        }
        client.changes = None;
        while !client.page(&store, revocations, leaves, false, None).await {}
        let seen = store.seen();
        // No feed shows purges, and losses of channels are shown only on request.
        let is_told =
            |doc: &String| seen.contains_key(doc) || !store.purged.contains(doc) && (revocations || !has_lost);
        client.docs.retain(|doc, _| is_told(doc));
        assert_eq!(client.docs, seen, "case {case}: {moments:?}");
        rows_are_those_of_the_documents(&store, &mut runner, revocations).await;
    }
}

async fn rows_are_those_of_the_documents(store: &Store, runner: &mut TestRunner, revocations: bool) {
    let incarnation = store.instance.incarnation();
    let (active_only, leaves, by_ids) = any::<(bool, bool, bool)>().new_tree(runner).unwrap().current();
    let (at, of) = (0..=store.seq, prop::option::of(0..=store.seq)).new_tree(runner).unwrap().current();
    let since = Position { at: Stamp::of(at), of: of.map(Stamp::of) };
    let names: Vec<String> = prop::collection::vec("[A-E!]", 0..3).new_tree(runner).unwrap().current();
    let names: BTreeSet<String> = names.into_iter().collect();
    let held = store.held();
    let user = Some(store.record);
    let some: HashSet<String> = (0..9).step_by(2).map(id).collect();
    let of_names = || names.iter().map(String::as_str);
    let whole = FeedScope { revocations, held: held.clone(), user, active_only };
    let only = held.only(of_names());
    let cases = [
        (Scope::All, alice(), whole.clone()),
        (Scope::Channels(Arc::new(names.clone())), alice(), FeedScope { revocations, held: only, user, active_only }),
        (
            Scope::Channels(Arc::new(names.clone())),
            ReadPrincipal::All,
            FeedScope { held: HeldChannels::since_ever(of_names()), active_only, ..FeedScope::default() },
        ),
        (Scope::Ids(Arc::new(some.clone())), alice(), FeedScope { user: None, active_only: false, ..whole }),
    ];
    for (scope, asker, of) in cases {
        let is_ids = matches!(scope, Scope::Ids(_));
        if is_ids != by_ids && is_ids {
            continue;
        }
        let mut expected = store.rows(&of, since);
        expected.retain(|row| !is_ids || some.contains(&row.doc));
        let extras = Extras { leaves, documents: Documents::No };
        let since = Since::After(FeedPosition::new(incarnation, since));
        let query = ChangesQuery { since, scope, active_only, revocations, extras, ..ChangesQuery::default() };
        let mut changes = store.feed(query.clone(), &asker);
        let rows = all(&mut changes).await;
        let are_same = rows.len() == expected.len()
            && rows.iter().zip(&expected).all(|(row, expected)| is_of(row, expected, incarnation));
        assert!(are_same, "{query:?} {asker:?} {rows:#?} {expected:#?}");
        // It is the position of the last row: hidden changes do not move it.
        let last = rows.last().map(ChangeRow::place);
        assert_eq!(changes.last_seq(), Some(last.unwrap_or(place_of(&query))));
        // The count of the remaining rows is exact, or at least not too low.
        let mut nothing = store.feed(ChangesQuery { limit: Some(0), ..query.clone() }, &asker);
        assert!(nothing.next_page().await.unwrap().rows.is_empty());
        let pending = nothing.pending().await.unwrap() as usize;
        let is_exact = expected.len() <= EXACT_MAX.get() || is_ids;
        assert!(if is_exact { pending == expected.len() } else { pending > EXACT_MAX.get() }, "{pending}");
        // A feed from now on is empty.
        let mut now = store.feed(ChangesQuery { since: Since::Now, ..query.clone() }, &asker);
        assert!(all(&mut now).await.is_empty() && now.last_seq() >= last);
    }
}

fn place_of(query: &ChangesQuery) -> FeedPosition {
    match query.since {
        Since::After(place) => place,
        Since::Beginning | Since::Now => unreachable!("a place was asked for"),
    }
}

/// Several transactions read a page of very many channels. None exceeds its time, and none reads again what another has
/// read.
#[tokio::test]
async fn very_many_channels_are_read_by_several_transactions() {
    const CHANNELS: usize = 40;
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let mut store = Store::new(&layer, layer.database("many", authority.for_job("test")), None).await;
    for n in 0..CHANNELS {
        store.happens(&Event::Own { channel: format!("c{n}"), has: true }).await;
    }
    for n in 0..CHANNELS {
        let channels = [format!("c{n}")].into();
        store.happens(&Event::Write { doc: n, channels, deleted: false }).await;
    }
    let streams = 2 * (CHANNELS as u64 + 1);
    let mut changes = store.feed(ChangesQuery::default(), &alice());
    let (mut rows, mut at_end) = (Vec::new(), false);
    let begun = || layer.inner.metrics.storage().transactions.get();
    while !at_end {
        let before = begun();
        let (page, waits) = flatbed_store::waits::count(changes.next_page()).await;
        let page = page.unwrap();
        // A failure of the storage ends the page, or makes it begin again.
        let failed = waits.transactions.saturating_sub(begun() - before);
        // The ranges of a transaction, its versions, the user's rows, and the documents that rows depend on.
        let is_exact = flatbed_store::waits::are_exact();
        assert!(!is_exact || waits.path.reads <= waits.transactions * (ROUNDS_MAX.get() as u64 + 5), "{waits:?}");
        let range_reads_max = waits.transactions * (ROUNDS_MAX.get() * reading::AT_ONCE.get() + 3) as u64;
        assert!(!is_exact || waits.range_reads <= range_reads_max, "{waits:?}");
        // Each page reads each channel once.
        assert!(!is_exact || waits.range_reads <= (streams + 5) * (1 + failed), "{waits:?}");
        at_end = page.at_end;
        assert!(at_end || page.rows.len() == ROWS_MAX.get() || failed > 0 || !is_exact, "{page:?}");
        rows.extend(page.rows);
    }
    let docs: BTreeSet<&str> = rows.iter().filter(|row| row.kind == RowKind::Changed).map(|row| &*row.id).collect();
    assert_eq!((docs.len(), rows.len()), (CHANNELS, CHANNELS + 1));
    // Several transactions count the remaining rows, too; the position skips changes of other channels.
    let others = ["other".to_owned()].into();
    store.happens(&Event::Write { doc: CHANNELS, channels: others, deleted: false }).await;
    for left in [0, 1, EXACT_MAX.get(), EXACT_MAX.get() + 1, CHANNELS - 1] {
        changes.stand_at(rows[rows.len() - 1 - left].place());
        let before = begun();
        let (pending, waits) = flatbed_store::waits::count(changes.pending()).await;
        let failed = waits.transactions.saturating_sub(begun() - before);
        let pending = pending.unwrap() as usize;
        assert!(if left > EXACT_MAX.get() { pending > EXACT_MAX.get() } else { pending == left }, "{left}: {pending}");
        assert!(
            waits.range_reads <= waits.transactions * (ROUNDS_MAX.get() * reading::AT_ONCE.get() + 3) as u64,
            "{waits:?}"
        );
        assert!(waits.range_reads <= (streams + 5) * (1 + failed), "{waits:?}");
    }
    // Rows that depend on documents count by the current state of these.
    for doc in 0..2 {
        store.happens(&Event::Write { doc, channels: BTreeSet::new(), deleted: false }).await;
    }
    let since = Since::After(rows.last().unwrap().place());
    for (active_only, left) in [(false, 2), (true, 0)] {
        let query = ChangesQuery { since, active_only, limit: Some(0), ..ChangesQuery::default() };
        let mut changes = store.feed(query, &alice());
        assert!(changes.next_page().await.unwrap().rows.is_empty());
        assert_eq!(changes.pending().await.unwrap(), left);
    }
}

/// A page continues only under the same rights: a loss of a channel ends it.
#[tokio::test]
async fn a_page_ends_where_its_reader_has_something_else() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let mut store = Store::new(&layer, layer.database("many", authority.for_job("test")), None).await;
    for n in 0..12 {
        store.happens(&Event::Own { channel: format!("c{n}"), has: true }).await;
        let channels = [format!("c{n}")].into();
        store.happens(&Event::Write { doc: n, channels, deleted: false }).await;
    }
    let mut changes = store.feed(ChangesQuery::default(), &alice());
    let (_, first, _) = changes.read_part(None, u64::MAX, 0).await.unwrap();
    assert!(!first.at_end && first.rows.len() < ROWS_MAX.get(), "{first:?}");
    let judged = changes.judged_by().unwrap();
    store.happens(&Event::Own { channel: "c11".into(), has: false }).await;
    let (_, behind, _) = changes.read_part(Some(first.last_seq), u64::MAX, 1).await.unwrap();
    assert!(behind.rows.is_empty() && !behind.at_end && behind.last_seq == first.last_seq, "{behind:?}");
    assert!(Arc::ptr_eq(&judged, &changes.judged_by().unwrap()));
}

/// A user of all channels sees all documents except design documents; an anonymous reader is refused.
#[tokio::test]
async fn each_sees_what_is_theirs() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let db = layer.database("db2", authority.for_job("test"));
    let mut store = Store::new(&layer, db, None).await;
    let written = |doc: usize, channels: &[&str]| Event::Write {
        doc,
        channels: channels.iter().map(|name| (*name).to_owned()).collect(),
        deleted: false,
    };
    for event in [written(0, &["A"]), written(1, &["!"]), written(2, &[])] {
        store.happens(&event).await;
    }
    let ids = async |store: &Store, asker: ReadPrincipal| {
        let rows = all(&mut store.feed(ChangesQuery::default(), &asker)).await;
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    let account = |name: &str, is_member| ReadPrincipal::Account { name: name.into(), is_member };
    assert_eq!(ids(&store, ReadPrincipal::All).await, ["d0", "d1", "d2"]);
    assert_eq!(ids(&store, alice()).await, ["_user/alice", "d1"]);
    assert_eq!(ids(&store, account("bob", true)).await, ["d1"]);
    let unknown = ReadPrincipal::Principal("nobody".into());
    for (stranger, is_named) in [(account("bob", false), true), (ReadPrincipal::Guest, false), (unknown, true)] {
        match store.feed(ChangesQuery::default(), &stranger).next_page().await {
            Err(crate::Error::Refused(Refusal::Forbidden(_))) if is_named => {}
            Err(crate::Error::Refused(Refusal::Unauthorized(_))) if !is_named => {}
            other => panic!("{stranger:?}: {other:?}"),
        }
    }
    store.happens(&Event::Own { channel: ALL.to_owned(), has: true }).await;
    assert_eq!(ids(&store, alice()).await, ["_user/alice", "d1", "d0", "d2"]);
    let descending = ChangesQuery { descending: true, ..ChangesQuery::default() };
    let refused = store.feed(descending, &alice()).next_page().await;
    assert!(matches!(refused, Err(crate::Error::Refused(Refusal::NoSuchFeed(_)))), "{refused:?}");
    // A sequence of another database means the beginning.
    let since = Since::after(Seq::new(store.instance.incarnation() ^ 1, [9; 16]));
    let mut other = store.feed(ChangesQuery { since, ..ChangesQuery::default() }, &alice());
    assert_eq!(all(&mut other).await.len(), 4);
}

/// A follower gets the same rows as a reader of pages, most of them shared.
#[tokio::test]
async fn followers_get_what_they_see() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let mut runner = TestRunner::deterministic();
    let (mut shared, mut pages) = (0, 0);
    let cases = number("FLATBED_TEST_CASES").unwrap_or(30);
    for case in 0..cases {
        let events = prop::collection::vec(event(), 40..60).new_tree(&mut runner).unwrap().current();
        let db = layer.database(&format!("f{case}"), authority.for_job("test"));
        let mut store = Store::new(&layer, db, (case % 4 > 1).then_some(3)).await;
        let extras = Extras { leaves: case % 3 == 0, documents: Documents::No };
        let query = ChangesQuery { revocations: true, extras, ..ChangesQuery::default() };
        let mut changes = store.feed(query, &alice());
        let mut docs = BTreeMap::new();
        let take = |docs: &mut BTreeMap<String, String>, row: ChangeRow| match row.kind {
            RowKind::Changed if !row.deleted => drop(docs.insert(row.id, row.rev.to_string())),
            RowKind::Changed | RowKind::Lost | RowKind::Revoked => drop(docs.remove(&row.id)),
            RowKind::User => {}
        };
        all(&mut changes).await.into_iter().for_each(|row| take(&mut docs, row));
        // No feed shows purges. With few documents each changes several times between two reads of the hub; a reader
        // who has lost no channel must end with exactly what they see.
        let (docs_max, keeps_all) = if case % 2 == 0 { (2, true) } else { (7, false) };
        let is_kept = |event: &Event| match event {
            Event::Own { channel, has } | Event::OfRole { channel, has } => *has && "AB".contains(&**channel),
            Event::Member { is } => *is,
            Event::Exists { does } => *does,
            Event::Write { .. } | Event::Purge { .. } | Event::Record { .. } => true,
        };
        let events = events.into_iter().filter(|event| !keeps_all || is_kept(event));
        let events = events.filter_map(|event| match event {
            Event::Purge { .. } => None,
            Event::Write { doc, channels, deleted } => Some(Event::Write { doc: doc % docs_max, channels, deleted }),
            other => Some(other),
        });
        let events: Vec<_> = events.collect();
        let mut left = &*events;
        while !left.is_empty() {
            let (at_once, rest) = left.split_at((1..5_usize).new_tree(&mut runner).unwrap().current().min(left.len()));
            left = rest;
            store.happen(at_once).await;
            let seen = store.seen();
            while docs != seen {
                let followed = within(FOLLOWS_IN, changes.follow()).await;
                let at = changes.last_seq();
                let came: Vec<ChangeRow> = match followed {
                    Some(FollowOutcome::Rows(rows)) => {
                        shared += rows.len();
                        rows.iter().map(|row| changes.shown(row)).collect()
                    }
                    Some(FollowOutcome::ReadOn) => {
                        pages += 1;
                        all(&mut changes).await
                    }
                    other => panic!("case {case}: {at_once:?} {other:?}: {docs:?} instead of {seen:?}"),
                };
                assert!(came.is_sorted_by_key(ChangeRow::place) && at <= changes.last_seq());
                came.into_iter().for_each(|row| take(&mut docs, row));
            }
        }
        // A feed that begins again ends with the same rows, wherever this one is.
        let since = Since::After(changes.last_seq().unwrap());
        let rest =
            all(&mut store.feed(ChangesQuery { since, revocations: true, ..ChangesQuery::default() }, &alice())).await;
        rest.into_iter().for_each(|row| take(&mut docs, row));
        assert_eq!(docs, store.seen(), "case {case}");
    }
    assert!(shared > 10 && pages > 5, "{shared} rows were shared, {pages} pages read");
}

/// A reader who was locked out for a while gets all changes of that time later, whether they read on or not.
#[tokio::test]
async fn who_is_let_in_again_misses_nothing() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let db = layer.database("out", authority.for_job("test"));
    let mut store = Store::new(&layer, db, None).await;
    let written =
        |doc: usize, channel: &str| Event::Write { doc, channels: [channel.to_owned()].into(), deleted: false };
    store.happens(&Event::Own { channel: "A".to_owned(), has: true }).await;
    store.happens(&written(0, "A")).await;
    let mut follows = store.feed(ChangesQuery::default(), &alice());
    let mut reads = store.feed(ChangesQuery::default(), &alice());
    let ids = |rows: Vec<ChangeRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
    let seen = ["_user/alice", "d0"];
    assert_eq!([ids(all(&mut follows).await), ids(all(&mut reads).await)], [seen; 2]);
    store.happens(&Event::Record { disabled: true }).await;
    for doc in 1..4 {
        store.happens(&written(doc, if doc == 2 { "B" } else { "A" })).await;
        store.happens(&Event::Record { disabled: true }).await;
        let follow = within(Duration::from_millis(300), follows.follow()).await;
        assert!(matches!(follow, Some(FollowOutcome::ReadOn) | None), "{follow:?}");
        for feed in [&mut reads, &mut follows] {
            let refused = feed.next_page().await.map(|page| page.rows);
            assert!(matches!(refused, Err(crate::Error::Refused(Refusal::Forbidden(_)))), "{refused:?}");
        }
    }
    store.happens(&Event::Record { disabled: false }).await;
    assert_eq!(ids(all(&mut reads).await), ["d1", "d3", "_user/alice"]);
    let mut rows = Vec::new();
    while rows.len() < 3 {
        match within(FOLLOWS_IN, follows.follow()).await {
            Some(FollowOutcome::Rows(came)) => rows.extend(came.iter().map(|row| follows.shown(row))),
            Some(FollowOutcome::ReadOn) => rows.extend(all(&mut follows).await),
            other => panic!("{other:?} behind {rows:?}"),
        }
    }
    assert_eq!(ids(rows), ["d1", "d3", "_user/alice"]);
}
