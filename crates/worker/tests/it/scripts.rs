use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flatbed_flatten::json::{Limits, parse};
use flatbed_testkit::soon;
use flatbed_worker::mapping::Mapping;
use flatbed_worker::memory::Memory;
use flatbed_worker::output::lines::Lines;
use flatbed_worker::rows::{Product, ROWS_BYTES_MAX, Unmappable, rows_json};
use flatbed_worker::run::{RunEnd, Runner};
use flatbed_worker::script::{Call, ScriptError, Scripts, product};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, job, redactor};

/// Returns the result that the document specifies, or fails as it specifies.
fn scripts() -> Scripts {
    static BUSY: AtomicU32 = AtomicU32::new(0);
    Arc::new(|call: Call| {
        Box::pin(async move {
            assert_eq!((&*call.job, &*call.source), ("j", "(doc) => doc.gives"));
            let text = call.document.unwrap();
            let document = parse(text.as_bytes(), &Limits::default()).unwrap();
            let gives: Value = serde_json::from_str::<Value>(&text).unwrap()["gives"].clone();
            match document.get("fails").and_then(|fails| fails.as_str()) {
                Some("failed") => Err(ScriptError::Failed("x".repeat(9_000))),
                Some("broken") => Err(ScriptError::Broken("no function".to_owned())),
                Some("later") if BUSY.fetch_add(1, Ordering::Relaxed) < 3 => Err(ScriptError::Later("busy".to_owned())),
                _ => Ok(gives.to_string()),
            }
        })
    })
}

fn mapping(mut members: Value) -> Value {
    members["function"] = "(doc) => doc.gives".into();
    members
}

async fn made_within(mapping: &Mapping, document: Value, bytes_max: usize) -> Result<Product, Unmappable> {
    let (memory, text) = (Memory::default(), document.to_string());
    product(mapping, "j", Some(&scripts()), &memory, &text, bytes_max).await.unwrap()
}

async fn made(mapping: &Mapping, document: Value) -> Result<Product, Unmappable> {
    made_within(mapping, document, ROWS_BYTES_MAX).await
}

#[tokio::test]
async fn what_a_function_gives_is_mapped() {
    let json = Mapping::from_value(mapping(json!({"source": {"match": {"t": "x"}}}))).unwrap();
    let of = |gives: Value| json!({"_id": "a", "t": "x", "gives": gives});
    for (document, expected) in [
        (of(json!({"b": 1, "a": 2})), Product::Json("{\"a\":2,\"b\":1}".to_owned())),
        (of(json!([{"n": 1}, {"n": 2}])), Product::Json("[{\"n\":1},{\"n\":2}]".to_owned())),
        (of(json!([])), Product::Nothing),
        (of(Value::Null), Product::Nothing),
        (json!({"t": "y", "fails": "failed"}), Product::Nothing),
    ] {
        assert_eq!(made(&json, document.clone()).await, Ok(expected), "{document}");
    }
    for gives in [json!(7), json!("x"), json!([1]), json!([{}, null])] {
        assert!(matches!(made(&json, of(gives.clone())).await, Err(Unmappable::Function(_))), "{gives}");
    }
    let failed = made(&json, json!({"t": "x", "fails": "failed"})).await.unwrap_err();
    assert_eq!(failed.to_string().len(), "the mapping's function: ".len() + 500);
    let (memory, text) = (Memory::default(), of(json!({})).to_string());
    assert!(product(&json, "j", None, &memory, &text, ROWS_BYTES_MAX).await.is_err());
    let tables = mapping(json!({"tables": [
        {"name": "o", "primary_key": "id", "columns": {"id": "$.id"}},
        {"name": "i", "parent": "o", "foreign_key": {"column": "o", "references": "id"}, "source_array": "$.items", "columns": {"n": "$"}}]}));
    let tables = Mapping::from_value(tables).unwrap();
    let gives = json!([{"id": "a", "items": ["x"]}, {"id": "b", "items": ["y", "z"]}]);
    let Ok(Product::Rows(rows)) = made(&tables, json!({"gives": gives})).await else { panic!() };
    assert_eq!(rows.iter().map(|row| row.table).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
    assert_eq!(
        rows_json(tables.tables(), &rows),
        r#"{"o":[{"id":"a"},{"id":"b"}],"i":[{"n":"x","o":"a","flatbed_position":0},{"n":"y","o":"b","flatbed_position":0},{"n":"z","o":"b","flatbed_position":1}]}"#
    );
    let twice = made(&tables, json!({"gives": [{"id": "a"}, {"id": "a"}]})).await;
    assert_eq!(twice, Err(Unmappable::TwoOfOneKey("o".to_owned())));
    // The limit applies to all of them together.
    for gives in [json!([{"id": "a"}, {"id": "b"}]), json!({"id": "a", "items": [1, 2]})] {
        let of = json!({"t": "x", "gives": gives});
        for mapping in [&json, &tables] {
            let bytes = made(mapping, of.clone()).await.unwrap().bytes();
            assert!(made_within(mapping, of.clone(), bytes + 2).await.is_ok(), "{of}");
            assert_eq!(made_within(mapping, of.clone(), bytes - 3).await, Err(Unmappable::TooLarge), "{of}");
        }
    }
    let long = mapping(json!({}))["function"].as_str().unwrap().to_owned() + &" ".repeat(300_000);
    assert!(Mapping::from_value(json!({"function": long})).is_err());
}

#[tokio::test]
async fn a_function_that_throws_is_the_documents_fault_and_one_that_waits_is_not() {
    let system = json!({"retry": {"backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}});
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), mapping(json!({})), system);
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.write("a", json!({"gives": {"n": 1}}));
    source.write("b", json!({"fails": "failed"}));
    source.write("c", json!({"fails": "later", "gives": {"n": 2}}));
    source.write("d", json!({"gives": null}));
    let run = async |scripts: Option<Scripts>| {
        let (_stop, stopping) = watch::channel(false);
        let lines = Lines::new(Vec::new(), Vec::new());
        let runner = Runner::new(&job, source.clone(), lines, queue.clone(), redactor(), stopping, 1).once();
        let runner = match scripts {
            Some(scripts) => runner.with_scripts(scripts),
            None => runner,
        };
        let (end, counts, _, lines, _) = runner.run().await;
        (end, counts, String::from_utf8(lines.unwrap().into_inner().unwrap()).unwrap())
    };
    let (end, counts, lines) = run(Some(scripts())).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 3, 1));
    assert!(counts.outages > 0);
    let docs: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let docs: Vec<_> = docs.iter().map(|line| (&line["id"], &line["doc"], &line["deleted"])).collect();
    assert_eq!(json!(docs), json!([["a", {"n": 1}, null], ["c", {"n": 2}, null], ["d", null, true]]));
    let entry = queue.0.lock().unwrap().values().next().unwrap().clone();
    assert_eq!((entry.doc_id_original.as_str(), entry.reason.as_str()), ("b", "data_error:function"));
    source.write("e", json!({"fails": "broken"}));
    assert_eq!(run(Some(scripts())).await.0, RunEnd::Broken("no function".to_owned()));
    assert!(matches!(run(None).await.0, RunEnd::Broken(_)));
}

