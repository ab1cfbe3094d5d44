//! SQL statements of MySQL and MariaDB, and the conversion of values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use mysql_async::Value;

use crate::datum::{Datum, Type};
use crate::decimal::Decimal;
use crate::mapping::Table;
use crate::output::tables::dialect::{Dialect, key_of};
use crate::output::tables::fit::{DatabaseTable, Family};

/// The numbers of rows per statement. The largest that fits is used, so that few statements are prepared.
const LENGTHS: [usize; 4] = [512, 64, 8, 1];

const PLACES_MAX: usize = 60_000;

const CHECKPOINTS: &[&str] = &["CREATE TABLE IF NOT EXISTS flatbed_checkpoints (
    job VARBINARY(800) PRIMARY KEY, epoch BIGINT NOT NULL, checkpoint LONGTEXT NOT NULL) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"];

/// Texts are stored as bytes, so that no collation equates two ids. A key may be longer than an index allows, so the
/// index is on its hash.
const ROWS: &[&str] = &["CREATE TABLE IF NOT EXISTS flatbed_rows (
    job VARBINARY(800) NOT NULL, tbl VARBINARY(63) NOT NULL, hash BINARY(32) NOT NULL, `key` LONGBLOB NOT NULL,
    document VARBINARY(2200) NOT NULL, revision VARBINARY(200) NOT NULL,
    PRIMARY KEY (job, tbl, hash), INDEX flatbed_rows_document (job, document)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"];

pub(super) static MYSQL: Dialect = Dialect {
    quote: '`',
    kind,
    moment: "DATETIME(6)",
    options: " ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin",
    is_to_index: false,
    checkpoints: CHECKPOINTS,
    rows: ROWS,
};

pub(super) static MARIADB: Dialect = Dialect {
    options: " ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin",
    quote: MYSQL.quote,
    kind,
    moment: MYSQL.moment,
    is_to_index: false,
    checkpoints: CHECKPOINTS,
    rows: ROWS,
};

/// An index has at most 3,072 bytes, with four bytes per character.
fn kind(kind: Option<Type>, texts: Option<usize>) -> String {
    let indexed = if texts.is_some_and(|texts| texts > 1) { 180 } else { 700 };
    match (kind, texts) {
        (Some(Type::Integer(16)), _) => " SMALLINT".to_owned(),
        (Some(Type::Integer(32)), _) => " INT".to_owned(),
        (Some(Type::Integer(_)), _) => " BIGINT".to_owned(),
        (Some(Type::Numeric(Some((precision, scale)))), _) if precision <= 65 && scale <= 30 => {
            format!(" DECIMAL({precision},{scale})")
        }
        (Some(Type::Float), _) => " DOUBLE".to_owned(),
        (Some(Type::Boolean), _) => " BOOLEAN".to_owned(),
        (Some(Type::Date), _) => " DATE".to_owned(),
        (Some(Type::Timestamp), _) => " DATETIME(6)".to_owned(),
        (Some(Type::Bytes), Some(_)) => format!(" VARBINARY({indexed})"),
        (Some(Type::Bytes), None) => " LONGBLOB".to_owned(),
        (Some(Type::Json), None) => " JSON".to_owned(),
        (Some(Type::Text(Some(length))), Some(_)) => format!(" VARCHAR({})", length.clamp(1, indexed)),
        (Some(Type::Text(Some(length @ 1..=255))), None) => format!(" VARCHAR({length})"),
        // Includes decimals without a scale, since no type preserves each of them.
        (_, Some(_)) => format!(" VARCHAR({indexed})"),
        (_, None) => " LONGTEXT".to_owned(),
    }
}

/// Returns what a column accepts, from its type's name, scale and fractional digits of a second.
pub(super) fn family(name: &str, scale: Option<i32>, digits: Option<u32>) -> Family {
    match name.to_ascii_lowercase().as_str() {
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => Family::Text,
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => Family::Integer,
        "decimal" => Family::Numeric(Some(scale.unwrap_or(0))),
        name @ ("float" | "double") => Family::Float { is_double: name == "double" },
        "date" => Family::Date,
        "datetime" | "timestamp" => Family::Timestamp(digits.unwrap_or(0)),
        "json" => Family::Json,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Family::Bytes,
        _ => Family::Other,
    }
}

/// Splits a list into parts of the lengths of [`LENGTHS`], with a number of values per item.
pub(super) fn lengths<T>(items: &[T], values: usize) -> Vec<&[T]> {
    let (mut parts, mut rest) = (Vec::new(), items);
    while !rest.is_empty() {
        let fits =
            |length: &&usize| **length <= rest.len() && (**length * values.max(1) <= PLACES_MAX || **length == 1);
        let length = LENGTHS.iter().find(fits).copied().unwrap_or(1);
        let Some((part, left)) = rest.split_at_checked(length) else { break };
        parts.push(part);
        rest = left;
    }
    parts
}

/// Converts the values of columns. The error names a column that would change its value.
pub(super) fn values(
    names: &[&str],
    row: &[Datum],
    table: &Table,
    found: &DatabaseTable,
) -> Result<Vec<Value>, String> {
    let one = |(name, datum): (&&str, &Datum)| {
        let declared = table.columns.iter().find(|column| column.name == *name).and_then(|column| column.kind);
        let family = found.column(name).map_or(Family::Other, |column| column.family);
        value(datum, family, declared).ok_or_else(|| format!("{}.{name}: the value has a fraction", table.name))
    };
    names.iter().zip(row).map(one).collect()
}

fn value(datum: &Datum, family: Family, declared: Option<Type>) -> Option<Value> {
    let bytes = |text: &str| Value::Bytes(text.as_bytes().to_vec());
    Some(match (datum, family) {
        (Datum::Null, _) => Value::NULL,
        (Datum::Json(text), Family::Json) => bytes(text),
        (datum, Family::Json) => {
            let mut out = Vec::new();
            datum.write(&mut out);
            Value::Bytes(out)
        }
        (Datum::Text(text), _) if declared == Some(Type::Bytes) => {
            Value::Bytes(BASE64.decode(text).unwrap_or_default())
        }
        (Datum::Bool(value), Family::Text) => bytes(if *value { "true" } else { "false" }),
        (Datum::Bool(value), _) => Value::Int(i64::from(*value)),
        // The server would round the number.
        (Datum::Number(text), Family::Integer) => {
            return Decimal::parse(text).filter(Decimal::is_whole).map(|number| bytes(&number.truncated().to_string()));
        }
        // The server's form has no zone; sessions are in UTC.
        (Datum::Text(text), Family::Timestamp(_) | Family::Date) if declared == Some(Type::Timestamp) => {
            bytes(&text.replace('T', " ").replace('Z', ""))
        }
        (Datum::Number(text) | Datum::Text(text) | Datum::Json(text), _) => bytes(text),
    })
}

/// Inserts rows; overwrites existing ones if the table has no other unique key.
pub(super) fn insert(dialect: &Dialect, table: &Table, rows: usize, is_over: bool) -> String {
    let mut columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let mut places = vec!["?"; columns.len()];
    let key = key_of(table);
    let name = |column: &str| format!("{0} = VALUES({0})", dialect.quoted(column));
    let mut sets: Vec<String> =
        columns.iter().filter(|column| !key.contains(*column)).map(|column| name(column)).collect();
    if let Some(column) = &table.soft_delete_column {
        columns.push(column);
        places.push("NULL");
        sets.push(name(column));
    }
    // The clause must not be empty.
    if let (true, Some(first)) = (sets.is_empty(), key.first()) {
        sets.push(name(first));
    }
    let over = if is_over { format!(" ON DUPLICATE KEY UPDATE {}", sets.join(", ")) } else { String::new() };
    format!(
        "INSERT INTO {} ({}) VALUES {}{over}",
        dialect.quoted(&table.name),
        dialect.list(columns),
        vec![format!("({})", places.join(", ")); rows].join(", ")
    )
}

fn condition(dialect: &Dialect, columns: &[&str]) -> String {
    columns.iter().map(|column| format!("{} = ?", dialect.quoted(column))).collect::<Vec<_>>().join(" AND ")
}

/// Returns a statement that checks for a row, and one that overwrites it. Values: the columns outside of the key, then
/// those of the key.
pub(super) fn overwrite(dialect: &Dialect, table: &Table) -> (String, Option<String>) {
    let (name, key) = (dialect.quoted(&table.name), key_of(table));
    let condition = condition(dialect, &key);
    let names = table.columns.iter().map(|column| column.name.as_str()).filter(|column| !key.contains(column));
    let mut sets: Vec<String> = names.map(|column| format!("{} = ?", dialect.quoted(column))).collect();
    sets.extend(table.soft_delete_column.iter().map(|column| format!("{} = NULL", dialect.quoted(column))));
    let update = (!sets.is_empty()).then(|| format!("UPDATE {name} SET {} WHERE {condition}", sets.join(", ")));
    (format!("SELECT 1 FROM {name} WHERE {condition} FOR UPDATE"), update)
}

pub(super) fn leave(dialect: &Dialect, table: &str, soft: Option<&str>, columns: &[&str], rows: usize) -> String {
    let conditions = vec![format!("({})", condition(dialect, columns)); rows].join(" OR ");
    let table = dialect.quoted(table);
    match soft {
        None => format!("DELETE FROM {table} WHERE {conditions}"),
        Some(column) => format!("UPDATE {table} SET {} = ? WHERE {conditions}", dialect.quoted(column)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_few_lengths() {
        let of = |count: usize, values: usize| {
            lengths(&vec![0; count], values).iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(of(1_100, 3), [512, 512, 64, 8, 1, 1, 1, 1]);
        // Limited by the placeholders of a statement.
        assert_eq!(of(130, 500), [64, 64, 1, 1]);
        assert_eq!(of(0, 3), [0; 0]);
    }

    #[test]
    fn what_a_column_would_change_is_refused() {
        let number = |text: &str, family: Family| value(&Datum::Number(text.to_owned()), family, None);
        assert_eq!(number("1.5", Family::Integer), None);
        assert_eq!(number("15e-1", Family::Integer), None);
        assert_eq!(number("1.0", Family::Integer), Some(Value::Bytes(b"1".to_vec())));
        assert_eq!(number("1.5", Family::Numeric(Some(2))), Some(Value::Bytes(b"1.5".to_vec())));
        let moment = Datum::Text("2026-02-28T23:30:00.25Z".to_owned());
        let stored = value(&moment, Family::Timestamp(6), Some(Type::Timestamp));
        assert_eq!(stored, Some(Value::Bytes(b"2026-02-28 23:30:00.25".to_vec())));
    }

    #[test]
    fn keys_fit_into_an_index() {
        assert_eq!(kind(None, None), " LONGTEXT");
        assert_eq!([kind(None, Some(1)), kind(None, Some(3))], [" VARCHAR(700)", " VARCHAR(180)"]);
        assert_eq!(kind(Some(Type::Text(Some(9))), Some(1)), " VARCHAR(9)");
        assert_eq!(kind(Some(Type::Numeric(None)), None), " LONGTEXT");
        assert_eq!(kind(Some(Type::Numeric(Some((6, 2)))), Some(1)), " DECIMAL(6,2)");
    }
}
