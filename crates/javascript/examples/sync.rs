//! Measures a sync function in a loaded engine and in a fresh one:
//!
//!     cargo run --release -p flatbed-javascript --example sync
#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_channels::require::Writer;
use flatbed_javascript::{Runner, RunnerOptions, SyncFunction, SyncWrite};

const SOURCE: &str = "function (doc, old) {
    requireUser(doc.owner); requireRole('r'); requireAccess('A'); requireUser(['b', 'a']); requireAccess(['B', 'A']);
    channel(doc.channels);
    access(doc.owner, 'own');
}";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let runner = Runner::new(RunnerOptions::default()).expect("threads");
        let channels = ["A".to_owned()].into();
        let roles = ["r".to_owned()].into();
        let writer = Writer { name: "a".to_owned(), channels, roles, ..Writer::default() };
        let text = "words of a document ".repeat(40);
        let document = format!(r#"{{"_id":"d","owner":"a","channels":["A","B"],"text":"{text}"}}"#);
        let writer = Some(Arc::new(writer));
        let write = SyncWrite { document, writer, id_bytes: 1, now_s: 1_700_000_000, ..SyncWrite::default() };
        let took = async |calls: u32, database: fn(u32) -> String| -> Duration {
            let began = Instant::now();
            for call in 0..calls {
                let function = SyncFunction::new(database(call), SOURCE);
                runner.route(&function, write.clone()).await.expect("an answer").expect("a routing");
            }
            began.elapsed() / calls
        };
        println!("a fresh engine: {:?}", took(100, |call| call.to_string()).await);
        println!("one that is there: {:?}", took(10_000, |_| "same".to_owned()).await);
    });
}
