//! MySQL and MariaDB: multi-row statements of a few lengths, so that few are prepared.
//!
//! Sessions are strict, so that a misfit is an error and never a warning. They use `utf8mb4`, UTC and `READ COMMITTED`.
//! Tables get a binary collation without padding. Claims store texts as bytes, with a hash of the key, which is too
//! long for an index.
//!
//! A table with a second unique key gets each row in its own statement, looked up by the mapping's key, because `ON
//! DUPLICATE KEY UPDATE` would overwrite the row of another key. MariaDB's `idle_transaction_timeout` and MySQL's
//! `wait_timeout` end the transaction of a stopped process after a statement's timeout, so a connection that was idle
//! for half of it is not reused. The addresses of the host are checked first; `mysql_async` connects to those, resolves
//! no name, and never switches to a local socket.

mod statements;

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, net::IpAddr};

use flatbed_client::Url;
use flatbed_clock::Clock;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Params, Row as SqlRow, SslOpts, Value};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::DeliveryError;
use super::tables::dialect::Dialect;
use super::tables::fit::{DatabaseColumn, DatabaseTable};
use super::tables::steps::{Step, parts, rows_of};
use super::tables::{Batch, CLAIMS_MAX, Claims, Driver, OpenParameters, Tables};
use crate::datum::Datum;
use crate::difference::Claim;
use crate::failure::{Class, Failure};
use crate::mapping::Table;
use crate::peer::Addresses;
use crate::rows::Row;
use statements::{MARIADB, MYSQL, family, insert, lengths, overwrite, values};

const STATEMENTS_MAX: usize = 256;

/// The most bytes of a statement's values. A server's default limit is 16 MB.
const BYTES_MAX: usize = 4 << 20;

/// The time beyond the server's own statement timeout.
const LATER: Duration = Duration::from_secs(2);

/// A job's tables on a server.
pub type MySql = Tables<MysqlServer>;

/// The settings of a connection.
pub struct MysqlSettings {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The database.
    pub database: String,
    /// The user name.
    pub user: String,
    /// The password.
    pub password: Option<String>,
    /// The timeout of a statement.
    pub time_max: Duration,
    /// Resolves the allowed addresses of the host. The connection uses these without resolving the name again.
    pub addresses: Addresses,
    /// With TLS: the certificate authorities beside Mozilla's list, as DER. `None`: without TLS.
    pub authorities: Option<Vec<Vec<u8>>>,
    /// The clock for timeouts.
    pub clock: Clock,
}

/// A connection to a server.
pub struct MysqlServer {
    way: MysqlSettings,
    session: Option<Session>,
    is_mariadb: bool,
}

struct Session {
    connection: Conn,
    used: Instant,
    time_max: Duration,
    clock: Clock,
}

impl fmt::Debug for MysqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MysqlServer({}:{})", self.way.host, self.way.port)
    }
}

impl MySql {
    /// Creates a target. `is_to_create`: missing tables are created.
    pub fn at(way: MysqlSettings, job: &str, tables: &[Table], is_to_create: bool) -> MySql {
        let clock = way.clock.clone();
        Tables::new(MysqlServer { way, session: None, is_mariadb: false }, job, tables, is_to_create).with_clock(clock)
    }
}

#[derive(Debug)]
enum Fault {
    Late,
    Sql(mysql_async::Error),
    /// The server's answer does not fit the request.
    MalformedAnswer,
    /// A value that a column would silently change.
    Unfit(String),
}

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Fault {
        Fault::Sql(error)
    }
}

impl From<Fault> for DeliveryError {
    fn from(fault: Fault) -> DeliveryError {
        match fault {
            Fault::Late => DeliveryError::failed(Failure::Connection, "the server did not answer in time"),
            Fault::MalformedAnswer => DeliveryError::failed(Failure::Connection, "the server's answer is malformed"),
            Fault::Unfit(what) => DeliveryError::failed(Failure::Sql(*b"22003"), what),
            Fault::Sql(mysql_async::Error::Server(error)) => {
                DeliveryError::failed(Failure::of_mysql(error.code, &error.state), error.message)
            }
            Fault::Sql(mysql_async::Error::Driver(error @ mysql_async::DriverError::PacketTooLarge)) => {
                DeliveryError::failed(Failure::TooLarge, error)
            }
            Fault::Sql(error) => DeliveryError::failed(Failure::Connection, error),
        }
    }
}

