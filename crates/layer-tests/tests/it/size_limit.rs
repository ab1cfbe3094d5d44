//! The limit of a database's size.

use std::time::Duration;

use crate::support::{Layer, Store};
use flatbed_clock::ManualClock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{CreateOptions, Edit, Error, LayerOptions, LocalDocument, LocalEdit, Refusal, RevId};
use flatbed_testkit::engine;

const BYTES_MAX: u64 = 400_000;

/// After this time the size is read again.
const OLD: Duration = Duration::from_secs(5);

/// An edit with a body of about `bytes` bytes, which does not compress.
fn edit(id: &str, parent: Option<&RevId>, bytes: usize) -> Edit<'static> {
    let mut state = 1_u32;
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'0' + (state >> 26) as u8)
    });
    let letters: String = letters.map(|letter| if letter == '\\' { 'z' } else { letter }).take(bytes).collect();
    let text = format!(r#"{{"a":"{letters}"}}"#);
    let body = parse(text.as_bytes(), &Limits::default()).unwrap().into_owned();
    let (id, parent) = (id.to_owned().into(), parent.cloned());
    Edit { expiry: None, id, parent, history: None, deleted: false, attachments: Vec::new(), body }
}

fn deletion(id: &str, parent: Option<&RevId>, bytes: usize) -> Edit<'static> {
    Edit { deleted: true, ..edit(id, parent, bytes) }
}

fn is_full<T>(done: flatbed_layer::Result<T>) -> bool {
    matches!(done, Err(Error::Refused(Refusal::DatabaseFull { bytes_max: BYTES_MAX })))
}

#[tokio::test]
async fn a_full_database_accepts_deletions() {
    // A cluster estimates sizes from a sample.
    if engine().is_none() {
        return;
    }
    let (store, manual) = (Store::new(), ManualClock::new());
    let (root, clock) = (store.root.clone(), manual.clock());
    let options = LayerOptions { root, clock, database_bytes_max: BYTES_MAX, ..LayerOptions::default() };
    let layer = Layer::open_alone(store.fdb.clone(), options, None).await.unwrap();
    // Bodies of older revisions are removed at once.
    layer.create_database("db", &CreateOptions { leaves_only: true, ..CreateOptions::default() }).await.unwrap();
    let (db, server) = (layer.written_by("db", "anna"), layer.database("db"));
    let mut revs = Vec::new();
    // The cached size is older than the first of them.
    for id in ["a", "b", "c", "d"] {
        revs.push(db.update(&edit(id, None, 100_000)).await.unwrap().rev);
    }
    manual.advance(OLD);
    assert!(is_full(db.update(&edit("e", None, 1)).await));
    assert!(is_full(db.update(&edit("a", Some(&revs[0]), 1)).await));
    let both = [edit("e", None, 1), deletion("a", Some(&revs[0]), 1)];
    assert!(is_full(db.bulk_update(&both).await));
    // Deletions that add data.
    assert!(is_full(db.update(&deletion("a", Some(&revs[0]), 5_000)).await));
    assert!(is_full(db.update(&deletion("new", None, 1)).await));
    let mut upload = db.upload("application/octet-stream", false).await.unwrap();
    assert!(is_full(upload.write(&vec![0; 1_000_000]).await));
    drop(upload);
    let local = LocalDocument { id: "l".into(), revision: 1, body: Vec::new() };
    db.put_local(&local).await.unwrap();
    // The server itself may write.
    server.update(&edit("s", None, 1)).await.unwrap();

    // Beyond the reserve only removals succeed, until the size is below the bound.
    for id in ["t", "u"] {
        revs.push(server.update(&edit(id, None, 100_000)).await.unwrap().rev);
    }
    manual.advance(OLD);
    assert!(is_full(db.update(&deletion("a", Some(&revs[0]), 1)).await));
    assert!(is_full(db.put_local(&local).await) && is_full(db.edit_locals(&[LocalEdit::Put(local)]).await));
    assert!(db.delete_local("l").await.unwrap());
    for (id, rev) in [("t", &revs[4]), ("u", &revs[5])] {
        assert_eq!(db.purge(id, std::slice::from_ref(rev)).await.unwrap(), std::slice::from_ref(rev));
    }
    manual.advance(OLD);
    db.update(&deletion("a", Some(&revs[0]), 1)).await.unwrap();
    manual.advance(OLD);
    db.update(&edit("e", None, 1)).await.unwrap();
}
