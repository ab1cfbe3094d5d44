//! Evaluates the part of PromQL that the alert rules use, on two scrapes of one server.
//!
//! Comparisons filter, as in Prometheus. Two vectors are matched by equal labels; there is one instance, so `by
//! (instance)` sums everything. The two scrapes count as the ends of any range: a series that only the second one has
//! gives no rate, as in Prometheus.

use std::collections::BTreeMap;
use std::iter::Peekable;

/// The value of each series by its labels.
pub type Vector = Vec<(BTreeMap<String, String>, f64)>;

/// The series of one time, by name and labels.
pub type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// The seconds between the two scrapes, as the rules see it.
const RANGE_SECONDS: f64 = 300.0;

/// The samples on which an expression is evaluated.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    pub before: Series,
    pub now: Series,
    pub now_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    Name(String),
    Sign(&'static str),
}

/// Signs, longer ones first.
const SIGNS: [&str; 19] =
    ["==", "!=", ">=", "<=", "=~", "!~", ">", "<", "=", "+", "-", "*", "/", "(", ")", "{", "}", "[", "]"];

#[derive(Debug)]
enum Value {
    Scalar(f64),
    Vector(Vector),
}

/// Returns the series for which an alert with this expression fires.
///
/// # Panics
/// The expression uses something else.
pub fn evaluate(expression: &str, samples: &Samples) -> Vector {
    let mut parser = Parser { tokens: tokens(expression).into_iter().peekable(), samples };
    let value = parser.comparison();
    assert_eq!(parser.tokens.next(), None, "more than an expression: {expression}");
    match value {
        Value::Vector(vector) => vector,
        Value::Scalar(_) => panic!("a number is no alert: {expression}"),
    }
}

/// Returns the names of metrics in an expression.
pub fn metrics(expression: &str) -> Vec<String> {
    const WORDS: [&str; 12] =
        ["sum", "max", "min", "rate", "increase", "time", "by", "histogram_quantile", "clamp_min", "vector", "on", "m"];
    // Names between braces and in `by (...)` are labels.
    let (mut names, mut depth, mut is_by) = (Vec::new(), 0, false);
    for token in tokens(expression) {
        match token {
            Token::Sign("{" | "[") => depth += 1,
            Token::Sign("}" | "]") => depth -= 1,
            Token::Sign(")") => is_by = false,
            Token::Name(name) if name == "by" => is_by = true,
            Token::Name(name) if depth == 0 && !is_by && !WORDS.contains(&name.as_str()) => names.push(name),
            _ => {}
        }
    }
    names
}

