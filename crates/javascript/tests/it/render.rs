//! Shows, lists, updates and rewrites. Functions and answers were recorded from CouchDB 3.5 unless a comment says
//! otherwise. The HTTP layer is not tested here.
#![allow(clippy::expect_used)]

use std::time::{Duration, Instant};

use flatbed_javascript::{Design, Error, List, Result, Runner, RunnerOptions};
use flatbed_testkit::{PATIENCE, pass, soon};

const LIST_WAIT: Duration = Duration::from_secs(10);

fn runner() -> Runner {
    Runner::new(RunnerOptions { threads: 1, map_threads: 1, ..crate::patient() }).expect("threads")
}

fn design(kind: &str, source: &str) -> Design {
    let mut quoted = Vec::new();
    flatbed_flatten::json::write_string(source, &mut quoted);
    let quoted = String::from_utf8(quoted).expect("text");
    Design::new("db/1", format!(r#"{{"_id":"_design/s","x":{{"y":"exports.z=7"}},"{kind}":{{"f":{quoted}}}}}"#))
}

const DOC: &str = r#"{"_id":"a","t":"é"}"#;

fn req(more: &str) -> String {
    format!(r#"{{"method":"GET","path":["db","_design","s","_show","f","a"],"headers":{{}},"query":{{}}{more}}}"#)
}

fn told(result: Result<String>) -> String {
    result.unwrap_or_else(|error| format!("! {error}"))
}

async fn show(source: &str, doc: &str, req: &str) -> String {
    let runner = runner();
    told(runner.show(&design("shows", source), runner.caller(), "f", doc, req).await)
}

#[tokio::test]
async fn shows() {
    for (source, answer) in [
        ("function(doc,req){return 'doc '+(doc?doc._id:'none')}", r#"{"body":"doc a"}"#),
        (
            "function(doc,req){return {body:'<p>'+doc.t,headers:{'Content-Type':'text/html','X-Mine':'1'}}}",
            r#"{"body":"<p>é","headers":{"Content-Type":"text/html","X-Mine":"1"}}"#,
        ),
        ("function(doc,req){return {code:418,body:'tea'}}", r#"{"code":418,"body":"tea"}"#),
        ("function(doc,req){return {json:{a:[1]}}}", r#"{"json":{"a":[1]}}"#),
        (
            "function(doc,req){throw 'x'}",
            "! render_error: function raised error: (new String(\"x\")) \nstacktrace: undefined",
        ),
        (
            "function(doc,req){throw({forbidden:'no'})}",
            "! render_error: function raised error: ({forbidden:\"no\"}) \nstacktrace: undefined",
        ),
        ("function(doc,req){throw(['error','not_found','gone'])}", "! not_found: gone"),
        ("function(doc,req){}", "{}"),
        ("function(doc,req){return 5}", "! render_error: undefined response from show function"),
        ("function(doc,req){return require('x/y').z+''}", r#"{"body":"7"}"#),
        // The response that a list passes to `start` has no effect in a show.
        (
            "function(doc,req){start({headers:{'Content-Type':'text/x'}});send('a');send('b');return 'c'}",
            r#"{"body":"abc"}"#,
        ),
        (
            "function(doc,req){start({'Content-Type':'text/x'});send('a');return 'c'}",
            r#"{"body":"ac","headers":{"Content-Type":"text/x"}}"#,
        ),
        // Not recorded.
        ("function(doc,req){return this._id}", r#"{"body":"_design/s"}"#),
        ("function(doc,req){throw {error:'teapot',reason:'short'}}", "! teapot: short"),
    ] {
        assert_eq!(show(source, DOC, &req("")).await, answer, "{source}");
    }
    let source = "function(doc,req){return 'doc '+(doc?doc._id:'none')}";
    assert_eq!(show(source, "null", &req("")).await, r#"{"body":"doc none"}"#);
    // An error without a document becomes `not_found`.
    assert_eq!(show("function(doc,req){return doc.x}", "null", &req("")).await, "! not_found: document not found");
    assert!(
        show("function(doc,req){return doc.x.y}", DOC, &req(""))
            .await
            .starts_with("! render_error: function raised error: ")
    );
    let syntax = show("function(doc,req){", DOC, &req("")).await;
    assert!(syntax.starts_with("! SyntaxError: ") && syntax.ends_with(" (function(doc,req){)"), "{syntax}");
    let runner = runner();
    let answer = runner.show(&design("shows", ""), runner.caller(), "nothing", DOC, "{}").await;
    assert_eq!(answer, Err(Error::Missing));
}

#[tokio::test]
async fn shows_provide_what_is_accepted() {
    let provides =
        "function(doc,req){provides('html',function(){return '<b>h</b>'});provides('xml',function(){return '<x/>'})}";
    let html = r#"{"body":"<b>h</b>","headers":{"Content-Type":"text/html; charset=utf-8"}}"#;
    let xml = r#"{"body":"<x/>","headers":{"Content-Type":"application/xml"}}"#;
    let accept = |accept: &str| req("").replace(r#""headers":{}"#, &format!(r#""headers":{{"Accept":"{accept}"}}"#));
    assert_eq!(show(provides, DOC, &accept("text/html")).await, html);
    assert_eq!(show(provides, DOC, &accept("application/xml")).await, xml);
    let refused = "! not_acceptable: Content-Type application/json not supported, try one of: application/xml, text/xml, application/x-xml, text/html; charset=utf-8";
    assert_eq!(show(provides, DOC, &accept("application/json")).await, refused);
    let format = req("").replace(r#""query":{}"#, r#""query":{"format":"xml"}"#);
    assert_eq!(show(provides, DOC, &format).await, xml);
    let typed = "function(doc,req){registerType('foo','application/foo','application/x-foo');provides('foo',function(){return 'foo'})}";
    let foo = r#"{"body":"foo","headers":{"Content-Type":"application/x-foo"}}"#;
    assert_eq!(show(typed, DOC, &accept("application/x-foo")).await, foo);
    // Not recorded: the first type wins for a wildcard or without `Accept`; quality; parameters.
    for any in ["*/*", "text/html;q=0.9, application/xml;q=0.8", "text/*, application/*;q=0.2"] {
        assert_eq!(show(provides, DOC, &accept(any)).await, html, "{any}");
    }
    assert_eq!(show(provides, DOC, &req("")).await, html);
    // Fitness comes before quality.
    assert_eq!(show(provides, DOC, &accept("application/xml;q=0.1,*/*")).await, xml);
    assert_eq!(
        show(provides, DOC, &accept("text/xml, text/html;q=0")).await,
        xml.replace("application/xml", "text/xml")
    );
    assert!(show(provides, DOC, &accept("text/html;q=0")).await.starts_with("! not_acceptable: "));
    let unknown = "function(doc,req){provides('nothing',function(){return this._id});send('x')}";
    assert_eq!(show(unknown, DOC, &req("")).await, r#"{"body":"x_design/s","headers":{}}"#);
}

async fn update(source: &str, doc: &str, req: &str) -> String {
    let runner = runner();
    let updated = runner.update(&design("updates", source), runner.caller(), "f", doc, req).await;
    told(updated.map(|updated| format!("{} {}", updated.document, updated.response)))
}

#[tokio::test]
async fn updates() {
    let req = r#"{"method":"POST","id":"new","body":"{\"x\":1}","form":{},"uuid":"u"}"#;
    let touch = "function(doc,req){if(!doc){return [null,'none']}doc.n=(doc.n||0)+1;return [doc,'n is '+doc.n]}";
    for (source, answer) in [
        (touch, r#"{"_id":"a","n":2} {"body":"n is 2"}"#),
        (
            "function(doc,req){return [{_id:req.id||req.uuid,made:true,body:req.body,form:req.form},{json:{ok:req.id}}]}",
            r#"{"_id":"new","made":true,"body":"{\"x\":1}","form":{}} {"json":{"ok":"new"}}"#,
        ),
        (
            "function(doc,req){return [doc,{code:302,body:'moved',headers:{'Location':'/x'}}]}",
            r#"{"_id":"a","n":1} {"code":302,"body":"moved","headers":{"Location":"/x"}}"#,
        ),
        ("function(doc,req){return [null,{code:204}]}", r#"null {"code":204}"#),
        ("function(doc,req){return 5}", "! render_error: undefined response from update function"),
        (
            "function(doc,req){throw({forbidden:'no'})}",
            "! render_error: function raised error: ({forbidden:\"no\"}) \nstacktrace: undefined",
        ),
        ("function(doc,req){return [{v:1},'made']}", r#"{"v":1} {"body":"made"}"#),
        (
            "function(doc,req){doc._deleted=true;return [doc,'deleted']}",
            r#"{"_id":"a","n":1,"_deleted":true} {"body":"deleted"}"#,
        ),
        ("function(doc,req){return [null,{base64:'aGk='}]}", r#"null {"base64":"aGk="}"#),
    ] {
        assert_eq!(update(source, r#"{"_id":"a","n":1}"#, req).await, answer, "{source}");
    }
    assert_eq!(update(touch, "null", req).await, r#"null {"body":"none"}"#);
    let get = update(touch, "null", &req.replace("POST", "GET")).await;
    assert_eq!(get, "! method_not_allowed: Update functions do not allow GET");
}

#[tokio::test]
async fn rewrites() {
    let source = "function(req){if(req.path[4]=='no')return {code:403,body:'no'};return {path:'../../'+req.path[4],query:{revs_info:'true'}}}";
    let rewrite = async |source: &str, last: &str| {
        let design = Design::new("db/1", format!(r#"{{"rewrites":"{source}"}}"#));
        let runner = runner();
        let req = format!(r#"{{"method":"PUT","path":["db","_design","f","_rewrite","{last}"]}}"#);
        runner.rewrite(&design, runner.caller(), &req, &mut Duration::default()).await
    };
    assert_eq!(rewrite(source, "a").await, Ok(Some(r#"{"path":"../../a","query":{"revs_info":"true"}}"#.into())));
    assert_eq!(rewrite(source, "no").await, Ok(Some(r#"{"code":403,"body":"no"}"#.into())));
    // Not recorded.
    assert_eq!(rewrite("function(req){return '/x'}", "a").await, Ok(Some(r#"{"path":"/x","method":"PUT"}"#.into())));
    assert_eq!(rewrite("function(req){}", "a").await, Ok(None));
    let failed = rewrite("function(req){throw 1}", "a").await.expect_err("thrown");
    assert!(failed.to_string().starts_with("rewrite_error: function raised error: (new Number(1))"), "{failed}");
}

#[tokio::test]
async fn rewrites_of_a_request_share_the_time_of_one_call() {
    let runner = runner();
    let design = Design::new("db/1", r#"{"rewrites":"function(req){return '/x'}"}"#);
    let req = r#"{"method":"GET","path":["db","_design","f","_rewrite","a"]}"#;
    let (mut spent, mut before) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..3 {
        let rewritten = runner.rewrite(&design, runner.caller(), req, &mut spent).await;
        assert_eq!(rewritten, Ok(Some(r#"{"path":"/x","method":"GET"}"#.into())));
        assert!(spent > before, "{spent:?} after {before:?}");
        before = spent;
    }
    let time_max = crate::patient().batch_max;
    let mut spent = time_max;
    let rewritten = runner.rewrite(&design, runner.caller(), req, &mut spent).await;
    assert_eq!((rewritten, spent), (Err(Error::TimedOut(time_max)), time_max));
}

async fn run(list: &mut List, pages: &[&str]) -> (Option<String>, String, Option<String>) {
    let (mut response, mut text, mut pages) = (None, String::new(), pages.iter());
    loop {
        match list.next().await {
            Ok(part) => {
                if text.is_empty() {
                    response = part.response.or(response);
                }
                text.push_str(&part.text);
                if part.is_end {
                    return (response, text, None);
                }
                if part.wants_rows {
                    list.feed(pages.next().map(|page| (*page).to_owned()));
                }
            }
            Err(error) => return (response, text, Some(error.to_string())),
        }
    }
}

async fn list(source: &str, head: &str, req: &str, pages: &[&str]) -> (Option<String>, String, Option<String>) {
    let runner = runner();
    run(&mut runner.list(&design("lists", source), runner.caller(), "f", head, req), pages).await
}

const ROWS: &str = r#"[{"id":"a","key":1,"value":"a"},{"id":"b","key":2,"value":"b"}]"#;

#[tokio::test]
async fn lists() {
    let req = r#"{"headers":{"Accept":"text/html"},"query":{"limit":"0","x":"1"}}"#;
    let plain = Some(r#"{"headers":{}}"#);
    for (source, response, text) in [
        (
            "function(head,req){start({headers:{'Content-Type':'text/csv'}});var r;while(r=getRow()){send(r.key+','+r.value+'\\n')}return 'end'}",
            Some(r#"{"headers":{"Content-Type":"text/csv"}}"#),
            "1,a\n2,b\nend",
        ),
        (
            "function(head,req){send(toJSON(head));send(toJSON(req.query));return ''}",
            plain,
            r#"{"total_rows":2,"offset":0}{"limit":"0","x":"1"}"#,
        ),
        ("function(head,req){var o=[],r;while(r=getRow())o.push(r);return toJSON(o)}", plain, ROWS),
        ("function(head,req){return 'no rows read'}", plain, "no rows read"),
        (
            "function(head,req){start({code:202,headers:{'X-A':'b'}});return 'x'}",
            Some(r#"{"code":202,"headers":{"X-A":"b"}}"#),
            "x",
        ),
        (
            "function(head,req){provides('html',function(){return '<ul>'});provides('csv',function(){return 'c'})}",
            Some(r#"{"headers":{"Content-Type":"text/html; charset=utf-8"}}"#),
            "<ul>",
        ),
        ("function(head,req){var o=[],r;while(r=getRow())o.push(r.key);return o.join('|')}", plain, "1|2"),
        // Not recorded.
        ("function(head,req){while(getRow());return getRow()===null&&getRow()===null}", plain, "true"),
        ("function(head,req){send('a\\ud83d');return '\\ud83d\\ude00'}", plain, "a\u{fffd}😀"),
        (
            "function(head,req){provides('html',function(){var r;while(r=getRow())send(r.id)})}",
            Some(r#"{"headers":{}}"#),
            "ab",
        ),
    ] {
        let found = list(source, r#"{"total_rows":2,"offset":0}"#, req, &[ROWS]).await;
        if source.contains("send(r.id)") {
            assert_eq!(found.1, text);
            continue;
        }
        assert_eq!(found, (response.map(str::to_owned), text.to_owned(), None), "{source}");
    }
    let (response, text, error) = list("function(head,req){getRow();throw 'x'}", "{}", req, &[ROWS]).await;
    assert_eq!((response.as_deref(), &text[..]), (plain, ""));
    let raised = |thrown: &str| Some(format!("render_error: function raised error: {thrown} \nstacktrace: undefined"));
    assert_eq!(error, raised("(new String(\"x\"))"));
    let (response, _, error) = list("function(head,req){throw({forbidden:'no'})}", "{}", req, &[ROWS]).await;
    assert_eq!((response, error), (None, raised("({forbidden:\"no\"})")));
    let missing = runner();
    let mut missing = missing.list(&design("lists", ""), missing.caller(), "none", "{}", "{}");
    assert_eq!(missing.next().await, Err(Error::Missing));
}

#[tokio::test]
async fn lists_stream() {
    let runner = runner();
    let source = "function(head,req){var r,n=0;while(r=getRow()){n++;send(r.key+' ')}return n}";
    let mut list = runner.list(&design("lists", source), runner.caller(), "f", "{}", "{}");
    let first = list.next().await.expect("a part");
    assert!(first.wants_rows && first.response.is_some() && first.text.is_empty());
    for page in 0..5 {
        list.feed(Some(format!(r#"[{{"key":{page}}},{{"key":"x"}}]"#)));
        // The text of a page arrives before the next page is requested.
        let part = list.next().await.expect("a part");
        assert_eq!((part.text, part.wants_rows), (format!("{page} x "), true));
    }
    list.feed(None);
    assert_eq!(list.next().await.expect("a part").text, "10");
    assert!(list.next().await.expect("the end").is_end);
    assert!(list.next().await.expect("the end").is_end);
    // A list that sends without end stops while its text is not taken.
    let source = "function(head,req){getRow();for(;;)send('x'.repeat(1000))}";
    let mut list = runner.list(&design("lists", source), runner.caller(), "f", "{}", "{}");
    assert!(list.next().await.expect("a part").wants_rows);
    list.feed(Some(ROWS.to_owned()));
    for _ in 0..20 {
        let text = list.next().await.expect("a part").text;
        assert!((60_000..80_000).contains(&text.len()), "{}", text.len());
    }
    pass(Duration::from_millis(50)).await;
    let text = list.next().await.expect("a part").text;
    assert!((60_000..80_000).contains(&text.len()), "{}", text.len());
    drop(list);
    let (_, _, error) = self::list("function(head,req){for(;;)send('x'.repeat(1000))}", "{}", "{}", &[]).await;
    assert!(error.expect("too much").contains("too much before the first row"));
}

/// Lists that wait for their clients keep only their own threads, and lists that run do not delay others for long.
#[tokio::test]
async fn lists_do_not_keep_others_waiting() {
    // A list that waited for an endless list would wait forever.
    let options = RunnerOptions { batch_max: 10 * PATIENCE, wait_max: PATIENCE, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let waits = design("lists", "function(head,req){while(getRow());return 'end'}");
    let (mut waiting, begun) = (Vec::new(), Instant::now());
    for _ in 0..4 {
        let mut list = runner.list(&waits, runner.caller(), "f", "{}", "{}");
        assert!(list.next().await.expect("a part").wants_rows);
        waiting.push(list);
    }
    let other = |name: &str, source: &str| {
        let text = design("lists", source).text().to_owned();
        Design::new(name, text)
    };
    let quick = other("quick", "function(head,req){return 'x'}");
    let endless = other("endless", "function(head,req){for(;;);}");
    let mut spinning = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (runner, endless) = (runner.clone(), endless.clone());
        spinning.spawn(async move { runner.list(&endless, runner.caller(), "f", "{}", "{}").next().await });
    }
    for _ in 0..10 {
        let mut list = runner.list(&quick, runner.caller(), "f", "{}", "{}");
        assert_eq!(soon(run(&mut list, &[])).await.1, "x");
    }
    // The waiting lists are unaffected, unless the machine was too slow.
    for mut list in waiting {
        list.feed(Some(ROWS.to_owned()));
        let text = soon(run(&mut list, &[])).await.1;
        assert!(text == "end" || Instant::now() > begun + LIST_WAIT, "{text}");
    }
    spinning.abort_all();
}

/// Idle clients keep their lists' threads for a second while others want them.
#[tokio::test]
async fn idle_clients_lose_their_lists_to_others() {
    let options = RunnerOptions { threads: 1, map_threads: 1, wait_max: PATIENCE, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let source = "function(head,req){while(getRow());return 'end'}";
    let (mut idle, begun) = (Vec::new(), Instant::now());
    for n in 0..40 {
        let design = Design::new(format!("db/{n}"), design("lists", source).text().to_owned());
        let mut list = runner.list(&design, runner.caller(), "f", "{}", "{}");
        assert!(soon(list.next()).await.expect("a part").wants_rows);
        idle.push(list);
    }
    let mut gone = 0;
    for list in &mut idle {
        list.feed(None);
        gone += usize::from(run(list, &[]).await.2.is_some());
    }
    // No more lists end than others need, unless some reached their time limit.
    assert!(gone >= 20 && (gone <= 32 || Instant::now() > begun + LIST_WAIT), "{gone}");
}
