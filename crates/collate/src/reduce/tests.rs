use flatbed_flatten::json::{self, Limits, Value, parse};
use proptest::prelude::*;

use super::*;
use crate::collation::Collation;

const ALL: [Reducer; 10] = [
    Reducer::Sum,
    Reducer::Count,
    Reducer::Stats,
    Reducer::ApproxCountDistinct,
    Reducer::First,
    Reducer::Last,
    Reducer::Top(1),
    Reducer::Top(3),
    Reducer::Bottom(1),
    Reducer::Bottom(3),
];

fn value(text: &str) -> Value<'static> {
    parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
}

fn of_rows(reducer: Reducer, rows: &[(Value<'_>, Value<'_>)]) -> ReduceState {
    let collation = Collation::unicode().unwrap();
    let mut state = ReduceState::default();
    rows.iter().for_each(|(key, value)| state.add(reducer, &collation, key, value));
    state
}

/// Reduces the rows in groups of these lengths, and then the groups.
fn grouped(reducer: Reducer, rows: &[(Value<'_>, Value<'_>)], lengths: &[usize]) -> ReduceState {
    let collation = Collation::unicode().unwrap();
    let (mut rest, mut states) = (rows, Vec::new());
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (group, behind) = rest.split_at((*length).clamp(1, rest.len()));
        states.push(of_rows(reducer, group));
        rest = behind;
    }
    while states.len() > 1 {
        states = states
            .chunks(lengths.first().map_or(2, |length| length + 2))
            .map(|group| {
                let mut sum = ReduceState::default();
                group.iter().for_each(|state| sum.merge(reducer, &collation, state));
                stored(&sum)
            })
            .collect();
    }
    states.pop().unwrap_or_default()
}

fn stored(state: &ReduceState) -> ReduceState {
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    assert!(bytes.len() <= STATE_BYTES_MAX + 64, "{}", bytes.len());
    let mut rest = bytes.as_slice();
    let read = ReduceState::decode(&mut rest).unwrap();
    assert!(rest.is_empty());
    assert_eq!(read, *state);
    for len in (0..bytes.len()).step_by(bytes.len() / 20 + 1) {
        assert!(ReduceState::decode(&mut &bytes[..len]).is_none());
    }
    read
}

fn result(reducer: Reducer, values: &[&str]) -> Result<String, (&'static str, String)> {
    let rows: Vec<_> = (0..).zip(values).map(|(key, row)| (value(&format!("{key}")), value(row))).collect();
    let finished = of_rows(reducer, &rows).finish();
    finished.map(|value| json::to_string(&value.unwrap())).map_err(|error| (error.error, error.reason))
}

/// Returns the value of a state, or the kind of its error. The wording of an error may depend on the grouping, and for
/// rows with several errors the kind too: [`agree`] compares the outcomes of two groupings.
fn outcome(state: &ReduceState) -> Result<String, &'static str> {
    match state.finish() {
        Ok(Some(value)) if value.get("error").is_some() => Err("builtin_reduce_error"),
        Ok(value) => Ok(value.map_or_else(|| "elsewhere".to_owned(), |value| json::to_string(&value))),
        Err(error) => Err(error.error),
    }
}

/// Returns whether two outcomes of the same rows are equal. All errors count as equal, because the grouping decides
/// which of several errors is returned.
fn agree(one: &Result<String, &'static str>, other: &Result<String, &'static str>) -> bool {
    one == other || one.is_err() && other.is_err()
}

/// Numbers, and arrays and objects of them: valid summands; `odd` adds invalid ones.
fn summands() -> impl Strategy<Value = Value<'static>> {
    let number = crate::number::tests::texts().prop_map(|text| Value::Number(text.into())).boxed();
    let array = prop::collection::vec(number.clone(), 0..4).prop_map(Value::Array);
    let leaf = prop_oneof![4 => number, 2 => array];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop::collection::btree_map("[ab]", inner, 0..3)
            .prop_map(|members| Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect()))
    })
}

fn numbers() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        6 => (-9..9_i32).prop_map(|n| value(&n.to_string())),
        1 => any::<i64>().prop_map(|n| value(&n.to_string())),
        1 => (-9..9_i32).prop_map(|n| value(&format!("{n}.5"))),
    ]
}

