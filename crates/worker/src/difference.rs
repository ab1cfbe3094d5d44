//! Computes the rows to write and to delete from the rows that a document produced before and now.
//!
//! A target with tables stores in a table of its own which document owns which row: its claims. They are read and
//! written in the transaction that writes the rows. A row belongs to the document that wrote it last. A document that
//! gives up a key deletes the row only if it still owns it, so that two documents may exchange keys in either order.

use std::collections::{HashMap, HashSet};

use crate::mapping::{OnDelete, ReplaceStrategy, Table};
use crate::rows::Row;

/// A document's ownership of a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The table's name.
    pub table: String,
    /// The row's key, as [`key_text`](crate::datum::key_text) writes it.
    pub key: String,
}

/// An operation on a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation<'r> {
    /// Deletes a row.
    Delete {
        /// The table's index in the mapping.
        table: usize,
        /// The row's key.
        key: String,
    },
    /// Keeps a row and marks it as deleted with a timestamp.
    SoftDelete {
        /// The table's index in the mapping.
        table: usize,
        /// The row's key.
        key: String,
    },
    /// Inserts or overwrites a row.
    Upsert(&'r Row),
}

/// The operations for one document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference<'r> {
    /// The operations, in an order that satisfies foreign keys at each step: children are deleted before their parents,
    /// and parents are written before their children.
    pub operations: Vec<Operation<'r>>,
    /// Claims to delete.
    pub released: Vec<Claim>,
    /// Claims that the document has now, including unchanged ones.
    pub claimed: Vec<Claim>,
}

