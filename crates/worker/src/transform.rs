//! Transforms: chains of functions on a value in a mapping, `trim().lowercase()`, `split($._id,"::")[0]`.
//!
//! Names are those of the Python worker, in any case and with or without underscores; synonyms share one row. A missing
//! or null value stays so, except under `coalesce`; a function that cannot apply to a value makes it null, as there. An
//! unknown name is an error of the mapping, unlike in the Python worker, which writes the value unchanged.
//!
//! | function | result |
//! |---|---|
//! | `trim` `trim_start` `trim_end` | text without white space at its ends |
//! | `to_upper_case` (`uppercase`, `upper`), `to_lower_case` (`lowercase`, `lower`), `proper_case` | text in another
//! case |
//! | `left(n)` `right(n)` `substring(from,length)` | a part, in characters |
//! | `replace(old,new)` | text with all occurrences replaced |
//! | `split(separator)[n]` `join(separator)` | an array of texts, or one of them; one text from an array |
//! | `starts_with(x)` `ends_with(x)` `includes(x)` `regex_match(x)` | boolean; false for a missing value |
//! | `to_string` `json_stringify` | the text of a value; its JSON |
//! | `length` | of a text in characters, of an array or object in members |
//! | `parse_int` (`to_int`), `parse_float` (`to_float`) | a number from a text |
//! | `to_fixed(n)` (`to_decimal`), `round` `floor` `ceil` `abs` | exact decimals; halves round to even |
//! | `to_bool` | boolean from `true`, `yes`, `on`, `1` and their opposites |
//! | `to_date` `to_iso8601` `to_epoch` | from ISO 8601 texts and Unix time in seconds or milliseconds |
//! | `coalesce(x)` (`default`) | `x` for a missing or null value |

use std::borrow::Cow;
use std::str::FromStr;

use flatbed_flatten::json::{Value, to_string};
use regex::Regex;

use crate::decimal::Decimal;
use crate::path::{Path, PathError, Scope};
use crate::time::{Moment, date_of};

/// The longest text of a transform, in bytes.
pub const TRANSFORM_BYTES_MAX: usize = 2_000;

const CALLS_MAX: usize = 16;

/// The longest text that a function returns, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 20;

const PARTS_MAX: usize = 10_000;

const REGEX_BYTES_MAX: usize = 1 << 20;

/// A value in a chain; `None` if it is missing.
pub type ChainValue<'d> = Option<Value<'d>>;

/// The reason why a text is not a transform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// Malformed functions or brackets.
    #[error("{0:?} is not a chain of functions such as trim().lowercase()")]
    Syntax(String),
    /// An unknown function.
    #[error("there is no function {0:?}")]
    Unknown(String),
    /// Invalid or missing arguments.
    #[error("{0} takes {1}")]
    Arguments(&'static str, &'static str),
    /// A regular expression that does not compile, or is too large.
    #[error("the regular expression cannot be used: {0}")]
    Regex(String),
    /// A malformed path in the argument that begins with `$`.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The error for a document whose value makes a transform's result too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a transform made more than 16 MB of text")]
pub struct TooLarge;

#[derive(Debug, Clone)]
enum Function {
    Trim,
    TrimStart,
    TrimEnd,
    Upper,
    Lower,
    Proper,
    Left(usize),
    Right(usize),
    Substring(usize, usize),
    Replace(String, String),
    Split(String),
    Item(usize),
    Join(String),
    StartsWith(String),
    EndsWith(String),
    Includes(String),
    Matches(Regex),
    ToText,
    Stringify,
    Length,
    Integer,
    Float,
    Fixed(Option<usize>),
    Round,
    Floor,
    Ceil,
    Absolute,
    Boolean,
    Date,
    Iso8601,
    Epoch,
    Coalesce(String),
}

/// A chain of functions, and the path given as an argument of the first, if any.
#[derive(Debug, Clone)]
pub struct Transform {
    path: Option<Path>,
    functions: Vec<Function>,
}

impl FromStr for Transform {
    type Err = TransformError;

