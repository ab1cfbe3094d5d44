//! The PostgreSQL that jobs write to: what its sessions cost it, and the same documents brought there by a plain `COPY`.

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

/// The columns of the flat table, and where a document has them.
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

/// What a `COPY` takes at once, in bytes, and no more than is sent of it before more is made.
const CHUNK: usize = 64 << 10;

/// A session beside those of jobs.
pub(super) struct Postgres {
    client: Client,
}

impl Postgres {
    /// At 127.0.0.1, as `flatbed`. What an earlier run left there is dropped: a job would go on where that ended.
    pub(super) async fn open(port: u16) -> Result<Postgres, Error> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut config = Config::new();
        config.user("flatbed").password("flatbed").dbname("flatbed").application_name("flatbed-bench");
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        tokio::spawn(async move {
            // What goes wrong reaches who waits for an answer.
            let _ = connection.await;
        });
        let tables = "copied, flat, children, parents, flatbed_rows, flatbed_checkpoints";
        client.batch_execute(&format!("SET client_min_messages = error; DROP TABLE IF EXISTS {tables}")).await?;
        Ok(Postgres { client })
    }

    /// Processor seconds of the sessions that jobs have, if they are this machine's to see.
    pub(super) async fn cpu_s(&self) -> Result<f64, Error> {
        let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'flatbed'";
        let rows = self.client.query(sessions, &[]).await?;
        let pids = rows.iter().map(|row| row.try_get::<_, i32>(0));
        Ok(pids.collect::<Result<Vec<_>, _>>()?.into_iter().filter_map(|pid| u32::try_from(pid).ok()).map(cpu_s).sum())
    }

    /// Rows of the flat table by `COPY`: in transactions as large as those of a job, and all in one.
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

/// Why PostgreSQL did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No connection.
    #[error("PostgreSQL: {0}")]
    Io(#[from] io::Error),
    /// What it says.
    #[error("PostgreSQL: {0:?}")]
    Sql(#[from] tokio_postgres::Error),
}

/// A row of a document as `COPY` has it.
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
