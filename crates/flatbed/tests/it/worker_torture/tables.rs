//! Targets with tables: SQLite, PostgreSQL, MariaDB. Their own rules refuse heavy documents.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use flatbed_testkit::{PATIENCE, until_blocking};
use serde_json::{Value, json};

use super::gate::{Gate, Mode};
use super::model::{HEAVY, Rows};
use super::servers::{PASSWORD, Server};
use super::target::{Fault, Target};

enum Engine {
    Sqlite(PathBuf),
    Postgres(Mutex<Server>, Gate),
    MariaDb(Mutex<Server>, Gate),
}

pub(super) struct Tables {
    engine: Engine,
    /// A connection that locks SQLite's file.
    held: Mutex<Option<rusqlite::Connection>>,
}

const DATABASE: &str = "torture";

impl Tables {
    pub(super) fn sqlite(file: PathBuf) -> Tables {
        Tables::with(Engine::Sqlite(file))
    }

    pub(super) async fn postgres() -> Option<Tables> {
        let server = Server::postgres()?;
        let gate = Gate::to(server.port).await;
        server.sql("", &format!("CREATE DATABASE {DATABASE}"));
        server.sql("", &format!("CREATE USER writer PASSWORD '{PASSWORD}'"));
        server.sql(DATABASE, "GRANT CREATE, USAGE ON SCHEMA public TO writer");
        Some(Tables::with(Engine::Postgres(Mutex::new(server), gate)))
    }

    pub(super) async fn mariadb() -> Option<Tables> {
        let server = Server::mariadb()?;
        let gate = Gate::to(server.port).await;
        server.sql("", &format!("CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4"));
        server.sql("", &format!("CREATE USER writer@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'"));
        for table in ["flatbed_rows", "flatbed_checkpoints"] {
            let rights = "SELECT, INSERT, UPDATE, DELETE, CREATE";
            server.sql(DATABASE, &format!("GRANT {rights} ON {DATABASE}.{table} TO writer@'127.0.0.1'"));
        }
        Some(Tables::with(Engine::MariaDb(Mutex::new(server), gate)))
    }

    fn with(engine: Engine) -> Tables {
        let tables = Tables { engine, held: Mutex::new(None) };
        let rule = format!(", CONSTRAINT heavy CHECK (weight < {HEAVY})");
        let rule = if matches!(tables.engine, Engine::Sqlite(_)) { "" } else { &rule };
        tables.does(&format!(
            "CREATE TABLE orders (k bigint PRIMARY KEY, id varchar(40) NOT NULL, n bigint NOT NULL, name varchar(100) NOT NULL, weight integer{rule})"
        ));
        tables.grant("orders");
        tables.make_items();
        if let Engine::Sqlite(_) = tables.engine {
            for when in ["INSERT", "UPDATE"] {
                tables.does(&format!("CREATE TRIGGER heavy_{when} BEFORE {when} ON orders WHEN NEW.weight >= {HEAVY} BEGIN SELECT RAISE(ABORT, 'heavy'); END"));
            }
        }
        tables
    }

    fn make_items(&self) {
        self.does("CREATE TABLE items (k bigint NOT NULL, flatbed_position bigint NOT NULL, id varchar(40) NOT NULL, name varchar(100) NOT NULL, PRIMARY KEY (k, flatbed_position), FOREIGN KEY (k) REFERENCES orders (k))");
        self.grant("items");
    }

    fn grant(&self, table: &str) {
        match self.writer() {
            "" => {}
            writer => self.does(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {writer}")),
        }
    }

    fn writer(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite(_) => "",
            Engine::Postgres(..) => "writer",
            Engine::MariaDb(..) => "writer@'127.0.0.1'",
        }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        match &self.engine {
            Engine::Postgres(server, _) | Engine::MariaDb(server, _) => server.lock().unwrap(),
            Engine::Sqlite(_) => panic!("SQLite has no server"),
        }
    }

    fn gate(&self) -> &Gate {
        match &self.engine {
            Engine::Postgres(_, gate) | Engine::MariaDb(_, gate) => gate,
            Engine::Sqlite(_) => panic!("SQLite has no server"),
        }
    }

    fn open(file: &PathBuf) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(file).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        connection
    }

    /// Executes a statement. Waits for a locked table, and retries after a deadlock.
    fn does(&self, statement: &str) {
        let mut error = String::new();
        until_blocking(statement, || {
            let done = match &self.engine {
                Engine::Sqlite(file) => Tables::open(file).execute_batch(statement).map_err(|error| error.to_string()),
                Engine::Postgres(..) | Engine::MariaDb(..) => self.server().try_sql(DATABASE, statement).map(drop),
            };
            let Err(why) = done else { return true };
            if error != why {
                println!("{statement}: {why}");
                error = why;
            }
            false
        });
    }

    fn reads(&self, statement: &str) -> Vec<Vec<String>> {
        if let Engine::Sqlite(file) = &self.engine {
            let connection = Tables::open(file);
            let mut statement = connection.prepare(statement).unwrap();
            let count = statement.column_count();
            let text = |row: &rusqlite::Row<'_>, at| match row.get_ref(at).unwrap() {
                rusqlite::types::ValueRef::Integer(value) => value.to_string(),
                rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            };
            let rows = statement.query_map([], |row| Ok((0..count).map(|at| text(row, at)).collect())).unwrap();
            return rows.map(Result::unwrap).collect();
        }
        let lines = self.server().sql(DATABASE, statement);
        lines.iter().map(|line| line.split(['|', '\t']).map(str::to_owned).collect()).collect()
    }
}

