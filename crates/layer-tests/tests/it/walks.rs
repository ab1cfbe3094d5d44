//! Reads of scans with documents: few replies if documents are adjacent, and single documents if histories or
//! tombstones lie between them.

use crate::support::{Random, Store, create, pages_are_full};
use flatbed_layer::json::parse;
use flatbed_layer::waits::{self, Waits};
use flatbed_layer::{AllDocsQuery, AllDocsRow, Database, Edit, RevId};

/// Bytes of a reply of FoundationDB.
const REPLY_BYTES: u64 = 80_000;

/// Returns a body of about this many bytes that does not compress.
fn body(random: &mut Random, bytes: usize) -> String {
    let digit =
        |_| char::from(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[random.below(62) as usize]);
    format!(r#"{{"text":"{}"}}"#, (0..bytes).map(digit).collect::<String>())
}

/// Writes documents, 500 at a time; an empty body deletes.
async fn write(db: &Database, edits: &[(&str, Option<&RevId>, &str)]) -> Vec<RevId> {
    let mut revs = Vec::new();
    for edits in edits.chunks(500) {
        let edits = edits.iter().map(|(id, parent, body)| Edit {
            expiry: None,
            id: (*id).into(),
            parent: parent.cloned(),
            history: None,
            deleted: body.is_empty(),
            attachments: Vec::new(),
            body: parse(if body.is_empty() { b"{}" } else { body.as_bytes() }, &Default::default()).unwrap(),
        });
        let written = db.bulk_update(&edits.collect::<Vec<_>>()).await.unwrap();
        revs.extend(written.into_iter().map(|written| written.unwrap().rev));
    }
    revs
}

/// Returns the pages of a scan with documents, and the reads of each.
async fn walk(db: &Database) -> Vec<(Vec<AllDocsRow>, Waits)> {
    let mut walk = db.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    let mut pages = Vec::new();
    while let (Some(rows), waits) = {
        let (page, waits) = waits::count(walk.next_page()).await;
        (page.unwrap(), waits)
    } {
        pages.push((rows, waits));
    }
    pages
}

fn body_bytes(rows: &[AllDocsRow]) -> u64 {
    rows.iter().map(|row| row.doc.as_ref().unwrap().body.len() as u64).sum()
}

#[tokio::test]
async fn documents_close_together_take_few_replies() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "close", None).await;
    let mut random = Random(5);
    let documents: Vec<_> = (0..3_000)
        .map(|number| {
            let bytes = 400 + random.below(800) as usize;
            (format!("d{number:05}"), body(&mut random, bytes))
        })
        .collect();
    write(&db, &documents.iter().map(|(id, body)| (id.as_str(), None, body.as_str())).collect::<Vec<_>>()).await;
    let pages = walk(&db).await;
    assert_eq!(pages.iter().map(|(rows, _)| rows.len()).sum::<usize>(), documents.len());
    let is_within = |what: &str, range_reads: u64, bytes_read: u64| {
        // A reply counts 24 bytes for each row beside its key and value.
        let at_most = bytes_read as f64 * 1.4 / REPLY_BYTES as f64;
        assert!(
            !pages_are_full() || range_reads as f64 <= at_most,
            "{what}: {range_reads} replies for {bytes_read} bytes"
        );
    };
    let sum = |of: fn(&Waits) -> u64| pages.iter().map(|(_, waits)| of(waits)).sum();
    is_within("all", sum(|waits| waits.range_reads), sum(|waits| waits.bytes_read));
    // The size of documents is unknown for the first page, and the last one has the rest.
    for (rows, waits) in &pages[1..pages.len() - 1] {
        assert!(!pages_are_full() || rows.len() > 900 && waits.bytes_read >= body_bytes(rows), "{waits:?}");
        is_within("a page", waits.range_reads, waits.bytes_read);
    }
    assert!(!pages_are_full() || pages.len() <= 5, "{}", pages.len());
    // A scan that is not counted reads ahead, and shows the same rows.
    let shown: Vec<AllDocsRow> = pages.into_iter().flat_map(|(rows, _)| rows).collect();
    let all = AllDocsQuery { include_docs: true, ..AllDocsQuery::default() };
    for (query, from, to) in [
        (all.clone(), 0, 3_000),
        (AllDocsQuery { limit: Some(2_345), ..all.clone() }, 0, 2_345),
        (AllDocsQuery { skip: 10, limit: Some(2_000), ..all.clone() }, 10, 2_010),
        (AllDocsQuery { start: Some("d00100".into()), end: Some("d02899".into()), ..all.clone() }, 100, 2_900),
        (AllDocsQuery { start: Some("d02899".into()), descending: true, ..all }, 0, 2_900),
    ] {
        let mut expected = shown[from..to].to_vec();
        if query.descending {
            expected.reverse();
        }
        let (mut walk, mut rows) = (db.all_docs(query.clone()), Vec::new());
        while let Some(page) = walk.next_page().await.unwrap() {
            rows.extend(page);
        }
        assert!(rows == expected, "{query:?}: {} rows", rows.len());
    }
}

