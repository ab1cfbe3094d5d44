//! Scenarios for all targets with tables: SQLite, and the installed servers.

mod bounds;
mod leftovers;
mod schema;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_testkit::{PATIENCE, soon, until};
use flatbed_worker::connect::{AnyTarget, Reach, Secrets, connect};
use flatbed_worker::documents::Description;
use flatbed_worker::failure::Class;
use flatbed_worker::output::mysql::{self, MySql};
use flatbed_worker::output::postgres::{Postgres, PostgresSettings};
use flatbed_worker::output::tables::{Claims, Driver, OpenParameters, Tables};
use flatbed_worker::output::{DeliveryError, Target};
use flatbed_worker::progress::Progress;
use flatbed_worker::run::{Counts, RunEnd, Runner};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, Mishap, Unlucky, job, once, redactor};
use crate::server::{local, plain, reach};
use crate::servers::{PASSWORD, Server};

enum Engine {
    Sqlite(tempfile::TempDir),
    Postgres(Server),
    MariaDb(Server),
}

impl Engine {
    fn server(&mut self) -> &mut Server {
        match self {
            Engine::Postgres(server) | Engine::MariaDb(server) => server,
            Engine::Sqlite(_) => panic!("SQLite has no server"),
        }
    }
}

/// A database for one scenario.
struct Scenario<'e> {
    engine: &'e mut Engine,
    database: String,
    source: FakeSource,
    queue: FakeQueue,
    epoch: u64,
}

/// A constraint, written in each engine's dialect.
enum Rule {
    /// A unique key on `orders.id`.
    Unique,
    /// A check against values of `k` that end with 13.
    NoThirteen,
    /// A full disk, simulated for every write to `orders`.
    Full,
}

