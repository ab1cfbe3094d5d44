//! Measures a compaction in documents per second beside a number of edits per second, 0 by default.
//! `FLATBED_FDB_LATENCY_US=1000,500,2000 FLATBED_FDB_SERVER=1 cargo run --release -p flatbed-layer --example compaction -- DIRECTORY 970`

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{Background, BackgroundOptions, CreateOptions, Database, Edit, Layer, LayerOptions};
use flatbed_metrics::Value;

const DOCUMENTS: u64 = 20_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn text(generation: u64) -> String {
    format!(r#"{{"generation":{generation},"text":"{}"}}"#, "0123456789abcdef".repeat(16))
}

/// A revision of a document, of some 300 bytes, on top of those before it.
fn edit(number: u64, generation: u64, text: &str) -> Result<Edit<'_>, Failure> {
    let history = (1..=generation).rev().map(|at| format!("{at}-a").parse());
    Ok(Edit {
        expiry: None,
        id: format!("doc{number:08}").into(),
        parent: None,
        history: Some(history.collect::<Result<_, _>>()?),
        deleted: false,
        attachments: Vec::new(),
        body: parse(text.as_bytes(), &Limits::default())?,
    })
}

/// Two revisions of each document.
async fn write(db: &Database) -> Result<(), Failure> {
    for generation in 1..=2 {
        let text = text(generation);
        for batch in (0..DOCUMENTS).collect::<Vec<_>>().chunks(2_000) {
            let edits = batch.iter().map(|number| edit(*number, generation, &text)).collect::<Result<Vec<_>, _>>()?;
            for result in db.bulk_update(&edits).await? {
                result?;
            }
        }
    }
    Ok(())
}

/// Edits that many documents a second, each by itself, one after the other through all of them.
async fn edits(db: Database, a_second: u32, written: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / a_second);
    for at in 0.. {
        pace.tick().await;
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (db, written) = (db.clone(), written.clone());
        tokio::spawn(async move {
            let generation = 3 + at / DOCUMENTS;
            // Not in their order.
            let (number, text) = (at % DOCUMENTS * 7_919 % DOCUMENTS, text(generation));
            let Ok(edit) = edit(number, generation, &text) else { return };
            match db.update(&edit).await {
                Ok(_) => drop(written.fetch_add(1, Ordering::Relaxed)),
                Err(error) => println!("{error}"),
            }
        });
    }
}

/// Rows of by-seq that were read.
fn rows(layer: &Layer) -> u64 {
    let families = layer.metrics();
    let family = families.iter().find(|family| family.name == "flatbed_by_seq_rows");
    family.and_then(|family| family.samples.first()).map_or(0, |sample| match sample.value {
        Value::Count(count) => count,
        _ => 0,
    })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).ok_or("which directory?")?;
    let a_second: u32 = std::env::args().nth(2).map_or(Ok(0), |text| text.parse())?;
    let shards: Option<u32> = std::env::args().nth(3).map(|text| text.parse()).transpose()?;
    // SAFETY: it is stopped when this is dropped, at the end of `main`.
    let _network = unsafe { foundationdb::boot() };
    std::fs::create_dir_all(&directory)?;
    let cluster_file = Path::new(&directory).join("embedded.cluster");
    std::fs::write(&cluster_file, "embedded:bench@data\n")?;
    let fdb = foundationdb::Database::from_path(cluster_file.to_str().ok_or("the directory is not UTF-8")?)?;
    let (layer, authority) = Layer::open(Arc::new(fdb), LayerOptions::default(), None).await?;
    let db = layer.database("db", authority.for_job("example"));
    db.create(&CreateOptions { shards, ..CreateOptions::default() }).await?;
    write(&db).await?;
    let background = Background::new(&layer, authority.for_job("background"), BackgroundOptions::default())?;
    background.round().await?;
    let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writers = (a_second > 0).then(|| tokio::spawn(edits(db.clone(), a_second, written.clone(), stop.clone())));
    if writers.is_some() {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    for what in ["compacted", "compacted again"] {
        db.compact().await?;
        let (before, edited) = (rows(&layer), written.load(Ordering::Relaxed));
        let begun = Instant::now();
        background.round().await?;
        let seconds = begun.elapsed().as_secs_f64();
        let (rows, edited) = (rows(&layer) - before, written.load(Ordering::Relaxed) - edited);
        let superseded = db.info().await?.superseded_size_bytes;
        println!(
            "{rows} documents {what} in {seconds:.3} s: {:.0} a second, beside {:.0} edits a second; {superseded} bytes are superseded",
            rows as f64 / seconds,
            edited as f64 / seconds,
        );
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(writers) = writers {
        writers.await?;
    }
    Ok(())
}