    fn from_str(text: &str) -> Result<Transform, TransformError> {
        let syntax = || TransformError::Syntax(text.chars().take(200).collect());
        if text.len() > TRANSFORM_BYTES_MAX {
            return Err(syntax());
        }
        let mut rest = text.trim();
        if rest.starts_with('$') {
            return Ok(Transform { path: Some(rest.parse()?), functions: Vec::new() });
        }
        let (mut path, mut functions) = (None, Vec::new());
        loop {
            let (name, inside) = rest.split_once('(').ok_or_else(syntax)?;
            let (arguments, after) = arguments(inside).ok_or_else(syntax)?;
            let (paths, arguments): (Vec<_>, Vec<_>) =
                arguments.into_iter().partition(|argument| !argument.is_quoted && argument.text.starts_with('$'));
            if let (Some(first), true) = (paths.first(), functions.is_empty()) {
                path = Some(first.text.parse()?);
            }
            functions.push(function(name.trim(), &arguments)?);
            rest = after;
            if let Some(inside) = rest.strip_prefix('[') {
                let (digits, after) = inside.split_once(']').ok_or_else(syntax)?;
                functions.push(Function::Item(digits.trim().parse().map_err(|_| syntax())?));
                rest = after;
            }
            if functions.len() > CALLS_MAX {
                return Err(syntax());
            }
            if rest.trim().is_empty() {
                return Ok(Transform { path, functions });
            }
            rest = rest.strip_prefix('.').ok_or_else(syntax)?;
        }
    }
}

#[derive(Debug)]
struct Argument {
    text: String,
    is_quoted: bool,
}

/// Splits the text after an opening parenthesis into arguments and the rest. Commas and parentheses inside quotation
/// marks are literal; empty unquoted arguments are left out (`to_decimal(,2)`).
fn arguments(inside: &str) -> Option<(Vec<Argument>, &str)> {
    let (mut found, mut current) = (Vec::new(), Argument { text: String::new(), is_quoted: false });
    let mut quote = None;
    for (at, c) in inside.char_indices() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (Some(_), c) => current.text.push(c),
            (None, '"' | '\'') if current.text.trim().is_empty() => {
                current = Argument { text: String::new(), is_quoted: true };
                quote = Some(c);
            }
            (None, ',' | ')') => {
                if !current.is_quoted {
                    current.text = current.text.trim().to_owned();
                }
                if current.is_quoted || !current.text.is_empty() {
                    found.push(std::mem::replace(&mut current, Argument { text: String::new(), is_quoted: false }));
                } else {
                    current.text.clear();
                }
                if c == ')' {
                    return Some((found, inside.get(at + 1..)?));
                }
            }
            // White space after a quoted argument.
            (None, c) if current.is_quoted && c.is_whitespace() => {}
            (None, _) if current.is_quoted => return None,
            (None, c) => current.text.push(c),
        }
    }
    None
}

