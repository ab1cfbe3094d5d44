//! Spans: the values of a field that a selector may select, as disjoint ranges to read from an index.

use std::cmp::Ordering;
use std::ops::Bound;

use flatbed_flatten::json::Value;

use crate::normal::{Comparison, Term};
use crate::order::Order;

/// The largest number of ranges that are read one by one.
pub(crate) const RANGES_MAX: usize = 1_000;

/// The values between two bounds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub(crate) low: Bound<Value<'static>>,
    pub(crate) high: Bound<Value<'static>>,
}

/// Disjoint ranges in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spans {
    pub(crate) list: Vec<Span>,
    order: Order,
}

impl Span {
    fn point(value: &Value<'static>) -> Span {
        Span { low: Bound::Included(value.clone()), high: Bound::Included(value.clone()) }
    }

    /// Returns the single value of the span, as far as the order distinguishes values.
    pub(crate) fn single(&self, order: Order) -> Option<&Value<'static>> {
        match (&self.low, &self.high) {
            (Bound::Included(low), Bound::Included(high)) if cmp(order, low, high).is_eq() => Some(low),
            _ => None,
        }
    }
}

impl Spans {
    /// Returns the span of all values.
    pub(crate) fn all(order: Order) -> Spans {
        Spans { list: vec![Span { low: Bound::Unbounded, high: Bound::Unbounded }], order }
    }

    pub(crate) fn is_all(&self) -> bool {
        matches!(self.list.as_slice(), [Span { low: Bound::Unbounded, high: Bound::Unbounded }])
    }

    pub(crate) fn are_points(&self) -> bool {
        self.list.iter().all(|span| span.single(self.order).is_some())
    }

    /// Intersects the conditions on a field.
    pub(crate) fn of(terms: &[&Term], order: Order) -> Spans {
        let mut all: Vec<Spans> = terms.iter().filter_map(|term| Spans::of_term(term, order)).collect();
        // The shortest list first: the intersection has about as many spans as the shortest one, however long the next
        // ones are.
        all.sort_by_key(|spans| spans.list.len());
        all.iter().fold(Spans::all(order), |left, more| left.intersection(more))
    }

    /// Returns the spans of one condition. `None`: the condition excludes no range of values.
    fn of_term(term: &Term, order: Order) -> Option<Spans> {
        let span = |low, high| Some(Spans { list: vec![Span { low, high }], order });
        match term {
            Term::Compare(comparison, value) => match comparison {
                Comparison::Less => span(Bound::Unbounded, Bound::Excluded(value.clone())),
                Comparison::LessOrEqual => span(Bound::Unbounded, Bound::Included(value.clone())),
                Comparison::Equal => Some(Spans { list: vec![Span::point(value)], order }),
                Comparison::NotEqual => None,
                Comparison::GreaterOrEqual => span(Bound::Included(value.clone()), Bound::Unbounded),
                Comparison::Greater => span(Bound::Excluded(value.clone()), Bound::Unbounded),
            },
            Term::BeginsWith(prefix) => {
                let text = |text: String| Value::String(text.into());
                match order {
                    Order::Collated => {
                        let sure = collated_alike(prefix);
                        // U+FFFF collates after all other characters.
                        let high = Bound::Included(text(format!("{sure}\u{ffff}")));
                        span(Bound::Included(text(sure.to_owned())), high)
                    }
                    Order::Raw => {
                        let high = behind(prefix).map_or(Bound::Unbounded, |behind| Bound::Excluded(text(behind)));
                        span(Bound::Included(text(prefix.clone())), high)
                    }
                }
            }
            Term::In(list) if list.len() <= RANGES_MAX => {
                // An array matches if one of its items is in the list. The array itself is not compared.
                let arrays = Span {
                    low: Bound::Included(Value::Array(Vec::new())),
                    high: Bound::Excluded(Value::Object(Vec::new())),
                };
                let any = !list.is_empty();
                let mut list: Vec<Span> =
                    list.iter().filter(|value| !matches!(value, Value::Array(_))).map(Span::point).collect();
                if order == Order::Collated && any {
                    list.push(arrays);
                }
                list.sort_by(|a, b| lows(order, a, b));
                list.dedup_by(|b, a| lows(order, a, b).is_eq());
                Some(Spans { list, order })
            }
            _ => None,
        }
    }

