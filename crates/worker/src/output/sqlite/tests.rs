use std::collections::BTreeMap;

use flatbed_flatten::json::{Limits, parse};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::mapping::Mapping;
use crate::output::{Delivery, DeliveryState, Target};
use crate::rows::produce;

fn mapping() -> Mapping {
    let orders = json!({"name": "orders", "primary_key": "k", "columns": [
        {"name": "k", "path": "$.k", "type": "numeric(6,2)"}, {"name": "id", "path": "$._id", "type": "text"},
        {"name": "n", "path": "$.n"}, {"name": "paid", "path": "$.paid", "type": "boolean"}]});
    let items = json!({"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"},
        "source_array": "$.items", "columns": {"name": {"path": "$", "type": "varchar(5)"}}});
    Mapping::from_value(json!({"source": {"match": {"t": 1}}, "tables": [orders, items]})).unwrap()
}

/// Returns a delivery of a document; `null`: deleted.
fn delivery(mapping: &Mapping, id: &str, document: &serde_json::Value) -> Delivery {
    let mut document = document.clone();
    let state = if document.is_null() {
        DeliveryState::Gone
    } else {
        document["_id"] = id.into();
        DeliveryState::Is(
            produce(mapping, &parse(document.to_string().as_bytes(), &Limits::default()).unwrap()).unwrap(),
        )
    };
    Delivery { id: id.to_owned(), rev: "1-x".to_owned(), seq: "1".to_owned(), state, attachments: Vec::new() }
}

fn order(k: f64, items: &[&str]) -> serde_json::Value {
    json!({"t": 1, "k": k, "n": 1.5, "paid": true, "items": items})
}

fn rows(file: &Path, query: &str) -> Vec<String> {
    let connection = Connection::open(file).unwrap();
    let mut statement = connection.prepare(query).unwrap();
    let count = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| {
        let values: Vec<String> = (0..count).map(|at| format!("{:?}", row.get_ref(at).unwrap())).collect();
        Ok(values.join(" "))
    };
    statement.query_map([], row).unwrap().map(Result::unwrap).collect()
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
        let mapping = mapping();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.sqlite");
        let mut sqlite = Sqlite::in_file(&file, "j", mapping.tables(), true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
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
            let found = rows(&file, "SELECT CAST(k AS REAL), (SELECT count(*) FROM items WHERE items.k = orders.k) FROM orders ORDER BY 1");
            let mut expected: Vec<(f64, usize)> = newest.values().copied().collect();
            expected.sort_by(|left, right| left.0.total_cmp(&right.0));
            let expected: Vec<String> = expected.iter().map(|(key, items)| format!("Real({key:?}) Integer({items})")).collect();
            prop_assert_eq!(found, expected);
            let owned: usize = newest.values().map(|(_, items)| items + 1).sum();
            prop_assert_eq!(rows(&file, "SELECT * FROM flatbed_rows").len(), owned);
        }
    }
}
