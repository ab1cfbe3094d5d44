//! Checks that a database's tables can hold a mapping's rows.
//!
//! A table that would silently lose data, or fail for each document, does not fit and stops the job. Failures of single
//! documents, such as a text that is too long for its column, show at delivery.

use std::collections::BTreeSet;

use crate::datum::Type;
use crate::mapping::Table;
use crate::output::tables::dialect::key_of;

/// The values that a column accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Any value, unchanged: SQLite's columns.
    Any,
    /// Texts; numbers and dates are converted to texts.
    Text,
    /// Integers.
    Integer,
    /// Decimals with this many fractional digits, or negative: trailing zeros; `None`: unlimited.
    Numeric(Option<i32>),
    /// Floats of at most 64 bits.
    Float {
        /// True for 64 bits.
        is_double: bool,
    },
    /// Booleans.
    Boolean,
    /// Dates.
    Date,
    /// Times, with this many fractional digits of a second.
    Timestamp(u32),
    /// JSON.
    Json,
    /// Bytes.
    Bytes,
    /// Another type, written as a text that the database parses.
    Other,
}

/// A column of a database's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseColumn {
    /// Its name.
    pub name: String,
    /// Its type, in the notation of the database's casts.
    pub kind: String,
    /// The accepted values.
    pub family: Family,
    /// True if each row must provide a value.
    pub is_required: bool,
    /// True if its collation equates different texts, such as in another case or with other accents.
    pub is_folding: bool,
}

/// A table of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseTable {
    /// Its columns.
    pub columns: Vec<DatabaseColumn>,
    /// The column sets of its unique keys.
    pub keys: Vec<BTreeSet<String>>,
    /// The tables with foreign keys to it.
    pub referenced_by: Vec<String>,
    /// The storage engine, if it lacks transactions.
    pub engine: Option<String>,
}

impl DatabaseTable {
    /// Returns a column by its name.
    pub fn column(&self, name: &str) -> Option<&DatabaseColumn> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// The fractional digits of a second in declared times.
const SECOND_DIGITS: u32 = 6;

/// Returns whether values of a declared type are stored without loss.
fn can_store(family: Family, declared: Type) -> bool {
    match (family, declared) {
        (Family::Any | Family::Text | Family::Other, _) => true,
        (Family::Integer, Type::Integer(_) | Type::Boolean) => true,
        (Family::Integer, Type::Numeric(Some((_, 0)))) => true,
        (Family::Numeric(scale), Type::Integer(_) | Type::Boolean) => scale.is_none_or(|scale| scale >= 0),
        (Family::Numeric(None), Type::Numeric(_) | Type::Float) => true,
        (Family::Numeric(Some(scale)), Type::Numeric(Some((_, declared)))) => {
            i32::try_from(declared).is_ok_and(|declared| declared <= scale)
        }
        (Family::Float { is_double }, Type::Float) => is_double,
        (Family::Boolean, Type::Boolean) => true,
        (Family::Date, Type::Date) => true,
        (Family::Timestamp(digits), Type::Timestamp) => digits >= SECOND_DIGITS,
        (Family::Timestamp(_), Type::Date) => true,
        (Family::Json, Type::Json) => true,
        (Family::Bytes, Type::Bytes) => true,
        _ => false,
    }
}

/// Returns the first column of a mapping's table that the database's lacks. It may be added later, as a table may.
pub fn missing<'t>(table: &'t Table, found: &DatabaseTable) -> Option<&'t str> {
    let names = table.columns.iter().map(|column| &column.name).chain(&table.soft_delete_column);
    names.map(String::as_str).find(|name| found.column(name).is_none())
}