impl<'e> Scenario<'e> {
    fn new(engine: &'e mut Engine, database: &str) -> Scenario<'e> {
        if let Engine::Postgres(server) | Engine::MariaDb(server) = engine {
            server.sql("", &format!("CREATE DATABASE {database}"));
        }
        let (source, queue) = (FakeSource::default(), FakeQueue::default());
        Scenario { engine, database: database.to_owned(), source, queue, epoch: 0 }
    }

    fn file(&self) -> PathBuf {
        let Engine::Sqlite(directory) = &self.engine else { panic!() };
        directory.path().join(&self.database)
    }

    /// Executes a statement as the administrator; returns lines of values joined by bars.
    fn sql(&self, statement: &str) -> Vec<String> {
        match &self.engine {
            Engine::Postgres(server) => server.sql(&self.database, statement),
            Engine::MariaDb(server) => {
                let line = |line: String| {
                    let values = line.split('\t').map(|value| if value == "NULL" { "" } else { value });
                    values.collect::<Vec<_>>().join("|")
                };
                server.sql(&self.database, statement).into_iter().map(line).collect()
            }
            Engine::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.file()).unwrap();
                connection.busy_timeout(PATIENCE).unwrap();
                if !statement.starts_with("SELECT") {
                    connection.execute_batch(statement).unwrap();
                    return Vec::new();
                }
                let mut statement = connection.prepare(statement).unwrap();
                let count = statement.column_count();
                let (mut rows, mut lines) = (statement.query([]).unwrap(), Vec::new());
                while let Some(row) = rows.next().unwrap() {
                    let text = |at| match row.get_ref(at).unwrap() {
                        rusqlite::types::ValueRef::Null => String::new(),
                        rusqlite::types::ValueRef::Integer(value) => value.to_string(),
                        rusqlite::types::ValueRef::Real(value) => value.to_string(),
                        rusqlite::types::ValueRef::Text(value) | rusqlite::types::ValueRef::Blob(value) => {
                            String::from_utf8_lossy(value).into_owned()
                        }
                    };
                    lines.push((0..count).map(text).collect::<Vec<_>>().join("|"));
                }
                lines
            }
        }
    }

    fn output(&self) -> Value {
        let mut output = json!({"id": "out", "create_tables": true, "timeout_seconds": 60, "database": self.database});
        match &self.engine {
            Engine::Sqlite(_) => output["database_type"] = "sqlite".into(),
            Engine::Postgres(server) => {
                output["database_type"] = "postgres".into();
                output["port"] = server.port.into();
            }
            Engine::MariaDb(server) => {
                output["database_type"] = "mysql".into();
                output["port"] = server.port.into();
            }
        }
        if !matches!(self.engine, Engine::Sqlite(_)) {
            output["host"] = "127.0.0.1".into();
            output["username"] = "root".into();
            output["password"] = "env:FLATBED_WORKER_P".into();
        }
        output
    }

    /// Creates a job with orders and their items, and with further members of the output, the first table and the
    /// settings.
    fn job(&self, output: Value, orders: Value, system: Value) -> Description {
        let with = |base: Value, further: Value| {
            let mut base = base;
            base.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
            base
        };
        let orders = with(
            json!({"name": "orders", "primary_key": "k", "columns": [
                {"name": "k", "path": "$.k", "type": "integer"}, {"name": "id", "path": "$.id", "type": "varchar(40)"}]}),
            orders,
        );
        let items = json!({"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"},
            "source_array": "$.items", "columns": {"name": "$"}});
        let tables = if orders["alone"] == true { json!([orders["table"]]) } else { json!([orders, items]) };
        let mapping = json!({"source": {"match": {"t": "order"}}, "tables": tables});
        let system = with(json!({"retry": {"backoff_base_seconds": 0.01, "backoff_max_seconds": 0.1}}), system);
        job("rdbms", with(self.output(), output), mapping, system)
    }

    fn plain_job(&self) -> Description {
        self.job(json!({}), json!({}), json!({"processing": {"batch": 100}}))
    }

    fn target(&self, job: &Description) -> AnyTarget {
        let variables = ["FLATBED_WORKER_P", "FLATBED_WORKER_W"].map(|name| (name.to_owned(), PASSWORD.to_owned()));
        let files = match &self.engine {
            Engine::Sqlite(directory) => Some(directory.path().to_owned()),
            Engine::Postgres(_) | Engine::MariaDb(_) => None,
        };
        let secrets = Secrets { directory: None, variables: variables.into() };
        let reach = Reach {
            secure: Arc::new(|_, _| Box::pin(async { Err("without TLS".to_owned()) })),
            ..reach(secrets, files)
        };
        connect(job, &reach).unwrap().target
    }

    async fn once_with<T: Target>(&mut self, job: &Description, target: T) -> (RunEnd, Counts, T) {
        self.epoch += 1;
        soon(once(job, &self.source, target, &self.queue, self.epoch)).await
    }

    async fn once(&mut self, job: &Description) -> (RunEnd, Counts) {
        let target = self.target(job);
        let (end, counts, _) = self.once_with(job, target).await;
        (end, counts)
    }

    fn order(&self, id: &str, k: i64, items: usize) {
        self.source.write(id, json!({"t": "order", "k": k, "id": id, "items": vec!["x"; items]}));
    }

    /// Returns the id and number of items of each order in the tables.
    fn orders(&self) -> BTreeMap<i64, (String, usize)> {
        let query = "SELECT k, id, (SELECT count(*) FROM items WHERE items.k = orders.k) FROM orders";
        let of = |line: String| {
            let values: Vec<&str> = line.split('|').collect();
            (values[0].parse().unwrap(), (values[1].to_owned(), values[2].parse().unwrap()))
        };
        self.sql(query).into_iter().map(of).collect()
    }

    /// Returns the expected orders, without documents in the queue.
    fn expected(&self) -> BTreeMap<i64, (String, usize)> {
        let queued = self.queue.documents();
        let of = |(id, body): (String, Value)| {
            let items = body["items"].as_array().map_or(0, Vec::len);
            let row = || (body["k"].as_i64().unwrap(), (body["id"].as_str().unwrap().to_owned(), items));
            (body["t"] == "order" && !queued.contains(&id)).then(row)
        };
        self.source.documents().into_iter().filter_map(of).collect()
    }

    fn count(&self, table: &str) -> usize {
        self.sql(&format!("SELECT count(*) FROM {table}"))[0].parse().unwrap()
    }

    fn rule(&self, rule: Rule, is_on: bool) {
        let statement = match (&self.engine, rule, is_on) {
            (_, Rule::Unique, _) => "CREATE UNIQUE INDEX u ON orders (id)",
            (Engine::Sqlite(_), Rule::NoThirteen, true) => {
                "CREATE TRIGGER no BEFORE INSERT ON orders WHEN NEW.k % 100 = 13 BEGIN SELECT RAISE(ABORT, 'no'); END"
            }
            (_, Rule::NoThirteen, true) => "ALTER TABLE orders ADD CONSTRAINT no CHECK (k % 100 <> 13)",
            (Engine::Postgres(_), Rule::Full, true) => {
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$;
                CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()"
            }
            (Engine::MariaDb(_), Rule::Full, true) => {
                "CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'no room'"
            }
            (Engine::MariaDb(_), Rule::Full, false) => "DROP TRIGGER no",
            (Engine::Postgres(_), Rule::Full, false) => "DROP TRIGGER no ON orders; DROP FUNCTION no",
            _ => unreachable!(),
        };
        self.sql(statement);
    }

    /// Runs a job until `work` is done, which causes and fixes the target's failures.
    async fn meanwhile(&mut self, job: &Description, work: impl AsyncFnOnce(&mut Scenario<'_>, &Progress)) -> RunEnd {
        self.epoch += 1;
        let (stop, stopping) = watch::channel(false);
        let progress = Arc::new(Progress::default());
        let (source, queue, target) = (self.source.clone(), self.queue.clone(), self.target(job));
        let (told, epoch) = (progress.clone(), self.epoch);
        let job = job.clone();
        // A separate task, which proceeds while `work` waits for locks that it holds.
        let running = tokio::spawn(async move {
            Runner::new(&job, source, target, queue, redactor(), stopping, epoch).with_progress(told).run().await.0
        });
        work(self, &progress).await;
        stop.send_replace(true);
        soon(running).await.unwrap()
    }

    async fn until_right(&self) {
        until("the tables are right", async || self.orders() == self.expected()).await;
    }
}