/// Computes the operations that turn the rows of `before` into `now`.
///
/// `is_gone`: the document was deleted, or the job lost access to it; otherwise it changed, possibly so that it no
/// longer matches. Claims of tables that the mapping no longer has are released and their rows stay: the administrator
/// who removed the table decides about them.
pub fn difference<'r>(tables: &[Table], before: &[Claim], now: &'r [Row], is_gone: bool) -> Difference<'r> {
    let places: HashMap<&str, usize> = tables.iter().enumerate().map(|(at, table)| (table.name.as_str(), at)).collect();
    let kept: HashSet<(usize, &str)> = now.iter().map(|row| (row.table, row.key.as_str())).collect();
    let mut difference = Difference::default();
    let mut going: Vec<(usize, &Claim)> = Vec::new();
    for claim in before {
        let Some((at, table)) = places.get(claim.table.as_str()).and_then(|at| Some((*at, tables.get(*at)?))) else {
            difference.released.push(claim.clone());
            continue;
        };
        if kept.contains(&(at, claim.key.as_str())) {
            continue;
        }
        let is_merged = table.source_array.is_some() && table.replace_strategy == ReplaceStrategy::Merge;
        if is_merged && !is_gone && !now.is_empty() {
            difference.claimed.push(claim.clone());
            continue;
        }
        going.push((at, claim));
    }
    going.sort_by(|(left, _), (right, _)| right.cmp(left));
    for (at, claim) in going {
        let key = claim.key.clone();
        match tables.get(at).map(|table| table.on_delete) {
            Some(OnDelete::Delete) => difference.operations.push(Operation::Delete { table: at, key }),
            Some(OnDelete::SoftDelete) => difference.operations.push(Operation::SoftDelete { table: at, key }),
            Some(OnDelete::Ignore) | None => {}
        }
        difference.released.push(claim.clone());
    }
    for row in now {
        difference.operations.push(Operation::Upsert(row));
        if let Some(table) = tables.get(row.table) {
            difference.claimed.push(Claim { table: table.name.clone(), key: row.key.clone() });
        }
    }
    difference
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flatbed_flatten::json::{Limits, parse};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::datum::Datum;
    use crate::mapping::Mapping;
    use crate::rows::{Product, produce};

    /// A model target: the rows of each table by key, with their owners.
    #[derive(Debug, Default)]
    struct Target {
        rows: BTreeMap<(usize, String), Vec<Datum>>,
        softly_deleted: HashSet<(usize, String)>,
        owners: BTreeMap<Claim, String>,
    }

    impl Target {
        fn apply(&mut self, mapping: &Mapping, id: &str, now: &[Row], is_gone: bool) {
            let before: Vec<Claim> =
                self.owners.iter().filter(|(_, owner)| *owner == id).map(|(claim, _)| claim.clone()).collect();
            let difference = difference(mapping.tables(), &before, now, is_gone);
            for operation in &difference.operations {
                match operation {
                    Operation::Delete { table, key } => {
                        assert!(self.rows.remove(&(*table, key.clone())).is_some(), "a row that is not there goes");
                    }
                    Operation::SoftDelete { table, key } => {
                        self.softly_deleted.insert((*table, key.clone()));
                    }
                    Operation::Upsert(row) => {
                        self.softly_deleted.remove(&(row.table, row.key.clone()));
                        self.rows.insert((row.table, row.key.clone()), row.values.clone());
                    }
                }
                self.check_foreign_keys(mapping);
            }
            for claim in &difference.released {
                assert_eq!(self.owners.remove(claim).as_deref(), Some(id));
            }
            for claim in &difference.claimed {
                self.owners.insert(claim.clone(), id.to_owned());
            }
        }

        fn check_foreign_keys(&self, mapping: &Mapping) {
            for ((table, _), values) in &self.rows {
                let Some(foreign) = &mapping.tables()[*table].foreign_key else { continue };
                let refers = &values[foreign.column];
                let mut parents = self.rows.iter().filter(|((of, _), _)| *of == foreign.parent);
                assert!(parents.any(|(_, parent)| parent[foreign.references] == *refers), "a child without its parent");
            }
        }
    }

    fn mapping(items: serde_json::Value) -> Mapping {
        let mut child = json!({"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"},
            "source_array": "$.items", "columns": {"n": "$"}});
        for (name, value) in items.as_object().unwrap() {
            child[name] = value.clone();
        }
        let root = json!({"name": "orders", "primary_key": "k", "columns": {"k": "$.k", "id": "$._id"}});
        Mapping::from_value(json!({"source": {"match": {"t": 1}}, "tables": [root, child]})).unwrap()
    }

    fn rows_of(mapping: &Mapping, document: &serde_json::Value) -> Vec<Row> {
        let text = document.to_string();
        match produce(mapping, &parse(text.as_bytes(), &Limits::default()).unwrap()).unwrap() {
            Product::Rows(rows) => rows,
            Product::Nothing => Vec::new(),
            Product::Json(_) => panic!(),
        }
    }

    fn counts(target: &Target) -> [usize; 4] {
        let of = |table| target.rows.keys().filter(|(at, _)| *at == table).count();
        [of(0), of(1), target.softly_deleted.len(), target.owners.len()]
    }

    /// Returns the row counts after a document had these states; `null`: deleted.
    fn after(mapping: &Mapping, states: &[serde_json::Value]) -> [usize; 4] {
        let mut target = Target::default();
        for state in states {
            let rows = if state.is_null() { Vec::new() } else { rows_of(mapping, state) };
            target.apply(mapping, "a", &rows, state.is_null());
        }
        counts(&target)
    }

    #[test]
    fn rows_follow_their_document() {
        let document = |key: u32, items: &[u32]| json!({"_id": "a", "t": 1, "k": key, "items": items});
        let of = |items: serde_json::Value, states: &[serde_json::Value]| after(&mapping(items), states);
        let plain = json!({});
        assert_eq!(of(plain.clone(), &[document(1, &[7, 8, 9])]), [1, 3, 0, 4]);
        assert_eq!(of(plain.clone(), &[document(1, &[7, 8, 9]), document(1, &[7])]), [1, 1, 0, 2]);
        assert_eq!(of(plain.clone(), &[document(1, &[7, 8]), document(2, &[7, 8])]), [1, 2, 0, 3]);
        assert_eq!(of(plain.clone(), &[document(1, &[7, 8]), json!({"_id": "a", "k": 1})]), [0, 0, 0, 0]);
        assert_eq!(
            of(plain.clone(), &[document(1, &[7, 8]), serde_json::Value::Null, serde_json::Value::Null]),
            [0, 0, 0, 0]
        );
        let merge = json!({"replace_strategy": "merge"});
        assert_eq!(of(merge.clone(), &[document(1, &[7, 8, 9]), document(1, &[7])]), [1, 3, 0, 4]);
        assert_eq!(of(merge, &[document(1, &[7, 8, 9]), document(1, &[7]), serde_json::Value::Null]), [0, 0, 0, 0]);
        let soft = json!({"on_delete": "soft_delete"});
        assert_eq!(of(soft.clone(), &[document(1, &[7, 8, 9]), document(1, &[7])]), [1, 3, 2, 2]);
        assert_eq!(of(soft, &[document(1, &[7, 8]), document(1, &[7]), document(1, &[7, 8])]), [1, 2, 0, 3]);
        let ignore = json!({"on_delete": "ignore"});
        assert_eq!(of(ignore, &[document(1, &[7, 8, 9]), document(1, &[7])]), [1, 3, 0, 2]);
    }

    #[test]
    fn rows_of_tables_that_left_the_mapping_stay() {
        let claim = |table: &str| Claim { table: table.to_owned(), key: "{\"k\":1}".to_owned() };
        let difference = difference(mapping(json!({})).tables(), &[claim("gone"), claim("orders")], &[], true);
        assert_eq!(difference.operations, [Operation::Delete { table: 0, key: "{\"k\":1}".to_owned() }]);
        assert_eq!(difference.released, [claim("gone"), claim("orders")]);
    }

    #[test]
    fn documents_change_keys_with_each_other_in_any_order() {
        let mapping = mapping(json!({}));
        let of = |id: &str, key: u32| rows_of(&mapping, &json!({"_id": id, "t": 1, "k": key, "items": [1]}));
        for order in [["a", "b"], ["b", "a"]] {
            let mut target = Target::default();
            target.apply(&mapping, "a", &of("a", 1), false);
            target.apply(&mapping, "b", &of("b", 2), false);
            for id in order {
                target.apply(&mapping, id, &of(id, if id == "a" { 2 } else { 1 }), false);
            }
            assert_eq!(counts(&target), [2, 2, 0, 4]);
            let owner = |key: &str| {
                target.owners[&Claim { table: "orders".to_owned(), key: format!("{{\"k\":{key}}}") }].clone()
            };
            assert_eq!([owner("1"), owner("2")], ["b", "a"]);
        }
    }

    proptest! {
        /// Documents with keys of their own that move, shrink, stop matching and are deleted.
        #[test]
        fn a_target_has_what_documents_produce(
            states in proptest::collection::vec((0_u8..4, 0_u8..3, proptest::option::of(proptest::collection::vec(0_u8..5, 0..5)), any::<bool>()), 1..40)
        ) {
            let mapping = mapping(json!({}));
            let mut target = Target::default();
            let mut newest: BTreeMap<String, Vec<Row>> = BTreeMap::new();
            for (document, key, items, is_match) in states {
                let id = format!("d{document}");
                let rows = match &items {
                    None => Vec::new(),
                    Some(items) => {
                        let t = u8::from(is_match);
                        rows_of(&mapping, &json!({"_id": id, "t": t, "k": format!("{document}-{key}"), "items": items}))
                    }
                };
                target.apply(&mapping, &id, &rows, items.is_none());
                newest.insert(id, rows);
                let expected: BTreeMap<(usize, String), Vec<Datum>> = newest
                    .values().flatten().map(|row| ((row.table, row.key.clone()), row.values.clone())).collect();
                prop_assert_eq!(&target.rows, &expected);
                prop_assert_eq!(target.owners.len(), expected.len());
            }
        }
    }
}
