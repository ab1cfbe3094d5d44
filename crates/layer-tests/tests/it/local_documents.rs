//! The bytes of local documents are counted exactly and bounded.

use std::sync::Arc;

use crate::support::{Open, Random, Store, assert_clean, create};
use flatbed_layer::{Error, LayerOptions, LocalDocument, LocalEdit, Refusal, User};

/// The upper bound of the bytes that a document counts beside its id and record.
const OVERHEAD: usize = 300;

fn document(id: &str, bytes: usize) -> LocalDocument {
    LocalDocument { id: id.to_owned(), revision: 1, body: vec![b' '; bytes] }
}

fn is_full<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Refused(Refusal::LocalDocumentsFull)))
}

/// The refusal of anonymous writers.
fn is_forbidden<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Refused(Refusal::Forbidden(_))))
}

#[tokio::test]
async fn local_documents_are_bounded_and_deletions_free_bytes() {
    let store = Store::new();
    let layer = store.layer_with(LayerOptions { local_bytes_max: 1_000_000, ..LayerOptions::default() }).await;
    let db = create(&layer, "db", None).await;
    let nobody = (*layer).database("db", User::default().through(Arc::new(Open)));
    let bob = User { name: Some("bob".to_owned()), ..User::default() };
    let bob = (*layer).database("db", bob.through(Arc::new(Open)));

    // Anonymous writers add nothing beyond an eighth, with many small or few large documents.
    let mut written = 0;
    let full = loop {
        let result = nobody.put_local(&document(&format!("n{written:04}"), 1_000)).await;
        if result.is_err() {
            break result;
        }
        written += 1;
        assert!(written * 1_000 <= 125_000, "{written} were written");
    };
    assert!(is_forbidden(&full) && written * (1_000 + OVERHEAD) + 1_300 >= 125_000, "{written}: {full:?}");
    let edits = [
        LocalEdit::Put(document("n0000", 1_000)),
        LocalEdit::Put(document("more", 1_000)),
        LocalEdit::Delete("n0001".to_owned()),
        LocalEdit::Delete("gone".to_owned()),
        LocalEdit::Put(document("n0002", 10)),
        LocalEdit::Put(document("other", 900)),
    ];
    let outcomes = nobody.edit_locals(&edits).await.unwrap();
    let is_ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [true, false, true, false, true, true], "{outcomes:?}");
    assert!(matches!(outcomes[1], Err(Refusal::Forbidden(_))));
    assert_eq!(nobody.get_local("more").await.unwrap(), None);

    // Named users may write up to the bound.
    bob.put_local(&document("large", 700_000)).await.unwrap();
    assert!(is_full(&bob.put_local(&document("second", 700_000)).await));
    bob.put_local(&document("large", 800_000)).await.unwrap();
    assert!(is_forbidden(&nobody.put_local(&document("more", 10)).await));
    // Administrators and the server have no bound.
    let admin = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    let admin = (*layer).database("db", admin.through(Arc::new(Open)));
    let nameless = User { roles: vec!["_admin".to_owned()], ..User::default() };
    let nameless = (*layer).database("db", nameless.through(Arc::new(Open)));
    for (db, id) in [(&admin, "of-root"), (&nameless, "of-nameless"), (&db, "of-server")] {
        db.put_local(&document(id, 700_000)).await.unwrap();
        assert!(is_full(&bob.put_local(&document("second", 700_000)).await), "{id}");
        assert!(db.delete_local(id).await.unwrap());
    }
    assert!(nobody.delete_local("n0003").await.unwrap());
    bob.delete_local("large").await.unwrap();
    bob.put_local(&document("second", 700_000)).await.unwrap();
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn bytes_are_counted_exactly_whatever_fails() {
    let mut random = Random(37);
    let Some(store) = Store::with_faults(0.05, random.next()) else { return };
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let mut edits = Vec::new();
    for _ in 0..300 {
        let id = format!("{}", random.below(8));
        edits.push(match random.below(3) {
            0 => LocalEdit::Delete(id),
            _ => LocalEdit::Put(document(&id, random.below(100_000) as usize)),
        });
    }
    // Concurrent writes of the same documents.
    let parts: Vec<_> = edits.chunks(75).map(|part| db.edit_locals(part)).collect();
    for outcomes in futures_util::future::join_all(parts).await {
        assert!(outcomes.is_ok(), "{outcomes:?}");
    }
    assert_clean(&layer, &db).await;
}