/// Runs all scenarios in sequence, each in a database of its own.
async fn all(mut engine: Engine) {
    let engine = &mut engine;
    rows_follow_documents(&mut Scenario::new(engine, "follow")).await;
    if matches!(engine, Engine::Postgres(_)) {
        bounds::claims_are_read_by_their_documents(&mut Scenario::new(engine, "claims")).await;
    }
    the_guilty_alone_are_queued(&mut Scenario::new(engine, "guilty")).await;
    leftovers::what_the_guilty_left_keeps_nobody(&mut Scenario::new(engine, "leftovers")).await;
    kills_and_outages_lose_nothing(&mut Scenario::new(engine, "kills")).await;
    who_lost_the_job_writes_nothing(&mut Scenario::new(engine, "fence")).await;
    documents_exchange_what_only_one_may_have(&mut Scenario::new(engine, "exchange")).await;
    rows_that_stay_say_since_when(&mut Scenario::new(engine, "soft")).await;
    values_keep_their_types(&mut Scenario::new(engine, "types")).await;
    tables_are_made_or_looked_at(&mut Scenario::new(engine, "look")).await;
    large_batches(&mut Scenario::new(engine, "large")).await;
    bounds::no_more_claims_are_read_than_there_is_room_for(&mut Scenario::new(engine, "bounds")).await;
    if !matches!(engine, Engine::Sqlite(_)) {
        schema::what_would_be_lost_is_said(&mut Scenario::new(engine, "lost")).await;
        the_targets_state_is_waited_for(&mut Scenario::new(engine, "outages")).await;
        who_is_stopped_in_a_transaction_holds_nobody_up(&mut Scenario::new(engine, "stopped")).await;
        a_server_that_is_gone_and_comes_back(&mut Scenario::new(engine, "gone")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    all(Engine::Sqlite(tempfile::tempdir().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    if let Some(server) = Server::postgres() {
        all(Engine::Postgres(server)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    if let Some(server) = Server::mariadb() {
        all(Engine::MariaDb(server)).await;
    }
}

async fn rows_follow_documents(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    for at in 0..1_000 {
        place.order(&format!("d{at}"), at, at as usize % 4);
    }
    assert_eq!(place.once(&job).await, (RunEnd::Done, Counts { delivered: 1_000, ..Counts::default() }));
    assert_eq!(place.orders(), place.expected());
    let claims = 1_000 + 250 * (1 + 2 + 3);
    assert_eq!(place.count("flatbed_rows"), claims);
    // Again without changes; then a key moves, an array shrinks, one document is deleted, one no longer matches, two
    // exchange keys.
    assert_eq!(place.once(&job).await.1.delivered, 0);
    place.order("d3", 9_003, 1);
    place.source.write("d7", Value::Null);
    place.source.write("d11", json!({"t": "invoice"}));
    place.order("d20", 21, 3);
    place.order("d21", 20, 0);
    let (end, counts) = place.once(&job).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 5));
    assert_eq!(place.orders(), place.expected());
    assert_eq!(place.count("flatbed_rows"), claims - 2 - 4 - 4 + 3 - 1);
    for at in 0..1_000 {
        place.source.write(&format!("d{at}"), Value::Null);
    }
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    let counts = ["orders", "items", "flatbed_rows", "flatbed_checkpoints"].map(|table| place.count(table));
    assert_eq!(counts, [0, 0, 0, 1]);
}

async fn the_guilty_alone_are_queued(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    place.rule(Rule::NoThirteen, true);
    for at in 0..300 {
        place.order(&format!("d{at}"), at, 1);
    }
    place.source.write("d50", json!({"t": "order", "k": "fifty", "id": "d50"}));
    let (end, counts) = place.once(&job).await;
    assert_eq!((end, counts.delivered, counts.queued, counts.outages), (RunEnd::Done, 296, 4, 0));
    assert_eq!(place.queue.documents(), ["d113", "d13", "d213", "d50"]);
    assert_eq!(place.orders(), place.expected());
    let entries = place.queue.0.lock().unwrap().clone();
    let mut reasons: Vec<_> = entries.values().map(|entry| entry.reason.as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [["data_error:constraint"; 3].as_slice(), &["data_error:data_type"]].concat());
    assert_eq!(place.once(&job).await.1, Counts::default());
}

async fn kills_and_outages_lose_nothing(place: &mut Scenario<'_>) {
    let job = place.job(json!({}), json!({}), json!({"processing": {"batch": 7}}));
    let of = [None, Some(Mishap::Outage), Some(Mishap::KilledBefore), Some(Mishap::KilledAfter)];
    for round in 0..12_usize {
        for at in 0..20_usize {
            let id = format!("d{}", (at * 7 + round) % 30);
            match (at + round) % 6 {
                0 => place.source.write(&id, Value::Null),
                1 => place.source.write(&id, json!({"t": "invoice"})),
                // Distinct keys: two documents with one key are not tested here.
                _ => place.order(&id, (((at * 7 + round) % 30) * 100 + at % 5) as i64, round % 4),
            }
        }
        let mishaps = (0..6).map(|at| of[(at * 5 + round * 3) % 4]).collect();
        let target = Unlucky { target: place.target(&job), mishaps };
        let (end, ..) = place.once_with(&job, target).await;
        assert!(matches!(end, RunEnd::Done | RunEnd::Superseded), "{end:?}");
    }
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    assert_eq!(place.orders(), place.expected());
    assert!(place.queue.documents().is_empty());
    let rows = place.count("orders") + place.count("items");
    assert_eq!(place.count("flatbed_rows"), rows);
}

async fn who_lost_the_job_writes_nothing(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    place.order("a", 1, 1);
    let target = place.target(&job);
    let (_, _, old) = place.once_with(&job, target).await;
    place.order("b", 2, 1);
    let target = place.target(&job);
    let (_, _, new) = place.once_with(&job, target).await;
    // The previous owner returns: neither its batches nor its start succeed.
    place.source.write("b", Value::Null);
    place.epoch -= 2;
    let (end, counts, mut old) = place.once_with(&job, old).await;
    assert_eq!((end, counts.delivered), (RunEnd::Superseded, 0));
    assert_eq!(old.begin(1).await, Err(DeliveryError::Superseded));
    assert_eq!(old.deliver(Vec::new(), None).await, Err(DeliveryError::Superseded));
    assert_eq!(place.orders().len(), 2);
    place.epoch = 2;
    assert_eq!(place.once_with(&job, new).await.1.delivered, 1);
    assert_eq!(place.orders(), place.expected());
}

async fn documents_exchange_what_only_one_may_have(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    let write = |place: &Scenario<'_>, document: &str, k: i64, id: &str| {
        place.source.write(document, json!({"t": "order", "k": k, "id": id, "items": ["x"]}));
    };
    write(place, "a", 1, "one");
    write(place, "b", 2, "two");
    write(place, "c", 3, "three");
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    place.rule(Rule::Unique, true);
    write(place, "a", 1, "two");
    write(place, "b", 2, "one");
    let (end, counts) = place.once(&job).await;
    assert_eq!((end, counts.queued), (RunEnd::Done, 0));
    assert_eq!(place.orders(), place.expected());
    // A true conflict goes to the queue, alone.
    write(place, "d", 4, "three");
    write(place, "e", 5, "five");
    assert_eq!(place.once(&job).await.1.queued, 1);
    assert_eq!(place.queue.documents(), ["d"]);
    assert_eq!(place.orders(), place.expected());
    // Rows with values in foreign columns are not replaced.
    place.sql("ALTER TABLE orders ADD note varchar(10)");
    place.sql("UPDATE orders SET note = 'mine' WHERE k = 1");
    write(place, "a", 1, "one");
    write(place, "b", 2, "two");
    assert_eq!(place.once(&job).await.1.queued, 2);
    assert_eq!(place.sql("SELECT id, note FROM orders WHERE k = 1"), ["two|mine"]);
}

async fn rows_that_stay_say_since_when(place: &mut Scenario<'_>) {
    let job = place.job(json!({}), json!({"on_delete": "soft_delete"}), json!({}));
    place.order("a", 1, 2);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    place.source.write("a", Value::Null);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    assert_eq!(place.sql("SELECT count(*) FROM orders WHERE deleted_at IS NOT NULL"), ["1"]);
    assert_eq!([place.count("items"), place.count("flatbed_rows")], [0, 0]);
    place.order("a", 1, 1);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    assert_eq!(place.sql("SELECT count(*) FROM orders WHERE deleted_at IS NULL"), ["1"]);
}

async fn values_keep_their_types(place: &mut Scenario<'_>) {
    let column = |name: &str, kind: &str| json!({"name": name, "path": format!("$.{name}"), "type": kind});
    let columns = json!([column("id", "text"), column("small", "smallint"), column("large", "bigint"), column("exact", "numeric(30,10)"),
        column("float", "double precision"), column("yes", "boolean"), column("day", "date"), column("moment", "timestamptz"),
        column("tree", "jsonb"), column("bytes", "bytea"), {"name": "free", "path": "$.free"}]);
    let table = json!({"alone": true, "table": {"name": "t", "primary_key": ["id"], "columns": columns}});
    let job = place.job(json!({}), table, json!({}));
    let document = json!({"t": "order", "id": "\u{e4}\u{1f600} 'x' \\ \"", "small": -32768, "large": 9_223_372_036_854_775_807_i64,
        "exact": "12345678901234567890.0123456789", "float": 0.1, "yes": true, "day": "2026-02-28", "moment": "2026-02-28T23:30:00.25-01:00",
        "tree": {"b": [1, null, "\u{1f600}"]}, "bytes": "AAEC/w==", "free": 1.50});
    place.source.write("a", document);
    place.source.write("b", json!({"t": "order", "id": "b"}));
    assert_eq!(place.once(&job).await, (RunEnd::Done, Counts { delivered: 2, ..Counts::default() }));
    let query = match &place.engine {
        Engine::Sqlite(_) => "SELECT id, small, large, exact, float, yes, day, moment, tree, hex(bytes), free FROM t ORDER BY id DESC",
        Engine::MariaDb(_) => {
            "SELECT id, small, large, exact, `float`, yes, day, CONCAT(LEFT(DATE_FORMAT(moment, '%Y-%m-%dT%H:%i:%s.%f'), 22), 'Z'),
            tree, HEX(bytes), free FROM t ORDER BY id DESC"
        }
        Engine::Postgres(_) => {
            "SELECT id, small, large, exact, float, yes::int, day, to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'),
            tree, upper(encode(bytes, 'hex')), free FROM t ORDER BY id DESC"
        }
    };
    let found = place.sql(query);
    assert_eq!(found[1], "b||||||||||", "{found:?}");
    let first = found[0].replace(": ", ":").replace(", ", ",").replace(".250Z", ".25Z");
    // Values without a type are texts, or numbers in SQLite.
    let expected = "\u{e4}\u{1f600} 'x' \\ \"|-32768|9223372036854775807|12345678901234567890.0123456789|0.1|1|2026-02-28|2026-03-01T00:30:00.25Z|{\"b\":[1,null,\"\u{1f600}\"]}|000102FF|1.5";
    assert_eq!(first, expected);
    // A text with NUL is the document's fault if the engine has no such texts.
    place.source.write("c", json!({"t": "order", "id": "c\u{0}d"}));
    place.source.write("d", json!({"t": "order", "id": "d", "tree": "c\u{0}d"}));
    place.source.write("e", json!({"t": "order", "id": "e"}));
    let (end, counts) = place.once(&job).await;
    let is_refused = matches!(place.engine, Engine::Postgres(_));
    assert_eq!((end, counts.queued, counts.outages), (RunEnd::Done, if is_refused { 2 } else { 0 }, 0));
    assert!(place.sql("SELECT id FROM t").contains(&"e".to_owned()));
    place.source.write("a", Value::Null);
    place.source.write("e", Value::Null);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    assert_eq!(place.count("t"), if is_refused { 1 } else { 3 });
}

async fn tables_are_made_or_looked_at(place: &mut Scenario<'_>) {
    place.order("a", 1, 2);
    let given = place.job(
        json!({"create_tables": false}),
        json!({}),
        json!({"halt_on_failure": true, "retry": {"max_retries": 2, "backoff_base_seconds": 0.01}}),
    );
    let (end, _) = place.once(&given).await;
    assert_eq!(end, RunEnd::GaveUp("there is no such table: orders".to_owned()));
    // A table made by others fits if it loses nothing.
    place.sql("CREATE TABLE orders (k bigint NOT NULL, id varchar(50), note varchar(50), PRIMARY KEY (k))");
    place.sql("CREATE TABLE items (k bigint NOT NULL, flatbed_position bigint NOT NULL, name varchar(50), PRIMARY KEY (k, flatbed_position))");
    assert_eq!(place.once(&given).await.1.delivered, 1);
    assert_eq!(place.orders(), place.expected());
    // A dropped table counts as an outage and is not created again without its rows.
    let patient = place.job(
        json!({}),
        json!({}),
        json!({"halt_on_failure": true, "retry": {"max_retries": 2, "backoff_base_seconds": 0.01}}),
    );
    place.sql("DROP TABLE items");
    place.order("b", 2, 1);
    let RunEnd::GaveUp(reason) = place.once(&patient).await.0 else { panic!() };
    assert!(reason.starts_with("the table items is gone"), "{reason}");
    place.sql("CREATE TABLE items (k bigint NOT NULL, name varchar(50), flatbed_position bigint NOT NULL, extra varchar(9) NOT NULL, PRIMARY KEY (k, flatbed_position))");
    let (end, _) = place.once(&patient).await;
    assert_eq!(
        end,
        RunEnd::Unfit("the table items: the column extra must have a value, and the mapping gives it none".to_owned())
    );
    place.sql("DROP TABLE items");
    place.sql("CREATE TABLE items (k bigint NOT NULL, name varchar(50), flatbed_position bigint NOT NULL)");
    assert_eq!(
        place.once(&patient).await.0,
        RunEnd::Unfit("the table items: no key of it is (k, flatbed_position)".to_owned())
    );
    place.sql("CREATE UNIQUE INDEX i ON items (flatbed_position, k)");
    let (end, counts) = place.once(&patient).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 1));
    assert_eq!(place.sql("SELECT k, name FROM items"), ["2|x"]);
    assert!(place.queue.documents().is_empty());
    if !matches!(place.engine, Engine::Sqlite(_)) {
        place.sql("DROP TABLE orders");
        place.sql("CREATE TABLE orders (k date PRIMARY KEY, id varchar(50))");
        let (end, _) = place.once(&patient).await;
        assert_eq!(
            end,
            RunEnd::Unfit("the table orders: the column k is date, which does not hold integer".to_owned())
        );
    }
}

async fn large_batches(place: &mut Scenario<'_>) {
    let job = place.job(json!({"timeout_seconds": 60}), json!({}), json!({}));
    let long = "x".repeat(1 << 20);
    // More bytes and rows than a statement takes.
    for at in 0..20 {
        place.source.write(&format!("d{at}"), json!({"t": "order", "k": at, "id": "x", "items": [long]}));
    }
    for at in 20..24 {
        place.source.write(&format!("d{at}"), json!({"t": "order", "k": at, "id": "x", "items": vec![1; 4_000]}));
    }
    place.source.write("long", json!({"t": "order", "k": 99, "id": "x".repeat(40), "items": ["x"]}));
    let (end, counts) = place.once(&job).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 25, 0));
    assert_eq!(place.orders(), place.expected());
    assert_eq!(place.sql("SELECT count(*) FROM items WHERE length(name) = 1048576"), ["20"]);
    for at in 0..24 {
        place.source.write(&format!("d{at}"), Value::Null);
    }
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    assert_eq!(place.count("flatbed_rows"), 2);
    // A text too long for an index is its document's fault, in any key.
    let table = json!({"alone": true, "table": {"name": "keyed", "primary_key": ["id"], "columns": [{"name": "id", "path": "$.id"}]}});
    let job = place.job(json!({}), table, json!({}));
    let mut state = 1_u64;
    let unlike: String = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 60) as u8)
    })
    .take(200_000)
    .collect();
    place.source.write("wide", json!({"t": "order", "id": unlike}));
    place.source.write("narrow", json!({"t": "order", "id": "narrow"}));
    let (end, counts) = place.once(&job).await;
    let is_refused = !matches!(place.engine, Engine::Sqlite(_));
    assert_eq!((end, counts.queued, counts.outages), (RunEnd::Done, u64::from(is_refused), 0));
    assert_eq!(place.sql("SELECT id FROM keyed WHERE id = 'narrow'"), ["narrow"]);
}