fn rows_of(
    values: impl Strategy<Value = Value<'static>>,
) -> impl Strategy<Value = Vec<(Value<'static>, Value<'static>)>> {
    prop::collection::vec(("[a-f]".prop_map(|key| Value::String(key.into())), values), 1..20)
}

proptest! {
    #[test]
    fn any_grouping_has_the_same_result(
        rows in rows_of(prop_oneof![
            3 => crate::number::tests::texts().prop_map(|text| Value::Number(text.into())),
            1 => summands(),
            1 => crate::collation::tests::values(),
        ]),
        lengths in prop::collection::vec(1..5_usize, 1..4),
    ) {
        for reducer in ALL {
            let (at_once, grouped) = (of_rows(reducer, &rows), grouped(reducer, &rows, &lengths));
            let (one, other) = (outcome(&at_once), outcome(&grouped));
            prop_assert!(agree(&one, &other), "{reducer:?}: {one:?} {other:?}");
            stored(&at_once);
        }
    }

    #[test]
    fn sums_of_numbers_and_objects_do_not_depend_on_groups(
        rows in rows_of(summands()),
        lengths in prop::collection::vec(1..5_usize, 1..4),
    ) {
        for reducer in [Reducer::Sum, Reducer::Stats] {
            let (at_once, grouped) = (of_rows(reducer, &rows), grouped(reducer, &rows, &lengths));
            let (one, other) = (outcome(&at_once), outcome(&grouped));
            prop_assert!(agree(&one, &other), "{reducer:?}: {one:?} {other:?}");
        }
    }

    #[test]
    fn states_of_numbers_are_the_same_in_any_grouping(
        rows in rows_of(crate::number::tests::texts().prop_map(|text| Value::Number(text.into()))),
        lengths in prop::collection::vec(1..5_usize, 1..4),
    ) {
        for reducer in ALL {
            prop_assert_eq!(of_rows(reducer, &rows), grouped(reducer, &rows, &lengths), "{:?}", reducer);
        }
    }

    #[test]
    fn a_state_with_other_rows_is_the_one_of_these(
        stay in prop::collection::vec(numbers(), 1..8), gone in prop::collection::vec(numbers(), 0..4),
        come in prop::collection::vec(numbers(), 0..4)
    ) {
        let key = Value::Null;
        let rows = |parts: [&[Value<'static>]; 2]| -> Vec<_> {
            parts.into_iter().flatten().map(|value| (key.clone(), value.clone())).collect()
        };
        for reducer in [Reducer::Count, Reducer::Sum, Reducer::Stats] {
            let (before, after) = (of_rows(reducer, &rows([&stay, &gone])), of_rows(reducer, &rows([&stay, &come])));
            let (gone, come): (Vec<_>, Vec<_>) = (gone.iter().collect(), come.iter().collect());
            let replaced = before.replaced(&gone, &come);
            let is_float = |value: &&Value<'_>| json::to_string(value).contains('.');
            if reducer == Reducer::Count || reducer == Reducer::Sum && !gone.iter().any(is_float) {
                prop_assert!(replaced.is_some());
            }
            if let Some(replaced) = replaced {
                prop_assert_eq!(replaced, after, "{:?}", reducer);
            }
        }
        let stats = of_rows(Reducer::Stats, &rows([&[value("1"), value("2"), value("3")], &[]]));
        prop_assert!(stats.replaced(&[&value("2")], &[&value("7")]).is_some());
        let strings = of_rows(Reducer::Sum, &[(Value::Null, value("[1]"))]);
        prop_assert!(strings.replaced(&[], &[&value("1")]).is_none());
    }

    #[test]
    fn foreign_bytes_are_no_trouble(tag in 0..9_u8, bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let bytes = [&[tag], bytes.as_slice()].concat();
        if let Some(mut state) = ReduceState::decode(&mut bytes.as_slice()) {
            let collation = Collation::unicode().unwrap();
            for reducer in ALL {
                state.add(reducer, &collation, &Value::Null, &Value::Number("1".into()));
                let other = state.clone();
                state.merge(reducer, &collation, &other);
                let _ = state.finish();
            }
        }
    }
}

#[test]
fn sums() {
    let check = |values: &[&str], expected: &str| {
        assert_eq!(result(Reducer::Sum, values).unwrap(), expected, "{values:?}");
    };
    check(&["1", "2", "-3", "9007199254740993"], "9007199254740993");
    check(&["0.1", "0.2"], "0.30000000000000004");
    check(&["0.1", "0.2", "0.3"], "0.6");
    check(&["0.5", "0.5"], "1.0");
    check(&["1e308", "1e308", "-1e308"], "1e+308");
    check(&["1e16", "1.0", "-1e16"], "1.0");
    check(&["[1,2]", "[10]", "[]", "[100,200,300]"], "[111,202,300]");
    check(&["[]"], "[0]");
    check(&["[1,2]", "5", "[1]", "[1]"], "[8,2]");
    check(&["5", "[]"], "[5]");
    check(
        &[r#"{"x":1,"y":{"z":2}}"#, r#"{"x":10}"#, r#"{"w":7,"y":{"z":1,"q":[1]}}"#, "{}"],
        r#"{"w":7,"x":11,"y":{"q":[1],"z":3}}"#,
    );
    check(&[r#"{"x":10}"#, r#"{"w":7,"y":{"z":1,"q":[1]}}"#, "{}"], r#"{"w":7,"x":10,"y":{"z":1,"q":[1]}}"#);
    check(&[r#"{"z":10,"a":"s"}"#], r#"{"z":10,"a":"s"}"#);
    check(&[r#"{"z":null,"a":1}"#, r#"{"b":[[1]]}"#], r#"{"a":1,"b":[[1]],"z":null}"#);
    check(&["1", "-1", r#"{"x":1}"#], r#"{"x":1}"#);
    check(&[r#"{"x":[]}"#, r#"{"x":3}"#], r#"{"x":[3]}"#);
    check(&[r#"{"x":["s"]}"#, r#"{"x":[]}"#], r#"{"x":["s"]}"#);
    check(&[r#"[1,"s"]"#, "[1]"], r#"[2,"s"]"#);
}

#[test]
fn sums_that_cannot_be() {
    let cause = |values: &[&str]| {
        let sum = value(&result(Reducer::Sum, values).unwrap());
        assert_eq!(sum.get("error").and_then(Value::as_str), Some("builtin_reduce_error"), "{values:?}");
        assert!(sum.get("reason").and_then(Value::as_str).unwrap().starts_with("The _sum function requires that map"));
        json::to_string(sum.get("caused_by").unwrap())
    };
    assert_eq!(cause(&["1", r#""5""#, "2"]), r#""5""#);
    assert_eq!(cause(&["null"]), "null");
    assert_eq!(cause(&["true"]), "true");
    assert_eq!(cause(&["[[1]]", "[[2]]"]), "[0]");
    assert_eq!(cause(&["[1,2,3]", r#"[1,"x",2]"#]), "[2,3]");
    assert_eq!(cause(&[r#"{"x":"s"}"#, r#"{"x":"t"}"#]), r#""t""#);
    assert_eq!(cause(&[r#"{"x":"s"}"#, r#"{"x":1}"#]), r#""s""#);
    assert_eq!(cause(&["1", r#"{"x":1}"#]), "1");
    assert_eq!(cause(&["[1]", r#"{"x":1}"#]), "[1]");
    assert_eq!(cause(&[r#"{"x":["s"]}"#, r#"{"x":1}"#]), "[1]");
    let long = cause(&[&format!("\"{}\"", "é".repeat(10_000))]);
    assert!(long.len() < 1_100 && long.ends_with("...\""));
    assert!(cause(&[r#"{"x":1}"#, &format!("{{\"x\":[[\"{}\"]]}}", "e".repeat(10_000)), r#"{"x":[1]}"#]).len() < 1_100);
    let given = r#"{"error":"builtin_reduce_error","reason":"mine"}"#;
    assert_eq!(result(Reducer::Sum, &["1", given]).unwrap(), given);
    assert_eq!(result(Reducer::Sum, &[given]).unwrap(), given);
    assert!(result(Reducer::Sum, &["1e308", "1e308"]).unwrap().contains("beyond the greatest float"));
}

#[test]
fn statistics() {
    let check = |values: &[&str], expected: &str| {
        assert_eq!(result(Reducer::Stats, values).unwrap(), expected, "{values:?}");
    };
    check(&["1", "2.5", "-4", "1"], r#"{"sum":0.5,"count":4,"min":-4,"max":2.5,"sumsqr":24.25}"#);
    check(
        &["[1,10]", "[2,10]"],
        r#"[{"sum":3,"count":2,"min":1,"max":2,"sumsqr":5},{"sum":20,"count":2,"min":10,"max":10,"sumsqr":200}]"#,
    );
    check(
        &[r#"{"sum":1,"count":2,"min":0,"max":5,"sumsqr":9,"other":"x"}"#, "2"],
        r#"{"sum":3,"count":3,"min":0,"max":5,"sumsqr":13}"#,
    );
    for values in [["1", "1.0"], ["1.0", "1"]] {
        check(&values, r#"{"sum":2.0,"count":2,"min":1,"max":1,"sumsqr":2.0}"#);
    }
    check(&["2.0", "3.0"], r#"{"sum":5.0,"count":2,"min":2.0,"max":3.0,"sumsqr":13.0}"#);
    check(&["[]", "[]"], "[]");
}

#[test]
fn statistics_that_cannot_be() {
    let check = |values: &[&str], error: &str, reason: &str| {
        assert_eq!(result(Reducer::Stats, values), Err((error_name(error), reason.to_owned())), "{values:?}");
    };
    fn error_name(error: &str) -> &'static str {
        ["invalid_value", "function_clause", "reduce_overflow_error"].into_iter().find(|name| *name == error).unwrap()
    }
    let mixed = |printed: &str| {
        format!("The _stats function requires that map values be numbers or arrays of numbers, not '{printed}'")
    };
    check(&[r#""x""#, "1"], "invalid_value", "non-numeric _stats input: <<120>>");
    check(&["null"], "invalid_value", "non-numeric _stats input: null");
    check(&["1", r#""x""#], "invalid_value", &mixed(r#"<<"x">>"#));
    check(&["1", "[1]"], "invalid_value", &mixed("[1]"));
    check(&["[1]", "5"], "invalid_value", &mixed("{5,1,5,5,25}"));
    check(&["[[1,2]]", "[5]"], "invalid_value", &mixed("{5,1,5,5,25}"));
    check(
        &[r#"{"sum":1,"count":2}"#],
        "invalid_value",
        r#"user _stats input missing required field min ([{<<"sum">>,1},{<<"count">>,2}])"#,
    );
    check(
        &[r#"{"sum":"1","count":2,"min":0,"max":5,"sumsqr":1}"#],
        "invalid_value",
        "non-numeric _stats input received for sum: <<49>>",
    );
    check(&["[1]", "[1,2]"], "function_clause", "The _stats function requires that arrays have the same length.");
    check(&["1e200", "1e200"], "invalid_value", "A sum or a sum of squares is beyond the greatest float.");
    let many = format!("[{}1]", "1,".repeat(4_000));
    check(&[&many], "reduce_overflow_error", "Reduce output must shrink more rapidly: it is larger than 16384 bytes");
    // An error in the middle is that of a later row in any grouping.
    let rows: Vec<_> = ["1", "2", r#""x""#, "null"].map(|row| (Value::Null, value(row))).to_vec();
    for length in 1..5 {
        let error = grouped(Reducer::Stats, &rows, &[length]).finish().unwrap_err();
        assert_eq!(error.reason, mixed(r#"<<"x">>"#));
    }
    // The grouping decides which of two errors is met first.
    let rows: Vec<_> = ["[1]", "[2,3]", r#""x""#].map(|row| (Value::Null, value(row))).to_vec();
    let grouped_as = |lengths: &[usize]| outcome(&grouped(Reducer::Stats, &rows, lengths));
    let (left, right) = (grouped_as(&[2, 1]), grouped_as(&[1, 2]));
    assert_eq!(left, Err("function_clause"));
    assert_eq!(right, Err("invalid_value"));
    assert!(agree(&left, &right) && !agree(&left, &Ok("3".to_owned())));
    // Whole arrays as states are printed in CouchDB's own form.
    let rows: Vec<_> = ["1", "[1]", "[2]"].map(|row| (Value::Null, value(row))).to_vec();
    let mut state = of_rows(Reducer::Stats, &rows[..1]);
    state.merge(Reducer::Stats, &Collation::raw(), &of_rows(Reducer::Stats, &rows[1..]));
    assert_eq!(state.finish().unwrap_err().reason, mixed("[{3,2,1,2,5}]"));
}

#[test]
fn counts_and_ends() {
    assert_eq!(result(Reducer::Count, &["null", "\"x\"", "[]"]).unwrap(), "3");
    assert_eq!(result(Reducer::ApproxCountDistinct, &["null", "null"]).unwrap(), "2");
    assert_eq!(result(Reducer::First, &["[1]", "2", "3"]).unwrap(), "[1]");
    assert_eq!(result(Reducer::Last, &["[1]", "2", "\"3\""]).unwrap(), "\"3\"");
    assert_eq!(ReduceState::default().finish(), Ok(Some(Value::Null)));
    let long = Value::String("x".repeat(STATE_BYTES_MAX).into());
    let rows = [(Value::Null, long.clone()), (Value::Null, Value::Null)];
    assert_eq!(of_rows(Reducer::First, &rows).finish(), Ok(None));
    assert_eq!(of_rows(Reducer::Last, &rows).finish(), Ok(Some(Value::Null)));
    let fits = [(Value::Null, Value::String("x".repeat(STATE_BYTES_MAX - 2).into()))];
    assert_eq!(of_rows(Reducer::First, &fits).finish(), Ok(Some(fits[0].1.clone())));
    stored(&of_rows(Reducer::First, &fits));
}

#[test]
fn ranks() {
    let values = ["5", "3", "9", "\"s\"", "[1]", "null", "7", "9.0", "3"];
    assert_eq!(result(Reducer::Top(2), &values).unwrap(), r#"[[1],"s"]"#);
    assert_eq!(result(Reducer::Bottom(2), &values).unwrap(), "[null,3]");
    assert_eq!(result(Reducer::Top(100), &values).unwrap(), r#"[[1],"s",9,7,5,3,null]"#);
    // The first of values that count as equal.
    assert_eq!(result(Reducer::Top(1), &["9.0", "9"]).unwrap(), "[9.0]");
    assert_eq!(result(Reducer::Bottom(3), &["\"a\u{ad}\"", "\"a\""]).unwrap(), "[\"a\u{ad}\"]");
    let long = format!("\"{}\"", "x".repeat(STATE_BYTES_MAX));
    // A large value without a rank does no harm.
    assert_eq!(result(Reducer::Bottom(1), &["1", &long]).unwrap(), "[1]");
    assert_eq!(result(Reducer::Top(1), &["1", &long, "[]"]).unwrap_err().0, "reduce_overflow_error");
    let half = |letter: &str| format!("\"{}\"", letter.repeat(STATE_BYTES_MAX / 2 + 10));
    assert_eq!(result(Reducer::Top(2), &[&half("a"), &half("b")]).unwrap_err().0, "reduce_overflow_error");
    assert!(result(Reducer::Top(1), &[&half("a"), &half("b")]).is_ok());
    let rows = [(Value::Null, value(&half("a"))), (Value::Null, value(&half("b"))), (Value::Null, Value::Null)];
    assert!(grouped(Reducer::Top(3), &rows, &[1]).finish().is_err());
    // A state that is too large stays so, whatever is merged with it.
    let (small, large) = (of_rows(Reducer::Top(3), &rows[2..]), of_rows(Reducer::Top(3), &rows[..2]));
    for (before, behind) in [(&small, &large), (&large, &small)] {
        let mut sum = before.clone();
        sum.merge(Reducer::Top(3), &Collation::raw(), behind);
        assert!(sum.finish().is_err());
    }
}

#[test]
fn states_are_bounded() {
    let object = |prefix: &str, count: usize| {
        let members: Vec<String> = (0..count).map(|at| format!("\"{prefix}{at}\":{at}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let too_large = "Reduce output must shrink more rapidly";
    assert!(!result(Reducer::Sum, &[&object("a", 500), &object("a", 500)]).unwrap().contains(too_large));
    assert!(result(Reducer::Sum, &[&object("a", 5_000)]).unwrap().contains(too_large));
    assert!(result(Reducer::Sum, &[&object("a", 1_000), &object("b", 1_000)]).unwrap().contains(too_large));
    let rows: Vec<_> = (0..30).map(|at| (Value::Null, value(&object(&at.to_string(), 100)))).collect();
    let state = grouped(Reducer::Sum, &rows, &[2]);
    assert!(json::to_string(&state.finish().unwrap().unwrap()).contains(too_large));
    let wide = format!("[{}1]", "1.5,".repeat(1_500));
    let rows: Vec<_> = (0..5).map(|_| (Value::Null, value(&wide))).collect();
    stored(&of_rows(Reducer::Sum, &rows));
    // The widest number that floats give, with the most digits.
    let rows: Vec<_> =
        ["1.7e308", "5e-324", "-3.3e100", "123456789e-100"].map(|row| (Value::Null, value(row))).to_vec();
    let mut bytes = Vec::new();
    of_rows(Reducer::Sum, &rows).encode(&mut bytes);
    assert!(bytes.len() < 300, "{}", bytes.len());
}

#[test]
fn values_may_be_as_deep_as_a_parser_lets_them() {
    let limits = Limits { depth_max: json::DEPTH_MAX_LIMIT };
    let nested = |open: &str, close: &str, levels: usize| {
        let text = format!("{}1{}", open.repeat(levels), close.repeat(levels));
        parse(text.as_bytes(), &limits).unwrap().into_owned()
    };
    let unicode = Collation::unicode().unwrap();
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let value = nested(open, close, json::DEPTH_MAX_LIMIT);
        assert!(unicode.compare(&value, &value).is_eq());
        assert!(unicode.sort_key(&value).bytes().len() > 2_000);
        let mut mixed = of_rows(Reducer::Stats, &[(Value::Null, Value::Number("1".into()))]);
        mixed.add(Reducer::Stats, &unicode, &Value::Null, &value);
        assert_eq!(mixed.finish().unwrap_err().error, "reduce_overflow_error");
        let rows = [(Value::Null, value.clone()), (Value::Null, value.clone())];
        for reducer in ALL {
            stored(&of_rows(reducer, &rows));
        }
    }
    // Summands are limited to fewer levels.
    let sum = |levels| {
        let value = nested("{\"a\":", "}", levels);
        stored(&of_rows(Reducer::Sum, &[(Value::Null, value.clone()), (Value::Null, value)])).finish().unwrap().unwrap()
    };
    assert!(json::to_string(&sum(63)).contains(":2}"));
    assert!(json::to_string(&sum(64)).contains("Reduce output must shrink more rapidly"));
    let stats = |levels| {
        let value = nested("[", "]", levels);
        stored(&of_rows(Reducer::Stats, &[(Value::Null, value.clone()), (Value::Null, value)])).finish()
    };
    assert!(stats(63).is_ok());
    assert_eq!(stats(64).unwrap_err().error, "reduce_overflow_error");
}

#[test]
fn states_of_different_reducers_are_not_mixed() {
    let rows = [(Value::Null, value("1"))];
    let mut count = of_rows(Reducer::Count, &rows);
    count.merge(Reducer::Count, &Collation::raw(), &of_rows(Reducer::Sum, &rows));
    assert_eq!(count, of_rows(Reducer::Count, &rows));
}

#[test]
fn what_a_reducer_does_not_need_changes_nothing() {
    let rows = [("[1,2]", "3"), ("\"a\"", "[4,5]"), ("null", "7"), ("[1,2]", "\"text\"")];
    let rows: Vec<_> = rows.iter().map(|(key, of)| (value(key), value(of))).collect();
    for reducer in ALL {
        let needed = rows.iter().map(|(key, value)| {
            let of = |needs: bool, value: &Value<'static>| if needs { value.clone() } else { Value::Null };
            (of(reducer.needs_key(), key), of(reducer.needs_value(), value))
        });
        assert_eq!(of_rows(reducer, &rows), of_rows(reducer, &needed.collect::<Vec<_>>()), "{reducer:?}");
    }
}