#[tokio::test]
async fn documents_with_1000_revisions_are_read_one_by_one() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "histories", None).await;
    let mut random = Random(6);
    let ids: Vec<String> = (0..8).map(|number| format!("d{number:02}")).collect();
    let mut revs = vec![None; ids.len()];
    let small = r#"{"text":"a body that is superseded"}"#;
    let large = body(&mut random, 240_000);
    for round in 0..1_000 {
        let body = if round < 999 { small } else { &large };
        let edits: Vec<_> = ids.iter().zip(&revs).map(|(id, rev)| (id.as_str(), rev.as_ref(), body)).collect();
        revs = write(&db, &edits).await.into_iter().map(Some).collect();
    }
    let pages = walk(&db).await;
    let shown: Vec<_> =
        pages.iter().flat_map(|(rows, _)| rows).map(|row| (row.id.clone(), Some(row.rev.clone()))).collect();
    assert_eq!(shown, ids.into_iter().zip(revs).collect::<Vec<_>>());
    let [(first, looked), (second, by_document)] = &*pages else { panic!("{} pages", pages.len()) };
    // Only the first page meets a history.
    assert!(looked.bytes_read < body_bytes(first) + 400_000, "{looked:?}");
    // The second one reads only documents.
    assert!(by_document.bytes_read < body_bytes(second) * 11 / 10, "{by_document:?}");
    assert!(by_document.range_reads <= 1 + 4 * second.len() as u64, "{by_document:?}");
}

#[tokio::test]
async fn documents_among_nine_times_as_many_tombstones_are_read_one_by_one() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "tombstones", None).await;
    let mut random = Random(7);
    let (living, gone) = (body(&mut random, 4_000), body(&mut random, 2_000));
    let ids: Vec<String> = (0..6_000).map(|number| format!("d{number:04}")).collect();
    let edits =
        ids.iter().enumerate().map(|(at, id)| (id.as_str(), None, if at % 10 == 5 { &*living } else { &*gone }));
    let revs = write(&db, &edits.collect::<Vec<_>>()).await;
    let deleted = ids.iter().zip(&revs).enumerate().filter(|(at, _)| at % 10 != 5);
    write(&db, &deleted.map(|(_, (id, rev))| (id.as_str(), Some(rev), "")).collect::<Vec<_>>()).await;
    let pages = walk(&db).await;
    assert_eq!(pages.iter().map(|(rows, _)| rows.len()).sum::<usize>(), 600);
    let (first, looked) = &pages[0];
    // Three ranges are tried, and end when they meet histories.
    assert!(looked.bytes_read < body_bytes(first) * 11 / 10 + 3 * 400_000, "{looked:?}");
    for (rows, waits) in &pages[1..] {
        assert!(waits.bytes_read < body_bytes(rows) * 11 / 10, "{waits:?}");
        assert!(!pages_are_full() || waits.range_reads <= 1 + rows.len() as u64 * 11 / 10, "{waits:?}");
    }
    assert!(pages.len() >= 3);
}
