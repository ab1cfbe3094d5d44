//! Measures the build of a json index, its cost for writes, and the speed of queries.
//! `cargo run --release -p flatbed-layer --example json_index -- DIRECTORY 100000`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_layer::json::{Limits, Value, parse};
use flatbed_layer::{
    Background, BackgroundOptions, CreateOptions, Database, Edit, FindOptions, Layer, LayerOptions, RevId,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn json(text: &str) -> Result<Value<'static>, Failure> {
    Ok(parse(text.as_bytes(), &Limits::default())?.into_owned())
}

/// Returns a document of about 1 kB.
fn document(number: u64) -> String {
    format!(
        r#"{{"number":{number},"type":"order","customer":{{"city":"city{}","name":"name {}"}},"tags":["alpha","beta"],"text":"{}"}}"#,
        number % 97,
        number * 7_919 % 100_003,
        "the quick brown fox jumps over the lazy dog ".repeat(19)
    )
}

fn edit(id: String, parent: Option<RevId>, text: &str) -> Result<Edit<'static>, Failure> {
    let (history, attachments) = (None, Vec::new());
    Ok(Edit { expiry: None, id: id.into(), parent, history, deleted: false, attachments, body: json(text)? })
}

async fn fill(db: &Database, from: u64, to: u64) -> Result<f64, Failure> {
    let began = Instant::now();
    for some in (from..to).collect::<Vec<_>>().chunks(2_000) {
        let edits = some.iter().map(|number| edit(format!("doc{number:08}"), None, &document(*number)));
        for outcome in db.bulk_update(&edits.collect::<Result<Vec<_>, _>>()?).await? {
            outcome?;
        }
    }
    Ok((to - from) as f64 / began.elapsed().as_secs_f64())
}

/// Single writes, one after the other.
async fn singles(db: &Database, prefix: &str, count: u64) -> Result<f64, Failure> {
    let began = Instant::now();
    for number in 0..count {
        db.update(&edit(format!("{prefix}{number}"), None, &document(number))?).await?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

async fn index(db: &Database, name: &str, field: &str) -> Result<(), Failure> {
    let text = format!(
        r#"{{"language":"query","views":{{"{name}":{{"map":{{"fields":{{"{field}":"asc"}}}},"reduce":"_count","options":{{"def":{{}}}}}}}}}}"#
    );
    db.update(&edit(format!("_design/{name}"), None, &text)?).await?;
    Ok(())
}

async fn find(db: &Database, request: &str, times: u32) -> Result<(), Failure> {
    let find = flatbed_mango::Find::parse(&json(request)?, None, &|| false).map_err(|refused| refused.reason)?;
    let (mut best, mut found) = (Duration::MAX, 0);
    for _ in 0..times {
        let began = Instant::now();
        let indexes = match db.json_indexes_known() {
            Some(indexes) => indexes,
            None => db.json_indexes().await?,
        };
        let plan = indexes.plan("db", &find).map_err(|refused| refused.reason)?;
        let options = FindOptions { limit: find.limit, skip: find.skip, ..FindOptions::default() };
        let mut query = db.find(&indexes, &plan, options);
        found = 0;
        while let Some(rows) = query.next_page().await? {
            found += rows.len();
        }
        best = best.min(began.elapsed());
    }
    println!("{best:>12.3?} {found:>7} found  {request}");
    Ok(())
}

async fn measure(directory: &Path, count: u64) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)?;
    let cluster = directory.join("embedded.cluster");
    std::fs::write(&cluster, "embedded:test@data\n")?;
    let fdb = foundationdb::Database::from_path(&cluster.to_string_lossy())?;
    let (layer, authority) = Layer::open(Arc::new(fdb), LayerOptions::default(), None).await?;
    let db = layer.database("db", authority.for_job("measure"));
    db.create(&CreateOptions::default()).await?;
    println!("bulk without an index: {:.0}/s", fill(&db, 0, count).await?);
    println!("single without an index: {:.0}/s", singles(&db, "a", 3_000).await?);
    find(&db, r#"{"selector":{"number":{"$lt":0}},"limit":25}"#, 5).await?;
    find(&db, r#"{"selector":{"customer.city":"city5","number":{"$gt":99000}},"limit":25}"#, 3).await?;
    let background = Background::new(&layer, authority.for_job("background"), BackgroundOptions::default())?;
    background.start();
    let began = Instant::now();
    index(&db, "number", "number").await?;
    while db.json_indexes().await?.readable().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = began.elapsed();
    println!("built in {took:.2?}: {:.0}/s", (count + 3_000) as f64 / took.as_secs_f64());
    println!("bulk with an index: {:.0}/s", fill(&db, count, count + count / 2).await?);
    println!("single with an index: {:.0}/s", singles(&db, "b", 3_000).await?);
    find(&db, r#"{"selector":{"number":{"$gt":5000}},"limit":25}"#, 200).await?;
    find(&db, r#"{"selector":{"number":{"$gt":5000,"$lt":5020}},"fields":["number"],"limit":25}"#, 200).await?;
    find(&db, r#"{"selector":{"number":{"$gt":5000},"customer.city":"city7"},"limit":25}"#, 20).await?;
    find(&db, r#"{"selector":{"number":{"$in":[1,700,9000,44]}},"limit":25}"#, 200).await?;
    background.stop().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("DIRECTORY COUNT")?;
    let count = arguments.next().map_or(Ok(100_000), |count| count.parse())?;
    // SAFETY: foundationdb-sys stops the network when the process ends.
    let network = unsafe { foundationdb::boot() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(measure(Path::new(&directory), count));
    drop(network);
    done
}
