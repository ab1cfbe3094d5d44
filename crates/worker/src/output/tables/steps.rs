//! Converts a batch into bulk operations over all its documents, in an order that satisfies foreign keys.
//!
//! Deletions come before insertions, children before their parents; then parents are inserted before their children. If
//! two documents of a batch produce the same row, the later one owns it, as in sequential delivery.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::datum::{Datum, key_of_text};
use crate::difference::{Claim, Operation, difference};
use crate::mapping::Table;
use crate::output::{Delivery, DeliveryState};
use crate::rows::{Product, Row};

/// A bulk operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Deletes rows, or sets their time of deletion.
    Leave {
        /// The table's index in the mapping.
        table: usize,
        /// True for a soft delete.
        is_soft: bool,
        /// The columns of the keys, which may be those of an earlier mapping.
        columns: Vec<String>,
        /// The keys, with a value per column.
        keys: Vec<Vec<Datum>>,
    },
    /// Inserts or overwrites rows; no key occurs twice.
    Upsert {
        /// The table's index in the mapping.
        table: usize,
        /// Indexes of deliveries, and of rows of their products.
        rows: Vec<(usize, usize)>,
    },
    /// Deletes claims, each with the index of its delivery.
    Release(Vec<(Claim, usize)>),
    /// Writes claims, taking them from previous owners.
    Claim(Vec<(Claim, usize)>),
}

/// Returns the rows that a delivery produces, and whether its document is gone.
pub fn rows_of(delivery: &Delivery) -> (&[Row], bool) {
    match &delivery.state {
        DeliveryState::Is(Product::Rows(rows)) => (rows, false),
        DeliveryState::Is(Product::Nothing | Product::Json(_)) => (&[], false),
        DeliveryState::Gone => (&[], true),
    }
}

/// Returns the operations of a batch, given the current claims of its documents. `replaced`: the tables whose rows are
/// deleted before they are written again; may be empty.
pub fn steps(tables: &[Table], deliveries: &[Delivery], before: &[(String, Claim)], replaced: &[bool]) -> Vec<Step> {
    let mut claims: HashMap<&str, Vec<Claim>> = HashMap::new();
    for (document, claim) in before {
        claims.entry(document).or_default().push(claim.clone());
    }
    type Keys = BTreeMap<(std::cmp::Reverse<usize>, bool, Vec<String>), Vec<Vec<Datum>>>;
    let mut leaving: Keys = BTreeMap::new();
    let mut leave = |table: usize, is_soft: bool, key: &str| {
        let Some(key) = key_of_text(key) else { return };
        let (columns, values) = key.into_iter().unzip();
        leaving.entry((std::cmp::Reverse(table), is_soft, columns)).or_default().push(values);
    };
    let mut coming: Vec<Vec<(usize, usize)>> = vec![Vec::new(); tables.len()];
    let mut places: HashMap<(usize, &str), usize> = HashMap::new();
    let (mut released, mut kept, mut produced) = (Vec::new(), Vec::new(), Vec::new());
    for (at, delivery) in deliveries.iter().enumerate() {
        let (now, is_gone) = rows_of(delivery);
        let before = claims.get(delivery.id.as_str()).map(Vec::as_slice).unwrap_or_default();
        let difference = difference(tables, before, now, is_gone);
        for operation in difference.operations {
            match operation {
                Operation::Delete { table, key } => leave(table, false, &key),
                Operation::SoftDelete { table, key } => leave(table, true, &key),
                Operation::Upsert(_) => {}
            }
        }
        let of = |claim: &Claim| tables.iter().position(|table| table.name == claim.table);
        let is_replaced = |table: &usize| replaced.get(*table) == Some(&true);
        let again: HashSet<(usize, &str)> =
            now.iter().filter(|row| is_replaced(&row.table)).map(|row| (row.table, row.key.as_str())).collect();
        for claim in before {
            if let Some(table) = of(claim).filter(|table| again.contains(&(*table, claim.key.as_str()))) {
                leave(table, false, &claim.key);
            }
        }
        for (place, row) in now.iter().enumerate() {
            let Some(rows) = coming.get_mut(row.table) else { continue };
            let next = rows.len();
            let known = *places.entry((row.table, row.key.as_str())).or_insert(next);
            match rows.get_mut(known) {
                Some(earlier) => *earlier = (at, place),
                None => rows.push((at, place)),
            }
        }
        released.extend(difference.released.into_iter().map(|claim| (claim, at)));
        // The rows of the new product come after the kept claims.
        let kept_count = difference.claimed.len().saturating_sub(now.len());
        for (number, claim) in difference.claimed.into_iter().enumerate() {
            if number < kept_count { kept.push((claim, at)) } else { produced.push((claim, at)) }
        }
    }
    let mut steps: Vec<Step> = leaving
        .into_iter()
        .map(|((std::cmp::Reverse(table), is_soft, columns), keys)| Step::Leave { table, is_soft, columns, keys })
        .collect();
    steps.extend(
        coming
            .into_iter()
            .enumerate()
            .filter(|(_, rows)| !rows.is_empty())
            .map(|(table, rows)| Step::Upsert { table, rows }),
    );
    if !released.is_empty() {
        steps.push(Step::Release(released));
    }
    // The last writer owns a row; keeping a claim is not a write.
    let claimed: BTreeMap<Claim, usize> = kept.into_iter().chain(produced).collect();
    if !claimed.is_empty() {
        steps.push(Step::Claim(claimed.into_iter().collect()));
    }
    steps
}

