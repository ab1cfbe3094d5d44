//! Maps and reduces of views. Answers were recorded from CouchDB 3.5 unless a comment says otherwise.
#![allow(clippy::expect_used)]

use std::time::Duration;

use flatbed_javascript::{
    Error, Group, GroupFunctions, MappedBatch, ReduceInput, Reduction, Result, RowLimits, Runner, RunnerOptions,
};
use flatbed_testkit::until_some;

fn runner() -> Runner {
    Runner::new(RunnerOptions { threads: 1, map_threads: 1, ..crate::patient() }).expect("threads")
}

fn group(lib: Option<&str>, maps: &[(&str, &str)]) -> Group {
    Group::new("db/1", &GroupFunctions { lib, maps, reduces: &[] }, RowLimits::default())
}

fn docs(docs: &[&str]) -> Vec<Vec<u8>> {
    docs.iter().map(|doc| doc.as_bytes().to_vec()).collect()
}

async fn map(lib: Option<&str>, maps: &[(&str, &str)], of: &[&str]) -> Result<MappedBatch> {
    runner().map(&group(lib, maps), docs(of)).await
}

fn told(outcome: &Result<flatbed_javascript::Rows>) -> String {
    match outcome {
        Ok(rows) => rows.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join("|"),
        Err(error) => format!("! {error}"),
    }
}

async fn one(source: &str, doc: &str) -> String {
    match map(None, &[("v", source)], &[doc]).await {
        Ok(mapped) => match (mapped.stopped, mapped.documents.first().and_then(|views| views.first())) {
            (None, Some(outcome)) => told(outcome),
            (stopped, _) => format!("stopped: {stopped:?}"),
        },
        Err(error) => format!("!! {error}"),
    }
}