/// Returns the reason why a mapping's rows cannot be written to a table that lacks no column. `None`: they can.
pub fn misfit(table: &Table, found: &DatabaseTable) -> Option<String> {
    if let Some(engine) = &found.engine {
        return Some(format!("its engine {engine} has no transactions"));
    }
    for column in &table.columns {
        let Some(there) = found.column(&column.name) else { continue };
        if let Some(declared) = column.kind.filter(|declared| !can_store(there.family, *declared)) {
            let rounding = match (there.family, declared) {
                (Family::Timestamp(digits), Type::Timestamp) => format!(" with {digits} digits of a second"),
                (Family::Numeric(Some(scale)), _) => format!(" with {scale} digits behind the point"),
                _ => String::new(),
            };
            let kind = &there.kind;
            return Some(format!("the column {} is {kind}{rounding}, which does not hold {declared}", column.name));
        }
    }
    if let Some(soft) = &table.soft_delete_column {
        // The worker's own timestamp, which may be rounded.
        let is_moment = |family| matches!(family, Family::Timestamp(_)) || can_store(family, Type::Timestamp);
        let unable = |there: &&DatabaseColumn| !is_moment(there.family) || there.is_required;
        if let Some(there) = found.column(soft).filter(unable) {
            return Some(format!("the column {soft} is {}, which does not hold a time or null", there.kind));
        }
    }
    let is_known = |name: &String| {
        table.columns.iter().any(|column| column.name == *name) || table.soft_delete_column.as_ref() == Some(name)
    };
    if let Some(column) = found.columns.iter().find(|column| column.is_required && !is_known(&column.name)) {
        return Some(format!("the column {} must have a value, and the mapping gives it none", column.name));
    }
    let folding = key_of(table).into_iter().filter_map(|name| found.column(name)).find(|column| column.is_folding);
    if let Some(column) = folding {
        return Some(format!("the column {} is a key and takes texts for the same that are not", column.name));
    }
    let key: BTreeSet<String> = key_of(table).into_iter().map(str::to_owned).collect();
    if !found.keys.contains(&key) {
        return Some(format!("no key of it is ({})", key_of(table).join(", ")));
    }
    None
}