impl Target for Tables {
    fn id(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite(_) => "sqlite",
            Engine::Postgres(..) => "postgres",
            Engine::MariaDb(..) => "mariadb",
        }
    }

    fn output(&self) -> (&'static str, Value) {
        let output = match &self.engine {
            Engine::Sqlite(file) => {
                json!({"database_type": "sqlite", "database": file.file_name().unwrap().to_str().unwrap()})
            }
            Engine::Postgres(_, gate) | Engine::MariaDb(_, gate) => {
                let kind = if matches!(self.engine, Engine::Postgres(..)) { "postgres" } else { "mysql" };
                json!({"database_type": kind, "database": DATABASE, "host": "127.0.0.1", "port": gate.port, "username": "writer",
                    "password": "file:sql", "timeout_seconds": 4})
            }
        };
        ("rdbms", output)
    }

    fn judges(&self) -> bool {
        true
    }

    fn relents(&self) {
        if let Engine::Sqlite(_) = self.engine {
            self.does("DROP TRIGGER heavy_INSERT; DROP TRIGGER heavy_UPDATE");
        } else {
            self.does("ALTER TABLE orders DROP CONSTRAINT heavy");
        }
    }

    fn rows(&self) -> Rows {
        let number = |text: &String| text.parse::<i64>().unwrap();
        let orders = self
            .reads("SELECT k, id, n, name, weight FROM orders")
            .into_iter()
            .map(|row| (("orders", number(&row[0]), 0, row[1].clone()), row[2..].join("|")));
        let items = self
            .reads("SELECT k, flatbed_position, id, name FROM items")
            .into_iter()
            .map(|row| (("items", number(&row[0]), number(&row[1]), row[2].clone()), row[3].clone()));
        orders.chain(items).collect()
    }

    fn complaint(&self, rows: usize) -> Option<String> {
        let claims = self.reads("SELECT count(*) FROM flatbed_rows");
        (claims[0][0] != rows.to_string()).then(|| format!("{} claims of {rows} rows", claims[0][0]))
    }

    fn faults(&self) -> &'static [Fault] {
        match self.engine {
            Engine::Sqlite(_) => &[Fault::Locked, Fault::Renamed, Fault::Dropped],
            Engine::Postgres(..) | Engine::MariaDb(..) => &[
                Fault::Refuses,
                Fault::Hangs,
                Fault::Killed,
                Fault::Revoked,
                Fault::Renamed,
                Fault::Dropped,
                Fault::Full,
            ],
        }
    }

    fn suffers(&self, fault: Fault, is_on: bool) {
        let is_postgres = matches!(self.engine, Engine::Postgres(..));
        match (fault, is_on) {
            (Fault::Refuses, true) => self.gate().set(Mode::Refuses),
            (Fault::Hangs, true) => self.gate().set(Mode::Hangs),
            (Fault::Refuses | Fault::Hangs, false) => self.gate().set(Mode::Passes),
            (Fault::Killed, true) => self.server().kill(),
            (Fault::Killed, false) => self.server().start(),
            (Fault::Revoked, true) => self.does(&format!("REVOKE INSERT ON items FROM {}", self.writer())),
            (Fault::Revoked, false) => self.does(&format!("GRANT INSERT ON items TO {}", self.writer())),
            (Fault::Renamed, true) => self.does("ALTER TABLE items RENAME TO elsewhere"),
            (Fault::Renamed, false) => self.does("ALTER TABLE elsewhere RENAME TO items"),
            (Fault::Dropped, true) => self.does("DROP TABLE items"),
            (Fault::Dropped, false) => self.make_items(),
            (Fault::Full, true) if is_postgres => {
                self.does("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$; CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()");
            }
            (Fault::Full, true) => {
                self.does("CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'no room'");
            }
            (Fault::Full, false) => {
                self.does(if is_postgres { "DROP TRIGGER no ON orders; DROP FUNCTION no" } else { "DROP TRIGGER no" });
            }
            (Fault::Locked, true) => {
                let Engine::Sqlite(file) = &self.engine else { panic!("it has no file") };
                let connection = Tables::open(file);
                // If even this fails, another connection holds the file.
                let _ = connection.execute_batch("BEGIN IMMEDIATE");
                *self.held.lock().unwrap() = Some(connection);
            }
            (Fault::Locked, false) => *self.held.lock().unwrap() = None,
            (Fault::Answers(_) | Fault::Denies, _) => panic!("no endpoint"),
        }
    }
}
