//! Objects of many documents as Parquet, compressed by Snappy.
//!
//! A row has `flatbed_id`, `flatbed_rev`, `flatbed_seq` and `flatbed_deleted` before its table's columns, which have
//! their declared types. Without tables, a column `doc` has the product as JSON. Each document of an object has at
//! least one row in each table: a document without rows there, or a deletion, has one with `flatbed_deleted` and nulls.
//! Readers use the rows of a document's highest sequence, and none if that row is deleted.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray, FixedLenByteArrayType, Int32Type,
    Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{PrimitiveTypeBuilder, Type as Field};

use crate::datum::{Datum, Type};
use crate::mapping::Table;
use crate::output::{Delivery, DeliveryState};
use crate::rows::Product;
use crate::time::{Moment, day_of};

/// Columns before a table's own, whose names cannot begin with `flatbed_`.
const OWN: [&str; 4] = ["flatbed_id", "flatbed_rev", "flatbed_seq", "flatbed_deleted"];

/// The most decimal digits in an INT64 and in 16 bytes.
const SHORT_DIGITS: usize = 18;
const LONG_DIGITS: usize = 38;

/// The reason why a file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ParquetFailure {
    /// A converted value that still does not fit its column's type, with the column's name.
    #[error("a value of the column {0:?} cannot be written")]
    Value(String),
    /// An error of the library.
    #[error("{0}")]
    Library(#[from] ParquetError),
}

type Result<T> = std::result::Result<T, ParquetFailure>;

/// Returns the approximate uncompressed bytes of a delivery in a file.
pub fn bytes_of(delivery: &Delivery) -> usize {
    let own = 64 + delivery.id.len() + delivery.rev.len() + delivery.seq.len();
    match &delivery.state {
        DeliveryState::Is(Product::Json(text)) => own + text.len(),
        DeliveryState::Is(Product::Rows(rows)) => {
            rows.iter().map(|row| own + row.values.iter().map(Datum::bytes).sum::<usize>()).sum::<usize>().max(own)
        }
        DeliveryState::Is(Product::Nothing) | DeliveryState::Gone => own,
    }
}

/// A row with its document. Values are `None` for a document without rows.
struct Row<'r> {
    delivery: &'r Delivery,
    values: Option<&'r [Datum]>,
    json: Option<&'r str>,
}

/// Returns a file with the rows of one table, which has this index in the mapping, or without tables with the products.
pub fn file<'d>(table: Option<(usize, &Table)>, deliveries: impl Iterator<Item = &'d Delivery>) -> Result<Vec<u8>> {
    let mut rows = Vec::new();
    for delivery in deliveries {
        let before = rows.len();
        match (&delivery.state, table) {
            (DeliveryState::Is(Product::Rows(all)), Some((at, _))) => {
                let own = all.iter().filter(|row| row.table == at);
                rows.extend(own.map(|row| Row { delivery, values: Some(&row.values), json: None }));
            }
            (DeliveryState::Is(Product::Json(text)), None) => {
                rows.push(Row { delivery, values: None, json: Some(text) })
            }
            _ => {}
        }
        if rows.len() == before {
            rows.push(Row { delivery, values: None, json: None });
        }
    }
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema(table)?), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let text = |text: &str| ByteArray::from(text.as_bytes().to_vec());
    write::<ByteArrayType>(&mut group, rows.iter().map(|row| Some(text(&row.delivery.id))))?;
    write::<ByteArrayType>(&mut group, rows.iter().map(|row| Some(text(&row.delivery.rev))))?;
    write::<ByteArrayType>(&mut group, rows.iter().map(|row| Some(text(&row.delivery.seq))))?;
    write::<BoolType>(&mut group, rows.iter().map(|row| Some(row.values.is_none() && row.json.is_none())))?;
    match table {
        None => write::<ByteArrayType>(&mut group, rows.iter().map(|row| row.json.map(text)))?,
        Some((_, table)) => {
            for (at, column) in table.columns.iter().enumerate() {
                let values =
                    rows.iter().map(|row| row.values.and_then(|values| values.get(at)).unwrap_or(&Datum::Null));
                column_of(&mut group, column.kind, values)
                    .map_err(|failure| failure.unwrap_or_else(|| ParquetFailure::Value(column.name.clone())))?;
            }
        }
    }
    group.close()?;
    Ok(writer.into_inner()?)
}