/// Adds deletions of the rows that refer to deleted rows: those left by another document that owned the parent before
/// and whose newer state the target has not taken.
pub fn with_children(tables: &[Table], steps: Vec<Step>) -> Vec<Step> {
    let mut all = Vec::with_capacity(steps.len());
    for step in steps {
        if let Step::Leave { table, is_soft: false, columns, keys } = &step {
            for (child, of) in tables.iter().enumerate() {
                let Some(foreign) = of.foreign_key.as_ref().filter(|foreign| foreign.parent == *table) else {
                    continue;
                };
                let referred = tables.get(foreign.parent).and_then(|parent| parent.columns.get(foreign.references));
                let at = referred.and_then(|referred| columns.iter().position(|column| *column == referred.name));
                let (Some(at), Some(column)) = (at, of.columns.get(foreign.column)) else { continue };
                let keys = keys.iter().filter_map(|key| key.get(at).cloned().map(|value| vec![value])).collect();
                let columns = vec![column.name.clone()];
                all.push(Step::Leave { table: child, is_soft: false, columns, keys });
            }
        }
        all.push(step);
    }
    all
}

/// Splits a list into parts of at most `count_max` items and, except for single items, `bytes_max` bytes.
pub fn parts<T>(items: &[T], count_max: usize, bytes_max: usize, bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut parts, mut begin, mut total) = (Vec::new(), 0, 0_usize);
    for (at, item) in items.iter().enumerate() {
        let more = bytes(item);
        if at > begin && (at - begin >= count_max || total.saturating_add(more) > bytes_max) {
            parts.extend(items.get(begin..at));
            (begin, total) = (at, 0);
        }
        total = total.saturating_add(more);
    }
    parts.extend(items.get(begin..).filter(|rest| !rest.is_empty()));
    parts
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use serde_json::{Value, json};

    use super::*;
    use crate::mapping::Mapping;
    use crate::rows::produce;

    fn mapping() -> Mapping {
        Mapping::from_value(json!({"tables": [
            {"name": "orders", "primary_key": "k", "columns": {"k": "$.k", "id": "$._id"}},
            {"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"}, "source_array": "$.items",
             "columns": {"n": "$"}}]}))
        .unwrap()
    }

    fn delivery(mapping: &Mapping, id: &str, body: &Value) -> Delivery {
        let state = if body.is_null() {
            DeliveryState::Gone
        } else {
            let mut body = body.clone();
            body["_id"] = id.into();
            DeliveryState::Is(
                produce(mapping, &parse(body.to_string().as_bytes(), &Limits::default()).unwrap()).unwrap(),
            )
        };
        Delivery { id: id.to_owned(), rev: "1-x".to_owned(), seq: "1".to_owned(), state, attachments: Vec::new() }
    }

    fn claim(document: &str, table: &str, key: &str) -> (String, Claim) {
        (document.to_owned(), Claim { table: table.to_owned(), key: key.to_owned() })
    }

    /// Abbreviates: `-1[k]` deletes a row of the second table, `+0[0.0]` writes the first row of the first delivery to
    /// the first table.
    fn shown(steps: &[Step]) -> String {
        let one = |step: &Step| match step {
            Step::Leave { table, is_soft, keys, .. } => {
                format!("{}{table}x{}", if *is_soft { "~" } else { "-" }, keys.len())
            }
            Step::Upsert { table, rows } => {
                let rows: Vec<String> = rows.iter().map(|(delivery, row)| format!("{delivery}.{row}")).collect();
                format!("+{table}[{}]", rows.join(" "))
            }
            Step::Release(claims) => format!("release {}", claims.len()),
            Step::Claim(claims) => {
                let owners: Vec<String> = claims.iter().map(|(claim, at)| format!("{}={at}", claim.key)).collect();
                format!("claim {}", owners.join(" "))
            }
        };
        steps.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn rows_go_before_others_come_and_the_last_writer_has_them() {
        let mapping = mapping();
        let of = |id: &str, body: Value| delivery(&mapping, id, &body);
        let tables = mapping.tables();
        // `a` is deleted with its child, `b` takes its key and `c` takes the key of `b`.
        let batch =
            [of("a", Value::Null), of("b", json!({"k": 1, "items": []})), of("c", json!({"k": 1, "items": [7]}))];
        let before = [
            claim("a", "items", r#"{"k":1,"flatbed_position":0}"#),
            claim("a", "orders", r#"{"k":1}"#),
            claim("b", "orders", r#"{"k":2}"#),
        ];
        assert_eq!(
            shown(&steps(tables, &batch, &before, &[])),
            r#"-1x1, -0x2, +0[2.0], +1[2.1], release 3, claim {"k":1,"flatbed_position":0}=2 {"k":1}=2"#
        );
        // Unchanged rows are written again, and deleted before only in replaced tables.
        let batch = [of("a", json!({"k": 1, "items": [7]}))];
        let before = [claim("a", "orders", r#"{"k":1}"#), claim("a", "items", r#"{"k":1,"flatbed_position":0}"#)];
        let claims = r#"claim {"k":1,"flatbed_position":0}=0 {"k":1}=0"#;
        assert_eq!(shown(&steps(tables, &batch, &before, &[])), format!("+0[0.0], +1[0.1], {claims}"));
        assert_eq!(
            shown(&steps(tables, &batch, &before, &[true, true])),
            format!("-1x1, -0x1, +0[0.0], +1[0.1], {claims}")
        );
        assert_eq!(shown(&steps(tables, &[of("z", Value::Null)], &[], &[])), "");
        // Rows of other documents that refer to a deleted row are deleted too.
        let before = [claim("b", "orders", r#"{"k":2}"#)];
        let steps = with_children(tables, steps(tables, &[of("b", Value::Null)], &before, &[]));
        assert_eq!(shown(&steps), "-1x1, -0x1, release 1");
        let Step::Leave { columns, .. } = &steps[0] else { panic!() };
        assert_eq!(*columns, ["k"]);
    }

    #[test]
    fn parts_are_bounded() {
        let lengths = |sizes: &[usize], count: usize, bytes: usize| {
            parts(sizes, count, bytes, |size| *size).iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[1; 7], 3, 100), [3, 3, 1]);
        assert_eq!(lengths(&[5, 5, 5, 20, 1], 9, 10), [2, 1, 1, 1]);
        assert_eq!(lengths(&[], 3, 3), [0; 0]);
    }
}
