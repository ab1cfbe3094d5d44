//! SQL statements of PostgreSQL, and the conversion of values.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::datum::{Datum, Type};
use crate::mapping::Table;
use crate::output::tables::dialect::{Dialect, key_of};
use crate::output::tables::fit::{DatabaseTable, Family};

pub(super) static DIALECT: Dialect = Dialect {
    quote: '"',
    kind: |kind, _| format!(" {}", kind.unwrap_or(Type::Text(None))),
    moment: "timestamptz",
    options: "",
    is_to_index: true,
    checkpoints: &["CREATE TABLE IF NOT EXISTS flatbed_checkpoints (
        job text PRIMARY KEY, epoch bigint NOT NULL, checkpoint text NOT NULL)"],
    rows: &[
        "CREATE TABLE IF NOT EXISTS flatbed_rows (
        job text NOT NULL, tbl text NOT NULL, key text NOT NULL, document text NOT NULL, revision text NOT NULL,
        PRIMARY KEY (job, tbl, key))",
        "CREATE INDEX IF NOT EXISTS flatbed_rows_document ON flatbed_rows (job, document)",
    ],
};

/// Writes the checkpoint if the epoch still holds. Values: the job, its epoch, the checkpoint.
pub(super) const FENCE: &str = "UPDATE flatbed_checkpoints SET checkpoint = coalesce($3::text, checkpoint)
    WHERE job = $1::text AND epoch = $2::int8";

/// Reads the claims of documents. Values: the job, the documents, the limit. Uses the index once per document: with `=
/// ANY` the server reads all claims of the job once it estimates many documents. `OFFSET 0` prevents a join.
pub(super) const CLAIMS: &str = "SELECT r.document, r.tbl, r.key FROM unnest($2::text[]) AS d(document)
    CROSS JOIN LATERAL (SELECT document, tbl, key FROM flatbed_rows
        WHERE job = $1::text AND document = d.document OFFSET 0) AS r
    LIMIT $3::int8";

/// Deletes claims. Values: the job, tables, keys, documents.
pub(super) const RELEASE: &str =
    "DELETE FROM flatbed_rows r USING unnest($2::text[], $3::text[], $4::text[]) AS c(tbl, key, document)
    WHERE r.job = $1::text AND r.tbl = c.tbl AND r.key = c.key AND r.document = c.document";

/// Writes claims. Values: the job, tables, keys, documents, revisions.
pub(super) const CLAIM: &str = "INSERT INTO flatbed_rows (job, tbl, key, document, revision) SELECT $1::text, c.*
    FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS c ON CONFLICT (job, tbl, key)
    DO UPDATE SET document = excluded.document, revision = excluded.revision";

pub(super) fn family(name: &str, modifier: i32) -> Family {
    match name {
        "text" | "varchar" | "bpchar" | "name" | "citext" => Family::Text,
        "int2" | "int4" | "int8" => Family::Integer,
        // The scale is a signed number of eleven bits in the modifier.
        "numeric" => Family::Numeric((modifier >= 4).then(|| {
            let scale = (modifier - 4) & 0x7ff;
            if scale < 0x400 { scale } else { scale - 0x800 }
        })),
        "float4" | "float8" => Family::Float { is_double: name == "float8" },
        "bool" => Family::Boolean,
        "date" => Family::Date,
        "timestamp" | "timestamptz" => Family::Timestamp(u32::try_from(modifier).unwrap_or(6)),
        "json" | "jsonb" => Family::Json,
        "bytea" => Family::Bytes,
        _ => Family::Other,
    }
}

