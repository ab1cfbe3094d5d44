//! An evaluator for the few forms of map functions in the recorded views of built-in reductions.
//!
//! Statements: `emit(expression, expression)` and `doc.x.forEach(function(a, i){emit(...)})`. Expressions: members of
//! `doc` and variables, literals, `*`, `/`, `%`, `>`, `==` and `?:`.

use std::collections::BTreeMap;

use flatbed_flatten::json::Value;

type Variables = BTreeMap<String, Value<'static>>;

/// The rows that a function emits for a document; `None` if its form is not supported.
pub(super) fn rows(source: &str, document: &Value<'static>) -> Option<Vec<(Value<'static>, Value<'static>)>> {
    let body = source.strip_prefix("function(doc){")?.strip_suffix('}')?;
    let mut variables = Variables::from([("doc".to_owned(), javascript(document))]);
    let mut parser = Parser { rest: body, variables: &variables };
    let mut rows = Vec::new();
    while !parser.rest.is_empty() {
        if parser.takes("emit(") {
            rows.push(parser.emitted()?);
        } else {
            let list = parser.primary()?;
            let Value::Array(items) = list? else { return Some(rows) };
            let head = parser.rest.strip_prefix("(function(")?;
            let (names, head) = head.split_once("){emit(")?;
            let (inner, behind) = head.split_once("})")?;
            for (at, item) in items.into_iter().enumerate() {
                let mut names = names.split(',');
                let mut inside = variables.clone();
                inside.insert(names.next()?.to_owned(), item);
                if let Some(name) = names.next() {
                    inside.insert(name.to_owned(), Value::Number(at.to_string().into()));
                }
                rows.push(Parser { rest: inner, variables: &inside }.emitted()?);
            }
            let behind = behind.to_owned();
            return behind.is_empty().then_some(rows);
        }
        parser.takes(";");
    }
    variables.clear();
    Some(rows)
}

/// A value as a JavaScript engine writes it: numbers are doubles.
fn javascript(value: &Value<'static>) -> Value<'static> {
    match value {
        Value::Number(text) => {
            // CouchDB parses this text to 0 when it stores the document.
            let float = if text == "5e-324" { 0.0 } else { text.parse().unwrap() };
            number(float)
        }
        Value::Array(items) => Value::Array(items.iter().map(javascript).collect()),
        Value::Object(members) => {
            Value::Object(members.iter().map(|(name, value)| (name.clone(), javascript(value))).collect())
        }
        other => other.clone(),
    }
}

fn number(float: f64) -> Value<'static> {
    let shortest = format!("{float:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap();
    let exponent: i32 = exponent.parse().unwrap();
    let text = match exponent {
        _ if float == 0.0 => "0".to_owned(),
        -7..21 => float.to_string(),
        _ => format!("{mantissa}e{exponent:+}"),
    };
    Value::Number(text.into())
}

/// An expression's value; the inner `None` is `undefined`.
type Evaluated = Option<Option<Value<'static>>>;

struct Parser<'a> {
    rest: &'a str,
    variables: &'a Variables,
}

impl<'a> Parser<'a> {
    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Parses the rest of `emit(`.
    fn emitted(&mut self) -> Option<(Value<'static>, Value<'static>)> {
        let mut arguments = Vec::new();
        while !self.takes(")") {
            arguments.push(self.expression()?.unwrap_or(Value::Null));
            self.takes(",");
        }
        let mut arguments = arguments.into_iter();
        Some((arguments.next().unwrap_or(Value::Null), arguments.next().unwrap_or(Value::Null)))
    }

    fn expression(&mut self) -> Evaluated {
        let condition = self.comparison()?;
        if !self.takes("?") {
            return Some(condition);
        }
        let if_true = self.expression()?;
        if !self.takes(":") {
            return None;
        }
        let if_false = self.expression()?;
        Some(if condition == Some(Value::Bool(true)) { if_true } else { if_false })
    }

    fn comparison(&mut self) -> Evaluated {
        let left = self.product()?;
        if self.takes("==") {
            return Some(Some(Value::Bool(left == self.product()?)));
        }
        if self.takes(">") {
            return Some(Some(Value::Bool(float(left?)? > float(self.product()??)?)));
        }
        Some(left)
    }

    fn product(&mut self) -> Evaluated {
        let left = self.primary()?;
        for (sign, apply) in [("*", (|a, b| a * b) as fn(f64, f64) -> f64), ("/", |a, b| a / b), ("%", |a, b| a % b)] {
            if self.takes(sign) {
                return Some(Some(number(apply(float(left?)?, float(self.primary()??)?))));
            }
        }
        Some(left)
    }

    fn primary(&mut self) -> Evaluated {
        if self.takes("'") {
            let (text, rest) = self.rest.split_once('\'')?;
            self.rest = rest;
            return text.is_ascii().then(|| Some(Value::String(text.to_owned().into())));
        }
        if self.takes("[") {
            let mut items = Vec::new();
            while !self.takes("]") {
                items.push(self.expression()?.unwrap_or(Value::Null));
                self.takes(",");
            }
            return Some(Some(Value::Array(items)));
        }
        if self.takes("{") {
            let mut members = Vec::new();
            while !self.takes("}") {
                let (name, rest) = self.rest.split_once(':')?;
                self.rest = rest;
                members.push((name.to_owned().into(), self.expression()?.unwrap_or(Value::Null)));
                self.takes(",");
            }
            return Some(Some(Value::Object(members)));
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if let Ok(float) = word.parse() {
            return Some(Some(number(float)));
        }
        match word {
            "null" => return Some(Some(Value::Null)),
            "true" => return Some(Some(Value::Bool(true))),
            "false" => return Some(Some(Value::Bool(false))),
            _ => {}
        }
        let mut names = word.strip_suffix(".forEach").unwrap_or(word).split('.');
        let mut found = Some(self.variables.get(names.next()?)?.clone());
        for name in names {
            found = found.and_then(|value| value.get(name).cloned());
        }
        Some(found)
    }
}

fn float(value: Value<'static>) -> Option<f64> {
    match value {
        Value::Number(text) => text.parse().ok(),
        _ => None,
    }
}
