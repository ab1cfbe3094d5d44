use std::collections::BTreeMap;

use flatbed_flatten::json::{Limits, parse};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::checkpoint::Seq;
use crate::mapping::Mapping;
use crate::rows::produce;

fn mapping(further: serde_json::Value) -> Mapping {
    let mut orders = json!({"name": "orders", "primary_key": "k", "columns": [
        {"name": "k", "path": "$.k", "type": "numeric(6,2)"}, {"name": "id", "path": "$._id", "type": "text"},
        {"name": "n", "path": "$.n"}, {"name": "paid", "path": "$.paid", "type": "boolean"}]});
    for (name, value) in further.as_object().unwrap() {
        orders[name] = value.clone();
    }
    let items = json!({"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"},
        "source_array": "$.items", "columns": {"name": {"path": "$", "type": "varchar(5)"}}});
    Mapping::from_value(json!({"source": {"match": {"t": 1}}, "tables": [orders, items]})).unwrap()
}

fn memory(mapping: &Mapping) -> Sqlite {
    Sqlite::with(Connection::open_in_memory().unwrap(), "j", mapping.tables(), true).unwrap()
}

/// A delivery of a document; `null`: it is gone.
fn delivery(mapping: &Mapping, id: &str, document: &serde_json::Value) -> Delivery {
    let mut document = document.clone();
    let state = if document.is_null() {
        State::Gone
    } else {
        document["_id"] = id.into();
        State::Is(produce(mapping, &parse(document.to_string().as_bytes(), &Limits::default()).unwrap()).unwrap())
    };
    Delivery { id: id.to_owned(), rev: "1-x".to_owned(), seq: "1".to_owned(), state }
}

fn order(k: f64, items: &[&str]) -> serde_json::Value {
    json!({"t": 1, "k": k, "n": 1.5, "paid": true, "items": items})
}

fn at(seq: &str) -> Checkpoint {
    Checkpoint { seq: Seq::parse(seq).unwrap(), ..Checkpoint::default() }
}

fn rows(sqlite: &Sqlite, query: &str) -> Vec<String> {
    let connection = &sqlite.inner.as_ref().unwrap().connection;
    let mut statement = connection.prepare(query).unwrap();
    let count = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| {
        let values: Vec<String> = (0..count).map(|at| format!("{:?}", row.get_ref(at).unwrap())).collect();
        Ok(values.join(" "))
    };
    statement.query_map([], row).unwrap().map(Result::unwrap).collect()
}

fn count(sqlite: &Sqlite, of: &str) -> usize {
    rows(sqlite, &format!("SELECT * FROM {of}")).len()
}

