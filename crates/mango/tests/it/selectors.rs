//! Selectors against documents.

use flatbed_flatten::json::Value;
use flatbed_mango::{Interrupts, InvalidSelector, MatchInterrupted, Progress, Selector, compare, slice_steps};
use proptest::prelude::*;

use crate::json;

/// Checks that a selector matches the documents of one list and none of the other.
fn check(selector: &str, selected: &[&str], others: &[&str]) {
    let compiled = Selector::new(&json(selector)).unwrap_or_else(|error| panic!("{selector}: {error}"));
    for (documents, expected) in [(selected, true), (others, false)] {
        for document in documents {
            assert_eq!(compiled.matches(&json(document)), expected, "{selector} of {document}");
        }
    }
}

#[test]
fn fields_and_their_conditions() {
    check("{}", &["{}", r#"{"a":1}"#], &[]);
    check(r#"{"a":1}"#, &[r#"{"a":1}"#, r#"{"a":1.0,"b":2}"#], &["{}", r#"{"a":"1"}"#, r#"{"a":[1]}"#]);
    check(r#"{"a":1,"b":2}"#, &[r#"{"b":2,"a":1}"#], &[r#"{"a":1}"#]);
    check(r#"{"a.b":1}"#, &[r#"{"a":{"b":1}}"#], &[r#"{"a.b":1}"#]);
    check(r#"{"a\\.b":1}"#, &[r#"{"a.b":1}"#], &[r#"{"a":{"b":1}}"#]);
    check(r#"{"a":{"b":{"$gt":1}}}"#, &[r#"{"a":{"b":2}}"#], &[r#"{"a":{"b":1}}"#, r#"{"a":2}"#]);
    check(r#"{"a":{}}"#, &[r#"{"a":{}}"#], &[r#"{"a":{"b":1}}"#, "{}"]);
    check(r#"{"a.1":2}"#, &[r#"{"a":[1,2]}"#], &[r#"{"a":[2,1]}"#]);
}

#[test]
fn operators() {
    check(r#"{"a":{"$gt":1,"$lte":3}}"#, &[r#"{"a":2}"#, r#"{"a":3}"#], &[r#"{"a":1}"#, r#"{"a":"x"}"#, "{}"]);
    check(r#"{"a":{"$gt":1}}"#, &[r#"{"a":"x"}"#, r#"{"a":[]}"#], &[r#"{"a":null}"#, r#"{"a":true}"#]);
    check(r#"{"a":{"$lt":1}}"#, &[r#"{"a":0}"#, r#"{"a":true}"#], &[r#"{"a":1}"#, r#"{"a":"x"}"#, "{}"]);
    check(r#"{"a":{"$lte":1}}"#, &[r#"{"a":1}"#], &[r#"{"a":2}"#]);
    check(r#"{"a":{"$gte":1}}"#, &[r#"{"a":1}"#, r#"{"a":2}"#], &[r#"{"a":0}"#, "{}"]);
    check(r#"{"a":{"$eq":1}}"#, &[r#"{"a":1}"#], &[r#"{"a":2}"#, "{}"]);
    check(r#"{"a":{"$ne":1}}"#, &[r#"{"a":2}"#], &[r#"{"a":1}"#, "{}"]);
    check(r#"{"a":{"$exists":false}}"#, &["{}"], &[r#"{"a":null}"#]);
    check(r#"{"a":{"$type":"null"}}"#, &[r#"{"a":null}"#], &["{}", r#"{"a":0}"#]);
    let types = ["null", "boolean", "number", "string", "array", "object"];
    for (at, kind) in types.iter().enumerate() {
        let mut documents =
            ["null", "true", "1", r#""""#, "[]", "{}"].map(|value| format!(r#"{{"a":{value}}}"#)).to_vec();
        let selected = documents.remove(at);
        let others: Vec<&str> = documents.iter().map(String::as_str).collect();
        check(&format!(r#"{{"a":{{"$type":"{kind}"}}}}"#), &[&selected], &others);
    }
    check(r#"{"a":{"$in":[1,"x"]}}"#, &[r#"{"a":"x"}"#, r#"{"a":[2,1]}"#], &[r#"{"a":2}"#, "{}"]);
    check(r#"{"a":{"$nin":[1]}}"#, &[r#"{"a":2}"#], &[r#"{"a":1}"#, "{}"]);
    check(r#"{"a":{"$all":[1,2]}}"#, &[r#"{"a":[3,2,1]}"#], &[r#"{"a":[1]}"#, r#"{"a":1}"#]);
    check(
        r#"{"a":{"$all":[[1,2]]}}"#,
        &[r#"{"a":[1,2]}"#, r#"{"a":[0,[1,2]]}"#],
        &[r#"{"a":[1]}"#, r#"{"a":[1,2,3]}"#],
    );
    check(r#"{"a":{"$all":[]}}"#, &[], &[r#"{"a":[]}"#, r#"{"a":[1]}"#]);
    check(r#"{"a":{"$elemMatch":{"$gt":2}}}"#, &[r#"{"a":[1,3]}"#], &[r#"{"a":[1]}"#, r#"{"a":[]}"#]);
    check(r#"{"a":{"$elemMatch":{"b":1}}}"#, &[r#"{"a":[{"b":1}]}"#], &[r#"{"a":[{"b":2}]}"#]);
    check(r#"{"a":{"$allMatch":{"$gt":2}}}"#, &[r#"{"a":[3,4]}"#], &[r#"{"a":[1,3]}"#, r#"{"a":[]}"#]);
    check(r#"{"a":{"$keyMapMatch":{"$eq":"k"}}}"#, &[r#"{"a":{"k":1}}"#], &[r#"{"a":{"l":1}}"#, r#"{"a":["k"]}"#]);
    check(r#"{"a":{"$size":2}}"#, &[r#"{"a":[1,2]}"#], &[r#"{"a":[1]}"#, r#"{"a":"ab"}"#]);
    check(r#"{"a":{"$mod":[3,1]}}"#, &[r#"{"a":4}"#], &[r#"{"a":3}"#, r#"{"a":4.0}"#]);
    check(r#"{"a":{"$regex":"^x+$"}}"#, &[r#"{"a":"xx"}"#], &[r#"{"a":"xy"}"#, r#"{"a":1}"#]);
    check(r#"{"a":{"$beginsWith":"x"}}"#, &[r#"{"a":"xy"}"#], &[r#"{"a":"yx"}"#, r#"{"a":1}"#]);
    check(r#"{"$or":[{"a":1},{"b":1}]}"#, &[r#"{"b":1}"#], &[r#"{"c":1}"#]);
    check(r#"{"$and":[{"a":1},{"b":1}]}"#, &[r#"{"a":1,"b":1}"#], &[r#"{"b":1}"#]);
    check(r#"{"$nor":[{"a":1},{"b":1}]}"#, &[r#"{"a":2,"b":2}"#], &[r#"{"a":2,"b":1}"#, r#"{"c":1}"#]);
    check(r#"{"$not":{"a":1}}"#, &[r#"{"a":2}"#], &[r#"{"a":1}"#, "{}"]);
    check(r#"{"a":{"$not":{"$gt":1}}}"#, &[r#"{"a":1}"#], &[r#"{"a":2}"#, "{}"]);
    check(r#"{"a":{"$not":{"$regex":"x"}}}"#, &[r#"{"a":1}"#], &[r#"{"a":"x"}"#, "{}"]);
}

#[test]
fn what_is_no_selector() {
    let error = |text: &str| Selector::new(&json(text)).err().map(|error| error.to_string());
    assert_eq!(error("[]").as_deref(), Some("Selector must be a JSON object"));
    assert_eq!(error(r#"{"$bad":2}"#).as_deref(), Some("Invalid operator: $bad"));
    assert_eq!(error(r#"{"a":{"$size":"x"}}"#).as_deref(), Some(r#"Bad argument for operator $size: "x""#));
    for bad in [
        r#"{"a":{"$in":1}}"#,
        r#"{"$and":{}}"#,
        r#"{"$not":1}"#,
        r#"{"a":{"$exists":1}}"#,
        r#"{"a":{"$type":1}}"#,
        r#"{"a.":1}"#,
        r#"{"$gt":1}"#,
        r#"{"a":{"$mod":[0,1]}}"#,
        r#"{"a":{"$mod":[1.5,1]}}"#,
        r#"{"a":{"$regex":"("}}"#,
        r#"{"a":{"$elemMatch":1}}"#,
        r#"{"a":{"$regex":"(x{1000}){1000}"}}"#,
    ] {
        assert!(error(bad).is_some(), "{bad}");
    }
    let deep = format!("{}1{}", r#"{"$not":{"a":"#.repeat(80), "}}".repeat(80));
    assert_eq!(Selector::new(&json(&deep)).err(), Some(InvalidSelector::TooDeep));
}

#[test]
fn what_pcre_takes_before_a_pattern_and_at_its_beginning() {
    let regex = |pattern: &str| format!(r#"{{"a":{{"$regex":"{}"}}}}"#, pattern.replace('\\', "\\\\"));
    let with = |text: &&str| format!(r#"{{"a":"{text}"}}"#);
    let cases: &[(&str, &[&str], &[&str])] = &[
        // A character is a byte, or with a verb a code point.
        ("^.$", &["x"], &["é", "xx"]),
        ("(*UTF8)^.$", &["x", "é", "語"], &["xx"]),
        ("(*UTF8)^\\w+$", &["x_1"], &["é", "x\\u0661"]),
        ("(*UTF8)(*UCP)^\\w+$", &["x_1", "é", "x\\u0661"], &["-"]),
        ("(*UTF8)^\\W$", &["é", "-"], &["e"]),
        ("(*UTF8)(?i)^[^\\d\\s]É$", &["xé", "éé"], &["1é", " é"]),
        ("(*UTF8)\\bb", &["éb", "a b"], &["ab"]),
        ("(*NO_START_OPT)(*LIMIT_MATCH=5)^a+$", &["aaaaaaaa"], &["b"]),
        ("^.+$", &["a\\rb"], &["a\\nb"]),
        ("(*ANYCRLF)^.+$", &["ab"], &["a\\rb", "a\\nb"]),
        ("(*CR)^.+$", &["a\\nb"], &["a\\rb"]),
        ("(*CR)(?m)^b$", &["b", "a\\rb\\rc"], &["a\\nb", "b\\nc"]),
        ("(*ANYCRLF)(?m)^b$", &["a\\rb\\rc", "a\\nb\\r\\nc"], &["ab"]),
        ("(?m)^b$", &["a\\nb\\nc"], &["a\\rb"]),
        ("^(?=.*\\d)(?=.*[a-z])(?!.*\\s).{4,}$", &["abc1", "1234x"], &["abcd", "1234", "ab 1", "a1"]),
        ("(?i)^(?!admin|root)[a-z]+$", &["user", "badmin"], &["ADMINS", "root"]),
        ("^((?!foo|bar).)*$", &["", "fo ob ar"], &["a foo", "bar"]),
        ("(*UTF8)^(?!é)", &["e", ""], &["é", "éa"]),
        // Syntax that the engine reads differently, in classes and outside.
        ("^[a&&b]$", &["a", "&", "b"], &["c"]),
        ("^[[a]b]$", &["[b]", "ab]"], &["a", "b"]),
        ("^[^[a]]$", &["x]"], &["x", "a]"]),
        ("^[a~~]$", &["a", "~"], &["b"]),
        ("^[+--]$", &["+", ",", "-"], &["."]),
        ("(*UTF8)^[\\w--9]$", &["a", "-", "/"], &[","]),
        ("^\\<a\\>$", &["<a>"], &["a"]),
        ("\\b{start}$", &["a{start}"], &["start", "a"]),
        ("^a\\vb$", &["a\\nb", "a\\rb", "a\\u000bb"], &["a b", "avb", "a\\u2028b"]),
        ("(*UTF8)^[x\\v]$", &["\\u0085", "\\u2028", "x", "\\f"], &["v", " "]),
        ("^(?x) [ #] $", &[" ", "#"], &["", "x"]),
    ];
    for (pattern, selected, others) in cases {
        let documents = |texts: &[&str]| texts.iter().map(with).collect::<Vec<String>>();
        let (selected, others) = (documents(selected), documents(others));
        let texts = |all: &[String]| all.iter().map(|text| json(text)).collect::<Vec<_>>();
        let compiled = Selector::new(&json(&regex(pattern))).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        assert!(texts(&selected).iter().all(|document| compiled.matches(document)), "{pattern} {selected:?}");
        assert!(!texts(&others).iter().any(|document| compiled.matches(document)), "{pattern} {others:?}");
        // `_explain` shows the pattern as it was written.
        assert_eq!(compiled.to_json(), json(&regex(pattern)));
    }
    // Syntax that needs backtracking, and unknown verbs.
    for pattern in [
        "(a)\\1",
        "x(?=y)",
        "(?<=x)y",
        "(?=a)b",
        "^(?=a)b|c",
        "(*UTF9)x",
        "x(*UTF8)",
        "(*ACCEPT)x",
        "(*UTF8)^[+-\\d]$",
        // Patterns that PCRE refuses, or that need backtracking in PCRE.
        "[a--b]",
        "[a-\\v]",
        "\\u0041",
        "(*UTF8)\\U00000041",
        "(?u)a",
        "a(?R)",
        "a++a",
        "[:alpha:]",
    ] {
        let refused = Selector::new(&json(&regex(pattern))).err();
        assert!(matches!(refused, Some(InvalidSelector::Argument { .. })), "{pattern} {refused:?}");
    }
}

#[test]
fn long_patterns_are_refused_before_they_are_parsed() {
    let refused = |pattern: &str| Selector::new(&json(&format!(r#"{{"a":{{"$regex":"{pattern}"}}}}"#))).err();
    assert_eq!(refused(&"(?:)".repeat(1_000)), None);
    assert_eq!(refused(&"(?:)".repeat(20_000)), Some(InvalidSelector::RegexesTooLarge));
}

fn regexes(patterns: impl Iterator<Item = String>) -> Value<'static> {
    let all: Vec<String> = patterns.map(|pattern| format!(r#"{{"a":{{"$regex":"{pattern}"}}}}"#)).collect();
    json(&format!(r#"{{"$or":[{}]}}"#, all.join(",")))
}

#[test]
fn a_selector_weighs_what_it_does() {
    let weight = |selector: &str| Selector::new(&json(selector)).unwrap().weight();
    assert_eq!(weight("{}"), 1);
    assert_eq!(weight(r#"{"a":1}"#), 2, "the field and the comparison");
    assert_eq!(weight(r#"{"a":1,"b":2}"#), 5, "and both together");
    assert_eq!(weight(r#"{"a":{"$in":[1,2,3]}}"#), 5);
    assert_eq!(weight(r#"{"a":{"$all":[1,2]}}"#), 4);
    assert_eq!(weight(r#"{"a":{"$elemMatch":{"$not":{"$keyMapMatch":{"$allMatch":{"$eq":1}}}}}}"#), 6);
    let long = "é".repeat(160);
    assert_eq!(weight(&format!(r#"{{"a":{{"$gt":"{long}"}}}}"#)), 22);
    assert_eq!(weight(&format!(r#"{{"a":{{"$nin":["{long}",1,{{"b":["{long}"]}}]}}}}"#)), 45);
    for (pattern, kilobytes) in [("b", 16), ("b{1500}", 64), ("b{6000}", 256), ("b{24000}", 1024)] {
        assert_eq!(weight(&format!(r#"{{"a":{{"$regex":"{pattern}"}}}}"#)), 2 + kilobytes, "{pattern}");
    }
}

#[test]
fn regular_expressions_are_bounded_together() {
    assert!(Selector::new(&regexes((0..256).map(|number| format!("^a{number}")))).is_ok());
    let more = regexes((0..257).map(|number| format!("^a{number}")));
    assert_eq!(Selector::new(&more).err(), Some(InvalidSelector::RegexesTooLarge));
    let large = |number: usize| format!("^(a\\\\w{number}){{1,40}}$");
    assert_eq!(Selector::new(&regexes((0..600).map(large))).err(), Some(InvalidSelector::RegexesTooLarge));
    // Equal expressions are compiled once.
    assert!(Selector::new(&regexes((0..600).map(|_| large(1)))).is_ok());
    assert!(Selector::new(&regexes((0..200).map(|number| format!("^a{number}")))).is_ok());
    assert_eq!(
        Selector::new(&json(r#"{"a":{"$regex":"(x{1000}){1000}"}}"#)).err(),
        Some(InvalidSelector::RegexesTooLarge)
    );
    // After `stop`, no further expression is compiled.
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    let stopped = Selector::new_unless(&regexes((0..200).map(|number| format!("^a{number}"))), &stop);
    assert_eq!((stopped.err(), asked.get()), (Some(InvalidSelector::Stopped), 4));
}

#[test]
fn selectors_are_bounded() {
    assert_eq!(Selector::measure(&json("[]")), Err(InvalidSelector::NotAnObject));
    assert_eq!(Selector::measure(&json(r#"{"$bad":1}"#)), Ok(()));
    let list = |count: usize| vec!["0"; count].join(",");
    assert!(Selector::new(&json(&format!(r#"{{"a":{{"$in":[{}]}}}}"#, list(49_000)))).is_ok());
    for operator in ["$in", "$nin", "$all", "$eq"] {
        let selector = json(&format!(r#"{{"a":{{"{operator}":[{}]}}}}"#, list(50_000)));
        assert_eq!(Selector::new(&selector).err(), Some(InvalidSelector::TooLarge), "{operator}");
        assert_eq!(Selector::measure(&selector), Err(InvalidSelector::TooLarge), "{operator}");
    }
    let text = "x".repeat(1 << 20);
    for selector in [format!(r#"{{"a":"{text}"}}"#), format!(r#"{{"{text}":1}}"#)] {
        assert_eq!(Selector::new(&json(&selector)).err(), Some(InvalidSelector::TooLarge));
    }
    // A name counts once for each name that stands below it.
    let below = |count: usize| vec![r#"{"b":1}"#; count].join(",");
    let long = |count: usize| json(&format!(r#"{{"{}":{{"$and":[{}]}}}}"#, "a".repeat(100_000), below(count)));
    assert!(Selector::new(&long(9)).is_ok());
    assert_eq!(Selector::new(&long(10)).err(), Some(InvalidSelector::TooLarge));
}

#[test]
fn matching_ends() {
    let nobody = || false;
    let numbers = |from: usize, count: usize| (from..from + count).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let document = json(&format!(r#"{{"a":[{}]}}"#, numbers(100_000, 100_000)));
    for operator in ["$in", "$all"] {
        let selector = json(&format!(r#"{{"a":{{"{operator}":[{}]}}}}"#, numbers(0, 40_000)));
        let selector = Selector::new(&selector).unwrap();
        // `$all` ends at the first missing item.
        let found = selector.matches_unless(&document, &nobody);
        assert_eq!(found, if operator == "$in" { Err(MatchInterrupted::TooLong) } else { Ok(false) }, "{operator}");
        assert_eq!(selector.matches_unless(&document, &|| true), Err(MatchInterrupted::Stopped), "{operator}");
    }
    let conditions = vec![r#"{"a":{"$elemMatch":{"$gt":"x"}}}"#; 5_000].join(",");
    let many = Selector::new(&json(&format!(r#"{{"$or":[{conditions}]}}"#))).unwrap();
    assert_eq!(many.matches_unless(&document, &nobody), Err(MatchInterrupted::TooLong));
    assert!(many.weight() > 10_000);
    // As in CouchDB where PCRE reaches its limit, an expression does not match if the search takes too long.
    let document = json(&format!(r#"{{"a":"{}b"}}"#, "a".repeat(2_000_000)));
    let simple = Selector::new(&json(r#"{"a":{"$regex":"b"}}"#)).unwrap();
    assert_eq!(simple.matches_unless(&document, &nobody), Ok(false));
    let document = json(&format!(r#"{{"a":"{}b"}}"#, "a".repeat(200_000)));
    assert_eq!(simple.matches_unless(&document, &nobody), Ok(true));
    // 16 kB of expression on 200 kB of text: 3 of 20 million steps.
    for (count, found) in [(4, Ok(false)), (8, Err(MatchInterrupted::TooLong))] {
        let many = Selector::new(&regexes((0..count).map(|number| format!("x{number}")))).unwrap();
        assert_eq!(many.matches_unless(&document, &nobody), found);
    }
}

/// Matches in slices that pause as soon as `pause` allows, and returns the number of pauses.
fn in_slices(selector: &Selector, document: &Value<'_>, pause: bool) -> (Result<bool, MatchInterrupted>, usize) {
    let (mut progress, mut pauses) = (Progress::default(), 0);
    let (stop, pause) = (|| false, || pause);
    loop {
        let interrupts = Interrupts { stop: &stop, pause: &pause, steps: slice_steps(0) };
        match selector.matches_in_slices(document, &mut progress, interrupts) {
            Err(MatchInterrupted::Paused) => pauses += 1,
            done => return (done, pauses),
        }
    }
}

#[test]
fn a_match_pauses_inside_a_document() {
    let items = vec!["1"; 10_000].join(",");
    let document = json(&format!(r#"{{"a":[{items},"y"],"b":"{}"}}"#, "b".repeat(100_000)));
    let of_items = |count: usize, last: &str| {
        let conditions = vec![r#"{"a":{"$elemMatch":{"$gt":"z"}}}"#; count].join(",");
        Selector::new(&json(&format!(r#"{{"$or":[{conditions},{{"a":{{"$elemMatch":{{"$gt":"{last}"}}}}}}]}}"#)))
            .unwrap()
    };
    let of_regexes = |count: usize| {
        let conditions = (0..count).map(|n| format!(r#"{{"b":{{"$regex":"x{n}"}}}}"#)).collect::<Vec<_>>().join(",");
        Selector::new(&json(&format!(r#"{{"$or":[{conditions},{{"b":{{"$regex":"b$"}}}}]}}"#))).unwrap()
    };
    for (selector, found) in [
        (of_items(400, "x"), Ok(true)),
        (of_items(400, "z"), Ok(false)),
        (of_items(5_000, "x"), Err(MatchInterrupted::TooLong)),
        (of_regexes(7), Ok(true)),
        (of_regexes(20), Err(MatchInterrupted::TooLong)),
    ] {
        let (done, pauses) = in_slices(&selector, &document, true);
        assert_eq!(done, found);
        // A slice is a million steps, and the bound is 20 million.
        assert!((4..=20).contains(&pauses), "{pauses}");
        assert_eq!(in_slices(&selector, &document, false), (found, 0));
    }
    let document = json(&format!(r#"{{"a":"{}b"}}"#, "a".repeat(1_000_000)));
    for (regex, found) in [("ab", true), ("^a+b", true), ("c", false)] {
        let selector = Selector::new(&json(&format!(r#"{{"a":{{"$regex":"{regex}"}}}}"#))).unwrap();
        let (done, pauses) = in_slices(&selector, &document, true);
        assert_eq!((done, in_slices(&selector, &document, false)), (Ok(found), (Ok(found), 0)));
        assert!((14..=20).contains(&pauses), "{pauses}");
    }
}

fn value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-3i64..3).prop_map(|n| Value::Number(n.to_string().into())),
        "[a-c]{0,2}".prop_map(|text| Value::String(text.into())),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().map(|(k, v)| (k.into(), v)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_order_is_total(a in value(), b in value(), c in value()) {
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        prop_assert!(compare(&a, &a).is_eq());
        if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
            prop_assert!(compare(&a, &c).is_le());
        }
    }

    #[test]
    fn any_selector_is_compiled_or_refused_and_matches_or_not(selector in value(), document in value()) {
        if let Ok(selector) = Selector::new(&selector) {
            selector.matches(&document);
        }
    }
}

#[test]
fn small_requests_without_regular_expressions_are_quick() {
    for quick in [r#"{"a":1}"#, r#"{"selector":{"a":{"$gt":"$regex"}},"limit":1}"#, "[]", r#"{"a":{"$in":[1,[2]]}}"#] {
        assert!(Selector::is_quick(&json(quick)), "{quick}");
    }
    let many = format!(r#"{{"a":{{"$in":[{}0]}}}}"#, "0,".repeat(1_000));
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(17 << 10));
    for slow in [r#"{"a":{"$regex":"b"}}"#, r#"{"$or":[{"a":1},{"a":{"$not":{"$regex":"b"}}}]}"#, &many, &long] {
        assert!(!Selector::is_quick(&json(slow)), "{slow}");
    }
}
