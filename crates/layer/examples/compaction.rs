//! How many documents a second a compaction goes through.
//! `FLATBED_FDB_LATENCY_US=1000,500,2000 FLATBED_FDB_SERVER=1 cargo run --release -p flatbed-layer --example compaction -- DIRECTORY`

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{Background, BackgroundOptions, CreateOptions, Database, Edit, Layer, LayerOptions};

const DOCUMENTS: usize = 20_000;

/// Two revisions of each document, of some 300 bytes.
async fn write(db: &Database) -> Result<(), Box<dyn std::error::Error>> {
    for generation in 1..=2_u64 {
        let text = format!(r#"{{"generation":{generation},"text":"{}"}}"#, "0123456789abcdef".repeat(16));
        for batch in (0..DOCUMENTS).collect::<Vec<_>>().chunks(2_000) {
            let mut edits = Vec::with_capacity(batch.len());
            for number in batch {
                let history = (1..=generation).rev().map(|at| format!("{at}-a").parse());
                edits.push(Edit {
                    id: format!("doc{number:08}").into(),
                    parent: None,
                    history: Some(history.collect::<Result<_, _>>()?),
                    deleted: false,
                    attachments: Vec::new(),
                    body: parse(text.as_bytes(), &Limits::default())?,
                });
            }
            for result in db.bulk_update(&edits).await? {
                result?;
            }
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("which directory?")?;
    // SAFETY: it is stopped when this is dropped, at the end of `main`.
    let _network = unsafe { foundationdb::boot() };
    std::fs::create_dir_all(&directory)?;
    let cluster_file = Path::new(&directory).join("embedded.cluster");
    std::fs::write(&cluster_file, "embedded:bench@data\n")?;
    let fdb = foundationdb::Database::from_path(cluster_file.to_str().ok_or("the directory is not UTF-8")?)?;
    let (layer, authority) = Layer::open(Arc::new(fdb), LayerOptions::default(), None).await?;
    let db = layer.database("db", authority.for_job("example"));
    db.create(&CreateOptions::default()).await?;
    write(&db).await?;
    let background = Background::new(&layer, authority.for_job("background"), BackgroundOptions::default())?;
    background.round().await?;
    for what in ["compacted", "compacted again"] {
        db.compact().await?;
        let begun = Instant::now();
        background.round().await?;
        let seconds = begun.elapsed().as_secs_f64();
        println!("{DOCUMENTS} documents {what} in {seconds:.3} s: {:.0} a second", DOCUMENTS as f64 / seconds);
    }
    println!("{} bytes are superseded", db.info().await?.superseded_size_bytes);
    Ok(())
}
