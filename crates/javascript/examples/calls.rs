//! Measures calls per second and their processor time (of all processes, in ticks of 10 ms):
//!
//!     cargo run --release -p flatbed-javascript --example calls

mod processor;

use std::time::{Duration, Instant};

use flatbed_javascript::{Design, Runner, RunnerOptions, Validation, WriteContext, WriteTexts};
use processor::ticks;

const TIME: Duration = Duration::from_secs(2);

const DESIGN: &str = r#"{"_id":"_design/d","_rev":"1-a",
"lib":{"types":"exports.known = function (type) { return ['order', 'person', 'item'].indexOf(type) >= 0; };"},
"validate_doc_update":"function (doc, old, user, security) { var types = require('lib/types'); if (!types.known(doc.type)) throw({forbidden: 'unknown type ' + doc.type}); if (old && old.type !== doc.type) throw({forbidden: 'the type stays'}); if (user.roles.indexOf('_admin') < 0 && !user.name) throw({unauthorized: 'log in'}); }",
"filters":{"f":"function (doc, req) { return doc.type === req.query.type; }"}}"#;

const DOC: &str = r#"{"_id":"x","_rev":"1-b","type":"order","total":17.5,"lines":[{"item":"a","count":2},{"item":"b","count":1}],"_revisions":{"start":1,"ids":["b"]}}"#;

const USER: &str = r#"{"db":"db","name":"jan","roles":["writer"]}"#;

fn tell(what: &str, calls: u64, begun: Instant, ticks_before: u64) {
    let (rate, spent) = (calls as f64 / begun.elapsed().as_secs_f64(), ticks() - ticks_before);
    println!("{what}: {rate:.0} calls/s, {:.0} us of processor each", spent as f64 * 1e4 / calls as f64);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let runner = Runner::new(RunnerOptions::default())?;
    println!("a runner: {:?}", begun.elapsed());
    let design = Design::new("db/1", DESIGN);
    let (begun, write) = (Instant::now(), Validation { document: DOC, old: "null", user: USER, security: "{}" });
    runner.validate(&design, runner.caller(), &write).await?;
    println!("the first call, which starts a process: {:?}", begun.elapsed());
    for at_once in [1, 8] {
        let (begun, mut calls, before) = (Instant::now(), 0_u64, ticks());
        let mut tasks = Vec::new();
        for _ in 0..at_once {
            let (runner, design) = (runner.clone(), design.clone());
            tasks.push(tokio::spawn(async move {
                let mut calls = 0;
                while begun.elapsed() < TIME {
                    let write = Validation { document: DOC, old: "null", user: USER, security: "{}" };
                    runner.validate(&design, runner.caller(), &write).await?;
                    calls += 1;
                }
                Ok::<u64, flatbed_javascript::Error>(calls)
            }));
        }
        for task in tasks {
            calls += task.await??;
        }
        tell(&format!("validate, {at_once} at once"), calls, begun, before);
    }
    let (begun, mut calls, before, caller) = (Instant::now(), 0_u64, ticks(), runner.caller());
    while begun.elapsed() < TIME {
        let write = Validation { document: DOC, old: "null", user: USER, security: "{}" };
        runner.validate(&design, caller, &write).await?;
        calls += 1;
    }
    tell("validate, of one request", calls, begun, before);
    let context = WriteContext { user: USER.into(), security: "{}".into() };
    let (begun, mut calls, before, caller) = (Instant::now(), 0_u64, ticks(), runner.caller());
    while begun.elapsed() < TIME {
        let writes = vec![WriteTexts { document: DOC.to_owned(), old: None }; 32];
        for answer in runner.validate_all(&design, caller, &context, writes).await {
            answer?;
            calls += 1;
        }
    }
    tell("validate, 32 of one request together", calls, begun, before);
    for docs in [1, 100] {
        let (begun, mut calls, before) = (Instant::now(), 0_u64, ticks());
        let docs = vec![DOC.as_bytes(); docs];
        while begun.elapsed() < TIME {
            runner.filter(&design, runner.caller(), "f", &docs, r#"{"query":{"type":"order"}}"#).await?;
            calls += 1;
        }
        tell(&format!("filter of {}", docs.len()), calls, begun, before);
    }
    Ok(())
}
