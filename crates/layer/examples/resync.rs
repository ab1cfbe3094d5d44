//! Measures a resync in documents per second, by a number of processes, 1 by default, that share the storage: with a
//! function that moves all documents to another channel, and again, when all stay. The function is Rust; one in
//! JavaScript takes its own time.
//! `FLATBED_FDB_LATENCY_US=1000,500,2000 FLATBED_FDB_SERVER=1 cargo run --release -p flatbed-layer --example resync -- DIRECTORY`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_layer::json::{Limits, Value, parse};
use flatbed_layer::{
    Background, BackgroundOptions, CreateOptions, Database, Document, Edit, Judge, Judgement, Layer, LayerOptions,
    ProposedWrite, Refusal, Rule, Verdict,
};
use flatbed_metrics::Value as Metric;
use futures_util::future::BoxFuture;

const DOCUMENTS: u64 = 40_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A sync function for each text: it puts a document into the channel that the member of this name has.
struct Functions;

struct ByMember(String);

impl Judge for Functions {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(ByMember(String::new()))
    }

    fn sync_function(&self, _: &str, source: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(ByMember(source.to_owned())))
    }

    fn check_sync_function<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for ByMember {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        Box::pin(async move {
            let channels = match write.edit.body.get(&self.0) {
                Some(Value::String(channel)) => [channel.to_string()].into(),
                _ => Default::default(),
            };
            Ok(Verdict { channels, ..Verdict::default() })
        })
    }
}

/// Documents of some 300 bytes.
async fn write(db: &Database) -> Result<(), Failure> {
    let text = format!(r#"{{"one":"A","two":"B","text":"{}"}}"#, "0123456789abcdef".repeat(16));
    for batch in (0..DOCUMENTS).collect::<Vec<_>>().chunks(2_000) {
        let edits = batch.iter().map(|number| {
            Ok(Edit {
                expiry: None,
                id: format!("doc{number:08}").into(),
                parent: None,
                history: None,
                deleted: false,
                attachments: Vec::new(),
                body: parse(text.as_bytes(), &Limits::default())?,
            })
        });
        for result in db.bulk_update(&edits.collect::<Result<Vec<_>, Failure>>()?).await? {
            result?;
        }
    }
    Ok(())
}

/// A counter of a layer, such as the documents that it has processed.
fn counted(layer: &Layer, name: &str) -> u64 {
    let families = layer.metrics();
    let family = families.iter().find(|family| family.name == name);
    family.and_then(|family| family.samples.first()).map_or(0, |sample| match sample.value {
        Metric::Count(count) => count,
        _ => 0,
    })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).ok_or("which directory?")?;
    let processes: usize = std::env::args().nth(2).map_or(Ok(1), |text| text.parse())?;
    // SAFETY: it is stopped when this is dropped, at the end of `main`.
    let _network = unsafe { foundationdb::boot() };
    std::fs::create_dir_all(&directory)?;
    let cluster_file = Path::new(&directory).join("embedded.cluster");
    std::fs::write(&cluster_file, "embedded:bench@data\n")?;
    let cluster_file = cluster_file.to_str().ok_or("the directory is not UTF-8")?;
    let fdb = Arc::new(foundationdb::Database::from_path(cluster_file)?);
    let (mut layers, mut backgrounds) = (Vec::new(), Vec::new());
    for _ in 0..processes {
        let (layer, authority) =
            Layer::open(Arc::clone(&fdb), LayerOptions::default(), Some(Arc::new(Functions))).await?;
        let options = BackgroundOptions { look_every: Duration::from_secs(1), ..BackgroundOptions::default() };
        backgrounds.push(Background::new(&layer, authority.for_job("background"), options)?);
        layers.push((layer, authority));
    }
    let (layer, authority) = layers.first().ok_or("no process")?;
    let db = layer.database("db", authority.for_job("example"));
    db.create(&CreateOptions::default()).await?;
    write(&db).await?;
    for (layer, _) in &layers {
        layer.reader("db").exists().await?;
    }
    backgrounds.iter().for_each(Background::start);
    for (function, what) in [("one", "entered"), ("two", "moved"), ("three", "removed"), ("four", "kept")] {
        let before: Vec<u64> = layers.iter().map(|(layer, _)| counted(layer, "flatbed_resync_documents")).collect();
        let begun = Instant::now();
        db.set_sync_function(Some(function)).await?;
        while db.resync_state().await?.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let each = layers.iter().zip(before);
        let each: Vec<u64> =
            each.map(|((layer, _), before)| counted(layer, "flatbed_resync_documents") - before).collect();
        let rate = each.iter().sum::<u64>() as f64 / seconds;
        println!("{each:?} documents {what} in {seconds:.3} s: {rate:.0} a second");
    }
    for background in &backgrounds {
        background.stop().await;
    }
    Ok(())
}
