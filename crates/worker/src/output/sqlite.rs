//! SQLite: tables in a file, with the worker's own beside them.
//!
//! `flatbed_rows` has the claims, `flatbed_checkpoints` where each job stands. A batch is one transaction: the claims of its
//! documents are read, rows and claims written, and the checkpoint that is reached by it, unless another process has raised the job's
//! epoch meanwhile.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params, params_from_iter};

use super::{Delivery, Refused, State, Target};
use crate::checkpoint::Checkpoint;
use crate::datum::{Datum, Type, key_of_text};
use crate::difference::{Claim, Operation, difference};
use crate::failure::Failure;
use crate::mapping::Table;
use crate::rows::{Product, Row};
use crate::time::Moment;

/// For another that writes to the file.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// Statements that are kept prepared.
const STATEMENTS_MAX: usize = 256;

const OWN_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS flatbed_checkpoints (
        job TEXT PRIMARY KEY, epoch INTEGER NOT NULL, checkpoint TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS flatbed_rows (
        job TEXT NOT NULL, tbl TEXT NOT NULL, key TEXT NOT NULL, document TEXT NOT NULL, revision TEXT NOT NULL,
        PRIMARY KEY (job, tbl, key)) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS flatbed_rows_document ON flatbed_rows (job, document);";

/// A job's tables in a file.
#[derive(Debug)]
pub struct Sqlite {
    /// `None` while a thread has it, and after one of them panicked.
    inner: Option<Box<Inner>>,
}

#[derive(Debug)]
struct Inner {
    connection: Connection,
    job: String,
    tables: Vec<Table>,
    epoch: u64,
}

fn refused(error: &rusqlite::Error) -> Refused {
    let failure = match error {
        rusqlite::Error::SqliteFailure(code, _) => Failure::of_sqlite(code.extended_code),
        rusqlite::Error::SqlInputError { error, .. } => Failure::of_sqlite(error.extended_code),
        _ => Failure::Sql(*b"42000"),
    };
    Refused::failed(failure, error)
}

/// In quotation marks. Names of mappings have letters, digits and underscores alone.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Sqlite {
    /// Opens the file, which is made if it is not there. `is_to_create`: tables that are missing are made.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(file: &Path, job: &str, tables: &[Table], is_to_create: bool) -> Result<Sqlite, Refused> {
        // No URIs: a name is a name.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags).map_err(|error| refused(&error))?;
        Sqlite::with(connection, job, tables, is_to_create).map_err(|error| refused(&error))
    }

    fn with(connection: Connection, job: &str, tables: &[Table], is_to_create: bool) -> rusqlite::Result<Sqlite> {
        connection.busy_timeout(BUSY_MAX)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // What a file of somebody else's has in its schema runs no code.
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.execute_batch(OWN_TABLES)?;
        if is_to_create {
            for table in tables {
                connection.execute_batch(&definition(table, tables))?;
            }
        }
        // A column that is missing is found before anything is read of the source.
        for table in tables {
            connection.prepare_cached(&upsert(table))?;
        }
        let inner = Inner { connection, job: job.to_owned(), tables: tables.to_vec(), epoch: 0 };
        Ok(Sqlite { inner: Some(Box::new(inner)) })
    }

    /// Does something on a thread that may wait for the disk.
    async fn with_inner<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Inner) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        let lost = || Refused::failed(Failure::Storage, "the connection to the file is lost");
        let mut inner = self.inner.take().ok_or_else(lost)?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&mut inner);
            (inner, done)
        });
        let (inner, done) = done.await.map_err(|_| lost())?;
        self.inner = Some(inner);
        done
    }
}

impl Target for Sqlite {
    fn keeps_checkpoint(&self) -> bool {
        true
    }

    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, Refused> {
        self.with_inner(move |inner| inner.begin(epoch)).await
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), Refused> {
        self.with_inner(move |inner| inner.deliver(&batch, checkpoint.as_ref())).await
    }
}

/// SQLite's type of a column: what keeps its form. Decimals are texts, as there are no others.
fn affinity(kind: Option<Type>) -> &'static str {
    match kind {
        Some(Type::Integer(_) | Type::Boolean) => " INTEGER",
        Some(Type::Float) => " REAL",
        Some(Type::Text(_) | Type::Date | Type::Timestamp | Type::Json | Type::Numeric(_)) => " TEXT",
        None => "",
    }
}