fn function(name: &str, arguments: &[Argument]) -> Result<Function, TransformError> {
    let text = |at: usize| arguments.get(at).map(|argument| argument.text.clone());
    let count = |at: usize| arguments.get(at).and_then(|argument| argument.text.parse::<usize>().ok());
    let wrong = |name, what| TransformError::Arguments(name, what);
    let plain: String = name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect();
    Ok(match plain.as_str() {
        "trim" => Function::Trim,
        "trimstart" => Function::TrimStart,
        "trimend" => Function::TrimEnd,
        "touppercase" | "uppercase" | "upper" => Function::Upper,
        "tolowercase" | "lowercase" | "lower" => Function::Lower,
        "propercase" => Function::Proper,
        "left" => Function::Left(if arguments.is_empty() { 1 } else { count(0).ok_or(wrong("left", "a number"))? }),
        "right" => {
            Function::Right(if arguments.is_empty() { 1 } else { count(0).ok_or(wrong("right", "a number"))? })
        }
        "substring" => {
            let wrong = || wrong("substring", "where to begin, and a length");
            let length = if arguments.len() > 1 { count(1).ok_or_else(wrong)? } else { usize::MAX };
            Function::Substring(count(0).ok_or_else(wrong)?, length)
        }
        "replace" => {
            let old = text(0).filter(|old| !old.is_empty()).ok_or(wrong("replace", "a text and its replacement"))?;
            Function::Replace(old, text(1).unwrap_or_default())
        }
        "split" => {
            let separator = text(0).unwrap_or_else(|| ",".to_owned());
            if separator.is_empty() {
                return Err(wrong("split", "a separator"));
            }
            Function::Split(separator)
        }
        "join" => Function::Join(text(0).unwrap_or_else(|| ",".to_owned())),
        "startswith" => Function::StartsWith(text(0).ok_or(wrong("starts_with", "a text"))?),
        "endswith" => Function::EndsWith(text(0).ok_or(wrong("ends_with", "a text"))?),
        "includes" => Function::Includes(text(0).ok_or(wrong("includes", "a text"))?),
        "regexmatch" => {
            let pattern = text(0).ok_or(wrong("regex_match", "a regular expression"))?;
            let built = regex::RegexBuilder::new(&pattern).size_limit(REGEX_BYTES_MAX).build();
            Function::Matches(built.map_err(|error| TransformError::Regex(error.to_string()))?)
        }
        "tostring" => Function::ToText,
        "jsonstringify" => Function::Stringify,
        "length" => Function::Length,
        "parseint" | "toint" => Function::Integer,
        "parsefloat" | "tofloat" => Function::Float,
        "tofixed" | "todecimal" => Function::Fixed(if arguments.is_empty() {
            None
        } else {
            Some(count(0).filter(|places| *places <= 100).ok_or(wrong("to_fixed", "a number of places, at most 100"))?)
        }),
        "round" => Function::Round,
        "floor" => Function::Floor,
        "ceil" => Function::Ceil,
        "abs" => Function::Absolute,
        "tobool" => Function::Boolean,
        "todate" => Function::Date,
        "toiso8601" => Function::Iso8601,
        "toepoch" => Function::Epoch,
        "coalesce" | "default" => Function::Coalesce(text(0).ok_or(wrong("coalesce", "a replacement"))?),
        _ => return Err(TransformError::Unknown(name.chars().take(100).collect())),
    })
}

impl Transform {
    /// Returns the path among the arguments of the first function.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_ref()
    }

    /// Applies the transform to the value at its own path.
    pub fn resolve<'d>(&self, scope: Scope<'_, 'd>) -> Result<ChainValue<'d>, TooLarge> {
        let value = self.path.as_ref().and_then(|path| path.resolve(scope)).map(Cow::into_owned);
        self.apply(value)
    }

    /// Applies the transform to a value.
    pub fn apply<'d>(&self, value: ChainValue<'d>) -> Result<ChainValue<'d>, TooLarge> {
        self.functions.iter().try_fold(value.filter(|value| *value != Value::Null), |value, function| {
            let made = call(function, value)?;
            match &made {
                Some(Value::String(text)) if text.len() > TEXT_BYTES_MAX => Err(TooLarge),
                _ => Ok(made),
            }
        })
    }
}

/// Returns the text of a value: a string itself, else its JSON.
pub(crate) fn text_of<'d>(value: &Value<'d>) -> Cow<'d, str> {
    match value {
        Value::String(text) | Value::Number(text) => text.clone(),
        other => Cow::Owned(to_string(other)),
    }
}

fn text<'d>(text: impl Into<Cow<'d, str>>) -> ChainValue<'d> {
    Some(Value::String(text.into()))
}

fn number<'d>(number: impl ToString) -> ChainValue<'d> {
    Some(Value::Number(number.to_string().into()))
}

fn decimal(value: &Value<'_>) -> Option<Decimal> {
    match value {
        Value::Number(text) => Decimal::parse(text),
        Value::String(text) => Decimal::parse(text.trim()),
        Value::Bool(is_one) => Decimal::parse(if *is_one { "1" } else { "0" }),
        _ => None,
    }
}

fn part(of: &str, from: usize, length: usize) -> String {
    of.chars().skip(from).take(length).collect()
}

fn moment(value: &Value<'_>) -> Option<Moment> {
    match value {
        Value::String(text) => Moment::parse(text.trim()),
        number => Moment::of_number(decimal(number)?.truncated().as_i64()?),
    }
}

