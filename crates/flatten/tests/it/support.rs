//! Names, pairs and bodies for the tests.
#![allow(clippy::expect_used, unreachable_pub)]

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use flatbed_flatten::json::{self, Limits, Value};
use flatbed_flatten::{DecodeError, FieldIds, FieldNames, json_len, unknown_names, write_members};
use proptest::prelude::*;

pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A mapping like the layer's: ids from 10 up.
#[derive(Default, Clone)]
pub struct Names {
    names: Vec<String>,
    ids: HashMap<String, u64>,
}

impl Names {
    /// In the order given.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Names {
        let mut all = Names::default();
        for name in names {
            let name = name.into();
            all.ids.insert(name.clone(), 10 + all.names.len() as u64);
            all.names.push(name);
        }
        all
    }

    /// In order of first occurrence; `literal` selects names without an id.
    pub fn of(body: &Value<'_>, literal: impl Fn(&str) -> bool) -> Names {
        Names::new(unknown_names(body, &Names::default()).into_iter().filter(|name| !literal(name)))
    }
}

impl FieldIds for Names {
    fn id_of(&self, name: &str) -> Option<u64> {
        self.ids.get(name).copied()
    }
}

impl FieldNames for Names {
    fn name_of(&self, id: u64) -> Option<&str> {
        self.names.get(usize::try_from(id.checked_sub(10)?).ok()?).map(String::as_str)
    }
}

pub fn parse(text: &str) -> Value<'_> {
    json::parse(text.as_bytes(), &Limits::default()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn compact(value: &Value<'_>) -> String {
    let out = json::to_string(value);
    assert_eq!(out.len(), json_len(value));
    out
}

pub fn slices(pairs: &Pairs) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    pairs.iter().map(|(path, value)| (path.as_slice(), value.as_slice()))
}

pub fn text_of(pairs: &Pairs, names: &Names) -> Result<String, DecodeError> {
    let mut out = b"{".to_vec();
    write_members(slices(pairs), names, &mut out)?;
    out.push(b'}');
    Ok(String::from_utf8(out).expect("UTF-8"))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

fn any_number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (-1000..1000_i64).prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("finite", |float| float.is_finite()).prop_map(|float| format!("{float:?}")),
        any::<f32>().prop_filter("finite", |float| float.is_finite()).prop_map(|float| format!("{float}")),
        "-?(0|[1-9][0-9]{0,40})",
        "-?(0|[1-9][0-9]{0,4})\\.[0-9]{1,20}",
        "-?[1-9]\\.[0-9]{1,4}[eE][+-]?[0-9]{1,2}",
    ]
}

fn any_value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any_number().prop_map(|text| Value::Number(text.into())),
        "[a\\x00-\\x1f\"\\\\é😀/]{0,12}|.{0,80}".prop_map(|text| Value::String(text.into())),
    ];
    leaf.prop_recursive(6, 80, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            any_members(inner).prop_map(Value::Object),
        ]
    })
}

fn any_members(
    inner: impl Strategy<Value = Value<'static>>,
) -> impl Strategy<Value = Vec<(Cow<'static, str>, Value<'static>)>> {
    let name = "[a-e]|[a-e]{2}|\\PC{0,6}|[a\\x00\\x01]{0,4}";
    proptest::collection::vec((name, inner), 0..8).prop_map(|members| {
        let mut seen = HashSet::new();
        let fresh = members.into_iter().filter(|(name, _)| seen.insert(name.clone()));
        fresh.map(|(name, value)| (name.into(), value)).collect()
    })
}

pub fn any_body() -> impl Strategy<Value = Value<'static>> {
    any_members(any_value()).prop_map(Value::Object)
}