async fn the_targets_state_is_waited_for(place: &mut Scenario<'_>) {
    place.order("a", 1, 1);
    assert_eq!(place.once(&place.plain_job()).await.0, RunEnd::Done);
    let is_postgres = matches!(place.engine, Engine::Postgres(_));
    let writer = if is_postgres { "writer" } else { "writer@'127.0.0.1'" };
    let with = if is_postgres { "PASSWORD" } else { "IDENTIFIED BY" };
    place.sql(&format!("CREATE USER {writer} {with} '{PASSWORD}'"));
    for table in ["orders", "items", "flatbed_rows", "flatbed_checkpoints"] {
        place.sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {writer}"));
    }
    let job = place.job(
        json!({"username": "writer", "password": "env:FLATBED_WORKER_W", "create_tables": false}),
        json!({}),
        json!({}),
    );
    let end = place
        .meanwhile(&job, async |place, progress| {
            place.order("b", 2, 1);
            place.until_right().await;
            let revoked = [format!("REVOKE INSERT ON items FROM {writer}"), format!("GRANT INSERT ON items TO {writer}")];
            let signed_out = if is_postgres {
                ["ALTER USER writer NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'writer'", "ALTER USER writer LOGIN"]
            } else {
                ["ALTER USER writer@'127.0.0.1' ACCOUNT LOCK; KILL USER writer", "ALTER USER writer@'127.0.0.1' ACCOUNT UNLOCK"]
            };
            let outages: [(&str, &str, &str); 5] = [
                ("revoked", &revoked[0], &revoked[1]),
                ("dropped", "ALTER TABLE orders RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO orders"),
                ("no column", "ALTER TABLE items RENAME COLUMN name TO other", "ALTER TABLE items RENAME COLUMN other TO name"),
                ("full", "", ""),
                ("signed out", signed_out[0], signed_out[1]),
            ];
            for (at, (what, broken, mended)) in outages.into_iter().enumerate() {
                let before = progress.outages();
                if broken.is_empty() { place.rule(Rule::Full, true) } else { drop(place.sql(broken)) }
                place.order(&format!("c{at}"), 10 + at as i64, 2);
                until(what, async || progress.outages() >= before + 2).await;
                if mended.is_empty() { place.rule(Rule::Full, false) } else { drop(place.sql(mended)) }
                place.until_right().await;
            }
        })
        .await;
    assert_eq!(end, RunEnd::Stopped);
    assert!(place.queue.documents().is_empty());
}

