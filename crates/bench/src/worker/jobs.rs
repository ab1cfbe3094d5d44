//! Many jobs of one process: the check that all deliver, and their cost while idle.

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use super::{DATABASE, Result, STALLED, WorkerError, World};
use crate::{
    documents,
    stats::{cpu_s, resident, rounded},
};

/// The documents of the source. Every job delivers each of them.
const DOCUMENTS: u64 = 100;

/// The period of an idle job's work, in seconds.
const IDLE_S: u64 = 60;

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

impl World {
    async fn until_delivered(&self, of: u64) -> Result<()> {
        let mut last = (Instant::now(), 0);
        loop {
            let now = self.delivered().await?;
            if now > last.1 {
                last = (Instant::now(), now);
            }
            if now >= of {
                return Ok(());
            }
            if last.0.elapsed() > STALLED {
                let body = self.call(Method::GET, "/_worker/_api/jobs", String::new()).await?;
                let jobs = String::from_utf8_lossy(&body).chars().take(1_000).collect();
                return Err(WorkerError::Stalled { case: "jobs", delivered: now, of, jobs });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn write(&self, from: u64, to: u64) -> Result<()> {
        let docs: Vec<String> = (from..to).map(|number| documents::text(number, true)).collect();
        let body = format!("{{\"docs\":[{}]}}", docs.join(","));
        self.call(Method::POST, &format!("{DATABASE}/_bulk_docs"), body).await.map(drop)
    }
}

/// Runs `jobs` jobs that write the same documents into files, and prints a line of JSON. `seconds`: their idle time, at
/// least a minute.
pub(super) async fn measure(world: &World, jobs: u64, seconds: u64) -> Result<()> {
    let pid = world.server.pid().unwrap_or_default();
    world.call(Method::PUT, DATABASE, String::new()).await?;
    world.write(0, DOCUMENTS).await?;
    let (threads_before, descriptors_before) = (threads(pid), descriptors(pid));
    let before_mb = resident(pid).anonymous_mb;
    let begun = Instant::now();
    for number in 0..jobs {
        let output = json!({"id": "lines", "provider": "file", "file": format!("job{number}.jsonl")});
        world.job(&format!("job{number}"), "cloud", output, Value::Null).await?;
    }
    let written_s = begun.elapsed().as_secs_f64();
    world.until_delivered(jobs * DOCUMENTS).await?;
    let first_s = begun.elapsed().as_secs_f64();
    // Lets the start settle, whose late work is not that of idle jobs.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let names = [
        "flatbed_transactions_total",
        "flatbed_reads_total",
        "flatbed_range_reads_total",
        "flatbed_commits_total",
        "flatbed_requests_total",
    ];
    let (before, cpu_before, idle) = (world.counted(names).await?, cpu_s(pid), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds.max(IDLE_S))).await;
    let (after, s) = (world.counted(names).await?, idle.elapsed().as_secs_f64());
    let idle_cores = rounded((cpu_s(pid) - cpu_before) / s, 10_000.0);
    let per_s: Vec<f64> =
        after.iter().zip(before).map(|(after, before)| rounded((after - before) / s, 100.0)).collect();
    let begun = Instant::now();
    world.write(DOCUMENTS, DOCUMENTS + 1).await?;
    world.until_delivered(jobs * (DOCUMENTS + 1)).await?;
    let one_ms = begun.elapsed().as_secs_f64() * 1e3;
    println!(
        "{}",
        json!({
            "load": "worker", "case": "jobs", "jobs": jobs, "jobs_written_s": rounded(written_s, 100.0),
            "all_delivered_s": rounded(first_s, 100.0), "one_more_document_ms": rounded(one_ms, 10.0),
            "idle": {
                "cores": idle_cores, "transactions_per_s": per_s[0], "reads_per_s": per_s[1], "range_reads_per_s": per_s[2],
                "commits_per_s": per_s[3], "requests_per_s": per_s[4],
            },
            "threads": [threads_before, threads(pid)], "descriptors": [descriptors_before, descriptors(pid)],
            "mb": [rounded(before_mb, 10.0), rounded(resident(pid).anonymous_mb, 10.0)],
        })
    );
    for number in 0..jobs {
        world.end(&format!("job{number}")).await?;
    }
    world.call(Method::DELETE, DATABASE, String::new()).await.map(drop)
}