#[tokio::test]
async fn rows_that_a_map_emits() {
    let doc = r#"{"_id":"a","_rev":"1-x","n":1,"tags":["x","y","x"]}"#;
    for (source, rows) in [
        ("function(doc){emit(doc._id)}", r#""a" null"#),
        ("function(doc){emit()}", "null null"),
        ("function(doc){emit(doc.n,doc)}", r#"1 {"_id":"a","_rev":"1-x","n":1,"tags":["x","y","x"]}"#),
        ("function(doc){if(doc.tags)doc.tags.forEach(function(t,i){emit(t,i)})}", r#""x" 0|"y" 1|"x" 2"#),
        ("function(doc){emit(doc.nothing,doc.none)}", "null null"),
        ("function(doc){}", ""),
        ("function(doc){return emit(1,2)}", "1 2"),
        ("function(doc){emit(1,2,3)}", "1 2"),
        ("function(doc){emit('u',[undefined,1])}", r#""u" [null,1]"#),
        ("function(doc){emit('u',{a:undefined,b:1})}", r#""u" {"b":1}"#),
        ("function(doc){emit('n',[NaN,Infinity,-Infinity])}", r#""n" [null,null,null]"#),
        (
            "function(doc){emit(new Date(86400000),new Date(0))}",
            r#""1970-01-02T00:00:00.000Z" "1970-01-01T00:00:00.000Z""#,
        ),
        ("function(doc){emit(function(){},/x/)}", "null {}"),
        ("function(doc){emit(NaN,[new Number(5),new String('s'),new Boolean(false)])}", r#"null [5,"s",false]"#),
        ("function(doc){emit(undefined,1)}", "null 1"),
        ("(doc) => { emit(doc._id, `t${1+1}`) }", r#""a" "t2""#),
        ("function(doc){emit(doc._rev,Object.keys(doc))}", r#""1-x" ["_id","_rev","n","tags"]"#),
    ] {
        assert_eq!(one(source, doc).await, rows, "{source}");
    }
}

#[tokio::test]
async fn functions_that_maps_have() {
    let doc = r#"{"_id":"a","n":[3,1]}"#;
    for (source, rows) in [
        ("function(doc){emit(sum(doc.n))}", "4 null"),
        // CouchDB's engine has `Intl`; this one does not.
        (
            "function(doc){emit([isArray(doc.n),isArray({}),typeof toJSON,typeof JSON,typeof log,typeof sum,typeof getRow,typeof send,typeof start,typeof provides,typeof registerType,typeof require,typeof evalcx,typeof print,typeof console,typeof setTimeout,typeof Map,typeof Promise])}",
            r#"[true,false,"function","object","function","function","function","function","function","function","function","function","undefined","undefined","undefined","undefined","function","function"] null"#,
        ),
        ("function(doc){emit(toJSON({a:doc.n}),JSON.parse('[1]'))}", r#""{\"a\":[3,1]}" [1]"#),
        ("function(doc){'use strict';try{undeclared=1;emit('set')}catch(e){emit(e.name)}}", r#""ReferenceError" null"#),
        ("function(doc){emit(typeof this,this===undefined)}", r#""object" false"#),
        ("function(){emit(arguments.length)}", "1 null"),
        (
            "function(doc){const {n:[x,y]}=doc;let o={x,y};for(const k of [x,y])emit([k,...[1,2]],`${o.x}`)}",
            r#"[3,1,2] "3"|[1,1,2] "3""#,
        ),
        ("function(doc){emit('a1b2'.replace(/[0-9]/g,function(m){return '<'+m+'>'}))}", r#""a<1>b<2>" null"#),
        ("function(doc){emit('😀'.length,'é'.normalize('NFD').length)}", "2 2"),
        (
            "function(doc){emit(new Date('2020-02-03T04:05:06Z').getTime(),Date.parse('2020-02-03'))}",
            "1580702706000 1580688000000",
        ),
        ("function(doc){emit('a'.localeCompare('b'),(1234.5).toFixed(2))}", r#"-1 "1234.50""#),
        (
            "function(doc){emit(['b','Z','ä','a','B','z'].sort((a,b)=>a.localeCompare(b)).join(''),'a'.localeCompare('a'))}",
            r#""aäbBzZ" 0"#,
        ),
        (
            "function(doc){emit('\\ud800'.localeCompare('\\ufffd'),'1'.localeCompare(1)+'nullb'.localeCompare(null))}",
            "0 1",
        ),
        ("function(doc){emit(typeof collate,'a'.localeCompare('A','de',{sensitivity:'base'}))}", r#""undefined" -1"#),
        (
            "function(doc){emit(1,String.prototype.localeCompare.call(null,'a'))}",
            "! TypeError: localeCompare of nothing",
        ),
        ("function(doc){emit('x'.repeat(3e6).localeCompare('y'))}", "! RangeError: too much to compare"),
        (
            "function(doc){emit([0,-0,1,999.9995,1e3,-1234567.891,1.0005,9.9996,1e-7,12345e-3,1e21,1.5e22,-1e-4,0/0,-1/0]\
             .map(n=>n.toLocaleString()).join(' '))}",
            r#""0 -0 1 1,000 1,000 -1,234,567.891 1.001 10 0 12.345 1,000,000,000,000,000,000,000 15,000,000,000,000,000,000,000 -0 NaN -∞" null"#,
        ),
        (
            "function(doc){const d=new Date(2020,1,3,0,5,6),e=new Date(0/0);emit([d.toLocaleString(),d.toLocaleDateString(),\
             new Date(2020,1,3,13,0).toLocaleTimeString(),e.toLocaleString(),String(e)])}",
            r#"["2/3/2020, 12:05:06 AM","2/3/2020","1:00:00 PM","Invalid Date","Invalid Date"] null"#,
        ),
        (
            "function(doc){const d=new Date(0),z=d.getTimezoneOffset()?'':' (Coordinated Universal Time)';\
             emit([String(d)===`${d.toDateString()} ${d.toTimeString()}`,d.toTimeString().endsWith(z),String(d).endsWith(z)])}",
            "[true,true,true] null",
        ),
    ] {
        assert_eq!(one(source, doc).await, rows, "{source}");
    }
    // The document is frozen: a change throws or has no effect.
    assert!(one("function(doc){doc.n.push(9);doc.x=1;emit(doc.n,doc.x)}", doc).await.starts_with("! TypeError"));
    assert!(one("function(doc){'use strict';doc.x=1}", doc).await.starts_with("! TypeError"));
    assert_eq!(one("function(doc){emit(doc.n,doc.x)}", doc).await, "[3,1] null");
    assert_eq!(one("function(doc){doc.x=1;doc.n[0]=7;emit(doc.n,doc.x)}", doc).await, "[3,1] null");
    let logs = map(None, &[("v", "function(doc){log('x');log({a:1});emit(1)}")], &[doc]).await.expect("rows").logs;
    assert_eq!(logs, ["x", r#"{"a":1}"#]);
}

#[tokio::test]
async fn forms_of_map_source() {
    let doc = r#"{"_id":"a","n":1}"#;
    for (source, rows) in [
        ("function(doc){emit(doc.n,1)};", "1 1"),
        ("/* c */ function(doc){emit(doc.n,2)} // end", "1 2"),
        ("(function(doc){emit(doc.n,3)})", "1 3"),
        ("\n\n  function (doc) {\n  emit(doc.n, 4)\n}\n", "1 4"),
        ("var f=function(doc){emit(doc.n,5)}; f", "1 5"),
        ("function helper(n){return n+1} function(doc){emit(helper(doc.n),6)}", "2 6"),
        ("doc => emit(doc.n,8)", "1 8"),
    ] {
        assert_eq!(one(source, doc).await, rows, "{source}");
    }
    let failed = "!! Compilation of the map function in the 'v' view failed: ";
    for source in ["5", "class A {}", "function named(doc){emit(doc._id,named.name)}"] {
        let told = format!("{failed}Expression does not eval to a function. ({source})");
        assert_eq!(one(source, doc).await, told);
    }
    for source in [
        "not a function",
        "function(doc){for each (var x in doc){emit(x)}}",
        "function(doc){emit(<x/>)}",
        "function(doc){",
        "async function(doc){emit(doc.n,7)}",
        "function*(doc){emit(doc.n,7)}",
    ] {
        let told = one(source, doc).await;
        assert!(told.starts_with(failed) && told.ends_with(&format!("({source})")), "{told}");
    }
    assert_eq!(one("", doc).await, "!! not_found: missing function");
    let both = [("good", "function(doc){}"), ("bad", "5")];
    let error = runner().check(&group(None, &both)).await.expect_err("no function");
    assert!(matches!(&error, Error::Compilation(reason) if reason.contains("in the 'bad' view")), "{error}");
    let reduces = [("h", "function(k,v){")];
    let group = Group::new("db", &GroupFunctions { lib: None, maps: &[], reduces: &reduces }, RowLimits::default());
    let error = runner().check(&group).await.expect_err("no function");
    assert!(error.to_string().starts_with("Compilation of the reduce function in the 'h' view failed: "), "{error}");
}

#[tokio::test]
async fn maps_that_throw_lose_the_rows_of_their_document_in_their_view() {
    let maps = [
        ("deep", "function(doc){emit('before',doc._id);emit(doc.k.x,doc._id)}"),
        ("good", "function(doc){emit(doc._id,null)}"),
        ("str", "function(doc){if(doc._id=='a')throw 'no';emit(doc._id,1)}"),
        ("forbidden", "function(doc){throw({forbidden:'x'})}"),
        ("ref", "function(doc){emit(doc._id,String(undefinedThing))}"),
        ("error", "function(doc){throw(['error','my_error','my reason'])}"),
        ("cyclic", "function(doc){var a=[];a[0]=a;emit(1);emit(a)}"),
        ("hostile", "function(doc){throw {get name(){throw 1}, stack: 1}}"),
    ];
    let mapped = map(None, &maps, &[r#"{"_id":"a","k":{"x":1}}"#, r#"{"_id":"b"}"#]).await.expect("rows");
    assert_eq!(mapped.stopped, None);
    let found: Vec<Vec<String>> = mapped.documents.iter().map(|views| views.iter().map(told).collect()).collect();
    let [a, b] = &found[..] else { panic!("{found:?}") };
    assert_eq!(a[..4], [r#""before" "a"|1 "a""#, r#""a" null"#, "! unknown_error: no", "! forbidden: x"]);
    assert!(b[0].starts_with("! TypeError"), "{b:?}");
    assert_eq!(b[1..3], [r#""b" null"#, r#""b" 1"#]);
    assert!(a[4].starts_with("! ReferenceError"), "{a:?}");
    assert_eq!(a[5], "! my_error: my reason");
    assert!(a[6].starts_with("! TypeError") && a[7].starts_with("! "), "{a:?}");
}

#[tokio::test]
async fn a_map_may_end_the_query() {
    let source = "function(doc){if(doc._id=='b')throw(['fatal','my_error','my reason']);emit(1)}";
    let of = [r#"{"_id":"a"}"#, r#"{"_id":"b"}"#, r#"{"_id":"c"}"#];
    let mapped = map(None, &[("x", source)], &of).await.expect("rows");
    assert_eq!(mapped.documents.len(), 1);
    assert_eq!(mapped.stopped, Some(Error::Thrown { name: "my_error".into(), reason: "my reason".into() }));
    let mapped = map(None, &[("x", "function(doc){throw 'fatal_error'}")], &of).await.expect("rows");
    let reason = "function raised 'fatal_error'".to_owned();
    assert_eq!(mapped.stopped, Some(Error::Thrown { name: "map_runtime_error".into(), reason }));
}

const LIB: &str = r#"{"sq":"exports.sq=function(n){return n*n}","sub":{"twice":"var q=require('../sq');exports.f=function(n){return 2*q.sq(n)}","up":"exports.n=require('./twice').f(1)+module.id"},"abs":"exports.v=require('views/lib/sq').sq(5)","bad":"exports.x = ;","state":"var c=0;exports.next=function(){return ++c}","one":"exports.name='one';exports.other=require('./two').name","two":"exports.name='two'+require('./one').name","whole":"module.exports=function(){return 7}"}"#;

#[tokio::test]
async fn libraries_in_maps() {
    let maps = [
        ("sq", "function(doc){var m=require('views/lib/sq');emit(doc._id,m.sq(doc.n))}"),
        ("sub", "function(doc){emit(doc._id,require('views/lib/sub/twice').f(doc.n))}"),
        ("up", "function(doc){emit(doc._id,require('views/lib/sub/up').n)}"),
        ("abs", "function(doc){emit(doc._id,require('views/lib/abs').v)}"),
        ("whole", "function(doc){emit(doc._id,require('views/lib/whole')())}"),
        ("cycle", "function(doc){emit(doc._id,require('views/lib/one').other)}"),
        ("state", "function(doc){var m=require('views/lib/state');m.next();emit(doc._id,m.next()%2)}"),
        ("none", "function(doc){emit(doc._id,require('views/lib/none').v)}"),
        ("top", "function(doc){emit(doc._id,require('top/x').x)}"),
        // CouchDB emits a row for the second document: only the first call of a failing library gets the error.
        ("bad", "function(doc){emit(doc._id,require('views/lib/bad').v)}"),
    ];
    let mapped = map(Some(LIB), &maps, &[r#"{"_id":"a","n":2}"#, r#"{"_id":"b","n":3}"#]).await.expect("rows");
    let found: Vec<String> = mapped.documents.iter().flatten().map(told).collect();
    let (a, b) = found.split_at(maps.len());
    let expected =
        [r#""a" 4"#, r#""a" 8"#, r#""a" "2views/lib/sub/up""#, r#""a" 25"#, r#""a" 7"#, r#""a" "twoone""#, r#""a" 0"#];
    assert_eq!(a[..7], expected);
    assert_eq!(b[..2], [r#""b" 9"#, r#""b" 18"#]);
    for failed in a[7..].iter().chain(&b[7..]) {
        assert!(failed.starts_with("! "), "{found:?}");
    }
}

#[tokio::test]
async fn libraries_in_maps_know_where_they_stand() {
    let lib = r#"{"a":{"b":"exports.at=[module.id,module.parent.id,module.parent.parent.id,typeof module.parent.current.b]"},"over":"require('../../../lib')"}"#;
    let maps = [
        ("at", "function(doc){emit(require('views/lib/a/b').at)}"),
        ("over", "function(doc){try{require('views/lib/over')}catch(e){emit('caught')}}"),
        ("lost", "function(doc){emit(require('../views/lib/a/b').at)}"),
    ];
    let mapped = map(Some(lib), &maps, &["{}"]).await.expect("rows");
    let found: Vec<String> = mapped.documents.iter().flatten().map(told).collect();
    assert_eq!(found[..2], [r#"["views/lib/a/b","views/lib/a","views/lib","string"] null"#, r#""caught" null"#]);
    assert!(found[2].starts_with("! ") && found[2].contains("invalid_require_path"), "{found:?}");
}

/// In CouchDB each function has its own globals, which persist.
#[tokio::test]
async fn global_names_are_as_they_were_after_each_function() {
    let maps = [
        (
            "leak",
            "function(doc){if(typeof counter=='undefined'){counter=0}counter++;sum=1;JSON=null;delete Map;Object.defineProperty(this,'y',{get:function(){return 1},configurable:true});emit(counter)}",
        ),
        ("other", "function(doc){emit([typeof counter,typeof sum,typeof JSON,typeof Map,typeof y])}"),
    ];
    let mapped = map(None, &maps, &["{}", "{}"]).await.expect("rows");
    for views in &mapped.documents {
        let found: Vec<String> = views.iter().map(told).collect();
        assert_eq!(found, ["1 null", r#"["undefined","function","object","function","undefined"] null"#]);
    }
    assert_eq!(one("var n = 4; function(doc){n++;emit(n)}", "{}").await, "5 null");
}

#[tokio::test]
async fn what_a_document_emits_is_bounded() {
    let maps = [
        ("rows", "function(doc){for(var i=0;i<doc.n;i++)emit(i)}"),
        ("characters", "function(doc){emit('x'.repeat(doc.n*10))}"),
        ("other", "function(doc){emit(1)}"),
    ];
    let functions = GroupFunctions { lib: None, maps: &maps, reduces: &[] };
    let group = Group::new("db", &functions, RowLimits { rows: 10, characters: 200 });
    let mapped = runner().map(&group, docs(&[r#"{"n":10}"#, r#"{"n":100}"#])).await.expect("rows");
    let found: Vec<Vec<String>> = mapped.documents.iter().map(|views| views.iter().map(told).collect()).collect();
    assert!(found[0].iter().all(|told| !told.starts_with('!')), "{found:?}");
    let expected = [
        "! too_many_rows: a document emits 100 rows, 10 are allowed",
        "! too_large_rows: a document's rows have 1011 characters, 200 are allowed",
        "1 null",
    ];
    assert_eq!(found[1], expected);
    let source = "function(doc){for(var i=0;i<50000;i++)emit(i,doc._id)}";
    let large = map(None, &[("v", source)], &[r#"{"_id":"0123456789"}"#]).await.expect("rows");
    assert_eq!(large.documents[0][0].as_ref().map(flatbed_javascript::Rows::len), Ok(50_000));
    let text = format!(r#"{{"_id":"a","text":"{}"}}"#, "x".repeat(8_000_000));
    let large = map(None, &[("v", "function(doc){emit(1,doc)}")], &[&text]).await.expect("rows");
    assert!(large.documents[0][0].as_ref().is_ok_and(|rows| rows.bytes() > 8_000_000));
}

/// The batch ends and names the document, whatever a function does, and the next batch works.
#[tokio::test]
async fn hostile_maps_are_stopped() {
    let time = Duration::from_secs(1);
    let slice = Duration::from_millis(50);
    let options = RunnerOptions { map_threads: 1, batch_max: time, slice, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    // A busy machine may leave a batch no processor time, so it is repeated. An endless function fails each time.
    let map = async |group: &Group, batch: &[&str], least: usize| {
        let mapped = until_some("a batch has its time", async || {
            match runner.map(group, docs(batch)).await {
                Ok(mapped) if mapped.documents.len() >= least && mapped.stopped != Some(Error::Busy) => {
                    return Some(mapped);
                }
                Ok(_) | Err(Error::TimedOut(_) | Error::Busy) => {}
                Err(error) => panic!("{error}"),
            }
            None
        });
        mapped.await
    };
    for body in [
        "while(true){}",
        "var a=[];while(true)a.push(new Array(1000).fill(1))",
        // Without memory for an error QuickJS throws `null`.
        "var a=null;while(true)a=[a]",
        "var a=[];try{while(true)a.push(new Array(1000).fill(1))}catch(error){a=null}",
        "try{emit('x'.repeat(5e8))}catch(error){}",
        "while(true)emit(1)",
        "var s='x';while(true)emit(s+=s)",
    ] {
        let source = format!("function(doc){{if(doc.bad){{{body}}}emit(1)}}");
        let group = group(None, &[("v", &source)]);
        let mapped = map(&group, &["{}", "{}", r#"{"bad":true}"#, "{}"], 2).await;
        assert_eq!(mapped.documents.len(), 2, "{body}");
        assert!(matches!(mapped.stopped, Some(Error::TimedOut(_) | Error::OutOfResources)), "{:?}", mapped.stopped);
        assert_eq!(map(&group, &["{}"], 1).await.documents.len(), 1, "{body}");
    }
    // Changes of built-in objects stay within the function.
    for source in [
        "function(doc){Array.prototype.toJSON=function(){return 1};emit(1)}",
        "function(doc){Object.defineProperty(Array.prototype,0,{set:function(){throw 1}});emit(1)}",
        "function(doc){Object.prototype.toJSON=function(){return '\\n[[1,2]]'};emit(1,{})}",
        "function(doc){Object.freeze=JSON.stringify=null;emit(1)}",
    ] {
        let mapped = map(&group(None, &[("v", source), ("w", "function(doc){emit(2)}")]), &["{}", "{}"], 0).await;
        assert!(mapped.documents.iter().all(|views| views.len() == 2), "{source}");
    }
}

#[tokio::test]
async fn long_batches_are_whole() {
    let options = RunnerOptions { map_threads: 2, slice: Duration::from_millis(1), ..crate::patient() };
    let runner = Runner::new(options).expect("threads");
    let source = "function(doc){var s=0;for(var i=0;i<20000;i++)s+=i;emit(doc.n,null)}";
    let of: Vec<Vec<u8>> = (0..50).map(|n| format!(r#"{{"n":{n}}}"#).into_bytes()).collect();
    let mapped = runner.map(&group(None, &[("v", source)]), of).await.expect("rows");
    let found: Vec<String> = mapped.documents.iter().flatten().map(told).collect();
    assert_eq!(found, (0..50).map(|n| format!("{n} null")).collect::<Vec<_>>());
}

/// Numbers are doubles. Members keep their order, except that array indices come first, as in every JavaScript
/// engine.
#[tokio::test]
async fn values_are_javascripts() {
    let emit = "function(doc){emit(doc.v,null)}";
    for (value, key) in [
        ("9007199254740993", "9007199254740992"),
        ("-0", "0"),
        ("1e400", "null"),
        ("1.0", "1"),
        ("1e21", "1e+21"),
        (r#"{"b":1,"a":{"d":1,"c":2}}"#, r#"{"b":1,"a":{"d":1,"c":2}}"#),
        (r#"{"b":1,"10":2,"9":3}"#, r#"{"9":3,"10":2,"b":1}"#),
        (r#"{"__proto__":{"x":1},"constructor":2}"#, r#"{"__proto__":{"x":1},"constructor":2}"#),
        (r#""\u2028\u0001\u007f\ud83d\ude00é""#, "\"\u{2028}\\u0001\u{7f}😀é\""),
        (r#""\ud83d""#, "\"\u{fffd}\""),
    ] {
        assert_eq!(one(emit, &format!(r#"{{"v":{value}}}"#)).await, format!("{key} null"), "{value}");
    }
    let deep = format!("{}1{}", "[".repeat(999), "]".repeat(999));
    assert_eq!(one(emit, &format!(r#"{{"v":{deep}}}"#)).await, format!("{deep} null"));
    let deep = format!("{}1{}", r#"{"a":"#.repeat(999), "}".repeat(999));
    assert_eq!(one(emit, &format!(r#"{{"v":{deep}}}"#)).await, format!("{deep} null"));
    let deeper = "function(doc){var v=1;for(var i=0;i<1500;i++)v=[v];emit(v)}";
    assert!(one(deeper, "{}").await.starts_with("! invalid_rows: "), "{}", one(deeper, "{}").await);
}

/// State that earlier documents left in an engine does not make a later one fail.
#[tokio::test]
async fn an_engine_that_is_full_is_replaced() {
    let options = RunnerOptions { map_threads: 1, memory_max: 16 << 20, ..crate::patient() };
    let runner = Runner::new(options).expect("threads");
    let source =
        "function(doc){Math.kept=Math.kept||[];Math.kept.push(new Array(100000).fill(doc.n));emit(Math.kept.length)}";
    let of: Vec<Vec<u8>> = (0..40).map(|n| format!(r#"{{"n":{n}.5}}"#).into_bytes()).collect();
    let mapped = runner.map(&group(None, &[("v", source)]), of).await.expect("rows");
    assert_eq!((mapped.documents.len(), &mapped.stopped), (40, &None));
    assert!(mapped.documents.iter().flatten().all(|rows| rows.is_ok()), "{mapped:?}");
}

async fn reduce(reduces: &[(&str, &str)], functions: &[usize], input: ReduceInput<'_>) -> Vec<String> {
    let group = Group::new("db", &GroupFunctions { lib: None, maps: &[], reduces }, RowLimits::default());
    let reduced = runner().reduce(&group, &[Reduction { functions, input }]).await.expect("results");
    let told = |result: &Result<String>| result.clone().unwrap_or_else(|error| format!("! {error}"));
    reduced.iter().flatten().map(told).collect()
}

#[tokio::test]
async fn written_reduces() {
    let reduces = [
        ("sum", "function(keys,values,rereduce){return sum(values)}"),
        ("len", "function(keys,values,rereduce){return rereduce?sum(values):values.length}"),
        ("keys", "function(keys,values,rereduce){return rereduce?values[0]:keys[0]}"),
        ("undef", "function(keys,values,rereduce){}"),
        ("obj", "function(k,v,r){return {m:Math.max.apply(null,r?v.map(function(x){return x.m}):v)}}"),
        ("throws", "function(k,v,r){throw 'oops'}"),
        ("error", "function(k,v,r){throw new Error('oops')}"),
        ("ref", "function(k,v,r){return nothing.x}"),
        ("obj2", "function(k,v,r){throw({forbidden:'f'})}"),
        ("arrow", "(k,v,r) => v.reduce((a,b) => a+b, 0)"),
        ("require", "function(k,v,r){return require('views/lib/a').x}"),
        ("sorts", "function(k,v,r){v.sort();v.length=1;return v}"),
        ("after", "function(k,v,r){return v}"),
        ("null", "function(k,v,r){return [k===null,r]}"),
    ];
    let all: Vec<usize> = (0..reduces.len()).collect();
    let rows = [(r#"["y",1]"#, "d", "8"), (r#"["y",1]"#, "c", "4")];
    let found = reduce(&reduces, &all, ReduceInput::Rows(&rows)).await;
    let expected = [
        "12",
        "2",
        r#"[["y",1],"d"]"#,
        "null",
        r#"{"m":8}"#,
        "null",
        "null",
        "null",
        "null",
        "12",
        "null",
        "[4]",
        "[8,4]",
        "[false,false]",
    ];
    assert_eq!(found, expected);
    let found = reduce(&reduces, &[0, 1, 2, 13, 0], ReduceInput::Reductions(&["3", "12"])).await;
    assert_eq!(found, ["15", "15", "3", "[true,true]", "15"]);
    assert_eq!(reduce(&reduces, &[0, 1], ReduceInput::Rows(&[])).await, ["0", "0"]);
    let fatal = [("f", "function(k,v,r){throw ['fatal','my_error','my reason']}")];
    assert_eq!(reduce(&fatal, &[0], ReduceInput::Rows(&rows)).await, ["! my_error: my reason"]);
}

#[tokio::test]
async fn a_reduce_that_does_not_shrink() {
    let reduces = [
        ("cat", "function(k,v,r){return v.join('')+v.join('')}"),
        ("same", "function(k,v,r){return v}"),
        ("half", "function(k,v,r){return v[0]}"),
    ];
    let (a, b, c) = (text('a'), text('b'), text('c'));
    let rows = [(r#""c""#, "c", &c[..]), (r#""b""#, "b", &b[..]), (r#""a""#, "a", &a[..])];
    let overflow = |input: usize, output: usize| {
        format!(
            "! reduce_overflow_error: Reduce output must shrink more rapidly: input size: {input} output size: {output}"
        )
    };
    assert_eq!(reduce(&reduces, &[0], ReduceInput::Rows(&rows)).await, [overflow(9062, 18004)]);
    assert_eq!(reduce(&reduces, &[0], ReduceInput::Rows(&rows[..1])).await, [overflow(3032, 6004)]);
    assert_eq!(reduce(&reduces, &[2], ReduceInput::Rows(&rows)).await, std::slice::from_ref(&c));
    assert_eq!(reduce(&reduces, &[1], ReduceInput::Rows(&rows)).await, [overflow(9062, 9012)]);
    // Not recorded: `["rereduce",["..."],[...]]`.
    assert_eq!(reduce(&reduces, &[0], ReduceInput::Reductions(&[&a])).await, [overflow(3022, 6004)]);
}

fn text(letter: char) -> String {
    format!("\"{}\"", letter.to_string().repeat(3_000))
}

#[tokio::test]
async fn all_engines_share_their_memory() {
    let source = "function(doc){try{var s='x'.repeat(doc.n)}catch(e){s=''}emit(s.length)}";
    let of = docs(&[r#"{"n":10}"#, r#"{"n":20000000}"#, r#"{"n":10}"#]);
    for (memory_all_max, expected, stopped) in [(1 << 20, 1, Some(Error::Busy)), (64 << 20, 3, None)] {
        let runner = Runner::new(RunnerOptions { memory_all_max, ..crate::patient() }).expect("threads");
        for _ in 0..3 {
            let mapped = runner.map(&group(None, &[("v", source)]), of.clone()).await.expect("rows");
            assert_eq!((mapped.documents.len(), &mapped.stopped), (expected, &stopped));
        }
    }
}

/// See [`long_batches_are_whole`].
#[tokio::test]
async fn long_batches_of_reductions_are_whole() {
    let options = RunnerOptions { map_threads: 2, slice: Duration::from_millis(1), ..crate::patient() };
    let runner = Runner::new(options).expect("threads");
    let reduces = [("v", "function(k,v,r){var s=0;for(var i=0;i<20000;i++)s+=i;return v[0]}")];
    let group = Group::new("db", &GroupFunctions { lib: None, maps: &[], reduces: &reduces }, RowLimits::default());
    let values: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let inputs: Vec<[&str; 1]> = values.iter().map(|value| [&value[..]]).collect();
    let reduction = |values| Reduction { functions: &[0], input: ReduceInput::Reductions(values) };
    let reductions: Vec<Reduction<'_>> = inputs.iter().map(|input| reduction(&input[..])).collect();
    let reduced = runner.reduce(&group, &reductions).await.expect("results");
    assert_eq!(reduced, values.iter().map(|value| vec![Ok(value.clone())]).collect::<Vec<_>>());
}
