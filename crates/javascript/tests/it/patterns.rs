//! Regular expressions of functions: they find the right matches and can be interrupted.
#![allow(clippy::expect_used)]

use std::time::Duration;

use flatbed_javascript::{Design, Error, Runner, RunnerOptions};
use flatbed_testkit::PATIENCE;

use super::listens;

async fn ask(runner: &Runner, body: &str) -> Result<Vec<bool>, Error> {
    let text = format!("function (doc) {{ {body} }}");
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let design = Design::new(format!("db/{}", body.len()), format!("{{\"filters\":{{\"f\":\"{text}\"}}}}"));
    runner.filter(&design, runner.caller(), "f", &[b"{}"], "{}").await
}

fn runner(time: Duration) -> Runner {
    let options = RunnerOptions { threads: 1, batch_max: time, wait_max: PATIENCE, ..RunnerOptions::default() };
    Runner::new(options).expect("a thread")
}

/// Functions that the engine alone would not interrupt.
const DEAF: &[&str] = &[
    "return new RegExp('a'.repeat(8000000) + 'b').test('a'.repeat(50000000))",
    "return RegExp('a'.repeat(30000)).test('b')",
    "return /x/.compile('a'.repeat(8000000)) && false",
    "return new RegExp({toString: function () { return '|'.repeat(4000000) }}).test('')",
    "return 'x'.match('|'.repeat(4000000)) && false",
    "return 'x'.search({toString: function () { return '|'.repeat(4000000) }}) && false",
    "return /x/.constructor('|'.repeat(4000000)).test('')",
    "return new (class extends RegExp {})('|'.repeat(4000000)).test('')",
    "return /(?:(?=a+)a)+b/.test('a'.repeat(1000000))",
    "return /(?:(?=a{1,2000000})a){1,2000000}b/.test('a'.repeat(1000000))",
    "return /(?:(?=(?:(?=(?:(?=a+)a)+)a)+)a)+b/.test('a'.repeat(300))",
    "return /(?:(?=a+)a)+b/[Symbol.split]('a'.repeat(1000000)).length",
    "return 'a'.repeat(1000000).replace(/(?:(?=a+)a)+b/g, '').length",
    "return 'a'.repeat(1000000).match(/(?:(?=a+)a)+b/).length",
    "return [...'a'.repeat(1000000).matchAll(/(?:(?=a+)a)+b/g)].length",
    "return 'a'.repeat(1000000).search(/(?:(?=a+)a)+b/)",
    "return /(?:a*?)(?:(?<=(a+))a)+b/.test('a'.repeat(1000000))",
    "return /^(a*)\\1b/.test('a'.repeat(5000000))",
    "return /^(?<n>a*)\\k<n>b/.test('a'.repeat(5000000))",
    "return new RegExp('(?:' + '()'.repeat(254) + '){8000}').test('')",
    "return new RegExp('^(?:(?:' + '(?=a)'.repeat(3900) + ')a)+b').test('a'.repeat(3000000))",
    "var r = /(?:(?=a+)a)+b/; Object.defineProperty(r, 'exec', {value: 1}); return r.test('a'.repeat(1000000))",
    "var r = /(?:(?=a+)a)+b/; r.exec = null; return r.test('a'.repeat(1000000))",
    "var r = /(?:(?=a+)a)+b/; delete RegExp.prototype.exec; return r.test('a'.repeat(1000000))",
    "var r = /(?:(?=a+)a)+b/; RegExp.prototype.exec = 0; return r.test('a'.repeat(1000000))",
    "var r = Object.setPrototypeOf(/(?:(?=a+)a)+b/, {exec: 1}); return RegExp.prototype.test.call(r, 'a'.repeat(1000000))",
    "var r = /(?:(?=a+)a)+b/; Object.defineProperty(r, 'exec', {value: 1}); var o = {constructor: {[Symbol.species]: function () { return r }}, flags: ''}; return RegExp.prototype[Symbol.split].call(o, 'a'.repeat(1000000)).length",
    "var r = /x/; var t = {toString: function () { r.compile('(?:(?=a+)a)+b'); return 'a'.repeat(1000000) }}; return r.test(t)",
    "var r = /x/g; r.lastIndex = {valueOf: function () { r.compile('(?:(?=a+)a)+b'); return 0 }}; return r.exec('a'.repeat(1000000))",
    "var r = /x/; r.lastIndex = {valueOf: function () { Object.defineProperty(r, 'exec', {value: 1}); r.compile('(?:(?=a+)a)+b'); return 0 }}; return r[Symbol.search]('a'.repeat(1000000))",
    "var r = /[[](?:(?=a+)a)+b/; Object.defineProperty(r, 'unicodeSets', {value: true}); return r.test('[' + 'a'.repeat(1000000))",
    "Array.prototype[Symbol.iterator] = function* () { yield 0; yield 0 }; Map.prototype.get = WeakMap.prototype.get = function () { return {deepest: 0, length: 1} }; String.prototype[2] = '='; return /(?:(?=a+)a)+b/.test('a'.repeat(1000000))",
    "Object.prototype.get = Object.prototype.construct = function (t) { globalThis.leak = t }; try { RegExp.x } catch (e) {} return leak('|'.repeat(4000000)).test('')",
    "return eval('/' + '|'.repeat(400000) + '/').test('')",
    "return Function('return /' + '|'.repeat(400000) + '/')().test('')",
    "return (function () {}).constructor('return /' + '|'.repeat(400000) + '/')().test('')",
    "return (function* () {}).constructor('yield /' + '|'.repeat(400000) + '/')().next().value.test('')",
    "return (async function () {}).constructor('return /' + '|'.repeat(400000) + '/')()",
    "return eval('/(?<a>)' + '\\\\k<b>'.repeat(100000) + '(?<b>)/').test('')",
    "return eval('/' + '(?:'.repeat(1000) + 'a'.repeat(4000000) + ')+'.repeat(1000) + '/').test('')",
];

