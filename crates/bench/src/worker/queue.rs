//! Operations on a queue of many entries: their duration, and the server's memory.

use std::time::Instant;

use bytes::Bytes;
use flatbed_client::{Connection, Lines};
use hyper::Method;
use serde_json::{Value, json};

use super::{Result, WorkerError, World};
use crate::stats::{resident, rounded};

/// The entries of an import request.
const IMPORTED: u64 = 2_000;

const DOCUMENT_BYTES: usize = 600;

const QUEUE: &str = "/_worker/_api/dlq";

fn line(number: u64) -> String {
    let reason = ["data_error:constraint", "data_error:type", "client_error"][(number % 3) as usize];
    let document =
        json!({"_id": format!("doc{number:08}"), "_rev": "1-x", "text": "x".repeat(DOCUMENT_BYTES)}).to_string();
    let entry = json!({
        "type": "dlq", "doc_id_original": format!("doc{number:08}"), "seq": number.to_string(), "method": "PUT", "status": 0,
        "error": "a value is not of its column's type", "reason": reason, "time": 1_700_000_000 + number, "doc_data": document,
        "job": format!("job{}", number % 10), "rev": "1-x", "class": "poison", "attempts": 1, "last_time": 1_700_000_000 + number,
    });
    entry.to_string()
}

/// Returns the entries and bytes of an export. They are counted as they arrive, since a queue may not fit this
/// program's memory.
async fn export(world: &World, target: &str) -> Result<(u64, u64)> {
    let mut connection = Connection::open(&world.server.url).await?;
    let response = connection.send(Method::GET, target, Bytes::new()).await?;
    let status = response.status().as_u16();
    let mut lines = Lines::new(response.into_body());
    if status != 200 {
        let text = lines.next().await?.map(|line| String::from_utf8_lossy(&line).into_owned()).unwrap_or_default();
        return Err(WorkerError::Status { target: target.to_owned(), status, text });
    }
    let mut count = 0;
    while let Some(line) = lines.next().await? {
        count += u64::from(!line.is_empty());
    }
    Ok((count, lines.bytes()))
}

/// Imports entries, and runs the operations of the console on them. Prints a line of JSON.
pub(super) async fn measure(world: &World, entries: u64) -> Result<()> {
    let pid = world.server.pid().unwrap_or_default();
    let mb = || rounded(resident(pid).anonymous_mb, 10.0);
    let (before_mb, begun) = (mb(), Instant::now());
    let mut most_mb = before_mb;
    for from in (0..entries).step_by(IMPORTED as usize) {
        let lines: Vec<String> = (from..entries.min(from + IMPORTED)).map(line).collect();
        world.call(Method::POST, &format!("{QUEUE}/import"), lines.join("\n")).await?;
        most_mb = most_mb.max(mb());
    }
    let import_s = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({
            "load": "worker", "case": "queue", "call": "import", "entries": entries, "seconds": rounded(import_s, 100.0),
            "per_s": rounded(entries as f64 / import_s, 1.0), "mb": mb(), "before_mb": before_mb, "most_mb": most_mb,
        })
    );
    let calls = [
        ("list", Method::GET, "?limit=1000"),
        ("list of a job", Method::GET, "?job=job3&limit=1000"),
        ("list behind 100,000", Method::GET, "?limit=25&offset=100000"),
        ("count", Method::GET, "/count"),
        ("count of a job", Method::GET, "/count?job=job3"),
        ("first stats", Method::GET, "/stats"),
        ("stats", Method::GET, "/stats"),
        ("explain", Method::GET, "/explain?job=job3"),
        ("export", Method::GET, "/export"),
        ("clear of a job", Method::DELETE, "?job=job3"),
        ("clear", Method::DELETE, "?all=true"),
        ("stats of none", Method::GET, "/stats"),
    ];
    for (call, method, what) in calls {
        let (begun, target) = (Instant::now(), format!("{QUEUE}{what}"));
        let answer = match call {
            "export" => export(world, &target).await.map(|(count, bytes)| (count.into(), bytes)),
            _ => world.call(method, &target, String::new()).await.map(|body| {
                let said: Value = serde_json::from_slice(&body).unwrap_or_default();
                let count = said.get("count").or(said.get("total")).or(said.get("deleted")).cloned();
                (count.unwrap_or_else(|| said["entries"].as_array().map(Vec::len).into()), body.len() as u64)
            }),
        };
        let seconds = rounded(begun.elapsed().as_secs_f64(), 1000.0);
        let mut figures = json!({"load": "worker", "case": "queue", "call": call, "seconds": seconds, "mb": mb()});
        match answer {
            Ok((count, bytes)) => {
                figures["count"] = count;
                figures["bytes"] = bytes.into();
            }
            // A timeout is a result, too.
            Err(error) => figures["error"] = error.to_string().into(),
        }
        println!("{figures}");
    }
    Ok(())
}