fn tokens(expression: &str) -> Vec<Token> {
    let (mut tokens, mut rest) = (Vec::new(), expression.trim_start());
    while let Some(first) = rest.chars().next() {
        let end = |is_in: fn(char) -> bool| rest.find(|char: char| !is_in(char)).unwrap_or(rest.len());
        let length = if first.is_ascii_digit() {
            let length = end(|char| char.is_ascii_digit() || char == '.');
            tokens.push(Token::Number(rest[..length].parse().expect("a number")));
            length
        } else if first.is_ascii_alphabetic() || first == '_' || first == '$' {
            let length = end(|char| char.is_ascii_alphanumeric() || "_:$".contains(char));
            tokens.push(Token::Name(rest[..length].to_owned()));
            length
        } else if first == '"' {
            let length = rest[1..].find('"').expect("the end of a text");
            tokens.push(Token::Text(rest[1..=length].to_owned()));
            length + 2
        } else if first == ',' {
            1
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.unwrap_or_else(|| panic!("no sign of this part of PromQL: {rest}"));
            tokens.push(Token::Sign(sign));
            sign.len()
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Parser<'s> {
    tokens: Peekable<std::vec::IntoIter<Token>>,
    samples: &'s Samples,
}

impl Parser<'_> {
    fn takes(&mut self, signs: &[&str]) -> Option<&'static str> {
        match self.tokens.peek() {
            Some(Token::Sign(sign)) if signs.contains(sign) => {
                let sign = *sign;
                self.tokens.next();
                Some(sign)
            }
            _ => None,
        }
    }

    fn expect(&mut self, sign: &str) {
        assert!(self.takes(&[sign]).is_some(), "{sign} is missing before {:?}", self.tokens.peek());
    }

    fn comparison(&mut self) -> Value {
        let left = self.sum();
        let Some(sign) = self.takes(&["==", "!=", ">=", "<=", ">", "<"]) else { return left };
        let right = self.sum();
        let (Value::Vector(left), Value::Scalar(right)) = (left, right) else {
            panic!("only a comparison of series with a number is understood");
        };
        let holds = |value: f64| match sign {
            "==" => value == right,
            "!=" => value != right,
            ">=" => value >= right,
            "<=" => value <= right,
            ">" => value > right,
            _ => value < right,
        };
        Value::Vector(left.into_iter().filter(|(_, value)| holds(*value)).collect())
    }

    fn sum(&mut self) -> Value {
        let mut value = self.product();
        while let Some(sign) = self.takes(&["+", "-"]) {
            let right = self.product();
            value = combine(value, right, |left, right| if sign == "+" { left + right } else { left - right });
        }
        value
    }

    fn product(&mut self) -> Value {
        let mut value = self.factor();
        while let Some(sign) = self.takes(&["*", "/"]) {
            let right = self.factor();
            value = combine(value, right, |left, right| if sign == "*" { left * right } else { left / right });
        }
        value
    }

    fn factor(&mut self) -> Value {
        match self.tokens.next() {
            Some(Token::Number(number)) => Value::Scalar(number),
            Some(Token::Sign("(")) => {
                let value = self.comparison();
                self.expect(")");
                value
            }
            Some(Token::Name(name)) => match name.as_str() {
                "time" => {
                    self.expect("(");
                    self.expect(")");
                    Value::Scalar(self.samples.now_s)
                }
                "sum" => self.aggregate(),
                "rate" | "increase" => {
                    self.expect("(");
                    let Some(Token::Name(metric)) = self.tokens.next() else { panic!("a metric is missing") };
                    let vector = self.range(&metric, if name == "rate" { RANGE_SECONDS } else { 1.0 });
                    self.expect(")");
                    Value::Vector(vector)
                }
                metric => {
                    let matchers = self.matchers();
                    Value::Vector(select(&self.samples.now, metric, &matchers))
                }
            },
            other => panic!("not in this part of PromQL: {other:?}"),
        }
    }

    /// Parses `(vector)` or `by (instance) (vector)`.
    fn aggregate(&mut self) -> Value {
        if self.tokens.peek() == Some(&Token::Name("by".to_owned())) {
            self.tokens.next();
            self.expect("(");
            assert_eq!(self.tokens.next(), Some(Token::Name("instance".to_owned())));
            self.expect(")");
        }
        self.expect("(");
        let value = self.comparison();
        self.expect(")");
        let Value::Vector(vector) = value else { panic!("the sum of a number") };
        let total = vector.iter().map(|(_, value)| value).sum();
        Value::Vector(if vector.is_empty() { Vec::new() } else { vec![(BTreeMap::new(), total)] })
    }

    /// Parses `{...}[5m]`, and returns the growth of the series divided by `per`.
    fn range(&mut self, metric: &str, per: f64) -> Vector {
        let matchers = self.matchers();
        self.expect("[");
        assert!(matches!(self.tokens.next(), Some(Token::Number(_))));
        assert!(matches!(self.tokens.next(), Some(Token::Name(unit)) if ["s", "m", "h"].contains(&unit.as_str())));
        self.expect("]");
        let before = select(&self.samples.before, metric, &matchers);
        let now = select(&self.samples.now, metric, &matchers);
        now.into_iter()
            .filter_map(|(labels, value)| {
                let (_, was) = before.iter().find(|(of, _)| *of == labels)?;
                Some((labels, (value - was) / per))
            })
            .collect()
    }

    fn matchers(&mut self) -> Vec<(String, &'static str, String)> {
        let mut matchers = Vec::new();
        if self.takes(&["{"]).is_none() {
            return matchers;
        }
        while self.takes(&["}"]).is_none() {
            let Some(Token::Name(label)) = self.tokens.next() else { panic!("a label is missing") };
            let sign = self.takes(&["=", "!=", "=~", "!~"]).expect("a matcher");
            let Some(Token::Text(text)) = self.tokens.next() else { panic!("a text is missing") };
            matchers.push((label, sign, text));
        }
        matchers
    }
}