fn call<'d>(function: &Function, value: ChainValue<'d>) -> Result<ChainValue<'d>, TooLarge> {
    let Some(value) = value else {
        return Ok(match function {
            Function::Coalesce(other) => text(other.clone()),
            Function::StartsWith(_) | Function::EndsWith(_) | Function::Includes(_) | Function::Matches(_) => {
                Some(Value::Bool(false))
            }
            _ => None,
        });
    };
    let of = || text_of(&value);
    Ok(match function {
        Function::Trim => text(of().trim().to_owned()),
        Function::TrimStart => text(of().trim_start().to_owned()),
        Function::TrimEnd => text(of().trim_end().to_owned()),
        Function::Upper => text(of().to_uppercase()),
        Function::Lower => text(of().to_lowercase()),
        Function::Proper => text(proper(&of())),
        Function::Left(count) => text(part(&of(), 0, *count)),
        Function::Right(count) => {
            let of = of();
            text(part(&of, of.chars().count().saturating_sub(*count), *count))
        }
        Function::Substring(from, length) => text(part(&of(), *from, *length)),
        Function::Replace(old, new) => {
            let of = of();
            let grown = of.matches(old.as_str()).count().saturating_mul(new.len()).saturating_add(of.len());
            if grown > 2 * TEXT_BYTES_MAX {
                return Err(TooLarge);
            }
            text(of.replace(old.as_str(), new))
        }
        Function::Split(separator) => {
            let of = of();
            let parts = of.split(separator.as_str()).take(PARTS_MAX);
            Some(Value::Array(parts.map(|part| Value::String(part.to_owned().into())).collect()))
        }
        Function::Item(at) => match value {
            Value::Array(items) => items.into_iter().nth(*at).filter(|item| *item != Value::Null),
            _ => None,
        },
        Function::Join(separator) => match &value {
            Value::Array(items) => {
                let parts: Vec<Cow<'_, str>> = items.iter().map(text_of).collect();
                let length: usize = parts.iter().map(|part| part.len() + separator.len()).sum();
                if length > TEXT_BYTES_MAX {
                    return Err(TooLarge);
                }
                text(parts.join(separator))
            }
            _ => Some(value),
        },
        Function::StartsWith(other) => Some(Value::Bool(of().starts_with(other.as_str()))),
        Function::EndsWith(other) => Some(Value::Bool(of().ends_with(other.as_str()))),
        Function::Includes(other) => Some(Value::Bool(of().contains(other.as_str()))),
        Function::Matches(regex) => Some(Value::Bool(regex.is_match(&of()))),
        Function::ToText => text(of()),
        Function::Stringify => text(to_string(&value)),
        Function::Length => match &value {
            Value::Array(items) => number(items.len()),
            Value::Object(members) => number(members.len()),
            _ => number(of().chars().count()),
        },
        Function::Integer => decimal(&value).and_then(|it| number(it.truncated())),
        Function::Float | Function::Fixed(None) => decimal(&value).and_then(number),
        Function::Fixed(Some(places)) => decimal(&value).and_then(|it| number(it.rounded(*places))),
        Function::Round => decimal(&value).and_then(|it| number(it.rounded(0))),
        Function::Floor => decimal(&value).and_then(|it| number(it.to_whole(false))),
        Function::Ceil => decimal(&value).and_then(|it| number(it.to_whole(true))),
        Function::Absolute => decimal(&value).and_then(|it| number(it.absolute())),
        Function::Boolean => boolean(&value).map(Value::Bool),
        Function::Date => match &value {
            Value::String(of) => date_of(of.trim()).and_then(|date| text(date.to_owned())),
            other => moment(other).and_then(|moment| text(part(&moment.to_string(), 0, 10))),
        },
        Function::Iso8601 => moment(&value).and_then(|moment| text(moment.to_string())),
        Function::Epoch => moment(&value).and_then(|moment| number(moment.seconds())),
        Function::Coalesce(_) => Some(value),
    })
}

