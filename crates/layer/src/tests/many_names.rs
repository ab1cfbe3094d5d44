//! Tests a database with very many names of fields in a process that has none of them in its cache.
#![cfg(test)]

use flatbed_databases::document::edit::GetOptions;
use flatbed_databases::field_names::Fields;
use flatbed_store::keys::Keys;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::waits;
use prost::Message;

use crate::{CreateOptions, Edit, Layer, Result};

const NAMES: u64 = 40_500;

/// Adds names beside the existing ones.
struct Enter<'a> {
    keys: &'a Keys,
    ids: std::ops::Range<u64>,
}

impl Operation for Enter<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        for id in self.ids.clone() {
            let name = format!("name of a field {id}");
            trx.set(&self.keys.field_id(&name), &proto::FieldId { id }.encode_to_vec());
            trx.set(&self.keys.field_name(id), &proto::FieldName { name }.encode_to_vec());
        }
        trx.set(&self.keys.next_field_id(), &proto::FieldId { id: self.ids.end }.encode_to_vec());
        Ok(())
    }
}

fn edit<'e>(id: &'e str, name: &str) -> Edit<'e> {
    let body = format!("{{{name:?}:1}}");
    let body = flatbed_flatten::json::parse(body.as_bytes(), &Default::default()).unwrap().into_owned();
    Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
}

#[tokio::test]
async fn a_new_process_reads_all_names_at_full_width() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let db = layer.database("many", authority.for_job("test"));
    db.create(&CreateOptions { field_ids_max: Some(100_000), ..CreateOptions::default() }).await.unwrap();
    db.update(&edit("first", "a")).await.unwrap();
    let instance = flatbed_operations::write::batch::instance_of(&db.inner, "many").await.unwrap();
    let first = flatbed_flatten::path::FIRST_FIELD_ID + instance.fields.len() as u64;
    for begin in (first..first + NAMES).step_by(2_500) {
        let ids = begin..(first + NAMES).min(begin + 2_500);
        let mut enter = Enter { keys: &instance.keys, ids };
        transaction::write(&layer.inner.db, &layer.inner.metrics, &mut enter).await.unwrap();
    }
    let last = format!("name of a field {}", first + NAMES - 1);

    // A write loads the names before it allocates.
    let options = layer.inner.options.clone();
    let (other, others) = Layer::open(layer.inner.db.clone(), options.clone(), None).await.unwrap();
    let theirs = other.database("many", others.for_job("test"));
    let (written, counted) = waits::count(async { theirs.update(&edit("last", &last)).await }).await;
    written.unwrap();
    assert!(counted.keys_read < NAMES + 1_100, "each name is read once, but for the first: {counted:?}");
    // Three transactions to load, each with concurrent ranges of 1,000 names; one that counts names, one that
    // allocates, one that writes. A reply holds about 900 of these names, so a range takes two.
    assert!(!waits::are_exact() || counted.transactions <= 6 && counted.range_reads <= 90, "{counted:?}");
    let known = |layer: &Layer| layer.inner.cached("many").expect("cached").fields.clone();
    assert_eq!(known(&other).len() as u64, NAMES + first - flatbed_flatten::path::FIRST_FIELD_ID);

    // Concurrent reads share a load.
    let (third, _) = Layer::open(layer.inner.db.clone(), options, None).await.unwrap();
    let reader = third.reader("many");
    let (read, counted) = waits::count(async {
        let get = || async { reader.get("last", &GetOptions::default()).await };
        futures_util::future::join_all((0..20).map(|_| get())).await
    })
    .await;
    for document in read {
        assert_eq!(document.unwrap().body, format!("{last:?}:1").into_bytes());
    }
    assert!(counted.keys_read < NAMES + 2_500, "{counted:?}");

    // Settings change, and the names stay cached.
    let before = known(&third);
    db.set_revs_limit(17).await.unwrap();
    let (read, counted) = waits::count(reader.get("last", &GetOptions::default())).await;
    read.unwrap();
    assert!(std::sync::Arc::ptr_eq(&before, &known(&third)));
    assert!(counted.keys_read < 10, "{counted:?}");
    // Another database of the name has other names.
    db.delete().await.unwrap();
    db.create(&CreateOptions::default()).await.unwrap();
    assert!(reader.get("last", &GetOptions::default()).await.is_err());
    assert!(!std::sync::Arc::<Fields>::ptr_eq(&before, &known(&third)));
}

#[tokio::test]
async fn a_gap_between_names_is_reported() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let db = layer.database("db", authority.for_job("test"));
    db.update(&edit("first", "a")).await.unwrap();
    let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
    let mut enter = Enter { keys: &instance.keys, ids: 12..20 };
    transaction::write(&layer.inner.db, &layer.inner.metrics, &mut enter).await.unwrap();
    let (other, others) = Layer::open(layer.inner.db.clone(), layer.inner.options.clone(), None).await.unwrap();
    let written = other.database("db", others.for_job("test")).update(&edit("second", "b")).await;
    assert!(matches!(written, Err(crate::Error::Corrupt(_))), "{written:?}");
}
