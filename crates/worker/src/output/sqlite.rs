//! SQLite: tables in a file, beside the worker's own tables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params, params_from_iter};

use super::DeliveryError;
use super::tables::dialect::{Dialect, key_of};
use super::tables::fit::{DatabaseColumn, DatabaseTable, Family};
use super::tables::steps::{Step, rows_of};
use super::tables::{Batch, Claims, Driver, OpenParameters, Tables};
use crate::datum::{Datum, Type};
use crate::difference::Claim;
use crate::failure::Failure;
use crate::file_claim::FileClaim;
use crate::mapping::Table;

/// The longest wait for another writer of the file.
const BUSY_MAX: Duration = Duration::from_secs(5);

const STATEMENTS_MAX: usize = 256;

static DIALECT: Dialect = Dialect {
    quote: '"',
    kind: affinity,
    moment: "TEXT",
    options: "",
    is_to_index: false,
    checkpoints: &["CREATE TABLE IF NOT EXISTS flatbed_checkpoints (
        job TEXT PRIMARY KEY, epoch INTEGER NOT NULL, checkpoint TEXT NOT NULL) STRICT, WITHOUT ROWID"],
    rows: &[
        "CREATE TABLE IF NOT EXISTS flatbed_rows (
        job TEXT NOT NULL, tbl TEXT NOT NULL, key TEXT NOT NULL, document TEXT NOT NULL, revision TEXT NOT NULL,
        PRIMARY KEY (job, tbl, key)) STRICT, WITHOUT ROWID",
        "CREATE INDEX IF NOT EXISTS flatbed_rows_document ON flatbed_rows (job, document)",
    ],
};

/// A job's tables in a file.
pub type Sqlite = Tables<File>;

/// A database file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    /// `None` while a thread owns it, or if it is not open.
    connection: Option<Connection>,
    /// Dropped after the connection, here and on threads, because closing a connection may write.
    claim: Option<Arc<FileClaim>>,
}

fn refused(error: rusqlite::Error) -> DeliveryError {
    let failure = match &error {
        rusqlite::Error::SqliteFailure(code, _) => Failure::of_sqlite(code.extended_code),
        rusqlite::Error::SqlInputError { error, .. } => Failure::of_sqlite(error.extended_code),
        _ => Failure::Sql(*b"42000"),
    };
    DeliveryError::failed(failure, error)
}

impl Sqlite {
    /// Creates a target for a file, which is created if it is missing. `is_to_create`: missing tables are created.
    pub fn in_file(path: &Path, job: &str, tables: &[Table], is_to_create: bool) -> Sqlite {
        Tables::new(File { path: path.to_owned(), connection: None, claim: None }, job, tables, is_to_create)
    }

    /// Sets the claim on the file. A writing thread keeps it even if the run is dropped.
    #[must_use]
    pub fn with_claim(mut self, claim: Arc<FileClaim>) -> Sqlite {
        self.driver().claim = Some(claim);
        self
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    // Names are not interpreted as URIs.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_MAX)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // The schema of a foreign file must not run code.
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

impl File {
    /// Runs an operation on a thread that may block on the disk. Rolls back an open transaction on failure.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DeliveryError> {
        let lost = || DeliveryError::failed(Failure::Storage, "the connection to the file is lost");
        let connection = self.connection.take().ok_or_else(lost)?;
        let claim = self.claim.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&connection);
            if done.is_err() && !connection.is_autocommit() {
                // Some errors have already rolled back the transaction.
                let _ = connection.execute_batch("ROLLBACK");
            }
            (connection, done, claim)
        });
        let (connection, done, _) = done.await.map_err(|_| lost())?;
        self.connection = Some(connection);
        done.map_err(refused)
    }
}

impl Driver for File {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    async fn connect(&mut self) -> Result<bool, DeliveryError> {
        if self.connection.is_some() {
            return Ok(false);
        }
        let (path, claim) = (self.path.clone(), self.claim.clone());
        let opened = tokio::task::spawn_blocking(move || (open(&path), claim)).await;
        let (opened, _) = opened.map_err(|error| DeliveryError::failed(Failure::Storage, error))?;
        self.connection = Some(opened.map_err(refused)?);
        Ok(true)
    }

    async fn look(&mut self, table: String) -> Result<Option<DatabaseTable>, DeliveryError> {
        self.with(move |connection| look(connection, &table)).await
    }

    async fn make(&mut self, statements: Vec<String>) -> Result<(), DeliveryError> {
        self.with(move |connection| statements.iter().try_for_each(|statement| connection.execute_batch(statement)))
            .await
    }

    async fn has_claims(&mut self, job: String, table: String) -> Result<bool, DeliveryError> {
        self.with(move |connection| {
            connection
                .prepare_cached("SELECT 1 FROM flatbed_rows WHERE job = ?1 AND tbl = ?2 LIMIT 1")?
                .exists([job, table])
        })
        .await
    }