/// Returns which tables' rows can be deleted and inserted again in one transaction without loss: those without foreign
/// columns and without references from tables outside of the mapping.
pub fn is_replaceable(tables: &[Table], found: &[DatabaseTable]) -> Vec<bool> {
    let is_own = |(table, found): (&Table, &DatabaseTable)| {
        let is_known = |name: &String| {
            table.columns.iter().any(|column| column.name == *name) || table.soft_delete_column.as_ref() == Some(name)
        };
        found.columns.iter().all(|column| is_known(&column.name))
            && found.referenced_by.iter().all(|other| tables.iter().any(|table| table.name == *other))
    };
    let mut all: Vec<bool> = tables.iter().zip(found).map(is_own).collect();
    // A parent's rows cannot be deleted while its children's rows stay.
    for (at, table) in tables.iter().enumerate().rev() {
        if let Some(foreign) = &table.foreign_key
            && all.get(at) == Some(&false)
            && let Some(parent) = all.get_mut(foreign.parent)
        {
            *parent = false;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mapping::Mapping;

    fn column(name: &str, family: Family) -> DatabaseColumn {
        DatabaseColumn {
            name: name.to_owned(),
            kind: format!("{family:?}"),
            family,
            is_required: false,
            is_folding: false,
        }
    }

    fn found(columns: &[(&str, Family)], key: &[&str]) -> DatabaseTable {
        let columns = columns.iter().map(|(name, family)| column(name, *family)).collect();
        DatabaseTable {
            columns,
            keys: vec![key.iter().map(|name| (*name).to_owned()).collect()],
            ..DatabaseTable::default()
        }
    }

    fn mapping() -> Mapping {
        Mapping::from_value(json!({"tables": [
            {"name": "t", "primary_key": "id", "on_delete": "soft_delete", "columns": [{"name": "id", "path": "$._id"},
                {"name": "n", "path": "$.n", "type": "numeric(6,2)"}]},
            {"name": "c", "parent": "t", "foreign_key": {"column": "id", "references": "id"}, "source_array": "$.c", "columns": {"v": "$"}}]}))
        .unwrap()
    }

    #[test]
    fn tables_that_fit_and_others() {
        let mapping = mapping();
        let table = &mapping.tables()[0];
        let at = Family::Timestamp(0);
        let of = |columns: &[(&str, Family)], key: &[&str]| misfit(table, &found(columns, key));
        let whole = [("id", Family::Text), ("n", Family::Numeric(Some(2))), ("deleted_at", at)];
        assert_eq!(of(&whole, &["id"]), None);
        assert_eq!(of(&whole, &["n"]).unwrap(), "no key of it is (id)");
        assert_eq!(of(&whole, &["id", "n"]).unwrap(), "no key of it is (id)");
        let lacking = |columns: &[(&str, Family)]| missing(table, &found(columns, &["id"])).map(str::to_owned);
        assert_eq!([lacking(&whole), lacking(&whole[..2])], [None, Some("deleted_at".to_owned())]);
        assert_eq!(lacking(&whole[1..]).unwrap(), "id");
        for narrow in [
            Family::Numeric(Some(1)),
            Family::Numeric(Some(-2)),
            Family::Integer,
            Family::Float { is_double: true },
            Family::Json,
        ] {
            let reason = of(&[("id", Family::Other), ("n", narrow), ("deleted_at", at)], &["id"]).unwrap();
            assert!(reason.starts_with(&format!("the column n is {narrow:?}")), "{reason}");
            assert!(reason.ends_with(", which does not hold numeric(6,2)"), "{reason}");
        }
        let mut further = found(&whole, &["id"]);
        further.columns.push(DatabaseColumn { is_required: true, ..column("x", Family::Text) });
        assert_eq!(misfit(table, &further).unwrap(), "the column x must have a value, and the mapping gives it none");
    }

    #[test]
    fn what_would_be_rounded_does_not_fit() {
        let whole = Type::Integer(64);
        for (family, declared, fits) in [
            (Family::Timestamp(6), Type::Timestamp, true),
            (Family::Timestamp(3), Type::Timestamp, false),
            (Family::Timestamp(0), Type::Timestamp, false),
            (Family::Timestamp(0), Type::Date, true),
            (Family::Numeric(Some(0)), whole, true),
            (Family::Numeric(Some(-2)), whole, false),
            (Family::Numeric(None), Type::Numeric(None), true),
            (Family::Numeric(Some(9)), Type::Numeric(None), false),
        ] {
            assert_eq!(can_store(family, declared), fits, "{family:?} {declared}");
        }
        let mapping = mapping();
        let columns = [("id", Family::Text), ("n", Family::Numeric(None)), ("deleted_at", Family::Any)];
        let table = DatabaseTable { engine: Some("MyISAM".to_owned()), ..found(&columns, &["id"]) };
        assert_eq!(misfit(&mapping.tables()[0], &table).unwrap(), "its engine MyISAM has no transactions");
    }

    #[test]
    fn rows_that_somebody_else_has_a_part_in_are_not_replaced() {
        let mapping = mapping();
        let parent = [("id", Family::Text), ("n", Family::Any), ("deleted_at", Family::Any)];
        let child = [("id", Family::Text), ("v", Family::Any), ("flatbed_position", Family::Any)];
        let both = |parent: &[(&str, Family)], child: &[(&str, Family)], referenced_by: &[&str]| {
            let mut parent = found(parent, &["id"]);
            parent.referenced_by = referenced_by.iter().map(|name| (*name).to_owned()).collect();
            is_replaceable(mapping.tables(), &[parent, found(child, &["id"])])
        };
        assert_eq!(both(&parent, &child, &["c"]), [true, true]);
        assert_eq!(both(&parent, &child, &["c", "notes"]), [false, true]);
        let wider: Vec<_> = child.iter().copied().chain([("note", Family::Text)]).collect();
        assert_eq!(both(&parent, &wider, &["c"]), [false, false]);
    }
}
