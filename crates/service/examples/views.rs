//! Measures the first build of views, in documents per second, and the delay from a write to its row in the view.
//! `cargo run --release -p flatbed-service --example views -- DIRECTORY 100000`; with
//! `FLATBED_FDB_LATENCY_US=1000,500,2000 FLATBED_FDB_SERVER=1` it has the latency of a cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{CreateOptions, Database, Edit, Layer, LayerOptions};
use flatbed_service::Functions;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn edit<'a>(id: String, text: &'a str) -> Result<Edit<'a>, Failure> {
    let body = parse(text.as_bytes(), &Limits::default())?;
    let (parent, history, attachments) = Default::default();
    Ok(Edit { expiry: None, id: id.into(), parent, history, deleted: false, attachments, body })
}

/// A document of 1 kB.
fn body(number: u64) -> String {
    let text = "0123456789abcdef".repeat(55);
    format!(r#"{{"number":{number},"group":"g{}","tags":["a","b"],"text":"{text}"}}"#, number % 1_000)
}

async fn write(db: &Database, documents: u64) -> Result<(), Failure> {
    for batch in (0..documents).collect::<Vec<_>>().chunks(2_000) {
        let texts: Vec<(u64, String)> = batch.iter().map(|number| (*number, body(*number))).collect();
        let edits = texts.iter().map(|(number, text)| edit(format!("doc{number:08}"), text));
        for result in db.bulk_update(&edits.collect::<Result<Vec<_>, _>>()?).await? {
            result?;
        }
    }
    Ok(())
}

/// Waits until a view is built.
async fn built(db: &Database, design: &str) -> Result<Duration, Failure> {
    let began = Instant::now();
    loop {
        let info = db.view_info(design).await?;
        if info.is_built && !info.updater_running {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("a directory")?;
    let documents: u64 = arguments.next().ok_or("how many documents")?.parse()?;
    // SAFETY: foundationdb-sys stops the network when the process ends.
    let _network = unsafe { foundationdb::boot() };
    let cluster_file = Path::new(&directory).join("embedded.cluster");
    std::fs::write(&cluster_file, "embedded:views@data\n")?;
    let fdb = foundationdb::Database::from_path(cluster_file.to_str().ok_or("UTF-8")?)?;
    let (layer, authority) = Layer::open(Arc::new(fdb), LayerOptions::default(), None).await?;
    layer.run_views_by(Arc::new(Functions::new(Runner::new(RunnerOptions::default())?)));
    let db = layer.database("views", authority.for_job("example"));
    db.create(&CreateOptions::default()).await?;
    let began = Instant::now();
    write(&db, documents).await?;
    println!("written: {:.0} documents/s", documents as f64 / began.elapsed().as_secs_f64());
    let designs = [
        ("one emit", r#"{"views":{"a":{"map":"function (doc) { emit(doc.number, null); }"}}}"#),
        (
            "one emit with _sum and _stats",
            r#"{"views":{"a":{"map":"function (doc) { emit(doc.group, doc.number); }","reduce":"_sum"},"b":{"map":"function (doc) { emit(doc.group, doc.number); }","reduce":"_stats"}}}"#,
        ),
    ];
    for (at, (name, text)) in designs.into_iter().enumerate() {
        let design = format!("_design/d{at}");
        db.update(&edit(design.clone(), text)?).await?;
        let took = built(&db, &design).await?;
        println!("{name}: {:.0} documents/s", documents as f64 / took.as_secs_f64());
    }
    let mut lags = Vec::new();
    for number in 0..200 {
        let text = body(number);
        db.update(&edit(format!("new{number}"), &text)?).await?;
        let began = Instant::now();
        while db.view_info("_design/d0").await?.updater_running {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        lags.push(began.elapsed());
    }
    lags.sort();
    println!("from a write to its row: p50 {:?}, p99 {:?}", lags[lags.len() / 2], lags[lags.len() * 99 / 100]);
    let began = Instant::now();
    write_more(&db, 20_000).await?;
    let wrote = began.elapsed();
    let took = built(&db, "_design/d1").await?;
    println!("followed: {:.0} written a second, through {took:?} behind", 20_000.0 / wrote.as_secs_f64());
    layer.shutdown();
    Ok(())
}

/// Writes new documents in batches of 500.
async fn write_more(db: &Database, documents: u64) -> Result<(), Failure> {
    for batch in (0..documents).collect::<Vec<_>>().chunks(500) {
        let texts: Vec<(u64, String)> = batch.iter().map(|number| (*number, body(*number))).collect();
        let edits = texts.iter().map(|(number, text)| edit(format!("more{number:08}"), text));
        for result in db.bulk_update(&edits.collect::<Result<Vec<_>, _>>()?).await? {
            result?;
        }
    }
    Ok(())
}