    async fn take_over(&mut self, job: String, epoch: i64) -> Result<Option<String>, DeliveryError> {
        self.with(move |connection| {
            let statement = "INSERT INTO flatbed_checkpoints VALUES (?1, ?2, '') ON CONFLICT (job) DO UPDATE
                SET epoch = excluded.epoch WHERE epoch <= excluded.epoch RETURNING checkpoint";
            connection.query_row(statement, params![job, epoch], |row| row.get(0)).optional()
        })
        .await
    }

    async fn open(&mut self, opening: OpenParameters) -> Result<Option<Claims>, DeliveryError> {
        self.with(move |connection| {
            if !connection.is_autocommit() {
                connection.execute_batch("ROLLBACK")?;
            }
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let statement =
                "UPDATE flatbed_checkpoints SET checkpoint = coalesce(?3, checkpoint) WHERE job = ?1 AND epoch = ?2";
            let OpenParameters { job, epoch, checkpoint, documents, claims: mut found } = opening;
            if connection.prepare_cached(statement)?.execute(params![job, epoch, checkpoint])? != 1 {
                connection.execute_batch("ROLLBACK")?;
                return Ok(None);
            }
            let mut claims =
                connection.prepare_cached("SELECT tbl, key FROM flatbed_rows WHERE job = ?1 AND document = ?2")?;
            for document in documents {
                let of = |row: &rusqlite::Row<'_>| Ok(Claim { table: row.get(0)?, key: row.get(1)? });
                for claim in claims.query_map([&job, &document], of)? {
                    if !found.take(document.clone(), claim?) {
                        return Ok(Some(found));
                    }
                }
            }
            Ok(Some(found))
        })
        .await
    }

    async fn close(&mut self, batch: Arc<Batch>) -> Result<(), DeliveryError> {
        self.with(move |connection| {
            batch.steps.iter().try_for_each(|step| take(connection, &batch, step))?;
            connection.execute_batch("COMMIT")
        })
        .await
    }

    async fn abandon(&mut self) {
        let rolled_back = self.with(|connection| connection.execute_batch("ROLLBACK")).await;
        if rolled_back.is_err() {
            self.connection = None;
        }
    }
}

/// Returns SQLite's type of a column, which preserves the value. Decimals are texts, because SQLite has no decimal
/// type.
fn affinity(kind: Option<Type>, _: Option<usize>) -> String {
    let name = match kind {
        Some(Type::Integer(_) | Type::Boolean) => " INTEGER",
        Some(Type::Float) => " REAL",
        Some(Type::Text(_) | Type::Date | Type::Timestamp | Type::Json | Type::Numeric(_)) => " TEXT",
        Some(Type::Bytes) => " BLOB",
        None => "",
    };
    name.to_owned()
}

fn look(connection: &Connection, table: &str) -> rusqlite::Result<Option<DatabaseTable>> {
    let mut found = DatabaseTable::default();
    let mut key = BTreeSet::new();
    let mut statement =
        connection.prepare_cached("SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info(?1)")?;
    let mut rows = statement.query([table])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let is_key = row.get::<_, i64>(4)? > 0;
        let has_default = row.get::<_, Option<String>>(3)?.is_some();
        let is_required = row.get::<_, bool>(2)? && !has_default && !is_key;
        if is_key {
            key.insert(name.clone());
        }
        found.columns.push(DatabaseColumn {
            name,
            kind: row.get(1)?,
            family: Family::Any,
            is_required,
            is_folding: false,
        });
    }
    if found.columns.is_empty() {
        return Ok(None);
    }
    found.keys.push(key);
    let mut statement = connection.prepare_cached(
        "SELECT i.name, c.name, c.coll FROM pragma_index_list(?1) i, pragma_index_xinfo(i.name) c
            WHERE i.\"unique\" AND NOT i.partial AND c.key ORDER BY 1",
    )?;
    let mut rows = statement.query([table])?;
    let mut last = None;
    while let Some(row) = rows.next()? {
        let index: String = row.get(0)?;
        if last.as_ref() != Some(&index) {
            found.keys.push(BTreeSet::new());
            last = Some(index);
        }
        // An expression has no name, so the key has no set of columns.
        let column = row.get::<_, Option<String>>(1)?.unwrap_or_default();
        if row.get::<_, Option<String>>(2)?.is_some_and(|collation| collation != "BINARY") {
            found.columns.iter_mut().filter(|of| of.name == column).for_each(|of| of.is_folding = true);
        }
        found.keys.last_mut().map(|key| key.insert(column));
    }
    let mut statement = connection.prepare_cached(
        "SELECT DISTINCT m.name FROM sqlite_schema m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE",
    )?;
    found.referenced_by = statement.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(Some(found))
}

