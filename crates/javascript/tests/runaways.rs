//! Functions that cannot be interrupted are killed, and only their own calls fail.
//!
//! A separate program: its functions use the processor, which would disturb other tests.
#![allow(clippy::expect_used)]

use std::time::Duration;

use flatbed_channels::Routing;
use flatbed_javascript::{
    Design, Error, Group, GroupFunctions, KillCause, MappedBatch, RowLimits, Runner, RunnerOptions, SyncFunction,
    SyncWrite, Validation, WriteContext, WriteTexts,
};
use flatbed_testkit::{PATIENCE, soon, until_some};

/// The time limit of a function. Other processes may use the processor meanwhile.
const SHORT: Duration = Duration::from_millis(500);

/// Functions that run for minutes within one built-in function without a check of the clock.
const RUNAWAYS: &[(&str, &str)] = &[
    ("normalize", NORMALIZE),
    ("stringify", "var a = []; for (var i = 0; i < 100000; i++) a.push('k' + i); JSON.stringify({}, a)"),
    (
        "indexOf",
        "Object.defineProperty(Array.prototype, 'x', {get: function () { return 1; }}); var s = 'a'.repeat(20000000);
         new String(s + 'b').indexOf({toString: function () { return s.slice(10000000) + 'c'; }})",
    ),
    ("apply", "CHAIN Math.max.apply(null, o)"),
    ("from", "CHAIN Array.from(o)"),
    ("typed array", "CHAIN new Uint8Array(o)"),
];

const NORMALIZE: &str = "('a' + '\\u0301\\u0316'.repeat(150000)).normalize('NFC')";

/// A lookup of a missing property walks the whole chain of prototypes.
const CHAIN: &str = "var o = {}; for (var i = 0; i < 100000; i++) o = Object.create(o); o.length = 60000;";