#[tokio::test]
async fn engines_that_are_busy_now_and_then_hold_nobody_up_for_ever() {
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), mapping(json!({})), json!({}));
    let source = FakeSource::filled(60);
    let calls = Arc::new(AtomicU32::new(0));
    let scripts: Scripts = Arc::new({
        let calls = calls.clone();
        move |call: Call| {
            let at = calls.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                let text = call.document.unwrap();
                match at % 5 {
                    4 => Err(ScriptError::Later("busy".to_owned())),
                    // More than a part may have: it is delivered alone.
                    _ if text.contains("\"n\":7,") || text.contains("\"n\":7}") => {
                        Ok(json!({"n": 7, "text": "x".repeat(9 << 20)}).to_string())
                    }
                    _ => Ok(text),
                }
            })
        }
    });
    let (_stop, stopping) = watch::channel(false);
    let (lines, memory) = (Lines::new(Vec::new(), Vec::new()), Memory::default());
    let runner = Runner::new(&job, source, lines, FakeQueue::default(), redactor(), stopping, 1).once();
    let running = runner.with_scripts(scripts).with_memory(memory.clone()).run();
    let (end, counts, _, lines, _) = soon(running).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 60, 0));
    let text = String::from_utf8(lines.unwrap().into_inner().unwrap()).unwrap();
    let ids: std::collections::BTreeSet<_> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].to_string()).collect();
    assert_eq!((ids.len(), memory.taken()), (60, (0, 0)));
    // Few products are made twice.
    assert!(calls.load(Ordering::Relaxed) < 120, "{calls:?}");
}

#[tokio::test]
async fn a_full_queue_halts_the_job() {
    let mapping = json!({"tables": [{"name": "t", "primary_key": "id", "columns": {"id": "$._id", "n": {"path": "$.n", "type": "integer"}}}]});
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), mapping, json!({}));
    let (source, queue) = (FakeSource::default(), FakeQueue(Arc::default(), Arc::default(), Some(3)));
    for at in 0..20 {
        source.write(&format!("d{at}"), json!({"n": if at % 4 == 3 { json!("none") } else { json!(at) }}));
    }
    let run = async |queue: FakeQueue| {
        let (_stop, stopping) = watch::channel(false);
        let lines = Lines::new(Vec::new(), Vec::new());
        Runner::new(&job, source.clone(), lines, queue, redactor(), stopping, 1).once().run().await.0
    };
    // Again without room: documents with an entry need none.
    for _ in 0..2 {
        assert_eq!(run(queue.clone()).await, RunEnd::QueueFull(3));
        assert_eq!(queue.documents(), ["d11", "d3", "d7"]);
    }
    // With room it continues, and nothing is lost.
    let roomy = FakeQueue(queue.0.clone(), queue.1.clone(), Some(5));
    assert_eq!(run(roomy).await, RunEnd::Done);
    assert_eq!(queue.documents(), ["d11", "d15", "d19", "d3", "d7"]);
}
