//! A JSON writer that composes text member by member, without a tree.

use std::io::Write;

use super::{Value, write, write_string};

/// The name of a member: a string, which is escaped, or a literal from [`name!`](crate::json::name).
pub trait Name {
    /// Appends the text before the member's value: `{` before the first member and a comma before any other, the name,
    /// and a colon.
    fn write(self, is_first: bool, out: &mut Vec<u8>);
}

impl Name for &str {
    #[inline]
    fn write(self, is_first: bool, out: &mut Vec<u8>) {
        out.push(if is_first { b'{' } else { b',' });
        write_string(self, out);
        out.push(b':');
    }
}

/// A name known at compile time, with all text before the member's value. It is copied at once, while a string is
/// searched for characters to escape. [`name!`](crate::json::name) creates it.
#[derive(Debug, Clone, Copy)]
pub struct Literal {
    first: &'static str,
    next: &'static str,
}

impl Literal {
    /// Builds a literal from `{"name":` and `,"name":`. Only for [`name!`](crate::json::name).
    ///
    /// # Panics
    /// If the name needs an escape. `name!` calls this at compile time.
    #[doc(hidden)]
    pub const fn new(name: &'static str, first: &'static str, next: &'static str) -> Literal {
        let mut rest = name.as_bytes();
        while let [byte, behind @ ..] = rest {
            assert!(*byte >= 0x20 && *byte != b'"' && *byte != b'\\', "the name needs an escape");
            rest = behind;
        }
        Literal { first, next }
    }
}

impl Name for Literal {
    #[inline]
    fn write(self, is_first: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(if is_first { self.first } else { self.next }.as_bytes());
    }
}

/// A member's name as a [`Literal`](crate::json::Literal), for frequent rows.
#[doc(hidden)]
#[macro_export]
macro_rules! json_name {
    ($name:literal) => {
        const { $crate::json::Literal::new($name, concat!("{\"", $name, "\":"), concat!(",\"", $name, "\":")) }
    };
}

/// An object being appended to a text as compact JSON, with members in call order, duplicate names included. Dropping
/// it closes it.
///
/// It allocates only to grow the text.
#[derive(Debug)]
pub struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    /// Begins an object.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>) -> Object<'o> {
        Object { out, is_empty: true }
    }

    /// Continues an object that was [left open](Object::leave_open) and has members.
    #[inline]
    pub fn reopen(out: &'o mut Vec<u8>) -> Object<'o> {
        Object { out, is_empty: false }
    }

    /// Returns the text of an object with the members that `write` adds.
    #[inline]
    pub fn text(write: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        write(&mut Object::new(&mut out));
        out
    }

    /// As [`Object::text`], without the braces.
    pub fn members_text(write: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
        let mut out = Object::text(write);
        out.pop();
        out.remove(0);
        out
    }

    /// Appends a member's name and returns the text, to which the caller must append exactly one JSON value.
    #[inline]
    pub fn place(&mut self, name: impl Name) -> &mut Vec<u8> {
        name.write(self.is_empty, self.out);
        self.is_empty = false;
        self.out
    }

    /// Adds a string.
    #[inline]
    pub fn string(&mut self, name: impl Name, text: &str) -> &mut Self {
        write_string(text, self.place(name));
        self
    }

    /// Adds a string, or `null`.
    #[inline]
    pub fn string_or_null(&mut self, name: impl Name, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.string(name, text),
            None => self.null(name),
        }
    }

    /// Adds a number.
    #[inline]
    pub fn number(&mut self, name: impl Name, value: u64) -> &mut Self {
        write_number(value, self.place(name));
        self
    }

    /// Adds `true` or `false`.
    #[inline]
    pub fn bool(&mut self, name: impl Name, value: bool) -> &mut Self {
        self.raw(name, if value { b"true" } else { b"false" })
    }

    /// Adds `null`.
    #[inline]
    pub fn null(&mut self, name: impl Name) -> &mut Self {
        self.raw(name, b"null")
    }

    /// Adds a value given as JSON text.
    #[inline]
    pub fn raw(&mut self, name: impl Name, json: &[u8]) -> &mut Self {
        self.place(name).extend_from_slice(json);
        self
    }

    /// Adds a value given as a tree.
    #[inline]
    pub fn value(&mut self, name: impl Name, value: &Value<'_>) -> &mut Self {
        write(value, self.place(name));
        self
    }

    /// Adds members given as JSON text without braces; an empty text adds none.
    #[inline]
    pub fn members(&mut self, json: &[u8]) -> &mut Self {
        if !json.is_empty() {
            self.out.push(if self.is_empty { b'{' } else { b',' });
            self.out.extend_from_slice(json);
            self.is_empty = false;
        }
        self
    }

    /// Begins a nested object.
    #[inline]
    pub fn object(&mut self, name: impl Name) -> Object<'_> {
        Object::new(self.place(name))
    }

    /// Begins a nested array.
    #[inline]
    pub fn array(&mut self, name: impl Name) -> Array<'_> {
        Array::new(self.place(name))
    }

    /// Closes the object, as dropping does.
    #[inline]
    pub fn end(self) {}

    /// Leaves the object open, to be continued without braces or by [`Object::reopen`].
    #[inline]
    pub fn leave_open(self) {
        if self.is_empty {
            self.out.push(b'{');
        }
        std::mem::forget(self);
    }
}

impl Drop for Object<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_empty {
            self.out.push(b'{');
        }
        self.out.push(b'}');
    }
}