fn field(
    name: &str,
    physical: Physical,
    logical: Option<LogicalType>,
    repetition: Repetition,
) -> PrimitiveTypeBuilder<'_> {
    Field::primitive_type_builder(name, physical).with_logical_type(logical).with_repetition(repetition)
}

fn schema(table: Option<(usize, &Table)>) -> Result<Field> {
    let mut fields = Vec::new();
    for name in OWN {
        let (physical, logical) = match name {
            "flatbed_deleted" => (Physical::BOOLEAN, None),
            _ => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        fields.push(Arc::new(field(name, physical, logical, Repetition::REQUIRED).build()?));
    }
    match table {
        None => {
            let doc = field("doc", Physical::BYTE_ARRAY, Some(LogicalType::Json), Repetition::OPTIONAL);
            fields.push(Arc::new(doc.build()?));
        }
        Some((_, table)) => {
            for column in &table.columns {
                let text = (Physical::BYTE_ARRAY, Some(LogicalType::String));
                let (physical, logical) = match column.kind {
                    Some(Type::Integer(..=32)) => (Physical::INT32, None),
                    Some(Type::Integer(_)) => (Physical::INT64, None),
                    Some(Type::Float) => (Physical::DOUBLE, None),
                    Some(Type::Boolean) => (Physical::BOOLEAN, None),
                    Some(Type::Date) => (Physical::INT32, Some(LogicalType::Date)),
                    Some(Type::Timestamp) => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
                    Some(Type::Json) => (Physical::BYTE_ARRAY, Some(LogicalType::Json)),
                    Some(Type::Numeric(Some((precision @ 1..=LONG_DIGITS, scale)))) => {
                        let number = |of: usize| i32::try_from(of).unwrap_or(0);
                        let logical = LogicalType::decimal(number(scale), number(precision));
                        let (precision, scale) = (number(precision), number(scale));
                        let physical = match precision {
                            precision if precision <= number(SHORT_DIGITS) => Physical::INT64,
                            _ => Physical::FIXED_LEN_BYTE_ARRAY,
                        };
                        let length = if physical == Physical::INT64 { -1 } else { 16 };
                        let decimal = field(&column.name, physical, Some(logical), Repetition::OPTIONAL);
                        let decimal = decimal.with_length(length).with_precision(precision).with_scale(scale);
                        fields.push(Arc::new(decimal.build()?));
                        continue;
                    }
                    Some(Type::Text(_) | Type::Numeric(_) | Type::Bytes) | None => text,
                };
                fields.push(Arc::new(field(&column.name, physical, logical, Repetition::OPTIONAL).build()?));
            }
        }
    }
    Ok(Field::group_type_builder("flatbed").with_fields(fields).build()?)
}

/// Writes the next column; `None` is null.
fn write<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<()> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("more columns than there are".to_owned()).into());
    };
    let (mut levels, mut present) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    // A required column has no levels.
    column.typed::<T>().write_batch(&present, Some(&levels), None)?;
    column.close()?;
    Ok(())
}

