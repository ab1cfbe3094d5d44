//! PostgreSQL: rows in bulk, as arrays that the server unnests and casts to the types of its columns.
//!
//! A statement has one array per column, regardless of the number of rows, so that few statements are prepared.
//! Elements are texts, as for `COPY`. The server decides which column types are allowed; a text that a type does not
//! accept is an error of class 22.
//!
//! A batch takes two round trips: its statements, including `COMMIT`, are pipelined. After a failed statement the
//! server refuses those behind it and treats `COMMIT` as `ROLLBACK`.
//!
//! Sessions plan each statement anew (`plan_cache_mode`), because a plan made for an empty table scans a full one.
//! Claims are read document by document, because `document = ANY(...)` makes PostgreSQL 15 read all claims of the job.
//! `statement_timeout` and `idle_in_transaction_session_timeout` are the output's `timeout_seconds`, so that a process
//! stopped in a transaction blocks its successor no longer than that.

mod sent;
mod statements;

use std::collections::{HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use flatbed_client::Url;
use flatbed_clock::Clock;
use futures_util::TryStreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row as SqlRow, Statement};

use super::DeliveryError;
use super::tables::dialect::Dialect;
use super::tables::fit::{DatabaseColumn, DatabaseTable};
use super::tables::steps::{Step, parts, rows_of};
use super::tables::{Batch, CLAIMS_MAX, Claims, Driver, OpenParameters, Tables};
use crate::datum::Datum;
use crate::difference::Claim;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::peer::{Dial, Secure, Stream};
use crate::rows::Row;
use sent::SentRequest;
use statements::{CLAIM, CLAIMS, DIALECT, FENCE, RELEASE, arrays, family, kinds, leave, upsert};

const STATEMENTS_MAX: usize = 256;

/// The most rows of a statement, and the most bytes of their values.
const ROWS_MAX: usize = 10_000;
const BYTES_MAX: usize = 16 << 20;

/// The time beyond the server's own statement timeout.
const LATER: Duration = Duration::from_secs(2);

/// A job's tables on a server.
pub type Postgres = Tables<PostgresServer>;

/// The settings of a connection.
pub struct PostgresSettings {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The database.
    pub database: String,
    /// The schema of the tables; `None`: the server's default.
    pub schema: Option<String>,
    /// The user name.
    pub user: String,
    /// The password.
    pub password: Option<String>,
    /// The timeout of a statement.
    pub time_max: Duration,
    /// Makes connections.
    pub dial: Dial,
    /// Begins TLS; `None`: without TLS.
    pub secure: Option<Secure>,
    /// The clock for timeouts.
    pub clock: Clock,
}

/// A connection to a server.
pub struct PostgresServer {
    way: PostgresSettings,
    session: Option<Session>,
}

struct Session {
    client: Client,
    connection: AbortHandle,
    statements: HashMap<String, Statement>,
    time_max: Duration,
    clock: Clock,
}

impl Drop for Session {
    fn drop(&mut self) {
        // Does not wait for pending statements: the server rolls them back.
        self.connection.abort();
    }
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresServer({}:{})", self.way.host, self.way.port)
    }
}

impl Postgres {
    /// Creates a target. `is_to_create`: missing tables are created.
    pub fn at(way: PostgresSettings, job: &str, tables: &[Table], is_to_create: bool) -> Postgres {
        let clock = way.clock.clone();
        Tables::new(PostgresServer { way, session: None }, job, tables, is_to_create).with_clock(clock)
    }
}

#[derive(Debug)]
enum Fault {
    Late,
    Sql(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        Fault::Sql(error)
    }
}

impl From<Fault> for DeliveryError {
    fn from(fault: Fault) -> DeliveryError {
        let error = match fault {
            Fault::Late => return DeliveryError::failed(Failure::Connection, "the server did not answer in time"),
            Fault::Sql(error) => error,
        };
        let Some(told) = error.as_db_error() else {
            return DeliveryError::failed(Failure::Connection, shown(&error));
        };
        let failure = match told.code().code().as_bytes() {
            // A key too long for an index.
            b"54000" => Failure::TooLarge,
            // Two rows of a statement with equal keys, which the mapping considers different: equal only under the
            // server's collation.
            b"21000" => Failure::Sql(*b"23505"),
            code => code.try_into().map_or(Failure::Connection, Failure::Sql),
        };
        // Without details, which contain values of other documents.
        DeliveryError::failed(failure, told.message())
    }
}