fn filters(database: &str, code: &str) -> Design {
    let code = code.replace("CHAIN", CHAIN);
    let mut function = Vec::new();
    let source = format!("function (doc) {{ if (doc.is_bad) {{ {code}; }} return true; }}");
    flatbed_flatten::json::write_string(&source, &mut function);
    let function = String::from_utf8(function).expect("a text");
    Design::new(database, format!(r#"{{"_id":"_design/d","filters":{{"f":{function}}}}}"#))
}

fn runner(options: RunnerOptions) -> Runner {
    let (wait_max, validation_max, batch_max) = (PATIENCE, SHORT, SHORT);
    Runner::new(RunnerOptions { wait_max, validation_max, batch_max, ..options }).expect("threads")
}

async fn filter(runner: &Runner, design: &Design, document: &str) -> Result<Vec<bool>, Error> {
    soon(runner.filter(design, runner.caller(), "f", &[document.as_bytes()], "{}")).await
}

/// Returns an answer of a call that got processor time.
async fn filter_in_time(runner: &Runner, design: &Design, document: &str) -> Result<Vec<bool>, Error> {
    let look = async || match filter(runner, design, document).await {
        Err(Error::TimedOut(_) | Error::Busy) => None,
        answer => Some(answer),
    };
    until_some("a call has its time", look).await
}

fn killed(runner: &Runner) -> u64 {
    runner.figures().function_processes_killed.of(KillCause::Deadline).get()
}

#[tokio::test]
async fn the_next_call_of_a_runaway_runs_as_usual() {
    let runner = runner(RunnerOptions { threads: 1, ..RunnerOptions::default() });
    let other = filters("db/2", "0");
    for (name, call) in RUNAWAYS {
        let design = filters("db/1", call);
        for _ in 0..2 {
            let answer = filter(&runner, &design, r#"{"is_bad":true}"#).await;
            assert!(
                matches!(answer, Err(Error::TimedOut(_) | Error::OutOfResources | Error::Busy)),
                "{name}: {answer:?}"
            );
            assert_eq!(filter_in_time(&runner, &design, "{}").await, Ok(vec![true]), "{name}");
            assert_eq!(filter_in_time(&runner, &other, "{}").await, Ok(vec![true]), "{name}");
        }
        println!("{name}: {} killed so far", killed(&runner));
    }
    // A busy machine may stop the calls before that.
    let runaway = filters("db/1", NORMALIZE);
    let look = async || {
        let _ = filter(&runner, &runaway, r#"{"is_bad":true}"#).await;
        (killed(&runner) >= 4).then_some(())
    };
    until_some("four are killed", look).await;
}

/// An honest `validate_doc_update` normalises a title, and a member writes a title that takes minutes.
#[tokio::test]
async fn a_refused_write_does_not_close_its_database() {
    let runner = runner(RunnerOptions { threads: 1, ..RunnerOptions::default() });
    let design = r#"{"_id":"_design/d","validate_doc_update":"function (doc) { if (doc.title.normalize('NFC') === '') throw({forbidden: 'no title'}); }"}"#;
    let design = Design::new("db/1", design);
    let validate = async |title: &str| {
        let document = format!(r#"{{"_id":"a","title":"{title}"}}"#);
        let write = Validation { document: &document, old: "null", user: "{}", security: "{}" };
        soon(runner.validate(&design, runner.caller(), &write)).await
    };
    let bad = format!("a{}", "\u{301}\u{316}".repeat(150_000));
    for _ in 0..2 {
        let answer = validate(&bad).await;
        assert!(matches!(answer, Err(Error::TimedOut(_) | Error::Busy)), "{answer:?}");
        for (title, expected) in [("fine", Ok(())), ("", Err(Error::Forbidden("no title".to_owned())))] {
            let look = async || match validate(title).await {
                Err(Error::TimedOut(_) | Error::Busy) => None,
                answer => Some(answer),
            };
            assert_eq!(until_some("a write has its time", look).await, expected);
        }
    }
    let look = async || {
        let _ = validate(&bad).await;
        (killed(&runner) >= 2).then_some(())
    };
    until_some("two are killed", look).await;
}

#[tokio::test]
async fn seven_databases_of_runaways_do_not_stop_an_eighth() {
    let runner = runner(RunnerOptions::default());
    let mut hostile = tokio::task::JoinSet::new();
    for n in 0..7 {
        let (runner, design) = (runner.clone(), filters(&format!("bad/{n}"), NORMALIZE));
        hostile.spawn(async move {
            loop {
                let answer = filter(&runner, &design, r#"{"is_bad":true}"#).await;
                assert!(matches!(answer, Err(Error::TimedOut(_) | Error::Busy)), "{answer:?}");
            }
        });
    }
    let good = filters("good", "0");
    for _ in 0..20 {
        assert_eq!(filter_in_time(&runner, &good, "{}").await, Ok(vec![true]));
    }
    until_some("each was killed once", async || (killed(&runner) >= 7).then_some(())).await;
    assert_eq!(filter_in_time(&runner, &good, "{}").await, Ok(vec![true]));
    assert!(hostile.try_join_next().is_none());
}

fn keys(mapped: &MappedBatch) -> Vec<String> {
    let rows =
        mapped.documents.iter().map(|views| views[0].as_ref().expect("rows").iter().next().map(|row| row.0.to_owned()));
    rows.map(|key| key.expect("a row")).collect()
}

#[tokio::test]
async fn a_batch_blames_the_document_that_ran_away() {
    let batch_max = Duration::from_secs(2);
    let options = RunnerOptions { map_threads: 1, wait_max: PATIENCE, batch_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let map =
        "function (doc) { if (doc.is_bad) ('a' + '\\u0301\\u0316'.repeat(150000)).normalize('NFC'); emit(doc._id); }";
    let functions = GroupFunctions { lib: None, maps: &[("v", map)], reduces: &[] };
    let group = Group::new("db/1", &functions, RowLimits::default());
    for bad in [0, 1, 17, 39] {
        let document = |n: usize| format!(r#"{{"_id":"{n}","is_bad":{}}}"#, n == bad).into_bytes();
        let look = async || {
            let mapped = soon(runner.map(&group, (0..40).map(document).collect())).await.expect("an answer");
            // A busy machine may use up the time of another document.
            (mapped.documents.len() == bad && mapped.stopped != Some(Error::Busy)).then_some(mapped)
        };
        let mapped = until_some("the others have their time", look).await;
        assert!(matches!(mapped.stopped, Some(Error::TimedOut(_))), "{:?}", mapped.stopped);
        assert_eq!(keys(&mapped), (0..bad).map(|n| format!("\"{n}\"")).collect::<Vec<_>>());
    }
    assert!(killed(&runner) >= 4);
}

#[tokio::test]
async fn writes_that_are_judged_together_are_not_anothers() {
    let validation_max = Duration::from_secs(2);
    let options = RunnerOptions { threads: 1, wait_max: PATIENCE, validation_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let source =
        "function (doc) { if (doc.is_bad) ('a' + '\\u0301\\u0316'.repeat(150000)).normalize('NFC'); channel(doc.c); }";
    let function = SyncFunction::new("db/1", source);
    let write = |n: usize, is_bad: bool| SyncWrite {
        document: format!(r#"{{"_id":"{n}","is_bad":{is_bad},"c":"c{n}"}}"#),
        id_bytes: 1,
        ..SyncWrite::default()
    };
    let look = async || {
        let answers = soon(runner.route_all(&function, (0..10).map(|n| write(n, n == 4 || n == 7)).collect())).await;
        let late = answers.iter().filter(|answer| matches!(answer, Err(Error::TimedOut(_)))).count();
        (late == 2).then_some(answers)
    };
    let answers = until_some("the others have their time", look).await;
    for (n, answer) in answers.into_iter().enumerate() {
        if n == 4 || n == 7 {
            assert!(matches!(answer, Err(Error::TimedOut(_))), "{n}: {answer:?}");
            continue;
        }
        let channels = [format!("c{n}")].into();
        assert_eq!(answer, Ok(Ok(Routing { channels, ..Routing::default() })), "{n}");
    }
}

#[tokio::test]
async fn writes_that_are_validated_together_are_not_anothers() {
    let validation_max = Duration::from_secs(2);
    let options = RunnerOptions { threads: 1, wait_max: PATIENCE, validation_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let design = r#"{"_id":"_design/d","validate_doc_update":"function (doc) { if (doc.title) doc.title.normalize('NFC'); if (doc.n % 2) throw({forbidden: 'no ' + doc.n}); }"}"#;
    let design = Design::new("db/1", design);
    let context = WriteContext { user: "{}".into(), security: "{}".into() };
    let bad = format!("a{}", "\u{301}\u{316}".repeat(150_000));
    let write = |n: usize| {
        let title = if n == 4 || n == 7 { bad.as_str() } else { "" };
        WriteTexts { document: format!(r#"{{"n":{n},"title":"{title}"}}"#), old: None }
    };
    let look = async || {
        let writes = (0..10).map(write).collect();
        let answers = soon(runner.validate_all(&design, runner.caller(), &context, writes)).await;
        let late = answers.iter().filter(|answer| matches!(answer, Err(Error::TimedOut(_) | Error::Busy))).count();
        (late == 2).then_some(answers)
    };
    let answers = until_some("the others have their time", look).await;
    for (n, answer) in answers.into_iter().enumerate() {
        match n {
            4 | 7 => assert!(matches!(answer, Err(Error::TimedOut(_) | Error::Busy)), "{n}: {answer:?}"),
            _ if n % 2 == 1 => assert_eq!(answer, Err(Error::Forbidden(format!("no {n}")))),
            _ => assert_eq!(answer, Ok(()), "{n}"),
        }
    }
    assert!(killed(&runner) >= 2);
}

/// One list runs away after its first text, another one has sent it.
#[tokio::test]
async fn a_list_that_runs_away_ends_with_an_error() {
    let runner = runner(RunnerOptions::default());
    let mut source = Vec::new();
    let function =
        format!("function (head, req) {{ send('a'); getRow(); if (req.is_bad) {{ {NORMALIZE}; }} send('b'); }}");
    flatbed_flatten::json::write_string(&function, &mut source);
    let source = String::from_utf8(source).expect("a text");
    let design = Design::new("db/1", format!(r#"{{"_id":"_design/d","lists":{{"l":{source}}}}}"#));
    for is_bad in [true, false] {
        let look = async || {
            let mut list = runner.list(&design, runner.caller(), "l", "{}", &format!(r#"{{"is_bad":{is_bad}}}"#));
            let mut text = String::new();
            loop {
                match soon(list.next()).await {
                    Ok(part) if part.is_end => return Some(Ok(text)),
                    Ok(part) => {
                        text.push_str(&part.text);
                        list.feed(None);
                    }
                    // The call ended before the text.
                    Err(Error::TimedOut(_)) if text != "a" || !is_bad => return None,
                    Err(Error::Busy) => return None,
                    Err(error) => return Some(Err((text, error))),
                }
            }
        };
        let ended = until_some("a list has its time", look).await;
        if is_bad {
            assert_eq!(ended, Err(("a".to_owned(), Error::TimedOut(SHORT))));
            assert!(killed(&runner) >= 1);
        } else {
            assert_eq!(ended, Ok("ab".to_owned()));
        }
    }
}

#[tokio::test]
async fn a_batch_ends_where_its_rows_are_many() {
    let options = RunnerOptions { wait_max: PATIENCE, batch_max: PATIENCE, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let map = "function (doc) { emit(doc._id, 'x'.repeat(3000000)); }";
    let functions = GroupFunctions { lib: None, maps: &[("v", map)], reduces: &[] };
    let group = Group::new("db/1", &functions, RowLimits::default());
    let (mut done, mut batches) = (0, 0);
    while done < 20 {
        let documents = (done..20).map(|n| format!(r#"{{"_id":"{n}"}}"#).into_bytes()).collect();
        let mapped = soon(runner.map(&group, documents)).await.expect("an answer");
        assert_eq!(mapped.stopped, None);
        assert_eq!(
            keys(&mapped),
            (done..done + mapped.documents.len()).map(|n| format!("\"{n}\"")).collect::<Vec<_>>()
        );
        let bytes: usize = mapped.documents.iter().map(|views| views[0].as_ref().expect("rows").bytes()).sum();
        assert!(!mapped.documents.is_empty() && bytes < 24 << 20, "{bytes}");
        done += mapped.documents.len();
        batches += 1;
    }
    assert!(batches > 2, "{batches}");
}