/// Converts a value for a column. `Err(None)`: the value does not fit the type.
fn column_of<'v>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    kind: Option<Type>,
    values: impl Iterator<Item = &'v Datum>,
) -> std::result::Result<(), Option<ParquetFailure>> {
    fn all<'v, T>(
        values: impl Iterator<Item = &'v Datum>,
        of: impl Fn(&Datum) -> Option<T>,
    ) -> std::result::Result<std::vec::IntoIter<Option<T>>, Option<ParquetFailure>> {
        let made: Option<Vec<_>> = values
            .map(|datum| match datum {
                Datum::Null => Some(None),
                datum => of(datum).map(Some),
            })
            .collect();
        made.map(Vec::into_iter).ok_or(None)
    }
    let parsed = |datum: &Datum| match datum {
        Datum::Number(text) => text.parse::<i64>().ok(),
        _ => None,
    };
    match kind {
        Some(Type::Integer(..=32)) => {
            let values = all(values, |datum| i32::try_from(parsed(datum)?).ok())?;
            write::<Int32Type>(group, values).map_err(Some)
        }
        Some(Type::Integer(_)) => write::<Int64Type>(group, all(values, parsed)?).map_err(Some),
        Some(Type::Float) => {
            let double = |datum: &Datum| match datum {
                Datum::Number(text) => text.parse::<f64>().ok().filter(|double| double.is_finite()),
                _ => None,
            };
            write::<DoubleType>(group, all(values, double)?).map_err(Some)
        }
        Some(Type::Boolean) => {
            let boolean = |datum: &Datum| match datum {
                Datum::Bool(is) => Some(*is),
                _ => None,
            };
            write::<BoolType>(group, all(values, boolean)?).map_err(Some)
        }
        Some(Type::Date) => {
            let day = |datum: &Datum| match datum {
                Datum::Text(text) => i32::try_from(day_of(text)?).ok(),
                _ => None,
            };
            write::<Int32Type>(group, all(values, day)?).map_err(Some)
        }
        Some(Type::Timestamp) => {
            let micros = |datum: &Datum| match datum {
                Datum::Text(text) => Moment::parse(text).map(Moment::microseconds),
                _ => None,
            };
            write::<Int64Type>(group, all(values, micros)?).map_err(Some)
        }
        Some(Type::Numeric(Some((1..=SHORT_DIGITS, scale)))) => {
            let values = all(values, |datum| i64::try_from(unscaled(datum, scale)?).ok())?;
            write::<Int64Type>(group, values).map_err(Some)
        }
        Some(Type::Numeric(Some((1..=LONG_DIGITS, scale)))) => {
            let bytes = |datum: &Datum| {
                Some(FixedLenByteArray::from(ByteArray::from(unscaled(datum, scale)?.to_be_bytes().to_vec())))
            };
            write::<FixedLenByteArrayType>(group, all(values, bytes)?).map_err(Some)
        }
        Some(Type::Text(_) | Type::Numeric(_) | Type::Json | Type::Bytes) | None => {
            let text = |datum: &Datum| {
                Some(match datum {
                    Datum::Text(text) | Datum::Number(text) | Datum::Json(text) => text.as_bytes().to_vec(),
                    Datum::Bool(is) => is.to_string().into_bytes(),
                    Datum::Null => return None,
                })
            };
            write::<ByteArrayType>(group, all(values, |datum| text(datum).map(ByteArray::from))?).map_err(Some)
        }
    }
}

