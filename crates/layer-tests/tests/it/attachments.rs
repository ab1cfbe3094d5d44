//! Attachments: stored once, referenced by documents, removed with the last reference.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::*;
use flatbed_layer::check::check_database;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{AttachmentEdit, Database, Edit, Error, GetOptions, Refusal, Result, RevId};
use flate2::Compression;
use flate2::write::GzEncoder;

async fn data(db: &Database, content_type: &str, bytes: &[u8]) -> AttachmentEdit {
    let mut upload = db.upload(content_type, false).await.unwrap();
    for piece in bytes.chunks(70_000) {
        upload.write(piece).await.unwrap();
    }
    AttachmentEdit::Data { content_type: content_type.into(), revpos: None, data: upload.finish().await.unwrap() }
}

fn stub() -> AttachmentEdit {
    AttachmentEdit::Stub { revpos: None }
}

async fn put_with(
    db: &Database,
    id: &str,
    parent: Option<&RevId>,
    attachments: Vec<(&str, AttachmentEdit)>,
) -> Result<RevId> {
    let attachments = attachments.into_iter().map(|(name, edit)| (name.to_owned(), edit)).collect();
    let body = parse(b"{}", &Limits::default()).unwrap();
    let edit =
        Edit { expiry: None, id: id.into(), parent: parent.cloned(), history: None, deleted: false, attachments, body };
    db.update(&edit).await.map(|updated| updated.rev)
}

async fn stored(db: &Database, id: &str, rev: Option<&RevId>, name: &str) -> Result<Vec<u8>> {
    let mut reader = db.attachment(id, rev, name).await?;
    let mut bytes = Vec::new();
    while let Some(more) = reader.next().await? {
        bytes.extend(more);
    }
    Ok(bytes)
}

/// Returns the bytes of all bodies and attachments.
async fn stored_bytes(db: &Database) -> u64 {
    db.info().await.unwrap().active_size_bytes
}

#[tokio::test]
async fn equal_data_lies_once_and_goes_with_its_last_document() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let first = put_with(&db, "one", None, vec![("a/b", data(&db, "x/y", &large).await)]).await.unwrap();
    assert_eq!(stored(&db, "one", None, "a/b").await.unwrap(), large);
    let one_bytes = stored_bytes(&db).await;
    assert!(one_bytes > 12_000_000);
    let second =
        put_with(&db, "two", None, vec![("c", data(&db, "x/y", &large).await), ("d", data(&db, "x/z", &large).await)]);
    let second = second.await.unwrap();
    assert!(stored_bytes(&db).await < one_bytes + 1_000);
    // A later revision keeps the attachment by a stub; without the stub only the older one has it.
    let kept = put_with(&db, "one", Some(&first), vec![("a/b", stub())]).await.unwrap();
    let listed = db.get("one", &GetOptions::default()).await.unwrap().attachments;
    assert_eq!((listed[0].name.as_str(), listed[0].revpos, listed[0].length), ("a/b", 1, 12_000_000));
    let gone = put_with(&db, "one", Some(&kept), vec![]).await.unwrap();
    assert!(matches!(stored(&db, "one", None, "a/b").await, Err(Error::Refused(Refusal::AttachmentNotFound))));
    assert_eq!(stored(&db, "one", Some(&kept), "a/b").await.unwrap().len(), large.len());
    let missing = put_with(&db, "one", Some(&gone), vec![("a/b", stub())]).await;
    assert!(matches!(missing, Err(Error::Refused(Refusal::MissingStub { .. }))));
    assert_clean(&layer, &db).await;
    // Lists beyond the limit of revisions are removed, and the data with the last of them.
    db.set_revs_limit(1).await.unwrap();
    put_with(&db, "one", Some(&gone), vec![]).await.unwrap();
    assert!(stored_bytes(&db).await > 12_000_000);
    assert_clean(&layer, &db).await;
    put_with(&db, "two", Some(&second), vec![]).await.unwrap();
    assert!(stored_bytes(&db).await < 1_000);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn external_bytes_are_those_of_attachments_too() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let external = async || db.info().await.unwrap().external_size_bytes;
    let first = put_with(&db, "one", None, vec![]).await.unwrap();
    let text = external().await;
    let large = vec![7; 500_000];
    let one = vec![("a", data(&db, "x/y", &large).await)];
    let second = put_with(&db, "one", Some(&first), one).await.unwrap();
    assert_eq!(external().await, text + 500_000);
    // The decoded length counts, together with the kept attachment.
    let two = vec![("a", stub()), ("b", data(&db, "text/plain", &[b'x'; 10_000]).await)];
    let third = put_with(&db, "one", Some(&second), two).await.unwrap();
    assert_eq!(external().await, text + 510_000);
    // Attachments do not make the document too large for `small_only`.
    let small = GetOptions { small_only: true, ..GetOptions::default() };
    assert!(db.get("one", &small).await.is_ok());
    // The bytes of a leaf that becomes the winner.
    let other = vec![("c", data(&db, "x/y", &large[..1_000]).await)];
    let attachments = other.into_iter().map(|(name, edit)| (name.to_owned(), edit)).collect();
    let history: Vec<RevId> = vec!["2-0".parse().unwrap(), first.clone()];
    let body = parse(b"{}", &Limits::default()).unwrap();
    let id = "one".into();
    let history = Some(history);
    let edit = Edit { expiry: None, id, parent: None, history, deleted: false, attachments, body };
    db.update(&edit).await.unwrap();
    assert_eq!(external().await, text + 510_000);
    assert_clean(&layer, &db).await;
    delete(&db, "one", &third).await.unwrap();
    let info = db.info().await.unwrap();
    assert_eq!(info.external_size_bytes, text + 1_000);
    assert!(info.file_size_bytes >= info.active_size_bytes, "{info:?}");
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn text_is_compressed_as_couchdb_does() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let rev = put_with(
        &db,
        "a",
        None,
        vec![("x", data(&db, "text/plain", b"one").await), ("y", data(&db, "text/plain", b"two").await)],
    );
    // Recorded from CouchDB 3.5.0 (tests/couchdb-answers).
    assert_eq!(rev.await.unwrap().to_string(), "1-4d133cc6498366b6ee59c2d097d8889d");
    let listed = db.get("a", &GetOptions::default()).await.unwrap().attachments;
    assert_eq!((listed[0].gzip, listed[0].length, listed[0].stored_length), (true, 3, 23));
    // Compressed data is decompressed for its length.
    let gzip = stored(&db, "a", None, "x").await.unwrap();
    let mut upload = db.upload("text/plain", true).await.unwrap();
    upload.write(&gzip).await.unwrap();
    assert_eq!(upload.finish().await.unwrap().length, 3);
    let mut upload = db.upload("text/plain", true).await.unwrap();
    let bad = async {
        upload.write(b"no gzip at all").await?;
        upload.finish().await.map(|_| ())
    };
    assert!(matches!(bad.await, Err(Error::Refused(Refusal::InvalidAttachment))));
}