/// Returns a value as a text that the server casts to its column's type.
fn text_of(datum: &Datum, (family, declared): (Family, Option<Type>)) -> Option<Cow<'_, str>> {
    let hex = |bytes: &[u8]| {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.filter_map(|digit| char::from_digit(u32::from(digit), 16));
        Some(Cow::Owned("\\x".chars().chain(digits).collect::<String>()))
    };
    match (datum, family) {
        (Datum::Null, _) => None,
        (Datum::Json(text), Family::Json) => Some(Cow::Borrowed(text)),
        (datum, Family::Json) => {
            let mut out = Vec::new();
            datum.write(&mut out);
            Some(Cow::Owned(String::from_utf8(out).unwrap_or_default()))
        }
        (Datum::Text(text), Family::Bytes) if declared == Some(Type::Bytes) => {
            hex(&BASE64.decode(text).unwrap_or_default())
        }
        (Datum::Text(text), Family::Bytes) => hex(text.as_bytes()),
        (Datum::Bool(value), Family::Integer | Family::Numeric(_) | Family::Float { .. }) => {
            Some(Cow::Borrowed(if *value { "1" } else { "0" }))
        }
        (Datum::Bool(value), _) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
        (Datum::Number(text) | Datum::Text(text) | Datum::Json(text), _) => Some(Cow::Borrowed(text)),
    }
}

pub(super) type Kind = (Family, Option<Type>);

/// Returns the accepted and declared types of columns.
pub(super) fn kinds(names: &[&str], table: &Table, found: &DatabaseTable) -> Vec<Kind> {
    let kind = |name: &&str| {
        let declared = table.columns.iter().find(|column| column.name == *name).and_then(|column| column.kind);
        (found.column(name).map_or(Family::Other, |column| column.family), declared)
    };
    names.iter().map(kind).collect()
}

pub(super) fn arrays<'v>(rows: impl Iterator<Item = &'v [Datum]>, kinds: &[Kind]) -> Vec<Vec<Option<Cow<'v, str>>>> {
    let mut arrays: Vec<Vec<Option<Cow<'v, str>>>> = kinds.iter().map(|_| Vec::new()).collect();
    for row in rows {
        for ((datum, kind), array) in row.iter().zip(kinds).zip(&mut arrays) {
            array.push(text_of(datum, *kind));
        }
    }
    arrays
}

fn cast(column: &str, found: &DatabaseTable) -> String {
    // A column that was dropped meanwhile yields an error that names it.
    let kind = found.column(column).map_or("text", |column| column.kind.as_str());
    format!("u.{}::{kind}", DIALECT.quoted(column))
}

fn unnested(columns: &[&str]) -> String {
    let places: Vec<String> = (1..=columns.len()).map(|at| format!("${at}::text[]")).collect();
    format!("unnest({}) AS u({})", places.join(", "), DIALECT.list(columns.iter().copied()))
}

pub(super) fn upsert(table: &Table, found: &DatabaseTable) -> String {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let key = key_of(table);
    let mut values: Vec<String> = columns.iter().map(|column| cast(column, found)).collect();
    let mut names = columns.clone();
    let is_written = |column: &&&str| !key.contains(*column);
    let mut sets: Vec<String> =
        columns.iter().filter(is_written).map(|column| format!("{0} = excluded.{0}", DIALECT.quoted(column))).collect();
    if let Some(column) = &table.soft_delete_column {
        names.push(column);
        values.push("NULL".to_owned());
        sets.push(format!("{} = NULL", DIALECT.quoted(column)));
    }
    let action = if sets.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", sets.join(", ")) };
    format!(
        "INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {action}",
        DIALECT.quoted(&table.name),
        DIALECT.list(names),
        values.join(", "),
        unnested(&columns),
        DIALECT.list(key)
    )
}

pub(super) fn leave(table: &str, soft: Option<&str>, columns: &[&str], found: &DatabaseTable) -> String {
    let table = DIALECT.quoted(table);
    let conditions: Vec<String> =
        columns.iter().map(|column| format!("t.{} = {}", DIALECT.quoted(column), cast(column, found))).collect();
    let (conditions, keys) = (conditions.join(" AND "), unnested(columns));
    match soft {
        None => format!("DELETE FROM {table} t USING {keys} WHERE {conditions}"),
        Some(column) => {
            let kind = found.column(column).map_or("timestamptz", |column| column.kind.as_str());
            let (column, place) = (DIALECT.quoted(column), columns.len() + 1);
            format!("UPDATE {table} t SET {column} = ${place}::text::{kind} FROM {keys} WHERE {conditions}")
        }
    }
}