#[tokio::test]
async fn no_expression_keeps_its_call_from_being_stopped() {
    let runner = runner(Duration::from_millis(500));
    for body in DEAF {
        assert!(listens(&runner, async || drop(ask(&runner, body).await)).await, "{body}");
    }
}

/// The results are known; `T` is a text long enough for the transformed expression.
#[tokio::test]
async fn ordinary_expressions_find_what_they_should() {
    let runner = runner(10 * PATIENCE);
    let bodies = [
        r"/^(\d{4})-(\d\d)-(\d\d)$/.exec('2026-11-22').slice(1).join() === '2026,11,22'",
        r"/^[^@\s]+@[^@\s]+\.\w{2,}$/.test('a@b.example') && !/^[^@\s]+@[^@\s]+\.\w{2,}$/.test('a b@c.d')",
        r"'1234567'.replace(/\B(?=(\d{3})+(?!\d))/g, ',') === '1,234,567'",
        r"'a-b_c'.split(/[-_]/).join('') === 'abc' && 'a1b2'.split(/(\d)/).length === 5 && 'abc'.split(/b/, 1).length === 1",
        r"'aXbX'.match(/X/g).length === 2 && 'abc'.match(/(?<n>b)/).groups.n === 'b' && 'abc'.match(/b/).index === 1",
        r"[...'a1b22'.matchAll(/\d+/g)].map(function (m) { return m[0] }).join() === '1,22'",
        r"'abc'.search(/c/) === 2 && 'abc'.search('b') === 1 && 'a.c'.match('b') === null && 'abc'.match()[0] === ''",
        r"'x y'.replace(/(\w) (\w)/, '$2 $1') === 'y x' && 'ab'.replace(/b/, function (m, at) { return m + at }) === 'ab1'",
        r"(function () { var r = /a/g; r.test('xa'); var at = r.lastIndex; r.test('xa'); return at === 2 && r.lastIndex === 0 })()",
        r"(function () { var r = /a/y; r.lastIndex = 1; return r.test('xa') && !r.test('xa') })()",
        r"/a/ instanceof RegExp && /a/.constructor === RegExp && new RegExp('a/b', 'gi').toString() === '/a\\/b/gi' && RegExp(/a/i).flags === 'i'",
        r"Object.prototype.toString.call(/a/) === '[object RegExp]' && /a/.source === 'a'",
        r"/^(?=.*\d)(?=.*[a-z]).{8,}$/.test('abcdefg1') && !/^(?=.*\d)(?=.*[a-z]).{8,}$/.test('abcdefgh')",
        r#"/^\u{1F600}$/u.test('\u{1F600}') && /^[\p{L}--[a]]+$/v.test('bc') && /(['"]).*?\1/.test('say "x"')"#,
        r"new Function('a', 'return a + 1')(1) === 2 && eval('1 + 1') === 2 && Function instanceof Function && (function () {}) instanceof Function",
    ];
    for body in bodies {
        assert_eq!(ask(&runner, &format!("return {body}")).await, Ok(vec![true]), "{body}");
    }
}

#[tokio::test]
async fn both_forms_find_the_same() {
    let runner = runner(10 * PATIENCE);
    // Two nested lookarounds force the transformed form.
    let body = r#"
        var parts = ['a', 'b', '.', '[ab]', '[^a\\]]', '\\w', '\\d', '\\x61', '\\u0061', '\\cJ', '\\b', '(?:ab)', '(a)', '(b|a)', '(?:a|b)', '(?=a)', '(?!b)', '(?<=a)', '(?<!b)', '^', '$', '(?:)', '{', '}', ']', 'a|b', '()', '(?:a(b)?)', '\\.', '[]', '[^]', '(?i:A)'];
        var quantifiers = ['', '', '', '*', '+', '?', '{2}', '{0,2}', '{1,}', '+?', '*?', '??', '{2,3}?'];
        var seed = 7, n = 0;
        function any(list) { seed = (seed * 1103515245 + 12345) % 2147483648; return list[Math.floor(seed / 65536) % list.length]; }
        for (var i = 0; i < 3000; i++) {
            var pattern = '';
            for (var k = 0; k < 1 + i % 5; k++) pattern += any(parts) + any(quantifiers);
            var flags = any(['', 'i', 's', 'm', 'd']), text = '';
            for (var k = 0; k < i % 9; k++) text += any(['a', 'b', 'a', '\n', '1', '{']);
            var one, two;
            try { one = new RegExp(pattern, flags) } catch (e) { continue }
            two = new RegExp('(?=(?=))(?:' + pattern + ')', flags);
            n += 1;
            var a = JSON.stringify(one.exec(text)), b = JSON.stringify(two.exec(text));
            if (a !== b) throw new Error(pattern + ' ' + flags + ' ' + JSON.stringify(text) + ' ' + a + ' ' + b);
        }
        return n > 1000;
    "#;
    assert_eq!(ask(&runner, body).await, Ok(vec![true]));
}