fn definition(table: &Table, tables: &[Table]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (at, column) in table.columns.iter().enumerate() {
        let is_null = column.is_nullable && !table.key.contains(&at);
        parts.push(format!(
            "{}{}{}",
            quoted(&column.name),
            affinity(column.kind),
            if is_null { "" } else { " NOT NULL" }
        ));
    }
    if let Some(column) = &table.soft_delete_column {
        parts.push(format!("{} TEXT", quoted(column)));
    }
    let name = |at: &usize| table.columns.get(*at).map(|column| quoted(&column.name));
    let key: Vec<String> = table.key.iter().filter_map(name).collect();
    parts.push(format!("PRIMARY KEY ({})", key.join(", ")));
    if let Some(foreign) = &table.foreign_key
        && let Some(parent) = tables.get(foreign.parent)
        && let Some(refers) = parent.columns.get(foreign.references)
        // Others than the parent's whole key are not unique there.
        && parent.key == [foreign.references]
        && let Some(column) = name(&foreign.column)
    {
        parts.push(format!("FOREIGN KEY ({column}) REFERENCES {} ({})", quoted(&parent.name), quoted(&refers.name)));
    }
    format!("CREATE TABLE IF NOT EXISTS {} ({});", quoted(&table.name), parts.join(", "))
}

fn upsert(table: &Table) -> String {
    let name = |at: &usize| table.columns.get(*at).map(|column| quoted(&column.name));
    let mut columns: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
    let places: Vec<String> = (1..=columns.len()).map(|at| format!("?{at}")).collect();
    let key: Vec<String> = table.key.iter().filter_map(name).collect();
    let mut sets: Vec<String> = columns
        .iter()
        .filter(|column| !key.contains(column))
        .map(|column| format!("{column} = excluded.{column}"))
        .collect();
    let mut values = places;
    if let Some(column) = &table.soft_delete_column {
        columns.push(quoted(column));
        values.push("NULL".to_owned());
        sets.push(format!("{} = NULL", quoted(column)));
    }
    let action = if sets.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", sets.join(", ")) };
    format!(
        "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO {action}",
        quoted(&table.name),
        columns.join(", "),
        values.join(", "),
        key.join(", ")
    )
}

fn sql(datum: &Datum, kind: Option<Type>) -> Sql {
    match datum {
        Datum::Null => Sql::Null,
        Datum::Bool(value) => Sql::Integer(i64::from(*value)),
        Datum::Text(text) | Datum::Json(text) => Sql::Text(text.clone()),
        Datum::Number(text) if matches!(kind, Some(Type::Numeric(_))) => Sql::Text(text.clone()),
        // As a text where a float would lose something of it.
        Datum::Number(text) => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(integer), _) if kind != Some(Type::Float) => Sql::Integer(integer),
            (_, Ok(float)) if kind == Some(Type::Float) || is_exact(float, text) => Sql::Real(float),
            _ => Sql::Text(text.clone()),
        },
    }
}

/// Whether a float's shortest form is the same number.
fn is_exact(float: f64, text: &str) -> bool {
    let normal = |text: &str| Datum::Number(text.to_owned()).in_key(None);
    float.is_finite() && normal(&float.to_string()) == normal(text)
}