/// Returns a number of a declared scale as an integer in units of its last digit.
fn unscaled(datum: &Datum, scale: usize) -> Option<i128> {
    let Datum::Number(text) = datum else { return None };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    // A converted number has the declared number of fractional digits; missing ones are zeros.
    (fraction.len() <= scale).then(|| format!("{whole}{fraction:0<scale$}").parse().ok())?
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use serde_json::{Value, json};

    use super::*;
    use crate::mapping::Mapping;
    use crate::rows::produce;

    fn read(file: Vec<u8>) -> Vec<String> {
        let reader = SerializedFileReader::new(Bytes::from(file)).unwrap();
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|row| row.unwrap().to_string()).collect()
    }

    fn delivery(mapping: &Mapping, id: &str, document: Value) -> Delivery {
        let text = document.to_string();
        let state = match document {
            Value::Null => DeliveryState::Gone,
            _ => {
                let value = flatbed_flatten::json::parse(text.as_bytes(), &Default::default()).unwrap();
                DeliveryState::Is(produce(mapping, &value).unwrap())
            }
        };
        Delivery { id: id.to_owned(), rev: "1-x".to_owned(), seq: "7".to_owned(), state, attachments: Vec::new() }
    }

    #[test]
    fn every_type_is_read_as_it_was_written() {
        let columns = json!([
            {"name": "id", "path": "$._id"},
            {"name": "small", "path": "$.n", "type": "smallint"}, {"name": "big", "path": "$.big", "type": "bigint"},
            {"name": "price", "path": "$.price", "type": "numeric(6,2)"}, {"name": "long", "path": "$.long", "type": "numeric(30,3)"},
            {"name": "any", "path": "$.price", "type": "numeric"}, {"name": "float", "path": "$.price", "type": "float"},
            {"name": "is", "path": "$.is", "type": "boolean"}, {"name": "day", "path": "$.day", "type": "date"},
            {"name": "at", "path": "$.at", "type": "timestamp"}, {"name": "all", "path": "$.all", "type": "json"}]);
        let mapping =
            Mapping::from_value(json!({"tables": [{"name": "t", "primary_key": "id", "columns": columns}]})).unwrap();
        let whole = json!({"_id": "a", "n": -5, "big": i64::MAX, "price": "-12.5", "long": "123456789012345678901234567.891",
            "is": true, "day": "1969-12-31", "at": "2026-11-23T14:05:09.123456Z", "all": {"x": [1]}});
        let deliveries = [
            delivery(&mapping, "a", whole),
            delivery(&mapping, "b", json!({"_id": "b"})),
            delivery(&mapping, "c", Value::Null),
        ];
        let table = mapping.tables().first().map(|table| (0, table));
        let rows = read(file(table, deliveries.iter()).unwrap());
        assert_eq!(
            rows,
            [
                concat!(
                    r#"{flatbed_id: "a", flatbed_rev: "1-x", flatbed_seq: "7", flatbed_deleted: false, id: "a", small: -5, big: 9223372036854775807, "#,
                    r#"price: -12.50, long: 123456789012345678901234567.891, any: "-12.5", float: -1.25E1, is: true, day: 1969-12-31, "#,
                    r#"at: 2026-11-23 14:05:09.123456 +00:00, all: "{"x":[1]}"}"#
                ),
                concat!(
                    r#"{flatbed_id: "b", flatbed_rev: "1-x", flatbed_seq: "7", flatbed_deleted: false, id: "b", small: null, big: null, "#,
                    r#"price: null, long: null, any: null, float: null, is: null, day: null, at: null, all: null}"#
                ),
                concat!(
                    r#"{flatbed_id: "c", flatbed_rev: "1-x", flatbed_seq: "7", flatbed_deleted: true, id: null, small: null, big: null, "#,
                    r#"price: null, long: null, any: null, float: null, is: null, day: null, at: null, all: null}"#
                ),
            ]
        );
        assert!(deliveries.iter().all(|delivery| bytes_of(delivery) > 64));
    }

    #[test]
    fn documents_without_rows_say_so_in_each_table() {
        let mapping = Mapping::from_value(json!({"tables": [
            {"name": "o", "primary_key": "id", "columns": {"id": "$._id"}},
            {"name": "i", "parent": "o", "foreign_key": {"column": "o", "references": "id"}, "source_array": "$.items", "columns": {"n": "$"}}]}))
        .unwrap();
        let deliveries = [
            delivery(&mapping, "a", json!({"_id": "a", "items": [1, 2]})),
            delivery(&mapping, "b", json!({"_id": "b"})),
        ];
        let items = read(file(Some((1, &mapping.tables()[1])), deliveries.iter()).unwrap());
        let begin = |row: &String| {
            row.split(", ")
                .filter(|part| !part.contains("rev") && !part.contains("seq"))
                .take(2)
                .collect::<Vec<_>>()
                .join(",")
        };
        assert_eq!(
            items.iter().map(begin).collect::<Vec<_>>(),
            [
                r#"{flatbed_id: "a",flatbed_deleted: false"#,
                r#"{flatbed_id: "a",flatbed_deleted: false"#,
                r#"{flatbed_id: "b",flatbed_deleted: true"#
            ]
        );
        let orders = file(Some((0, &mapping.tables()[0])), deliveries.iter()).unwrap();
        assert_eq!(read(orders).len(), 2);
    }

    #[test]
    fn documents_as_they_are() {
        let mapping = Mapping::identity();
        let deliveries = [delivery(&mapping, "a", json!({"_id": "a"})), delivery(&mapping, "b", Value::Null)];
        assert_eq!(
            read(file(None, deliveries.iter()).unwrap()),
            [
                r#"{flatbed_id: "a", flatbed_rev: "1-x", flatbed_seq: "7", flatbed_deleted: false, doc: "{"_id":"a"}"}"#,
                r#"{flatbed_id: "b", flatbed_rev: "1-x", flatbed_seq: "7", flatbed_deleted: true, doc: null}"#,
            ]
        );
        assert!(read(file(None, std::iter::empty()).unwrap()).is_empty());
    }
}