/// A process that was stopped with an open transaction.
async fn who_is_stopped_in_a_transaction_holds_nobody_up(place: &mut Scenario<'_>) {
    place.order("a", 1, 1);
    let job = place.job(json!({"timeout_seconds": 1}), json!({}), json!({}));
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    let (documents, claims) = (vec!["a".to_owned()], Claims::within(100, 1 << 20));
    let opening = OpenParameters { job: "j".to_owned(), epoch: 1, checkpoint: None, documents, claims };
    let (port, database, time_max) = (place.engine.server().port, place.database.clone(), Duration::from_secs(1));
    let (host, user, password) = ("127.0.0.1".to_owned(), "root".to_owned(), Some(PASSWORD.to_owned()));
    let clock = Clock::system();
    if matches!(place.engine, Engine::MariaDb(_)) {
        let (addresses, authorities) = (local(), None);
        let way =
            mysql::MysqlSettings { host, port, database, user, password, time_max, addresses, authorities, clock };
        stopped(place, &job, opening, MySql::at(way, "j", job.mapping.tables(), false)).await;
    } else {
        let (schema, dial, secure) = (None, plain(), None);
        let way = PostgresSettings { host, port, database, schema, user, password, time_max, dial, secure, clock };
        stopped(place, &job, opening, Postgres::at(way, "j", job.mapping.tables(), false)).await;
    }
}

