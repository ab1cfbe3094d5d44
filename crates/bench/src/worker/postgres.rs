//! The PostgreSQL that jobs write to: the cost of its sessions, and the same documents written by a plain `COPY`.

use std::{io, time::Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_postgres::{Client, Config, NoTls};

use super::BATCH;
use crate::{
    documents,
    stats::{cpu_s, rounded},
};

/// The columns of the flat table, and the paths of their values in a document.
pub(super) const COLUMNS: [(&str, &str); 11] = [
    ("id", "/_id"),
    ("type", "/type"),
    ("grp", "/group"),
    ("amount", "/amount"),
    ("name", "/name"),
    ("title", "/title"),
    ("score", "/score"),
    ("created_at", "/created_at"),
    ("city", "/address/city"),
    ("bio", "/profile/bio"),
    ("note", "/audit/note"),
];

/// The bytes that a `COPY` takes at once.
const CHUNK: usize = 64 << 10;

/// A session beside those of jobs.
pub(super) struct Postgres {
    client: Client,
}

impl Postgres {
    /// Opens a session at 127.0.0.1, as `flatbed`. Drops the tables of an earlier run, whose jobs would otherwise
    /// resume.
    pub(super) async fn open(port: u16) -> Result<Postgres, Error> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut config = Config::new();
        config.user("flatbed").password("flatbed").dbname("flatbed").application_name("flatbed-bench");
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        tokio::spawn(async move {
            // The caller that waits for an answer gets the error.
            let _ = connection.await;
        });
        let tables = "copied, flat, children, parents, flatbed_rows, flatbed_checkpoints";
        client.batch_execute(&format!("SET client_min_messages = error; DROP TABLE IF EXISTS {tables}")).await?;
        Ok(Postgres { client })
    }

    /// Returns the processor seconds of the jobs' sessions, if they run on this machine.
    pub(super) async fn cpu_s(&self) -> Result<f64, Error> {
        let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'flatbed'";
        let rows = self.client.query(sessions, &[]).await?;
        let pids = rows.iter().map(|row| row.try_get::<_, i32>(0));
        Ok(pids.collect::<Result<Vec<_>, _>>()?.into_iter().filter_map(|pid| u32::try_from(pid).ok()).map(cpu_s).sum())
    }

    /// Copies rows of the flat table: in transactions as large as those of a job, and all in one.
    pub(super) async fn copy(&self, count: u64) -> Result<Value, Error> {
        let lines: Vec<String> = (0..count).map(line).collect();
        let per_s = async |batch: usize| {
            let columns: Vec<String> = COLUMNS.iter().map(|(name, _)| format!("{name} text")).collect();
            let table =
                format!("DROP TABLE IF EXISTS copied; CREATE TABLE copied ({}, PRIMARY KEY (id))", columns.join(", "));
            self.client.batch_execute(&table).await?;
            let begun = Instant::now();
            for batch in lines.chunks(batch.max(1)) {
                let mut sink = Box::pin(self.client.copy_in("COPY copied FROM STDIN").await?);
                let mut chunk = String::new();
                for line in batch {
                    chunk.push_str(line);
                    if chunk.len() >= CHUNK {
                        sink.send(Bytes::from(std::mem::take(&mut chunk))).await?;
                    }
                }
                sink.send(Bytes::from(chunk)).await?;
                sink.as_mut().finish().await?;
            }
            Ok::<_, Error>(rounded(count as f64 / begun.elapsed().as_secs_f64(), 1.0))
        };
        let in_batches = per_s(BATCH as usize).await?;
        let at_once = per_s(lines.len()).await?;
        Ok(json!({
            "load": "worker", "case": "postgres-copy", "documents": count, "per_s": in_batches, "batch": BATCH,
            "per_s_at_once": at_once,
        }))
    }
}

/// The reason why PostgreSQL failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The connection failed.
    #[error("PostgreSQL: {0}")]
    Io(#[from] io::Error),
    #[error("PostgreSQL: {0:?}")]
    Sql(#[from] tokio_postgres::Error),
}

/// Returns a document's row in the form of `COPY`.
fn line(number: u64) -> String {
    let document: Value = serde_json::from_str(&documents::text(number, true)).unwrap_or_default();
    let value = |(_, path): &(&str, &str)| match document.pointer(path) {
        None | Some(Value::Null) => "\\N".to_owned(),
        Some(Value::String(text)) => {
            text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
        }
        Some(other) => other.to_string(),
    };
    COLUMNS.iter().map(value).collect::<Vec<_>>().join("\t") + "\n"
}
