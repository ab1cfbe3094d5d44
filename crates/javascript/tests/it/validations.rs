//! Writes of a request that `validate_doc_update` judges together.
#![allow(clippy::expect_used, reason = "tests")]

use std::time::Duration;

use flatbed_javascript::{Design, Error, Runner, RunnerOptions, WriteContext, WriteTexts};
use flatbed_testkit::until_some;

fn design(body: &str) -> Design {
    let mut function = Vec::new();
    flatbed_flatten::json::write_string(&format!("function (doc, old, user, security) {{ {body} }}"), &mut function);
    let function = String::from_utf8(function).expect("a text");
    Design::new("db/1", format!(r#"{{"_id":"_design/d","validate_doc_update":{function}}}"#))
}

fn context() -> WriteContext {
    WriteContext { user: r#"{"name":"jan","roles":[]}"#.into(), security: r#"{"admins":{}}"#.into() }
}

fn write(document: impl Into<String>) -> WriteTexts {
    WriteTexts { document: document.into(), old: None }
}

#[tokio::test]
async fn each_write_has_its_own_answer_in_order() {
    let design = design(
        "if (doc.no) throw({forbidden: doc.no});
         if (doc.who) throw({unauthorized: 'who'});
         if (doc.wrong) throw new TypeError('wrong');
         if (doc.text) throw 'text';
         if (doc.sees) throw({forbidden: JSON.stringify([old, user, security])});
         if (old) old.changed = true;
         user.roles.push('_admin');
         delete security.admins;",
    );
    let thrown = |name: &str, reason: &str| Err(Error::Thrown { name: name.to_owned(), reason: reason.to_owned() });
    let of = |n: usize| match n % 10 {
        2 => (write(format!(r#"{{"no":"no {n}"}}"#)), Err(Error::Forbidden(format!("no {n}")))),
        3 => (write(r#"{"who":1}"#), Err(Error::Unauthorized("who".to_owned()))),
        5 => (write(r#"{"wrong":1}"#), thrown("TypeError", "wrong")),
        6 => (write(r#"{"text":1}"#), thrown("unknown_error", "text")),
        // No write sees what an earlier one has done to its arguments.
        8 => {
            let seen = r#"[{"n":8},{"name":"jan","roles":[]},{"admins":{}}]"#;
            let write = WriteTexts { document: r#"{"sees":1}"#.to_owned(), old: Some(r#"{"n":8}"#.to_owned()) };
            (write, Err(Error::Forbidden(seen.to_owned())))
        }
        _ => (WriteTexts { document: "{}".to_owned(), old: Some(r#"{"n":8}"#.to_owned()) }, Ok(())),
    };
    let (writes, expected): (Vec<WriteTexts>, Vec<Result<(), Error>>) = (0..100).map(of).unzip();
    let runner = Runner::new(super::patient()).expect("threads");
    assert_eq!(runner.validate_all(&design, runner.caller(), &context(), writes).await, expected);
    assert_eq!(runner.validate_all(&design, runner.caller(), &context(), Vec::new()).await, []);
    // An error of the function is answered for each write.
    for (text, expected) in [
        (r#"{"validate_doc_update":7}"#, Error::Missing),
        (r#"{"language":"erlang","validate_doc_update":"x"}"#, Error::Language("erlang".to_owned())),
    ] {
        let design = Design::new("db/1", text);
        let said = runner.validate_all(&design, runner.caller(), &context(), vec![write("{}"), write("{}")]).await;
        assert_eq!(said, [Err(expected.clone()), Err(expected)], "{text}");
    }
}

/// A write that takes too long, takes too much, or leaves much memory behind affects only itself: the others have their
/// time and a fresh engine.
#[tokio::test]
async fn each_write_has_its_own_time_and_memory() {
    let validation_max = Duration::from_secs(5);
    // The limit fits the memory that one write leaves, but not that of two.
    let memory_max = 40 << 20;
    let runner = Runner::new(RunnerOptions { threads: 1, validation_max, memory_max, ..RunnerOptions::default() });
    let runner = runner.expect("a thread");
    let design = design(
        "while (doc.endless);
         if (doc.much) globalThis.kept = new Uint8Array(2.4e7);
         if (doc.hogs) for (var all = [];;) all.push(new Uint8Array(1e6));
         if (doc.no) throw({forbidden: doc.no});",
    );
    let documents =
        [r#"{"much":1}"#, r#"{"much":1}"#, r#"{"hogs":1}"#, "{}", r#"{"endless":1}"#, r#"{"no":"last"}"#, "{}"];
    let look = async || {
        let writes = documents.map(write).into();
        let said = runner.validate_all(&design, runner.caller(), &context(), writes).await;
        // A busy machine may leave no processor time to any of them.
        let late = said.iter().filter(|said| matches!(said, Err(Error::TimedOut(_) | Error::Busy))).count();
        (late <= 1 && said.get(4) != Some(&Err(Error::Busy))).then_some(said)
    };
    let said = until_some("the others have their time", look).await;
    let timed_out = Err(Error::TimedOut(validation_max));
    let no = Err(Error::Forbidden("last".to_owned()));
    assert_eq!(said, [Ok(()), Ok(()), Err(Error::OutOfResources), Ok(()), timed_out, no, Ok(())]);
}