async fn stopped<D: Driver>(
    place: &mut Scenario<'_>,
    job: &Description,
    opening: OpenParameters,
    mut stopped: Tables<D>,
) {
    let stopped = stopped.driver();
    stopped.connect().await.unwrap();
    assert_eq!(stopped.open(opening.clone()).await.unwrap().unwrap().count(), 2);
    place.order("b", 2, 1);
    assert_eq!(place.once(job).await.0, RunEnd::Done);
    assert_eq!(place.orders(), place.expected());
    let refused = stopped.open(opening.clone()).await.unwrap_err();
    assert!(
        matches!(&refused, DeliveryError::Failed { failure, .. } if failure.class() == Class::Outage),
        "{refused:?}"
    );
    stopped.connect().await.unwrap();
    assert_eq!(stopped.open(opening).await.unwrap(), None);
}

async fn a_server_that_is_gone_and_comes_back(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    let end = place
        .meanwhile(&job, async |place, progress| {
            place.order("a", 1, 1);
            until("the tables are made", async || progress.delivered() == 1).await;
            place.engine.server().kill();
            place.order("b", 2, 2);
            until("the server is missed", async || progress.outages() >= 2).await;
            place.engine.server().start();
            place.until_right().await;
        })
        .await;
    assert_eq!(end, RunEnd::Stopped);
    assert!(place.queue.documents().is_empty());
}