fn upsert(table: &Table) -> String {
    let mut columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let mut values: Vec<String> = (1..=columns.len()).map(|at| format!("?{at}")).collect();
    let key = key_of(table);
    let is_written = |column: &&&str| !key.contains(*column);
    let mut sets: Vec<String> =
        columns.iter().filter(is_written).map(|column| format!("{0} = excluded.{0}", DIALECT.quoted(column))).collect();
    if let Some(column) = &table.soft_delete_column {
        columns.push(column);
        values.push("NULL".to_owned());
        sets.push(format!("{} = NULL", DIALECT.quoted(column)));
    }
    let action = if sets.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", sets.join(", ")) };
    format!(
        "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO {action}",
        DIALECT.quoted(&table.name),
        DIALECT.list(columns),
        values.join(", "),
        DIALECT.list(key)
    )
}

fn sql(datum: &Datum, kind: Option<Type>) -> Sql {
    match datum {
        Datum::Null => Sql::Null,
        Datum::Bool(value) => Sql::Integer(i64::from(*value)),
        Datum::Text(text) if kind == Some(Type::Bytes) => Sql::Blob(BASE64.decode(text).unwrap_or_default()),
        Datum::Text(text) | Datum::Json(text) => Sql::Text(text.clone()),
        Datum::Number(text) if matches!(kind, Some(Type::Numeric(_))) => Sql::Text(text.clone()),
        // As a text if a float would lose precision.
        Datum::Number(text) => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(integer), _) if kind != Some(Type::Float) => Sql::Integer(integer),
            (_, Ok(float)) if kind == Some(Type::Float) || is_exact(float, text) => Sql::Real(float),
            _ => Sql::Text(text.clone()),
        },
    }
}

/// Returns whether a float represents the number exactly.
fn is_exact(float: f64, text: &str) -> bool {
    let normal = |text: &str| Datum::Number(text.to_owned()).in_key(None);
    float.is_finite() && normal(&float.to_string()) == normal(text)
}

fn take(connection: &Connection, batch: &Batch, step: &Step) -> rusqlite::Result<()> {
    match step {
        Step::Leave { table, is_soft, columns, keys } => {
            let Some(table) = batch.tables.get(*table) else { return Ok(()) };
            let conditions: Vec<String> = columns
                .iter()
                .enumerate()
                .map(|(at, name)| format!("{} = ?{}", DIALECT.quoted(name), at + 1))
                .collect();
            let conditions = conditions.join(" AND ");
            let soft = table.soft_delete_column.as_deref().filter(|_| *is_soft);
            let name = DIALECT.quoted(&table.name);
            let statement = match soft {
                None => format!("DELETE FROM {name} WHERE {conditions}"),
                Some(column) => {
                    format!("UPDATE {name} SET {} = ?{} WHERE {conditions}", DIALECT.quoted(column), columns.len() + 1)
                }
            };
            let mut statement = connection.prepare_cached(&statement)?;
            // The mapping had this column when the row was written.
            let kind =
                |name: &String| table.columns.iter().find(|column| column.name == *name).and_then(|column| column.kind);
            let kinds: Vec<Option<Type>> = columns.iter().map(kind).collect();
            for key in keys {
                let mut values: Vec<Sql> = key.iter().zip(&kinds).map(|(datum, kind)| sql(datum, *kind)).collect();
                values.extend(soft.map(|_| Sql::Text(batch.now.clone())));
                statement.execute(params_from_iter(values))?;
            }
        }
        Step::Upsert { table, rows } => {
            let Some(table) = batch.tables.get(*table) else { return Ok(()) };
            let mut statement = connection.prepare_cached(&upsert(table))?;
            for (delivery, row) in rows {
                let row = batch.deliveries.get(*delivery).and_then(|delivery| rows_of(delivery).0.get(*row));
                let values = row.iter().flat_map(|row| row.values.iter()).zip(&table.columns);
                statement.execute(params_from_iter(values.map(|(value, column)| sql(value, column.kind))))?;
            }
        }
        Step::Release(claims) => {
            let mut statement = connection.prepare_cached(
                "DELETE FROM flatbed_rows WHERE job = ?1 AND tbl = ?2 AND key = ?3 AND document = ?4",
            )?;
            for (claim, at) in claims {
                let Some(delivery) = batch.deliveries.get(*at) else { continue };
                statement.execute([&batch.job, &claim.table, &claim.key, &delivery.id])?;
            }
        }
        Step::Claim(claims) => {
            let mut statement = connection.prepare_cached(
                "INSERT INTO flatbed_rows VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (job, tbl, key)
                DO UPDATE SET document = excluded.document, revision = excluded.revision",
            )?;
            for (claim, at) in claims {
                let Some(delivery) = batch.deliveries.get(*at) else { continue };
                statement.execute([&batch.job, &claim.table, &claim.key, &delivery.id, &delivery.rev])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