fn text(row: &SqlRow, at: usize) -> Result<String, Fault> {
    match row.as_ref(at) {
        Some(Value::Bytes(bytes)) => String::from_utf8(bytes.clone()).map_err(|_| Fault::MalformedAnswer),
        _ => Err(Fault::MalformedAnswer),
    }
}

/// Reads a number that the server returns as a number or a text.
fn number(row: &SqlRow, at: usize) -> Option<i64> {
    match row.as_ref(at)? {
        Value::Int(value) => Some(*value),
        Value::UInt(value) => i64::try_from(*value).ok(),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

fn of(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

fn hash(claim: &Claim) -> Value {
    Value::Bytes(Sha256::digest(claim.key.as_bytes()).to_vec())
}

impl Session {
    async fn in_time<T>(
        clock: &Clock,
        time_max: Duration,
        work: impl Future<Output = Result<T, mysql_async::Error>>,
    ) -> Result<T, Fault> {
        match clock.timeout(time_max + LATER, work).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::Late),
        }
    }

    /// Returns whether the session was used recently enough that the server has not ended it.
    fn is_fresh(&self) -> bool {
        self.clock.since(self.used) < self.time_max / 2
    }

    async fn batch(&mut self, statement: &str) -> Result<(), Fault> {
        self.used = self.clock.now();
        Session::in_time(&self.clock, self.time_max, self.connection.query_drop(statement)).await
    }

    async fn execute(&mut self, statement: &str, params: Vec<Value>) -> Result<(), Fault> {
        Session::in_time(&self.clock, self.time_max, self.connection.exec_drop(statement, Params::Positional(params)))
            .await
    }

    async fn query(&mut self, statement: &str, params: Vec<Value>) -> Result<Vec<SqlRow>, Fault> {
        Session::in_time(&self.clock, self.time_max, self.connection.exec(statement, Params::Positional(params))).await
    }

    async fn look(&mut self, table: &str) -> Result<Option<DatabaseTable>, Fault> {
        let mut found = DatabaseTable::default();
        let columns = "SELECT column_name, column_type, data_type, numeric_scale, collation_name,
            is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%' AND extra NOT LIKE '%GENERATED%',
            datetime_precision FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position";
        for row in self.query(columns, vec![of(table)]).await? {
            let scale = number(&row, 3).and_then(|scale| i32::try_from(scale).ok());
            let digits = number(&row, 6).and_then(|digits| u32::try_from(digits).ok());
            let collation = text(&row, 4).unwrap_or_default();
            found.columns.push(DatabaseColumn {
                name: text(&row, 0)?,
                kind: text(&row, 1)?,
                family: family(&text(&row, 2)?, scale, digits),
                is_required: number(&row, 5) == Some(1),
                // Other collations equate texts that differ in case, accents or trailing spaces.
                is_folding: !(collation.is_empty()
                    || collation.ends_with("nopad_bin")
                    || collation.ends_with("0900_bin")),
            });
        }
        if found.columns.is_empty() {
            return Ok(None);
        }
        let keys = "SELECT index_name, column_name, sub_part FROM information_schema.statistics WHERE table_schema = DATABASE()
            AND table_name = ? AND non_unique = 0 ORDER BY index_name, seq_in_index";
        let mut last = None;
        for row in self.query(keys, vec![of(table)]).await? {
            let index = text(&row, 0)?;
            if last.as_ref() != Some(&index) {
                found.keys.push(Default::default());
                last = Some(index);
            }
            // An expression has no name, so the key has no set of columns.
            let mut column = text(&row, 1).unwrap_or_default();
            // A key on a prefix of a column does not identify a column either.
            if let Some(characters) = number(&row, 2) {
                column = format!("{column}({characters})");
            }
            found.keys.last_mut().map(|key| key.insert(column));
        }
        let engine =
            "SELECT t.engine FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine
            WHERE t.table_schema = DATABASE() AND t.table_name = ? AND COALESCE(e.transactions, 'NO') <> 'YES'";
        if let Some(row) = self.query(engine, vec![of(table)]).await?.first() {
            found.engine = Some(text(row, 0)?);
        }
        let references = "SELECT DISTINCT table_name FROM information_schema.key_column_usage
            WHERE referenced_table_schema = DATABASE() AND referenced_table_name = ?";
        for row in self.query(references, vec![of(table)]).await? {
            found.referenced_by.push(text(&row, 0)?);
        }
        Ok(Some(found))
    }

    async fn take_over(&mut self, job: &str, epoch: i64) -> Result<Option<String>, Fault> {
        self.batch("START TRANSACTION").await?;
        let query = "SELECT epoch, checkpoint FROM flatbed_checkpoints WHERE job = ? FOR UPDATE";
        let found = self.query(query, vec![of(job)]).await?;
        let before =
            found.first().map(|row| Ok::<_, Fault>((number(row, 0).ok_or(Fault::MalformedAnswer)?, text(row, 1)?)));
        let before = before.transpose()?;
        if before.as_ref().is_some_and(|(other, _)| *other > epoch) {
            self.batch("ROLLBACK").await?;
            return Ok(None);
        }
        let statement = "INSERT INTO flatbed_checkpoints (job, epoch, checkpoint) VALUES (?, ?, '')
            ON DUPLICATE KEY UPDATE epoch = VALUES(epoch)";
        self.execute(statement, vec![of(job), Value::Int(epoch)]).await?;
        self.batch("COMMIT").await?;
        Ok(Some(before.map(|(_, checkpoint)| checkpoint).unwrap_or_default()))
    }

    /// Reads claims as they arrive. Returns false if the limit is exceeded.
    async fn claims(&mut self, statement: &str, params: Vec<Value>, claims: &mut Claims) -> Result<bool, Fault> {
        let connection = &mut self.connection;
        let reading = async {
            let mut rows = connection.exec_iter(statement, Params::Positional(params)).await?;
            let mut read: Result<bool, Fault> = Ok(true);
            while let (Ok(true), Some(row)) = (&read, rows.next().await?) {
                let of = || Ok((text(&row, 0)?, Claim { table: text(&row, 1)?, key: text(&row, 2)? }));
                read = of().map(|(document, claim)| claims.take(document, claim));
            }
            // The server sends the remaining rows anyway.
            rows.drop_result().await?;
            Ok(read)
        };
        Session::in_time(&self.clock, self.time_max, reading).await?
    }

    async fn open(&mut self, opening: OpenParameters) -> Result<Option<Claims>, Fault> {
        let OpenParameters { job, epoch, checkpoint, documents, mut claims } = opening;
        self.batch("START TRANSACTION").await?;
        let fence = "SELECT epoch FROM flatbed_checkpoints WHERE job = ? FOR UPDATE";
        let found = self.query(fence, vec![of(&job)]).await?;
        if found.first().and_then(|row| number(row, 0)) != Some(epoch) {
            self.batch("ROLLBACK").await?;
            return Ok(None);
        }
        if let Some(checkpoint) = checkpoint {
            let statement = "UPDATE flatbed_checkpoints SET checkpoint = ? WHERE job = ?";
            self.execute(statement, vec![of(&checkpoint), of(&job)]).await?;
        }
        for part in lengths(&documents, 1) {
            let statement = format!(
                "SELECT document, tbl, `key` FROM flatbed_rows WHERE job = ? AND document IN ({}) LIMIT {}",
                vec!["?"; part.len()].join(", "),
                CLAIMS_MAX + 1
            );
            let params = std::iter::once(of(&job)).chain(part.iter().map(|document| of(document))).collect();
            if !self.claims(&statement, params, &mut claims).await? {
                break;
            }
        }
        Ok(Some(claims))
    }

    async fn close(&mut self, batch: &Batch, dialect: &Dialect) -> Result<(), Fault> {
        for step in &batch.steps {
            self.take(batch, step, dialect).await?;
        }
        self.batch("COMMIT").await
    }

    async fn take(&mut self, batch: &Batch, step: &Step, dialect: &Dialect) -> Result<(), Fault> {
        match step {
            Step::Leave { table, is_soft, columns, keys } => {
                let (Some(table), Some(found)) = (batch.tables.get(*table), batch.found.get(*table)) else {
                    return Ok(());
                };
                let soft = table.soft_delete_column.as_deref().filter(|_| *is_soft);
                let names: Vec<&str> = columns.iter().map(String::as_str).collect();
                let size = |key: &Vec<Datum>| key.iter().map(Datum::bytes).sum();
                for part in parts(keys, usize::MAX, BYTES_MAX, size) {
                    for keys in lengths(part, names.len()) {
                        let mut params = Vec::new();
                        if soft.is_some() {
                            params.push(of(&batch.now.replace('T', " ").replace('Z', "")));
                        }
                        for key in keys {
                            params.extend(values(&names, key, table, found).map_err(Fault::Unfit)?);
                        }
                        let statement = statements::leave(dialect, &table.name, soft, &names, keys.len());
                        self.execute(&statement, params).await?;
                    }
                }
            }
            Step::Upsert { table, rows } => {
                let (Some(table), Some(found)) = (batch.tables.get(*table), batch.found.get(*table)) else {
                    return Ok(());
                };
                let row = |(delivery, row): &(usize, usize)| rows_of(batch.deliveries.get(*delivery)?).0.get(*row);
                let rows: Vec<&Row> = rows.iter().filter_map(row).collect();
                let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
                let size = |row: &&Row| row.values.iter().map(Datum::bytes).sum();
                if found.keys.len() > 1 {
                    for row in rows {
                        self.one(row, &names, table, found, dialect).await?;
                    }
                    return Ok(());
                }
                for part in parts(&rows, usize::MAX, BYTES_MAX, size) {
                    for rows in lengths(part, names.len()) {
                        let mut params = Vec::with_capacity(rows.len() * names.len());
                        for row in rows {
                            params.extend(values(&names, &row.values, table, found).map_err(Fault::Unfit)?);
                        }
                        let statement = insert(dialect, table, rows.len(), true);
                        self.execute(&statement, params).await?;
                    }
                }
            }
            Step::Release(claims) => {
                for part in lengths(claims, 3) {
                    let one = "(tbl = ? AND hash = ? AND document = ?)";
                    let statement =
                        format!("DELETE FROM flatbed_rows WHERE job = ? AND ({})", vec![one; part.len()].join(" OR "));
                    let mut params = vec![of(&batch.job)];
                    for (claim, at) in part {
                        let id = batch.deliveries.get(*at).map_or("", |delivery| delivery.id.as_str());
                        params.extend([of(&claim.table), hash(claim), of(id)]);
                    }
                    self.execute(&statement, params).await?;
                }
            }
            Step::Claim(claims) => {
                for part in parts(claims, usize::MAX, BYTES_MAX, |(claim, _)| claim.key.len() + 200) {
                    for part in lengths(part, 6) {
                        let statement = format!(
                            "INSERT INTO flatbed_rows (job, tbl, hash, `key`, document, revision) VALUES {}
                            ON DUPLICATE KEY UPDATE document = VALUES(document), revision = VALUES(revision)",
                            vec!["(?, ?, ?, ?, ?, ?)"; part.len()].join(", ")
                        );
                        let mut params = Vec::with_capacity(part.len() * 6);
                        for (claim, at) in part {
                            let of_document =
                                |text: fn(&super::Delivery) -> &str| of(batch.deliveries.get(*at).map_or("", text));
                            params.extend([of(&batch.job), of(&claim.table), hash(claim), of(&claim.key)]);
                            params
                                .extend([of_document(|delivery| &delivery.id), of_document(|delivery| &delivery.rev)]);
                        }
                        self.execute(&statement, params).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a row of a table with several unique keys. `ON DUPLICATE KEY` would overwrite the row of another key,
    /// which belongs to another document.
    async fn one(
        &mut self,
        row: &Row,
        names: &[&str],
        table: &Table,
        found: &DatabaseTable,
        dialect: &Dialect,
    ) -> Result<(), Fault> {
        let all = values(names, &row.values, table, found).map_err(Fault::Unfit)?;
        let key: Vec<Value> = table.key.iter().filter_map(|at| all.get(*at).cloned()).collect();
        let (is_there, update) = overwrite(dialect, table);
        if self.query(&is_there, key.clone()).await?.is_empty() {
            return self.execute(&insert(dialect, table, 1, false), all).await;
        }
        let Some(update) = update else { return Ok(()) };
        let written = all.into_iter().enumerate().filter(|(at, _)| !table.key.contains(at)).map(|(_, value)| value);
        self.execute(&update, written.chain(key).collect()).await
    }
}

impl MysqlServer {
    async fn dial(&mut self) -> Result<Session, DeliveryError> {
        let way = &self.way;
        let broken = |error: String| DeliveryError::failed(Failure::Connection, error);
        let host = if way.host.contains(':') { format!("[{}]", way.host) } else { way.host.clone() };
        let url = Url::parse(&format!("http://{host}:{}", way.port)).map_err(|error| broken(error.to_string()))?;
        let time_max = way.time_max;
        let connecting = async {
            let addresses: Vec<IpAddr> = (way.addresses)(&url).await.map_err(broken)?;
            let trust = |authorities: &Vec<Vec<u8>>| {
                let authorities = authorities.iter().map(|der| der.clone().into()).collect();
                SslOpts::default().with_root_certs(authorities)
            };
            let host = url.host().trim_start_matches('[').trim_end_matches(']').to_owned();
            let builder = OptsBuilder::default()
                .ip_or_hostname(host)
                .tcp_port(way.port)
                .resolved_ips(Some(addresses))
                // Otherwise the server could redirect the client to a local socket.
                .prefer_socket(false)
                .user(Some(way.user.clone()))
                .pass(way.password.clone())
                .db_name(Some(way.database.clone()))
                .stmt_cache_size(STATEMENTS_MAX)
                .ssl_opts(way.authorities.as_ref().map(trust));
            Conn::new(Opts::from(builder)).await.map_err(|error| DeliveryError::from(Fault::Sql(error)))
        };
        let clock = way.clock.clone();
        let connected = clock.timeout(time_max + LATER, connecting).await;
        let connection = connected.map_err(|_| broken("the server did not answer in time".to_owned()))??;
        let mut session = Session { connection, used: clock.now(), time_max, clock };
        let version = session.query("SELECT VERSION()", Vec::new()).await?;
        let version = version.first().map(|row| text(row, 0)).transpose()?.unwrap_or_default();
        self.is_mariadb = version.to_ascii_lowercase().contains("mariadb");
        let seconds = time_max.as_secs().max(1);
        // Bounds the time that a process stopped in a transaction blocks others: MySQL ends an idle session, MariaDB an
        // idle transaction.
        let settings = format!(
            "SET NAMES utf8mb4, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',
            SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = {seconds}, SESSION lock_wait_timeout = {seconds}, SESSION {} = {seconds}",
            if self.is_mariadb { "idle_transaction_timeout" } else { "wait_timeout" }
        );
        session.batch(&settings).await?;
        session.batch("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        Ok(session)
    }

    fn session(&mut self) -> Result<Session, DeliveryError> {
        let lost = || DeliveryError::failed(Failure::Connection, "the connection to the server is lost");
        self.session.take().ok_or_else(lost)
    }

    /// Keeps a healthy session. After an error of the session's state, the next use reconnects.
    async fn keep<T>(&mut self, mut session: Session, done: Result<T, Fault>) -> Result<T, DeliveryError> {
        let refused = match done {
            Ok(done) => {
                self.session = Some(session);
                return Ok(done);
            }
            Err(fault) => DeliveryError::from(fault),
        };
        if let DeliveryError::Failed { failure, .. } = &refused
            && failure.class() == Class::Poison
            && session.batch("ROLLBACK").await.is_ok()
        {
            self.session = Some(session);
        }
        Err(refused)
    }
}

impl Driver for MysqlServer {
    fn dialect(&self) -> &'static Dialect {
        if self.is_mariadb { &MARIADB } else { &MYSQL }
    }

    async fn connect(&mut self) -> Result<bool, DeliveryError> {
        // The server may end a session that was idle for long at any time.
        if self.session.as_ref().is_some_and(Session::is_fresh) {
            return Ok(false);
        }
        self.session = None;
        self.session = Some(self.dial().await?);
        Ok(true)
    }

    async fn look(&mut self, table: String) -> Result<Option<DatabaseTable>, DeliveryError> {
        let mut session = self.session()?;
        let done = session.look(&table).await;
        self.keep(session, done).await
    }

    async fn make(&mut self, statements: Vec<String>) -> Result<(), DeliveryError> {
        for statement in statements {
            let mut session = self.session()?;
            let done = session.batch(&statement).await;
            self.keep(session, done).await?;
        }
        Ok(())
    }

    async fn has_claims(&mut self, job: String, table: String) -> Result<bool, DeliveryError> {
        let mut session = self.session()?;
        let query = "SELECT 1 FROM flatbed_rows WHERE job = ? AND tbl = ? LIMIT 1";
        let done = session.query(query, vec![of(&job), of(&table)]).await.map(|rows| !rows.is_empty());
        self.keep(session, done).await
    }

    async fn take_over(&mut self, job: String, epoch: i64) -> Result<Option<String>, DeliveryError> {
        let mut session = self.session()?;
        let done = session.take_over(&job, epoch).await;
        self.keep(session, done).await
    }

    async fn open(&mut self, opening: OpenParameters) -> Result<Option<Claims>, DeliveryError> {
        let mut session = self.session()?;
        let done = session.open(opening).await;
        self.keep(session, done).await
    }

    async fn close(&mut self, batch: Arc<Batch>) -> Result<(), DeliveryError> {
        let mut session = self.session()?;
        let dialect = self.dialect();
        let done = session.close(&batch, dialect).await;
        self.keep(session, done).await
    }

    async fn abandon(&mut self) {
        self.session = None;
    }
}