    pub(crate) fn intersection(&self, other: &Spans) -> Spans {
        let (mut list, order) = (Vec::new(), self.order);
        let (mut these, mut those) = (self.list.iter().peekable(), other.list.iter().peekable());
        while let (Some(a), Some(b)) = (these.peek(), those.peek()) {
            let low = if lows(order, a, b).is_lt() { &b.low } else { &a.low };
            let a_ends_first = highs(order, a, b).is_lt();
            let high = if a_ends_first { &a.high } else { &b.high };
            let span = Span { low: low.clone(), high: high.clone() };
            if !is_empty(order, &span) {
                list.push(span);
            }
            if a_ends_first {
                these.next();
            } else {
                those.next();
            }
        }
        Spans { list, order }
    }
}

fn cmp(order: Order, a: &Value<'_>, b: &Value<'_>) -> Ordering {
    order.compare(a, b)
}

/// Returns the longest part of a prefix that is a lower bound for all strings with the prefix. A non-ASCII character
/// may form one letter with the characters behind it, and sort elsewhere: U+0438 with U+0306, a Thai vowel with its
/// consonant.
fn collated_alike(prefix: &str) -> &str {
    let end = prefix.bytes().rposition(|byte| matches!(byte, b' '..=b'~')).map_or(0, |last| last + 1);
    prefix.get(..end).unwrap_or_default()
}

/// Returns the first string behind all strings with a prefix, in byte order. `None`: no string is behind them.
fn behind(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

fn lows(order: Order, a: &Span, b: &Span) -> Ordering {
    let side = |bound: &Bound<_>| u8::from(matches!(bound, Bound::Excluded(_)));
    match (&a.low, &b.low) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Less,
        (_, Bound::Unbounded) => Ordering::Greater,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            cmp(order, x, y).then(side(&a.low).cmp(&side(&b.low)))
        }
    }
}

fn highs(order: Order, a: &Span, b: &Span) -> Ordering {
    let side = |bound: &Bound<_>| u8::from(matches!(bound, Bound::Included(_)));
    match (&a.high, &b.high) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Greater,
        (_, Bound::Unbounded) => Ordering::Less,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            cmp(order, x, y).then(side(&a.high).cmp(&side(&b.high)))
        }
    }
}

fn is_empty(order: Order, span: &Span) -> bool {
    match (&span.low, &span.high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => cmp(order, low, high).is_gt(),
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            cmp(order, low, high).is_ge()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_with_a_prefix_lie_within_its_span() {
        let prefixes =
            ["", "a", "l", "x", "é", "e", "\u{438}", "a\u{438}", "\u{e40}", "a\u{e40}", "\u{9c7}", "-", "\u{0}", "1"];
        let tails = [
            "",
            "a",
            "z",
            "\u{301}",
            "\u{306}",
            "\u{e01}",
            "\u{9be}",
            "\u{b7}",
            "\u{0}",
            "\u{10ffff}",
            "\u{ad}",
            "\u{327}\u{301}",
        ];
        for order in [Order::Collated, Order::Raw] {
            for prefix in prefixes {
                let Some(spans) = Spans::of_term(&Term::BeginsWith(prefix.to_owned()), order) else { panic!() };
                for tail in tails {
                    let text = Value::String(format!("{prefix}{tail}").into());
                    let point = Spans { list: vec![Span::point(&text)], order };
                    assert_eq!(spans.intersection(&point).list.len(), 1, "{prefix:?} {tail:?} {order:?}");
                }
            }
        }
    }

    #[test]
    fn strings_behind_a_prefix() {
        for (prefix, next) in [
            ("a", Some("b")),
            ("aé", Some("aê")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("", None),
            ("\u{d7ff}", Some("\u{e000}")),
        ] {
            assert_eq!(behind(prefix).as_deref(), next, "{prefix}");
            if let Some(next) = next {
                assert!(format!("{prefix}\u{10ffff}").as_bytes() < next.as_bytes());
            }
        }
    }
}