fn shown(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

type Params<'p> = [&'p (dyn ToSql + Sync)];

impl Session {
    /// Waits for the server, at most for the timeout.
    async fn in_time<T>(
        clock: &Clock,
        time_max: Duration,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Fault> {
        match clock.timeout(time_max + LATER, work).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::Late),
        }
    }

    async fn batch(&self, statements: &str) -> Result<(), Fault> {
        Session::in_time(&self.clock, self.time_max, self.client.batch_execute(statements)).await
    }

    async fn prepared(&mut self, text: &str) -> Result<Statement, Fault> {
        if let Some(statement) = self.statements.get(text) {
            return Ok(statement.clone());
        }
        let statement = Session::in_time(&self.clock, self.time_max, self.client.prepare(text)).await?;
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    async fn query(&mut self, text: &str, params: &Params<'_>) -> Result<Vec<SqlRow>, Fault> {
        let statement = self.prepared(text).await?;
        Session::in_time(&self.clock, self.time_max, self.client.query(&statement, params)).await
    }

    async fn look(&mut self, table: &str) -> Result<Option<DatabaseTable>, Fault> {
        let table = DIALECT.quoted(table);
        let mut found = DatabaseTable::default();
        // A domain accepts the values of its base type.
        let columns = "SELECT a.attname::text, format_type(a.atttypid, -1), COALESCE(b.typname, t.typname)::text,
            CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE t.typtypmod END,
            a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', COALESCE(NOT c.collisdeterministic, false)
            FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
            LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
            WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
        for row in self.query(columns, &[&table]).await? {
            let (name, kind, modifier) = (row.try_get::<_, String>(2)?, row.try_get(1)?, row.try_get(3)?);
            let family = family(&name, modifier);
            found.columns.push(DatabaseColumn {
                name: row.try_get(0)?,
                kind,
                family,
                is_required: row.try_get(4)?,
                is_folding: name == "citext" || row.try_get(5)?,
            });
        }
        if found.columns.is_empty() {
            return Ok(None);
        }
        // Keys that `ON CONFLICT` may name.
        let keys = "SELECT array_agg(a.attname::text) FROM pg_index i
            CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
            WHERE i.indrelid = to_regclass($1::text) AND i.indisunique AND i.indisvalid AND i.indimmediate
            AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts GROUP BY i.indexrelid";
        for row in self.query(keys, &[&table]).await? {
            found.keys.push(row.try_get::<_, Vec<String>>(0)?.into_iter().collect());
        }
        let references = "SELECT DISTINCT r.relname::text FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
            WHERE c.contype = 'f' AND c.confrelid = to_regclass($1::text)";
        for row in self.query(references, &[&table]).await? {
            found.referenced_by.push(row.try_get(0)?);
        }
        Ok(Some(found))
    }

    async fn open(&mut self, opening: OpenParameters) -> Result<Option<Claims>, Fault> {
        let OpenParameters { job, epoch, checkpoint, documents, claims: mut found } = opening;
        let (fence, claims) = (self.prepared(FENCE).await?, self.prepared(CLAIMS).await?);
        let (client, claims_max) = (&self.client, CLAIMS_MAX as i64 + 1);
        let begun = SentRequest::now(client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"));
        let fence_values: [Value<'_>; 3] = [&job, &epoch, &checkpoint];
        let fenced = SentRequest::now(client.execute(&fence, &fence_values));
        let claims_values: [Value<'_>; 3] = [&job, &documents, &claims_max];
        let read = (!documents.is_empty()).then(|| {
            SentRequest::now(async move {
                let mut rows = pin!(client.query_raw(&claims, claims_values).await?);
                while let Some(row) = rows.try_next().await? {
                    // The connection discards the remaining rows.
                    if !found.take(row.try_get(0)?, Claim { table: row.try_get(1)?, key: row.try_get(2)? }) {
                        break;
                    }
                }
                Ok(found)
            })
        });
        begun.answer(&self.clock, self.time_max).await?;
        if fenced.answer(&self.clock, self.time_max).await? != 1 {
            self.batch("ROLLBACK").await?;
            return Ok(None);
        }
        match read {
            Some(read) => read.answer(&self.clock, self.time_max).await.map(Some),
            None => Ok(Some(Claims::within(0, 0))),
        }
    }

    async fn close(&mut self, batch: &Batch) -> Result<(), Fault> {
        let mut statements = Vec::with_capacity(batch.steps.len());
        for step in &batch.steps {
            let statement = match said(batch, step) {
                Some(text) => Some(self.prepared(&text).await?),
                None => None,
            };
            statements.push(statement);
        }
        let mut flow = Flow { session: self, sent: VecDeque::new(), bytes: 0 };
        for (step, statement) in batch.steps.iter().zip(&statements) {
            if let Some(statement) = statement {
                flow.take(batch, step, statement).await?;
            }
        }
        // Each statement has been sent: a failed write has returned above.
        let committed = SentRequest::now(self.client.batch_execute("COMMIT"));
        flow.end().await?;
        committed.answer(&self.clock, self.time_max).await
    }
}

type Value<'v> = &'v (dyn ToSql + Sync);

/// Values of a statement, that stay with it until it is answered.
type Values<'v> = Vec<Box<dyn ToSql + Send + Sync + 'v>>;

/// Pipelined statements, and the bytes of their values.
struct Flow<'s> {
    session: &'s Session,
    sent: VecDeque<(usize, SentRequest<'s, u64>)>,
    bytes: usize,
}

impl<'s> Flow<'s> {
    /// Sends a statement behind the pipelined ones, once they have at most [`BYTES_MAX`] together.
    async fn send(&mut self, statement: &Statement, values: Values<'s>, bytes: usize) -> Result<(), Fault> {
        while self.bytes.saturating_add(bytes) > BYTES_MAX {
            let Some((bytes, sent)) = self.sent.pop_front() else { break };
            sent.answer(&self.session.clock, self.session.time_max).await?;
            self.bytes -= bytes;
        }
        let (client, statement) = (&self.session.client, statement.clone());
        let sent = SentRequest::now(async move {
            let values: Vec<Value<'_>> = values.iter().map(|value| &**value as Value<'_>).collect();
            client.execute(&statement, &values).await
        });
        match sent {
            // A batch must not be committed without a statement that was not sent. Errors of the server come from
            // earlier statements and are reported first.
            SentRequest::Answered(Err(error)) if error.as_db_error().is_none() => Err(error.into()),
            sent => {
                self.bytes += bytes;
                self.sent.push_back((bytes, sent));
                Ok(())
            }
        }
    }

    /// Waits for all answers. The first failure is the cause of the later ones.
    async fn end(self) -> Result<(), Fault> {
        for (_, sent) in self.sent {
            sent.answer(&self.session.clock, self.session.time_max).await?;
        }
        Ok(())
    }

    async fn take(&mut self, batch: &'s Batch, step: &'s Step, statement: &Statement) -> Result<(), Fault> {
        match step {
            Step::Leave { table, is_soft, columns, keys } => {
                let Some((table, found)) = of(batch, *table) else { return Ok(()) };
                let names: Vec<&str> = columns.iter().map(String::as_str).collect();
                let kinds = kinds(&names, table, found);
                let bytes = |key: &Vec<Datum>| key.iter().map(Datum::bytes).sum();
                for part in parts(keys, ROWS_MAX, BYTES_MAX, bytes) {
                    let mut values = boxed(arrays(part.iter().map(Vec::as_slice), &kinds));
                    if *is_soft && table.soft_delete_column.is_some() {
                        values.push(Box::new(&batch.now));
                    }
                    self.send(statement, values, part.iter().map(bytes).sum()).await?;
                }
            }
            Step::Upsert { table, rows } => {
                let Some((table, found)) = of(batch, *table) else { return Ok(()) };
                let row = |(delivery, row): &(usize, usize)| rows_of(batch.deliveries.get(*delivery)?).0.get(*row);
                let rows: Vec<&Row> = rows.iter().filter_map(row).collect();
                let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
                let kinds = kinds(&names, table, found);
                let bytes = |row: &&Row| row.values.iter().map(Datum::bytes).sum();
                for part in parts(&rows, ROWS_MAX, BYTES_MAX, bytes) {
                    let values = boxed(arrays(part.iter().map(|row| row.values.as_slice()), &kinds));
                    self.send(statement, values, part.iter().map(bytes).sum()).await?;
                }
            }
            Step::Release(claims) => self.claims(batch, claims, statement, false).await?,
            Step::Claim(claims) => self.claims(batch, claims, statement, true).await?,
        }
        Ok(())
    }

    async fn claims(
        &mut self,
        batch: &'s Batch,
        claims: &'s [(Claim, usize)],
        statement: &Statement,
        has_revisions: bool,
    ) -> Result<(), Fault> {
        let bytes = |(claim, _): &(Claim, usize)| claim.key.len() + 100;
        for part in parts(claims, ROWS_MAX, BYTES_MAX, bytes) {
            let (mut tables, mut keys, mut documents, mut revisions) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (claim, at) in part {
                let Some(delivery) = batch.deliveries.get(*at) else { continue };
                tables.push(claim.table.as_str());
                keys.push(claim.key.as_str());
                documents.push(delivery.id.as_str());
                revisions.push(delivery.rev.as_str());
            }
            let mut values: Values<'s> = vec![Box::new(&batch.job)];
            values.extend(boxed([tables, keys, documents]));
            if has_revisions {
                values.push(Box::new(revisions));
            }
            self.send(statement, values, part.iter().map(bytes).sum()).await?;
        }
        Ok(())
    }
}

fn boxed<'v, T: ToSql + Send + Sync + 'v>(values: impl IntoIterator<Item = T>) -> Values<'v> {
    values.into_iter().map(|value| Box::new(value) as Box<dyn ToSql + Send + Sync + 'v>).collect()
}

fn of(batch: &Batch, table: usize) -> Option<(&Table, &DatabaseTable)> {
    Some((batch.tables.get(table)?, batch.found.get(table)?))
}

/// Returns the SQL of a step; `None`: its table does not exist.
fn said(batch: &Batch, step: &Step) -> Option<String> {
    Some(match step {
        Step::Leave { table, is_soft, columns, .. } => {
            let (table, found) = of(batch, *table)?;
            let soft = table.soft_delete_column.as_deref().filter(|_| *is_soft);
            let names: Vec<&str> = columns.iter().map(String::as_str).collect();
            leave(&table.name, soft, &names, found)
        }
        Step::Upsert { table, .. } => {
            let (table, found) = of(batch, *table)?;
            upsert(table, found)
        }
        Step::Release(_) => RELEASE.to_owned(),
        Step::Claim(_) => CLAIM.to_owned(),
    })
}

impl PostgresServer {
    async fn dial(&self) -> Result<Session, DeliveryError> {
        let way = &self.way;
        let broken = |error: String| DeliveryError::failed(Failure::Connection, error);
        let host = if way.host.contains(':') { format!("[{}]", way.host) } else { way.host.clone() };
        let url = Url::parse(&format!("http://{host}:{}", way.port)).map_err(|error| broken(error.to_string()))?;
        let mut config = Config::new();
        config.user(&way.user).dbname(&way.database).application_name("flatbed");
        if let Some(password) = &way.password {
            config.password(password);
        }
        config.ssl_mode(if way.secure.is_some() { SslMode::Require } else { SslMode::Disable });
        let upgrade = Upgrade { host: url.host().to_owned(), secure: way.secure.clone() };
        let connecting = async {
            let stream = (way.dial)(&url).await.map_err(broken)?;
            let connected = config.connect_raw(Wire(stream), upgrade).await;
            connected.map_err(|error| DeliveryError::from(Fault::Sql(error)))
        };
        let late = || broken("the server did not answer in time".to_owned());
        let connected = way.clock.timeout(way.time_max + LATER, connecting).await;
        let (client, connection) = connected.map_err(|_| late())??;
        let connection = tokio::spawn(async move {
            // The pending request reports the error.
            let _ = connection.await;
        });
        let (connection, statements) = (connection.abort_handle(), HashMap::new());
        let (time_max, clock) = (way.time_max, way.clock.clone());
        let session = Session { client, connection, statements, time_max, clock };
        // Bounds the time that a process stopped in a transaction blocks others, and avoids plans made for empty
        // tables.
        let milliseconds = time_max.as_millis().max(1);
        let mut settings = format!(
            "SET statement_timeout = {milliseconds}; SET idle_in_transaction_session_timeout = {milliseconds};
            SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET standard_conforming_strings = on;
            SELECT set_config(name, 'force_custom_plan', false) FROM pg_settings WHERE name = 'plan_cache_mode'"
        );
        if let Some(schema) = &way.schema {
            settings.push_str(&format!("; SET search_path TO {}", DIALECT.quoted(schema)));
        }
        session.batch(&settings).await?;
        Ok(session)
    }

    fn session(&mut self) -> Result<Session, DeliveryError> {
        let lost = || DeliveryError::failed(Failure::Connection, "the connection to the server is lost");
        self.session.take().ok_or_else(lost)
    }

    /// Keeps a healthy session. After an error of the session's state, the next use reconnects.
    async fn keep<T>(&mut self, session: Session, done: Result<T, Fault>) -> Result<T, DeliveryError> {
        let refused = match done {
            Ok(done) => {
                self.session = Some(session);
                return Ok(done);
            }
            Err(fault) => DeliveryError::from(fault),
        };
        if let DeliveryError::Failed { failure, .. } = &refused
            && failure.class() == crate::failure::Class::Poison
            && session.batch("ROLLBACK").await.is_ok()
        {
            self.session = Some(session);
        }
        Err(refused)
    }
}

impl Driver for PostgresServer {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    async fn connect(&mut self) -> Result<bool, DeliveryError> {
        if self.session.as_ref().is_some_and(|session| !session.client.is_closed()) {
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
        let session = self.session()?;
        let done = session.batch(&format!("BEGIN; {}; COMMIT", statements.join("; "))).await;
        self.keep(session, done).await
    }

    async fn has_claims(&mut self, job: String, table: String) -> Result<bool, DeliveryError> {
        let mut session = self.session()?;
        let query = "SELECT 1 FROM flatbed_rows WHERE job = $1::text AND tbl = $2::text LIMIT 1";
        let done = session.query(query, &[&job, &table]).await.map(|rows| !rows.is_empty());
        self.keep(session, done).await
    }

    async fn take_over(&mut self, job: String, epoch: i64) -> Result<Option<String>, DeliveryError> {
        let mut session = self.session()?;
        let statement =
            "INSERT INTO flatbed_checkpoints AS c VALUES ($1::text, $2::int8, '') ON CONFLICT (job) DO UPDATE
            SET epoch = excluded.epoch WHERE c.epoch <= excluded.epoch RETURNING checkpoint";
        let found = session.query(statement, &[&job, &epoch]).await;
        let done = found.and_then(|rows| Ok(rows.first().map(|row| row.try_get(0)).transpose()?));
        self.keep(session, done).await
    }

    async fn open(&mut self, opening: OpenParameters) -> Result<Option<Claims>, DeliveryError> {
        let mut session = self.session()?;
        let done = session.open(opening).await;
        self.keep(session, done).await
    }

    async fn close(&mut self, batch: Arc<Batch>) -> Result<(), DeliveryError> {
        let mut session = self.session()?;
        let done = session.close(&batch).await;
        self.keep(session, done).await
    }

    async fn abandon(&mut self) {
        self.session = None;
    }
}

/// Begins TLS once the server has agreed to it.
struct Upgrade {
    host: String,
    secure: Option<Secure>,
}

impl TlsConnect<Wire> for Upgrade {
    type Stream = Wire;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Wire>> + Send>>;

    fn connect(self, stream: Wire) -> Self::Future {
        Box::pin(async move {
            let secure = self.secure.ok_or_else(|| io::Error::other("TLS is not configured"))?;
            Ok(Wire(secure(self.host, stream.0).await.map_err(io::Error::other)?))
        })
    }
}

/// A connection without or with TLS. The TLS layer has checked the certificate, so channel binding is not used.
struct Wire(Box<dyn Stream>);

impl TlsStream for Wire {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