pub(crate) fn boolean(value: &Value<'_>) -> Option<bool> {
    match value {
        Value::Bool(value) => Some(*value),
        Value::Number(_) | Value::String(_) => match text_of(value).trim().to_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "t" | "y" => Some(true),
            "false" | "no" | "off" | "0" | "f" | "n" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn proper(of: &str) -> String {
    let mut is_first = true;
    let mut made = String::with_capacity(of.len());
    for c in of.chars() {
        if !c.is_alphanumeric() {
            is_first = c != '\'';
            made.push(c);
        } else if std::mem::take(&mut is_first) {
            made.extend(c.to_uppercase());
        } else {
            made.extend(c.to_lowercase());
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use proptest::prelude::*;

    use super::*;

    /// Returns the JSON that a transform makes of a JSON text; `-` for a missing value.
    fn made(transform: &str, json: &str) -> String {
        let value = (json != "-").then(|| parse(json.as_bytes(), &Limits::default()).unwrap());
        let transform: Transform = transform.parse().unwrap_or_else(|error| panic!("{transform}: {error}"));
        transform.apply(value).unwrap().map_or("-".to_owned(), |value| to_string(&value))
    }

    #[test]
    fn each_function() {
        for (transform, json, result) in [
            ("trim()", r#"" a ""#, r#""a""#),
            ("trimStart()", r#"" a ""#, r#""a ""#),
            ("trim_end()", r#"" a ""#, r#"" a""#),
            ("toUpperCase($.product_id)", r#""p:1\u00df""#, r#""P:1SS""#),
            ("lower()", r#""ÄB""#, r#""äb""#),
            ("propercase()", r#""o'neil MARY-jane""#, r#""O'neil Mary-Jane""#),
            ("left(2)", r#""äbc""#, r#""äb""#),
            ("left()", r#""äbc""#, r#""ä""#),
            ("right(2)", r#""äbc""#, r#""bc""#),
            ("right(9)", r#""äbc""#, r#""äbc""#),
            ("substring(1)", r#""äbc""#, r#""bc""#),
            ("substring($.x,1,1)", r#""äbc""#, r#""b""#),
            ("substring(9,1)", r#""äbc""#, r#""""#),
            ("replace(\"-\",\"\")", r#""a-b-c""#, r#""abc""#),
            ("replace(-,+)", r#""a-b""#, r#""a+b""#),
            ("split(,\",\")[1].trim()", r#""a, b""#, r#""b""#),
            ("split(\"::\")[0]", r#""invoice::7""#, r#""invoice""#),
            ("split(\"::\")[2]", r#""invoice::7""#, "-"),
            ("split(\"(\")", r#""a(b""#, r#"["a","b"]"#),
            ("join(\"; \")", r#"["a",1,null,{"b":2}]"#, r#""a; 1; null; {\"b\":2}""#),
            ("startsWith('a')", r#""ab""#, "true"),
            ("ends_with('a')", r#""ab""#, "false"),
            ("includes(b)", r#""ab""#, "true"),
            ("includes(b)", "-", "false"),
            ("regex_match(\"^[a-z]+$\")", r#""ab""#, "true"),
            ("toString()", "1.50", r#""1.50""#),
            ("json_stringify()", r#"{"a":[1]}"#, r#""{\"a\":[1]}""#),
            ("length()", r#""äb""#, "2"),
            ("length()", "[1,2,3]", "3"),
            ("parseInt()", r#""12""#, "12"),
            ("to_int()", "12.9", "12"),
            ("parse_int()", r#""x""#, "-"),
            ("parseFloat()", r#"" 1.50""#, "1.50"),
            ("to_decimal(,2)", "1.005", "1.00"),
            ("toFixed($.total,2)", r#""7""#, "7.00"),
            ("round()", "2.5", "2"),
            ("floor()", "-2.5", "-3"),
            ("ceil()", "2.1", "3"),
            ("abs()", "-2.5", "2.5"),
            ("to_bool()", r#""Yes""#, "true"),
            ("to_bool()", "0", "false"),
            ("to_bool()", r#""maybe""#, "-"),
            ("to_date($.order_date)", r#""2026-04-22T10:00:00Z""#, r#""2026-04-22""#),
            ("to_date()", "1768521600", r#""2026-01-16""#),
            ("to_date()", r#""soon""#, "-"),
            ("to_iso8601()", "1768521600250", r#""2026-01-16T00:00:00.250Z""#),
            ("to_epoch()", r#""2026-01-16T01:00:00+01:00""#, "1768521600"),
            ("coalesce(,\"none\")", "-", r#""none""#),
            ("coalesce(none)", "null", r#""none""#),
            ("default(none)", r#""a""#, r#""a""#),
            ("trim().uppercase().left(1)", r#"" ab""#, r#""A""#),
            ("trim()", "null", "-"),
            ("trim()", "-", "-"),
        ] {
            assert_eq!(made(transform, json), result, "{transform} of {json}");
        }
    }

    #[test]
    fn expressions_have_their_own_path() {
        let document = parse(br#"{"_id":"invoice::7","a":"B"}"#, &Limits::default()).unwrap();
        for (expression, result) in
            [("split($._id,\"::\")[0]", "\"invoice\""), ("lowercase($.a)", "\"b\""), ("$.a", "\"B\""), ("trim()", "-")]
        {
            let made = expression.parse::<Transform>().unwrap().resolve(Scope::of(&document)).unwrap();
            assert_eq!(made.map_or("-".to_owned(), |value| to_string(&value)), result, "{expression}");
        }
    }

    #[test]
    fn what_is_no_transform() {
        use TransformError::{Arguments, Path, Regex, Syntax, Unknown};
        let error = |text: &str| text.parse::<Transform>().map(|_| ()).unwrap_err();
        for text in ["", "trim", "trim(", "trim()x", "trim().", "split(a)[x]", "trim('a'b)", "trim('a)"] {
            assert!(matches!(error(text), Syntax(_)), "{text}");
        }
        assert!(matches!(error(&"trim().".repeat(17)), Syntax(_)));
        assert!(matches!(error(&format!("replace({})", "a".repeat(TRANSFORM_BYTES_MAX))), Syntax(_)));
        for text in ["eval()", "sha256()", "()"] {
            assert!(matches!(error(text), Unknown(_)), "{text}");
        }
        for text in ["left(x)", "left(-1)", "substring()", "split('')", "replace('',x)", "to_fixed(101)", "coalesce()"]
        {
            assert!(matches!(error(text), Arguments(..)), "{text}");
        }
        assert!(matches!(error("regex_match('(')"), Regex(_)));
        assert!(matches!(error("regex_match('(a{1000}){1000}')"), Regex(_)));
        assert!(matches!(error("trim($x)"), Path(_)));
    }

    #[test]
    fn what_grows_without_bound_is_refused() {
        let transform: Transform = format!("replace(a,{})", "b".repeat(1_000)).parse().unwrap();
        assert_eq!(transform.apply(text("a".repeat(100_000))), Err(TooLarge));
        let transform: Transform = format!("join({})", "b".repeat(1_900)).parse().unwrap();
        assert_eq!(transform.apply(Some(Value::Array(vec![Value::Null; 10_000]))), Err(TooLarge));
        let transform: Transform = "split(a)".parse().unwrap();
        let Ok(Some(Value::Array(parts))) = transform.apply(text("a".repeat(100_000))) else { panic!() };
        assert_eq!(parts.len(), PARTS_MAX);
    }

    proptest! {
        #[test]
        fn any_text_is_a_transform_or_refused(text in "[a-zA-Z_(),.$'\"\\[\\]0-9 ]{0,30}", value in "\\PC{0,20}") {
            if let Ok(transform) = text.parse::<Transform>() {
                let _ = transform.apply(Some(Value::String(value.into())));
            }
        }

        #[test]
        fn chains_do_to_any_value_what_each_does(
            names in proptest::collection::vec(proptest::sample::select(vec![
                "trim()", "upper()", "proper_case()", "left(3)", "right(2)", "split(b)", "join(x)", "length()", "to_int()",
                "to_fixed(1)", "floor()", "abs()", "to_bool()", "to_date()", "to_iso8601()", "coalesce(x)", "to_string()",
            ]), 1..6),
            json in proptest::sample::select(vec!["null", "true", "-12.55", "\" aB \"", "[1,\"b\"]", "{\"a\":1}", "1e20"]),
        ) {
            let whole = made(&names.join("."), json);
            let mut step = json.to_owned();
            for name in names {
                step = made(name, &step);
            }
            // `null` comes from a missing value.
            prop_assert_eq!(whole, if step == "null" { "-".to_owned() } else { step });
        }
    }
}