impl Inner {
    fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, Refused> {
        self.epoch = epoch;
        let error = |error: rusqlite::Error| refused(&error);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
        let found: Option<(i64, String)> = transaction
            .query_row("SELECT epoch, checkpoint FROM flatbed_checkpoints WHERE job = ?1", [&self.job], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .map_err(error)?;
        let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        if found.as_ref().is_some_and(|(other, _)| *other > epoch) {
            return Err(Refused::Superseded);
        }
        let statement = "INSERT INTO flatbed_checkpoints VALUES (?1, ?2, '') ON CONFLICT (job) DO UPDATE SET epoch = excluded.epoch";
        transaction.execute(statement, params![self.job, epoch]).map_err(error)?;
        transaction.commit().map_err(error)?;
        Ok(found.and_then(|(_, text)| Checkpoint::read(text.as_bytes())))
    }

    fn deliver(&mut self, batch: &[Delivery], checkpoint: Option<&Checkpoint>) -> Result<(), Refused> {
        let error = |error: rusqlite::Error| refused(&error);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
        let epoch = i64::try_from(self.epoch).unwrap_or(i64::MAX);
        let text = checkpoint.map(|checkpoint| String::from_utf8(checkpoint.write(None)).unwrap_or_default());
        let statement =
            "UPDATE flatbed_checkpoints SET checkpoint = coalesce(?3, checkpoint) WHERE job = ?1 AND epoch = ?2";
        let is_ours = transaction.execute(statement, params![self.job, epoch, text]).map_err(error)? == 1;
        if !is_ours {
            return Err(Refused::Superseded);
        }
        for delivery in batch {
            one(&transaction, &self.job, &self.tables, delivery).map_err(error)?;
        }
        transaction.commit().map_err(error)
    }
}

fn one(transaction: &Transaction<'_>, job: &str, tables: &[Table], delivery: &Delivery) -> rusqlite::Result<()> {
    let mut claims =
        transaction.prepare_cached("SELECT tbl, key FROM flatbed_rows WHERE job = ?1 AND document = ?2")?;
    let before: Vec<Claim> = claims
        .query_map([job, &delivery.id], |row| Ok(Claim { table: row.get(0)?, key: row.get(1)? }))?
        .collect::<rusqlite::Result<_>>()?;
    let (now, is_gone): (&[Row], bool) = match &delivery.state {
        State::Is(Product::Rows(rows)) => (rows, false),
        State::Is(Product::Nothing | Product::Json(_)) => (&[], false),
        State::Gone => (&[], true),
    };
    let difference = difference(tables, &before, now, is_gone);
    for operation in &difference.operations {
        match operation {
            Operation::Upsert(row) => {
                let Some(table) = tables.get(row.table) else { continue };
                let values = row.values.iter().zip(&table.columns).map(|(value, column)| sql(value, column.kind));
                transaction.prepare_cached(&upsert(table))?.execute(params_from_iter(values))?;
            }
            Operation::Delete { table, key } | Operation::SoftDelete { table, key } => {
                let Some(table) = tables.get(*table) else { continue };
                let is_soft = matches!(operation, Operation::SoftDelete { .. });
                leave(transaction, table, key, if is_soft { table.soft_delete_column.as_deref() } else { None })?;
            }
        }
    }
    for claim in &difference.released {
        transaction
            .prepare_cached("DELETE FROM flatbed_rows WHERE job = ?1 AND tbl = ?2 AND key = ?3 AND document = ?4")?
            .execute([job, &claim.table, &claim.key, &delivery.id])?;
    }
    for claim in &difference.claimed {
        let statement = "INSERT INTO flatbed_rows VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (job, tbl, key)
            DO UPDATE SET document = excluded.document, revision = excluded.revision";
        transaction.prepare_cached(statement)?.execute([job, &claim.table, &claim.key, &delivery.id, &delivery.rev])?;
    }
    Ok(())
}

/// A row goes, or says since when its document has it no longer.
fn leave(transaction: &Transaction<'_>, table: &Table, key: &str, soft: Option<&str>) -> rusqlite::Result<()> {
    let Some(key) = key_of_text(key) else { return Ok(()) };
    let mut values = Vec::new();
    let mut conditions = Vec::new();
    for (name, datum) in &key {
        // A column that the mapping had when the row was written.
        let kind = table.columns.iter().find(|column| column.name == *name).and_then(|column| column.kind);
        values.push(sql(datum, kind));
        conditions.push(format!("{} = ?{}", quoted(name), values.len()));
    }
    let conditions = conditions.join(" AND ");
    let statement = match soft {
        None => format!("DELETE FROM {} WHERE {conditions}", quoted(&table.name)),
        Some(column) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let seconds = i64::try_from(now.as_secs()).unwrap_or_default();
            values.push(Sql::Text(Moment { seconds, nanoseconds: 0 }.to_string()));
            format!("UPDATE {} SET {} = ?{} WHERE {conditions}", quoted(&table.name), quoted(column), values.len())
        }
    };
    transaction.prepare_cached(&statement)?.execute(params_from_iter(values))?;
    Ok(())
}

#[cfg(test)]
mod tests;