fn combine(left: Value, right: Value, operation: impl Fn(f64, f64) -> f64) -> Value {
    let each = |vector: Vector, with: &dyn Fn(f64) -> f64| {
        Value::Vector(vector.into_iter().map(|(labels, value)| (labels, with(value))).collect())
    };
    match (left, right) {
        (Value::Scalar(left), Value::Scalar(right)) => Value::Scalar(operation(left, right)),
        (Value::Vector(left), Value::Scalar(right)) => each(left, &|left| operation(left, right)),
        (Value::Scalar(left), Value::Vector(right)) => each(right, &|right| operation(left, right)),
        (Value::Vector(left), Value::Vector(right)) => {
            let with = |(labels, left): (BTreeMap<String, String>, f64)| {
                let (_, right) = right.iter().find(|(of, _)| *of == labels)?;
                let value = operation(left, *right);
                Some((labels, value))
            };
            Value::Vector(left.into_iter().filter_map(with).collect())
        }
    }
}

fn select(series: &Series, metric: &str, matchers: &[(String, &'static str, String)]) -> Vector {
    let fits = |labels: &BTreeMap<String, String>| {
        matchers.iter().all(|(label, sign, text)| {
            let value = labels.get(label).map(String::as_str).unwrap_or_default();
            match *sign {
                "=" => value == text,
                "!=" => value != text,
                "=~" => matches_pattern(text, value),
                _ => !matches_pattern(text, value),
            }
        })
    };
    let found = series.iter().filter(|((name, labels), _)| name == metric && fits(labels));
    found.map(|((_, labels), value)| (labels.clone(), *value)).collect()
}

/// Matches alternatives of characters, where a dot is any character.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    pattern.split('|').any(|pattern| {
        assert!(pattern.chars().all(|char| char.is_ascii_alphanumeric() || "._".contains(char)), "{pattern}");
        let mut pairs = pattern.chars().zip(text.chars());
        pattern.chars().count() == text.chars().count() && pairs.all(|(of, char)| of == '.' || of == char)
    })
}

#[test]
fn expressions_are_evaluated_as_prometheus_does() {
    let series = |values: &[(&str, &str, f64)]| -> Series {
        let one = |(name, status, value): &(&str, &str, f64)| {
            let labels = BTreeMap::from([("status".to_owned(), (*status).to_owned())]);
            (((*name).to_owned(), labels), *value)
        };
        values.iter().map(one).collect()
    };
    let samples = Samples {
        before: series(&[("a_total", "200", 10.0), ("a_total", "500", 1.0)]),
        now: series(&[("a_total", "200", 100.0), ("a_total", "500", 11.0), ("a_total", "503", 5.0), ("g", "x", 7.0)]),
        now_s: 100.0,
    };
    let fires = |expression: &str| evaluate(expression, &samples).len();
    for (expression, count) in [
        ("a_total > 10", 2),
        ("a_total{status=\"200\"} > 10", 1),
        ("a_total{status!=\"200\"} >= 5", 2),
        ("a_total{status=~\"5..\"} > 0", 2),
        ("a_total{status!~\"2..|503\"} > 0", 1),
        ("increase(a_total[5m]) == 10", 1),
        ("rate(a_total[5m]) == 0.3", 1),
        ("sum by (instance) (increase(a_total{status=~\"5..\"}[5m])) / sum(increase(a_total[5m])) == 0.1", 1),
        ("time() - g == 93", 1),
        ("time() - g > 93", 0),
        ("g / g < 2 * (1 + 3)", 1),
        ("g - a_total > 0", 0),
        ("missing > 0", 0),
        ("sum(missing) == 0", 0),
    ] {
        assert_eq!(fires(expression), count, "{expression}");
    }
    let names = metrics("sum by (instance) (rate(a_total{status=~\"5..\"}[5m])) / sum(rate(b[1h])) > 0.05");
    assert_eq!(names, ["a_total", "b"]);
}
