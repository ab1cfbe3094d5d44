//! Counts of a feed's remaining rows: exact if that is cheap, and never 0 if there is one.

use crate::support::{Layer, Random, Store, create, pages_are_full};
use flatbed_layer::{ChangesQuery, CreateOptions, Database, Edit, LayerOptions, Seq, Since, waits};

/// As in `BySeq`.
const EXACT_MAX: usize = 500;

async fn write(db: &Database, ids: std::ops::Range<usize>) {
    for begin in ids.clone().step_by(500) {
        let numbers = begin..ids.end.min(begin + 500);
        let names: Vec<String> = numbers.map(|number| format!("d{number:05}")).collect();
        let body = || flatbed_layer::json::parse(b"{}", &Default::default()).unwrap();
        let edit = |id: &'_ str| Edit {
            expiry: None,
            id: id.to_owned().into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body: body(),
        };
        let edits: Vec<Edit<'_>> = names.iter().map(|id| edit(id)).collect();
        for written in db.bulk_update(&edits).await.unwrap() {
            written.unwrap();
        }
    }
}

async fn seqs(db: &Database) -> Vec<Seq> {
    let mut changes = db.changes(ChangesQuery::default());
    let mut seqs = Vec::new();
    loop {
        let page = changes.next_page().await.unwrap();
        seqs.extend(page.rows.iter().map(|row| row.seq));
        if page.at_end {
            return seqs;
        }
    }
}

#[tokio::test]
async fn pending_is_exact_near_the_end_and_never_too_little() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "pending", None).await;
    write(&db, 0..1_300).await;
    let seqs = seqs(&db).await;
    let mut random = Random(11);
    let corners = [0, 1, 799, 800, 801, 1_298, 1_299];
    let places = corners.into_iter().chain((0..30).map(|_| random.below(1_300) as usize));
    for at in places {
        let since = Since::after(seqs[at]);
        let mut changes = db.changes(ChangesQuery { since, limit: Some(0), ..ChangesQuery::default() });
        changes.next_page().await.unwrap();
        let (pending, counted) = waits::count(changes.pending()).await;
        let (pending, left) = (pending.unwrap() as usize, seqs.len() - at - 1);
        if left <= EXACT_MAX {
            assert_eq!(pending, left, "after {at}");
        } else {
            assert!((EXACT_MAX + 1..=seqs.len()).contains(&pending), "{left} are left, {pending} pending");
        }
        assert!(counted.keys_read <= EXACT_MAX as u64 + 10, "{counted:?}");
    }
    let mut limited = db.changes(ChangesQuery { limit: Some(10), ..ChangesQuery::default() });
    assert_eq!(limited.next_page().await.unwrap().rows.len(), 10);
    assert!(limited.pending().await.unwrap() > EXACT_MAX as u64);
    // For a sequence of another database of the name all rows remain.
    db.delete().await.unwrap();
    let db = create(&layer, "pending", None).await;
    assert_eq!(limited.pending().await.unwrap(), 0);
    write(&db, 0..3).await;
    assert_eq!(limited.pending().await.unwrap(), 3);
}

/// The number of reads does not grow with shards, wherever the entries lie.
#[tokio::test]
async fn pending_of_a_database_with_shards_reads_little() {
    let store = Store::new();
    let mut layers = Vec::new();
    for shard in 0..64 {
        let options = LayerOptions { root: store.root.clone(), shard: Some(shard), ..LayerOptions::default() };
        layers.push(Layer::open_alone(store.fdb.clone(), options, None).await.unwrap());
    }
    let options = CreateOptions { shards: Some(64), ..CreateOptions::default() };
    layers[0].create_database("pending", &options).await.unwrap();
    let pending = async || {
        let mut changes =
            layers[0].database("pending").changes(ChangesQuery { limit: Some(0), ..ChangesQuery::default() });
        changes.next_page().await.unwrap();
        let (pending, counted) = waits::count(changes.pending()).await;
        (pending.unwrap() as usize, counted)
    };
    // All in one bucket, then 20 in each.
    let mut written = 0;
    for (layer, documents) in [(0, 400), (0, 1_000)].into_iter().chain((0..64).map(|layer| (layer, 20))) {
        write(&layers[layer].database("pending"), written..written + documents).await;
        written += documents;
        let (pending, counted) = pending().await;
        match written <= EXACT_MAX {
            true => assert_eq!(pending, written),
            false => assert!((EXACT_MAX + 1..=written).contains(&pending), "{written} are left, {pending} pending"),
        }
        let at_most = 2 * EXACT_MAX + 64 * 16;
        let is_little = counted.keys_read <= at_most as u64 && counted.path.depth() <= 9;
        assert!(!pages_are_full() || is_little, "{counted:?}");
    }
}