#[tokio::test]
async fn rows_follow_documents_in_one_transaction_with_the_checkpoint() {
    let mapping = mapping(json!({}));
    let mut sqlite = memory(&mapping);
    assert_eq!(sqlite.begin(1).await.unwrap(), None);
    let of = |id: &str, document: &serde_json::Value| delivery(&mapping, id, document);
    sqlite.deliver(vec![of("a", &order(1.5, &["x", "y"])), of("b", &order(2.0, &["z"]))], Some(at("2"))).await.unwrap();
    assert_eq!(
        rows(&sqlite, "SELECT * FROM orders WHERE id = 'a'"),
        [r#"Text([49, 46, 53, 48]) Text([97]) Real(1.5) Integer(1)"#]
    );
    assert_eq!([count(&sqlite, "orders"), count(&sqlite, "items"), count(&sqlite, "flatbed_rows")], [2, 3, 5]);
    // A key that moves, an array that shrinks, a document that no longer matches, one that is gone.
    sqlite.deliver(vec![of("a", &order(3.0, &["x"])), of("b", &json!({"t": 2}))], Some(at("4"))).await.unwrap();
    assert_eq!(rows(&sqlite, "SELECT k FROM items"), ["Text([51, 46, 48, 48])"]);
    assert_eq!([count(&sqlite, "orders"), count(&sqlite, "flatbed_rows")], [1, 2]);
    sqlite.deliver(vec![of("a", &serde_json::Value::Null), of("gone", &serde_json::Value::Null)], None).await.unwrap();
    assert_eq!([count(&sqlite, "orders"), count(&sqlite, "items"), count(&sqlite, "flatbed_rows")], [0, 0, 0]);
    assert_eq!(sqlite.begin(1).await.unwrap().unwrap().seq.as_str(), "4");
}

#[tokio::test]
async fn a_batch_is_taken_whole_or_not_at_all() {
    let mapping = mapping(json!({}));
    let mut sqlite = memory(&mapping);
    sqlite.begin(1).await.unwrap();
    sqlite.inner.as_ref().unwrap().connection.execute_batch("CREATE UNIQUE INDEX u ON orders (id)").unwrap();
    let mut other = delivery(&mapping, "a", &order(2.0, &[]));
    other.id = "b".to_owned();
    let batch = vec![delivery(&mapping, "a", &order(1.0, &["x"])), other];
    let Err(Refused::Failed { failure, .. }) = sqlite.deliver(batch, Some(at("9"))).await else { panic!() };
    assert_eq!((failure.class(), failure.reason().as_str()), (crate::failure::Class::Poison, "data_error:constraint"));
    assert_eq!([count(&sqlite, "orders"), count(&sqlite, "flatbed_rows")], [0, 0]);
    assert_eq!(sqlite.begin(1).await.unwrap(), None);
    // A table that somebody dropped is the target's state.
    sqlite.inner.as_ref().unwrap().connection.execute_batch("DROP TABLE items").unwrap();
    let failed = sqlite.deliver(vec![delivery(&mapping, "a", &order(1.0, &["x"]))], None).await;
    let Err(Refused::Failed { failure, .. }) = failed else { panic!() };
    assert_eq!(failure.class(), crate::failure::Class::Outage);
}

#[tokio::test]
async fn who_lost_the_job_writes_nothing() {
    let mapping = mapping(json!({}));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("orders.sqlite");
    let open = || Sqlite::open(&file, "j", mapping.tables(), true).unwrap();
    let (mut old, mut new) = (open(), open());
    old.begin(1).await.unwrap();
    old.deliver(vec![delivery(&mapping, "a", &order(1.0, &[]))], Some(at("1"))).await.unwrap();
    assert_eq!(new.begin(2).await.unwrap(), Some(at("1")));
    let late = old.deliver(vec![delivery(&mapping, "a", &serde_json::Value::Null)], Some(at("9"))).await;
    assert_eq!(late, Err(Refused::Superseded));
    assert_eq!(old.begin(1).await, Err(Refused::Superseded));
    assert_eq!(count(&new, "orders"), 1);
    new.deliver(Vec::new(), Some(at("2"))).await.unwrap();
    // Another job's rows in the same file are its own.
    let mut other = Sqlite::open(&file, "k", mapping.tables(), true).unwrap();
    assert_eq!(other.begin(1).await.unwrap(), None);
    other.deliver(vec![delivery(&mapping, "a", &serde_json::Value::Null)], None).await.unwrap();
    assert_eq!(count(&new, "orders"), 1);
}

#[tokio::test]
async fn rows_that_stay_say_since_when() {
    let mapping = mapping(json!({"on_delete": "soft_delete"}));
    let mut sqlite = memory(&mapping);
    sqlite.begin(1).await.unwrap();
    sqlite.deliver(vec![delivery(&mapping, "a", &order(1.0, &[]))], None).await.unwrap();
    sqlite.deliver(vec![delivery(&mapping, "a", &serde_json::Value::Null)], None).await.unwrap();
    assert_eq!(rows(&sqlite, "SELECT length(deleted_at) FROM orders"), ["Integer(20)"]);
    assert_eq!(count(&sqlite, "flatbed_rows"), 0);
    sqlite.deliver(vec![delivery(&mapping, "a", &order(1.0, &[]))], None).await.unwrap();
    assert_eq!(rows(&sqlite, "SELECT deleted_at FROM orders"), ["Null"]);
}

#[tokio::test]
async fn tables_must_be_there_and_fit() {
    let mapping = mapping(json!({}));
    let bare = Sqlite::with(Connection::open_in_memory().unwrap(), "j", mapping.tables(), false);
    assert!(bare.unwrap_err().to_string().contains("no such table"));
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch("CREATE TABLE orders (k TEXT PRIMARY KEY, id TEXT)").unwrap();
    assert!(Sqlite::with(connection, "j", mapping.tables(), true).unwrap_err().to_string().contains("no column"));
}

#[test]
fn numbers_keep_their_value() {
    let of = |text: &str, kind: Option<Type>| sql(&Datum::Number(text.to_owned()), kind);
    assert_eq!(of("12", None), Sql::Integer(12));
    assert_eq!(of("12", Some(Type::Float)), Sql::Real(12.0));
    assert_eq!(of("0.10", None), Sql::Real(0.1));
    assert_eq!(of("1.50", Some(Type::Numeric(Some((4, 2))))), Sql::Text("1.50".to_owned()));
    let long = "0.1234567890123456789";
    assert_eq!(of(long, None), Sql::Text(long.to_owned()));
    assert_eq!(of("9223372036854775808123", None), Sql::Text("9223372036854775808123".to_owned()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Documents whose keys move, in batches of any size, with rows that have foreign keys.
    #[test]
    fn tables_have_what_documents_produce(
        batches in proptest::collection::vec(
            proptest::collection::btree_map(0_u8..4, proptest::option::of((0_u8..3, 0_usize..4, any::<bool>())), 1..4), 1..12)
    ) {
        let mapping = mapping(json!({}));
        let mut sqlite = memory(&mapping);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(sqlite.begin(1)).unwrap();
        let mut newest: BTreeMap<u8, (f64, usize)> = BTreeMap::new();
        for batch in batches {
            let mut deliveries = Vec::new();
            for (document, state) in batch {
                let body = match state {
                    None => serde_json::Value::Null,
                    Some((key, items, is_match)) => {
                        let mut body = order(f64::from(document) + f64::from(key) / 10.0, &["a", "b", "c"][..items.min(3)]);
                        body["t"] = u8::from(is_match).into();
                        body
                    }
                };
                match state {
                    Some((key, items, true)) => newest.insert(document, (f64::from(document) + f64::from(key) / 10.0, items.min(3))),
                    _ => newest.remove(&document),
                };
                deliveries.push(delivery(&mapping, &format!("d{document}"), &body));
            }
            runtime.block_on(sqlite.deliver(deliveries, None)).unwrap();
            let found = rows(&sqlite, "SELECT CAST(k AS REAL), (SELECT count(*) FROM items WHERE items.k = orders.k) FROM orders ORDER BY 1");
            let mut expected: Vec<(f64, usize)> = newest.values().copied().collect();
            expected.sort_by(|left, right| left.0.total_cmp(&right.0));
            let expected: Vec<String> = expected.iter().map(|(key, items)| format!("Real({key:?}) Integer({items})")).collect();
            prop_assert_eq!(found, expected);
            let owned: usize = newest.values().map(|(_, items)| items + 1).sum();
            prop_assert_eq!(count(&sqlite, "flatbed_rows"), owned);
        }
    }
}
