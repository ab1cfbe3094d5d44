//! Tests of `feed::source::words` with a whole layer.
#![cfg(test)]

use flatbed_feeds::feed::changes::{Changes, FollowOutcome};
use flatbed_feeds::feed::query::{ChangesQuery, Documents, Extras, Since};
use flatbed_feeds::feed::row::{ChangeRow, RowKind};
use flatbed_feeds::feed::source::words::*;
use flatbed_flatten::json::{Limits, parse};
use flatbed_testkit::soon;

use crate::{Database, Edit, GetOptions};

/// Writes a document over its current revision.
async fn put(db: &Database, id: &str, word: &str) {
    let parent = db.get(id, &GetOptions::default()).await.ok().map(|document| document.rev);
    let body = format!("{{\"word\":\"{word}\"}}");
    let body = parse(body.as_bytes(), &Limits::default()).unwrap();
    let edit =
        Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments: Vec::new(), body };
    db.update(&edit).await.unwrap();
}

fn feed(db: &Database, query: ChangesQuery) -> Changes {
    Changes::from_source((***db).clone(), query, Words::source())
}

async fn rows(changes: &mut Changes) -> Vec<ChangeRow> {
    let mut rows = Vec::new();
    loop {
        let page = changes.next_page().await.unwrap();
        rows.extend(page.rows);
        if page.at_end {
            return rows;
        }
    }
}

/// Returns the next rows, from a page or shared, and whether they were shared.
async fn next(changes: &mut Changes) -> (Vec<ChangeRow>, bool) {
    let came = async {
        loop {
            match changes.follow().await {
                FollowOutcome::Rows(rows) => return (rows.iter().map(|row| changes.shown(row)).collect(), true),
                FollowOutcome::ReadOn => {
                    let page = changes.next_page().await.unwrap();
                    if !page.rows.is_empty() {
                        return (page.rows, false);
                    }
                }
                FollowOutcome::Shutdown => panic!("the server stopped"),
            }
        }
    };
    soon(came).await
}

fn ids(rows: &[ChangeRow]) -> Vec<(&str, RowKind)> {
    rows.iter().map(|row| (row.id.as_str(), row.kind)).collect()
}

fn says_nothing(row: &ChangeRow) -> bool {
    row.doc.is_none() && !row.deleted && row.leaves == [row.rev.clone()] && row.leaf_count == 1
}

#[tokio::test]
async fn pages_have_its_documents_and_those_that_have_left() {
    let (db, _storage) = crate::tests::fenced::database().await;
    let words = [OURS, "others'", GIVEN_AWAY];
    // More than one page with documents.
    for n in 0..250 {
        put(&db, &format!("d{n:03}"), words[n % 3]).await;
    }
    let all = rows(&mut db.changes(ChangesQuery::default())).await;
    let expected: Vec<_> = all.iter().enumerate().filter(|(n, _)| n % 3 != 1).map(|(n, row)| (n, row.seq)).collect();
    let documents = [Documents::No, Documents::Yes];
    for (descending, limit, documents) in [false, true]
        .into_iter()
        .flat_map(|descending| [None, Some(0), Some(1), Some(120)].map(|limit| (descending, limit)))
        .flat_map(|(descending, limit)| documents.map(|documents| (descending, limit, documents)))
    {
        let extras = Extras { leaves: false, documents };
        let query = ChangesQuery { descending, limit, extras, ..ChangesQuery::default() };
        let found = rows(&mut feed(&db, query)).await;
        let mut expected = expected.clone();
        if descending {
            expected.reverse();
        }
        expected.truncate(limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap()));
        assert_eq!(found.len(), expected.len());
        for (row, (n, seq)) in found.iter().zip(expected) {
            assert_eq!(row.seq, seq);
            if n % 3 == 2 {
                assert!(row.kind == RowKind::Lost && says_nothing(row), "{row:?}");
            } else {
                assert_eq!((row.kind, row.doc.is_some()), (RowKind::Changed, documents == Documents::Yes));
            }
        }
    }
}

#[tokio::test]
async fn followers_get_the_same_from_what_others_share() {
    let (db, _storage) = crate::tests::fenced::database().await;
    put(&db, "a", OURS).await;
    let since = Since::after(db.update_seq().await.unwrap());
    // One feed shows neither documents nor losses; the other is from this source and shows no documents.
    let (mut plain, mut ours) =
        (db.changes(ChangesQuery::default()), feed(&db, ChangesQuery { since, ..ChangesQuery::default() }));
    assert!(rows(&mut plain).await.len() == 1 && rows(&mut ours).await.is_empty());
    let mut shared = 0;
    let large = format!("{OURS} {}", "x".repeat(100_000));
    let steps: [(&str, &str, Option<RowKind>); 7] = [
        ("b", OURS, Some(RowKind::Changed)),
        ("c", "others'", None),
        ("a", GIVEN_AWAY, Some(RowKind::Lost)),
        ("a", OURS, Some(RowKind::Changed)),
        // Documents of this size are not shared.
        ("large", &large, Some(RowKind::Changed)),
        ("b", "others'", None),
        ("large", GIVEN_AWAY, Some(RowKind::Lost)),
    ];
    for (id, word, kind) in steps {
        put(&db, id, word).await;
        let (found, _) = next(&mut plain).await;
        assert_eq!(ids(&found), [(id, RowKind::Changed)]);
        let Some(kind) = kind else { continue };
        let (found, was_shared) = next(&mut ours).await;
        assert_eq!(ids(&found), [(id, kind)]);
        assert!(found[0].doc.is_none() && (kind == RowKind::Changed || says_nothing(&found[0])));
        shared += usize::from(was_shared);
    }
    assert!(shared > 0, "no row was shared");
    // A later feed reads the newest row of each document.
    let mut later = feed(&db, ChangesQuery { since, ..ChangesQuery::default() });
    assert_eq!(ids(&rows(&mut later).await), [("a", RowKind::Changed), ("large", RowKind::Lost)]);
    assert_eq!(later.last_seq(), ours.last_seq());
}
