//! Measures mapped documents per second and their processor time:
//!
//!     cargo run --release -p flatbed-javascript --example maps

mod processor;

use std::time::{Duration, Instant};

use flatbed_javascript::{Group, GroupFunctions, ReduceInput, Reduction, RowLimits, Runner, RunnerOptions};
use processor::ticks;

const TIME: Duration = Duration::from_secs(2);

const BATCH: usize = 200;

const LIB: &str = r#"{"types":"exports.known = function (type) { return ['order', 'person'].indexOf(type) >= 0; };"}"#;

const EMIT: &str = "function (doc) { emit(doc.total, null); }";

const MAPS: &[(&str, &[(&str, &str)])] = &[
    ("one emit", &[("v", EMIT)]),
    ("with a library", &[("v", "function (doc) { if (require('views/lib/types').known(doc.type)) emit(doc.total); }")]),
    ("emits the document", &[("v", "function (doc) { emit(doc._id, doc); }")]),
    ("four views", &[("a", EMIT), ("b", EMIT), ("c", EMIT), ("d", EMIT)]),
];

/// Returns a document of about 1 kB.
fn document(n: usize) -> Vec<u8> {
    let text = "lorem ipsum dolor ".repeat(35);
    format!(
        r#"{{"_id":"doc-{n:06}","_rev":"1-0123456789abcdef0123456789abcdef","type":"order","total":{n}.5,"tags":["a","b","c"],"lines":[{{"item":"a","count":2,"price":1.5}},{{"item":"b","count":1,"price":2.5}},{{"item":"c","count":7,"price":9.5}}],"address":{{"street":"High street","number":"17","city":"Berlin","country":"Germany"}},"text":"{text}"}}"#
    )
    .into_bytes()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let documents: Vec<Vec<u8>> = (0..BATCH).map(document).collect();
    for map_threads in [1, 2] {
        let runner = Runner::new(RunnerOptions { map_threads, ..RunnerOptions::default() })?;
        for (what, maps) in MAPS {
            let functions = GroupFunctions { lib: Some(LIB), maps, reduces: &[] };
            let group = Group::new("db/1", &functions, RowLimits::default());
            let (begun, before) = (Instant::now(), ticks());
            let mut tasks = Vec::new();
            for _ in 0..2 * map_threads {
                let (runner, group, documents) = (runner.clone(), group.clone(), documents.clone());
                tasks.push(tokio::spawn(async move {
                    let mut count = 0;
                    while begun.elapsed() < TIME {
                        let mapped = runner.map(&group, documents.clone()).await?;
                        count += mapped.documents.len();
                    }
                    Ok::<usize, flatbed_javascript::Error>(count)
                }));
            }
            let mut count = 0;
            for task in tasks {
                count += task.await??;
            }
            let rate = count as f64 / begun.elapsed().as_secs_f64();
            let spent = (ticks() - before) as f64 * 1e4 / count as f64;
            println!("{what}, {map_threads} threads: {rate:.0} documents/s, {spent:.0} us of processor each");
        }
    }
    let runner = Runner::new(RunnerOptions::default())?;
    let reduces = [("r", "function (keys, values, rereduce) { return sum(values); }")];
    let functions = GroupFunctions { lib: None, maps: &[], reduces: &reduces };
    let group = Group::new("db/1", &functions, RowLimits::default());
    let (begun, before, mut count) = (Instant::now(), ticks(), 0_usize);
    let rows = [("1.5", "doc-000001", "17"); 100];
    let reduction = Reduction { functions: &[0], input: ReduceInput::Rows(&rows) };
    let reductions = vec![reduction; 20];
    while begun.elapsed() < TIME {
        count += runner.reduce(&group, &reductions).await?.len();
    }
    let (rate, spent) = (count as f64 / begun.elapsed().as_secs_f64(), (ticks() - before) as f64 * 1e4 / count as f64);
    println!("reduce of 100 rows, 20 a call: {rate:.0}/s, {spent:.0} us of processor each");
    Ok(())
}
