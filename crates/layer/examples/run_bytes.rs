//! Which `run_bytes` is best: writes, reads and disk for documents of several sizes.
//! `cargo run --release -p flatbed-layer --example run_bytes -- DIRECTORY`

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flatbed_layer::json::{Limits, Value, parse};
use flatbed_layer::{AllDocsQuery, CreateOptions, Edit, GetOptions, Layer, LayerOptions};

const RUN_BYTES: [u32; 7] = [0, 300, 1_500, 4_000, 8_000, 16_000, 60_000];

/// About how many bytes of JSON each measurement writes.
const TOTAL_BYTES: usize = 12_000_000;

/// A nested document with a leaf for about each 45 bytes.
fn document(number: usize, bytes: usize) -> String {
    let mut random = number as u64 + 1;
    let mut word = |letters: usize| -> String {
        (0..letters)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'a' + (random >> 59) as u8 % 26)
            })
            .collect()
    };
    let mut text = format!(r#"{{"type":"bench","number":{number}"#);
    let mut group = 0;
    while text.len() + 60 < bytes {
        text.push_str(&format!(r#","group{group}":{{"#));
        for leaf in 0..6 {
            if leaf > 0 {
                text.push(',');
            }
            match leaf % 3 {
                0 => text.push_str(&format!(r#""name{leaf}":"{}""#, word(24))),
                1 => text.push_str(&format!(r#""count{leaf}":{}"#, number * leaf)),
                _ => text.push_str(&format!(r#""note{leaf}":"{}""#, word(48))),
            }
        }
        text.push('}');
        group += 1;
    }
    text.push('}');
    text
}

async fn measure(root: &Path, bytes: usize, run_bytes: u32) -> Result<(), Box<dyn std::error::Error>> {
    let directory = root.join(format!("{bytes}-{run_bytes}"));
    std::fs::create_dir_all(&directory)?;
    let cluster_file = directory.join("embedded.cluster");
    std::fs::write(&cluster_file, "embedded:bench@data\n")?;
    let fdb = foundationdb::Database::from_path(cluster_file.to_str().ok_or("the directory is not UTF-8")?)?;
    let (layer, authority) = Layer::open(Arc::new(fdb), LayerOptions::default(), None).await?;
    let db = layer.database("db", authority.for_job("example"));
    db.create(&CreateOptions { run_bytes: Some(run_bytes), ..CreateOptions::default() }).await?;
    let count = (TOTAL_BYTES / bytes).clamp(300, 20_000);
    let texts: Vec<String> = (0..count).map(|number| document(number, bytes)).collect();
    let edits: Vec<Edit<'_>> = texts
        .iter()
        .enumerate()
        .map(|(number, text)| {
            let body = parse(text.as_bytes(), &Limits::default()).unwrap_or(Value::Null);
            Edit {
                expiry: None,
                id: format!("doc{number:08}").into(),
                parent: None,
                history: None,
                deleted: false,
                attachments: Vec::new(),
                body,
            }
        })
        .collect();
    let started = Instant::now();
    for batch in edits.chunks(200) {
        for result in db.bulk_update(batch).await? {
            result?;
        }
    }
    let writes = count as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    for number in 0..count {
        let number = number * 7_919 % count;
        db.get(&format!("doc{number:08}"), &GetOptions::default()).await?;
    }
    let reads = count as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    let mut walk = db.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    while walk.next_page().await?.is_some() {}
    let walked = count as f64 / started.elapsed().as_secs_f64();
    let disk = std::fs::metadata(directory.join("data/data.mdb"))?.len() as f64
        / texts.iter().map(String::len).sum::<usize>() as f64;
    println!("| {bytes} | {run_bytes} | {writes:.0} | {reads:.0} | {walked:.0} | {disk:.2} |");
    drop(layer);
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::args().nth(1).ok_or("give a directory to work in")?;
    // SAFETY: the network is stopped when the program ends, after all else.
    let _network = unsafe { foundationdb::boot() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("| document bytes | run_bytes | writes/s | reads/s | walked/s | disk / JSON |\n|---|---|---|---|---|---|");
    for bytes in [200, 1_000, 5_000, 20_000] {
        for run_bytes in RUN_BYTES {
            runtime.block_on(measure(Path::new(&root), bytes, run_bytes))?;
        }
    }
    Ok(())
}
