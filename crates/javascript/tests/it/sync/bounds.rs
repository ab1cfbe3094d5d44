//! The limits of sync functions hold for nested and disguised arguments.

use std::time::Duration;

use flatbed_channels::Routing;
use flatbed_javascript::{Error, Runner, RunnerOptions, SyncFunction};
use flatbed_testkit::until_some;

use super::write;

/// Built-in functions that drop the error of the interrupt.
#[tokio::test]
async fn what_hides_that_it_was_stopped_is_stopped() {
    for endless in [
        "for (;;) new Promise(function () { for (;;); });",
        "for (;;) Promise.withResolvers().resolve({ get then() { for (;;); } });",
        "var it = { [Symbol.iterator]() { return this; }, next() { return {}; }, return() { for (;;); } };
         for (;;) try { for (var x of it) throw 1; } catch (e) {}",
        // The function ends, but its check was skipped.
        "new Promise(function () { for (;;); }); channel('A');",
        // There is no memory for the error.
        "var a = null; try { for (;;) a = [a]; } catch (e) {} for (;;) { try { for (;;); } catch (e) {} }",
        "var a = null; try { for (;;) a = [a]; } catch (e) {} async function f() {} for (;;) { try { f(); } catch (e) {} }",
    ] {
        let options = RunnerOptions {
            threads: 1,
            validation_max: Duration::from_millis(300),
            memory_max: 16 << 20,
            ..RunnerOptions::default()
        };
        let runner = Runner::new(options).expect("a thread");
        let function = SyncFunction::new("db/1", format!("function (doc) {{ if (doc.is_short) return; {endless} }}"));
        let answer = runner.route(&function, write("{}")).await;
        assert!(
            matches!(answer, Err(Error::TimedOut(_) | Error::OutOfResources | Error::Busy)),
            "{endless}: {answer:?}"
        );
        // The thread is still in use.
        let answer = until_some("a short call has its time", async || {
            match runner.route(&function, write(r#"{"is_short":true}"#)).await {
                Err(Error::TimedOut(_) | Error::Busy) => None,
                answer => Some(answer),
            }
        });
        assert_eq!(answer.await, Ok(Ok(Routing::default())), "{endless}");
    }
}

#[tokio::test]
async fn much_that_is_said_at_once_takes_no_more_than_else() {
    let said = async |validation_max: Duration, code: &str| {
        let runner = Runner::new(RunnerOptions { threads: 1, validation_max, ..RunnerOptions::default() });
        let function = SyncFunction::new("db/1", format!("function () {{ {code} }}"));
        runner.expect("a thread").route(&function, write("{}")).await
    };
    for endless in [
        // A long text in a long array, which the engine stores once.
        "var a = new Array(4e6).fill('\u{20ac}'.repeat(1e6)); channel(a);",
        "requireUser(new Proxy([], { get: function (t, n) { return n === 'length' ? 1e15 : 7; } }));",
        "var a = new Array(4e9); try { role(a, 'role:r'); } catch (e) {}",
    ] {
        let answer = said(Duration::from_millis(400), endless).await;
        assert!(
            matches!(answer, Err(Error::TimedOut(_) | Error::OutOfResources | Error::Busy)),
            "{endless}: {answer:?}"
        );
    }
    let long_enough = Duration::from_secs(60);
    let pairs =
        "var a = [], b = []; for (var i = 0; i < 9000; i++) { a.push('u' + i); b.push('c' + i); } access(a, b);";
    let refusal = said(long_enough, pairs).await.expect("an answer").expect_err("too many");
    assert!(refusal.status() == 403 && refusal.to_string().contains("10001 grants"), "{refusal}");
    let long = "for (var i = 0; i < 5000; i++) channel(('c' + i).padEnd(1000, 'x'));";
    let refusal = said(long_enough, long).await.expect("an answer").expect_err("too many");
    assert!(refusal.to_string().contains("5000 channels") && refusal.to_string().len() < 300, "{refusal}");
    // Output that was cut grants nothing, even if little of it would be kept.
    for cut in [
        "access(new Array(10001).fill('bob').concat('alice'), 'A');",
        "access('bob', new Array(10001).fill('*').concat('A'));",
        "for (var i = 0; i < 999; i++) channel(('c' + i).padEnd(1000, 'x')); channel('*'); access('bob', 'n'.repeat(1000));",
    ] {
        let refusal = said(long_enough, cut).await.expect("an answer").expect_err("too many");
        assert_eq!(refusal.status(), 403, "{cut}: {refusal}");
    }
    let nested = |depth: u32, then: &str| {
        format!(
            "var depth = {depth}, long = 'x'.repeat(1000);
             function give() {{
                 if (depth-- === 0) return 'c';
                 var names = new Array(901).fill(long);
                 Object.defineProperty(names, 900, {{ get: function () {{ give(); return 'u'; }} }});
                 {then}
             }}
             give();"
        )
    };
    let answer = said(long_enough, &nested(3, "access(names, []);")).await;
    assert_eq!(answer, Ok(Ok(Routing::default())));
    for call in ["access(names, 'c');", "role('u', names);"] {
        let answer = said(long_enough, &nested(50, call)).await;
        assert!(matches!(answer, Err(Error::OutOfResources)), "{call}: {answer:?}");
    }
    // After the nested calls the memory is available again.
    let caught = nested(50, "try { access(names, []); } catch (e) { channel(e.name); }");
    let caught = format!("(() => {{ {caught} }})(); {}", nested(3, "access(names, []);"));
    let answer = said(long_enough, &caught).await.map(|routed| routed.map(|routing| routing.channels));
    assert_eq!(answer, Ok(Ok(["InternalError".to_owned()].into())));
}