fn gzip_of_zeros(bytes: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; bytes]).unwrap();
    encoder.finish().unwrap()
}

/// The runtime here has one thread: the other task runs only if the upload yields.
#[tokio::test]
async fn an_upload_that_inflates_yields() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let bomb = gzip_of_zeros(20_000_000);
    assert!(bomb.len() < 30_000);
    let runs = Arc::new(AtomicUsize::new(0));
    let other = tokio::spawn({
        let runs = runs.clone();
        async move {
            loop {
                runs.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        }
    });
    let mut upload = db.upload("x/y", true).await.unwrap();
    let before = runs.load(Ordering::SeqCst);
    upload.write(&bomb).await.unwrap();
    let seen = runs.load(Ordering::SeqCst) - before;
    other.abort();
    // It has about twenty slices.
    assert!(seen >= 15, "{seen}");
    let uploaded = upload.finish().await.unwrap();
    assert_eq!((uploaded.length, uploaded.sent_length()), (20_000_000, bomb.len() as u64));
    let edit = AttachmentEdit::Data { content_type: "x/y".into(), revpos: None, data: uploaded };
    put_with(&db, "a", None, vec![("z", edit)]).await.unwrap();
    assert_eq!(stored(&db, "a", None, "z").await.unwrap(), bomb);
}

#[tokio::test]
async fn the_limit_holds_for_inflated_bytes() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    layer.bound_sizes(8_000_000, 1_000_000, 0);
    for (bytes, fits) in [(1_000_000, true), (1_000_001, false), (20_000_000, false)] {
        let mut upload = db.upload("x/y", true).await.unwrap();
        let uploaded = async {
            upload.write(&gzip_of_zeros(bytes)).await?;
            upload.finish().await
        };
        match uploaded.await {
            Ok(uploaded) => assert!(fits && uploaded.length == bytes as u64, "{bytes}"),
            Err(Error::Refused(Refusal::AttachmentTooLarge { bytes_max: 1_000_000 })) => assert!(!fits, "{bytes}"),
            Err(error) => panic!("{bytes}: {error}"),
        }
    }
}

/// The check reads blobs and their staging records in different transactions.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_goes_during_a_check_is_no_violation() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let runtime = tokio::runtime::Handle::current();
    let mut uploaded = None;
    let during = |_| {
        let another = async {
            if let Some(last) = uploaded.take() {
                db.discard(&last).await;
            }
            let mut upload = db.upload("x/y", false).await.unwrap();
            upload.write(&[7; 70_000]).await.unwrap();
            uploaded = Some(upload.finish().await.unwrap());
        };
        tokio::task::block_in_place(|| runtime.block_on(another));
    };
    let report = check_database(&db, during).await.unwrap();
    assert!(report.is_clean() && report.sums_compared && report.staged_uploads == 1, "{report:#?}");
}

#[tokio::test]
async fn documents_come_and_go_under_faults() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let Some(store) = Store::with_faults(0.03, seed) else { return };
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    db.set_revs_limit(2).await.unwrap();
    let mut writers = Vec::new();
    for writer in 0..6_u64 {
        let db = db.clone();
        writers.push(tokio::spawn(async move {
            for round in 0..25_u64 {
                let id = format!("doc{}", (writer + round) % 4);
                let parent = db.get(&id, &GetOptions::default()).await.ok();
                let mut edits = vec![("n", data(&db, "x/y", &[(round % 3) as u8; 1_000]).await)];
                if parent.as_ref().is_some_and(|parent| !parent.attachments.is_empty()) && round % 2 == 0 {
                    edits = vec![("n", stub())];
                }
                if round % 5 == 4 {
                    edits.clear();
                }
                match put_with(&db, &id, parent.as_ref().map(|parent| &parent.rev), edits).await {
                    Ok(_) | Err(Error::Refused(Refusal::Conflict | Refusal::MissingStub { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    // The sweeper removes the staged data of refused edits.
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn one_upload_under_two_names_stays() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let upload = data(&db, "x/y", &[7; 200_000]).await;
    put_with(&db, "one", None, vec![("a", upload.clone()), ("b", upload)]).await.unwrap();
    for name in ["a", "b"] {
        assert_eq!(stored(&db, "one", None, name).await.unwrap(), [7; 200_000]);
    }
    assert_clean(&layer, &db).await;
}