/// An array being appended, like [`Object`].
#[derive(Debug)]
pub struct Array<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Array<'o> {
    /// Begins an array.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>) -> Array<'o> {
        out.push(b'[');
        Array { out, is_empty: true }
    }

    /// Returns the text of an array with the items that `write` adds.
    #[inline]
    pub fn text(write: impl FnOnce(&mut Array<'_>)) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        write(&mut Array::new(&mut out));
        out
    }

    /// Begins an item and returns the text, to which the caller must append exactly one JSON value.
    #[inline]
    pub fn place(&mut self) -> &mut Vec<u8> {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        self.out
    }

    /// Adds a string.
    #[inline]
    pub fn string(&mut self, text: &str) -> &mut Self {
        write_string(text, self.place());
        self
    }

    /// Adds strings.
    #[inline]
    pub fn strings<'t>(&mut self, texts: impl IntoIterator<Item = &'t str>) -> &mut Self {
        for text in texts {
            self.string(text);
        }
        self
    }

    /// Adds an item given as JSON text.
    #[inline]
    pub fn raw(&mut self, json: &[u8]) -> &mut Self {
        self.place().extend_from_slice(json);
        self
    }

    /// Begins a nested object.
    #[inline]
    pub fn object(&mut self) -> Object<'_> {
        Object::new(self.place())
    }

    /// Begins a nested array.
    #[inline]
    pub fn array(&mut self) -> Array<'_> {
        Array::new(self.place())
    }

    /// Closes the array, as dropping does.
    #[inline]
    pub fn end(self) {}
}

impl Drop for Array<'_> {
    #[inline]
    fn drop(&mut self) {
        self.out.push(b']');
    }
}

/// Appends a number.
#[inline]
pub fn write_number(value: u64, out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Limits, name, parse};
    use proptest::prelude::*;

    fn text(out: Vec<u8>) -> String {
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_empty_has_its_brackets() {
        assert_eq!(text(Object::text(|_| ())), "{}");
        assert_eq!(text(Array::text(|_| ())), "[]");
        let nested = Object::text(|object| {
            object.members(b"").object("o");
            object.array(name!("a")).array();
        });
        assert_eq!(text(Object::members_text(|_| ())), "");
        assert_eq!(text(nested), r#"{"o":{},"a":[[]]}"#);
    }

    #[test]
    fn each_kind_of_member() {
        let written = Object::text(|object| {
            object.string(name!("s"), "a\"\n").string_or_null("n", None).string_or_null("t", Some("x"));
            object.number("max", u64::MAX).number(name!("zero"), 0).bool("yes", true).bool("no", false).null("null");
            object.raw("raw", b"[1, 2]").value("tree", &Value::Bool(true)).members(br#""m":1,"n":2"#);
            object.array("list").string("\\").strings(["b", "c"]).raw(b"3").object().null("d");
            object.place("\u{1}").extend_from_slice(b"4");
        });
        let expected = concat!(
            r#"{"s":"a\"\n","n":null,"t":"x","max":18446744073709551615,"zero":0,"yes":true,"no":false,"null":null,"#,
            r#""raw":[1, 2],"tree":true,"m":1,"n":2,"list":["\\","b","c",3,{"d":null}],"\u0001":4}"#
        );
        assert_eq!(text(written), expected);
        let without_braces = Object::members_text(|object| {
            object.null("n").bool("b", true);
        });
        assert_eq!(text(without_braces), r#""n":null,"b":true"#);
        let after_members = Object::text(|object| {
            object.members(b"\"m\":1").null("n");
        });
        assert_eq!(text(after_members), r#"{"m":1,"n":null}"#);
    }

    #[test]
    fn what_is_left_open_goes_on() {
        for (members, expected) in [(0, r#"-{"last":true}"#), (2, r#"-{"first":0,"first":0,"last":true}"#)] {
            let mut out = b"-".to_vec();
            let mut object = Object::new(&mut out);
            for _ in 0..members {
                object.number("first", 0);
            }
            object.leave_open();
            if members == 0 {
                out.extend_from_slice(br#""last":true}"#);
            } else {
                Object::reopen(&mut out).bool("last", true);
            }
            assert_eq!(text(out), expected);
        }
    }

    fn compose(value: &Value<'_>, out: &mut Vec<u8>) {
        match value {
            Value::Object(members) => {
                let mut object = Object::new(out);
                for (name, value) in members {
                    let name = &**name;
                    let _ = match value {
                        Value::String(text) => object.string(name, text),
                        Value::Bool(value) => object.bool(name, *value),
                        Value::Null => object.null(name),
                        value => {
                            compose(value, object.place(name));
                            continue;
                        }
                    };
                }
                object.end();
            }
            Value::Array(items) => {
                let mut array = Array::new(out);
                items.iter().for_each(|item| compose(item, array.place()));
                array.end();
            }
            scalar => write(scalar, out),
        }
    }

    fn values() -> impl Strategy<Value = Value<'static>> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<u64>().prop_map(|number| Value::Number(number.to_string().into())),
            any::<String>().prop_map(|text| Value::String(text.into())),
        ];
        scalar.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::btree_map(any::<String>(), inner, 0..5).prop_map(|members| {
                    Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_parses_to_what_was_put_in(value in values()) {
            let mut out = Vec::new();
            compose(&value, &mut out);
            prop_assert_eq!(&parse(&out, &Limits::default()).unwrap(), &value);
            let mut whole = Vec::new();
            write(&value, &mut whole);
            prop_assert_eq!(out, whole);
        }
    }
}
