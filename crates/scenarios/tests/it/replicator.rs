//! The `_replicator` database: several servers on one store run its jobs, each job on one server at a time.

use std::time::{Duration, Instant};

use flatbed_replicator::ReplicatorOptions;
use flatbed_testkit::{Mortal, pass};

use super::store;
use crate::support::soon;
use serde_json::{Value, json};

fn options() -> ReplicatorOptions {
    ReplicatorOptions {
        first_pause: Duration::from_millis(100),
        lease: Duration::from_secs(4),
        ..ReplicatorOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_worked_off_and_tell_their_end() {
    let Some(store) = store() else { return };
    let (one, two) = (store.serve(options()).await, store.serve(options()).await);
    for database in ["_replicator", "a", "z"] {
        one.ok("PUT", &format!("/{database}"), Value::Null).await;
    }
    let docs: Vec<Value> = (0..300).map(|n| json!({"_id": format!("doc{n}"), "n": n})).collect();
    one.ok("POST", "/a/_bulk_docs", json!({"docs": docs})).await;

    let target = format!("http://anna:s3cret@{}/b", two.address);
    one.ok("PUT", "/_replicator/once", json!({"source": "a", "target": target, "create_target": true})).await;
    let done = two.until("/_replicator/once", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(done["_replication_stats"]["docs_written"], 300, "{done}");
    assert_eq!(two.ok("GET", "/b", Value::Null).await["doc_count"], 300);
    let shown = one.until("/_scheduler/docs/_replicator/once", |doc| doc["state"] == "completed").await;
    assert_eq!(shown["target"], format!("http://{}/b/", two.address));
    assert!(!shown.to_string().contains("s3cret"));

    // An invalid document fails at once, without retries.
    one.ok("PUT", "/_replicator/nonsense", json!({"source": "a", "target": 1})).await;
    let failed = one.until("/_replicator/nonsense", |doc| doc["_replication_state"] == "failed").await;
    assert!(failed["_replication_state_reason"].as_str().unwrap().contains("target"), "{failed}");

    // A transient failure is retried until it succeeds.
    one.ok("PUT", "/_replicator/later", json!({"source": "none", "target": "z"})).await;
    for server in [&one, &two] {
        let path = "/_scheduler/docs/_replicator/later";
        let shown = server.until(path, |doc| doc["error_count"].as_u64().is_some_and(|count| count >= 2)).await;
        assert_eq!(shown["source"], "none", "{shown}");
    }
    two.ok("PUT", "/none", Value::Null).await;
    one.until("/_replicator/later", |doc| doc["_replication_state"] == "completed").await;

    // A document without its final state starts a new run.
    one.ok("PUT", "/a/more", json!({})).await;
    let again = json!({"_rev": done["_rev"], "source": "a", "target": target});
    two.ok("PUT", "/_replicator/once", again).await;
    let done = one.until("/_replicator/once", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(done["_replication_stats"]["docs_written"], 1, "{done}");
    let all = two.ok("GET", "/_scheduler/docs", Value::Null).await;
    assert_eq!((&all["total_rows"], all["docs"].as_array().unwrap().len()), (&json!(3), 3), "{all}");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_job_survives_the_server_that_runs_it() {
    let Some(store) = store() else { return };
    // A server can stop all its tasks at once without a message.
    let store = std::sync::Arc::new(store);
    let started = store.clone();
    let mortal = Mortal::start(2, async move { started.serve(options()).await }).await;
    let victim = mortal.process();
    victim.ok("PUT", "/a", Value::Null).await;
    victim.ok("PUT", "/_replicator", Value::Null).await;
    for n in 0..8 {
        let spec = json!({"source": "a", "target": format!("b{n}"), "create_target": true, "continuous": true,
                          "checkpoint_interval": 50});
        victim.ok("PUT", &format!("/_replicator/job{n}"), spec).await;
    }
    victim.ok("PUT", "/a/first", json!({})).await;
    for n in 0..8 {
        victim.until(&format!("/b{n}/first"), |doc| doc["_id"] == "first").await;
    }
    // The other server lists all jobs, and runs none while the first server lives: longer than a lease.
    let survivor = store.serve(options()).await;
    let count = |tasks: &Value| tasks.as_array().map_or(0, Vec::len);
    survivor.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 8).await;
    let mut looked = Instant::now();
    for n in 0..22 {
        pass(Duration::from_millis(200)).await;
        // This write takes as long as the renewal of a lease.
        survivor.ok("PUT", &format!("/a/_local/{n}"), json!({})).await;
        let mut running = [0; 2];
        for (server, running) in [&survivor, victim].into_iter().zip(&mut running) {
            *running = count(&server.ok("GET", "/_active_tasks", Value::Null).await);
        }
        // Leases may be lost if the machine stalls for that long.
        if looked.elapsed() > options().lease / 4 {
            break;
        }
        assert_eq!(running, [0, 8]);
        looked = Instant::now();
    }

    let _dead = mortal.kill();
    survivor.ok("PUT", "/a/second", json!({})).await;
    for n in 0..8 {
        survivor.until(&format!("/b{n}/second"), |doc| doc["_id"] == "second").await;
    }
    survivor.until("/_active_tasks", |tasks| count(tasks) == 8).await;

    // Deletion of the document ends its job.
    let rev = survivor.ok("GET", "/_replicator/job0", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    survivor.ok("DELETE", &format!("/_replicator/job0?rev={rev}"), Value::Null).await;
    survivor.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 7).await;
    // Deletion of the database does, too.
    survivor.ok("DELETE", "/_replicator", Value::Null).await;
    survivor.until("/_active_tasks", |tasks| count(tasks) == 0).await;
    soon(async { survivor.stop().await }).await;
}
