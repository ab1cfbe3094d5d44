//! The redaction of user data in the log: marked or hidden before it is written.
//!
//! User data are names of users, ids of documents, and quotations of either, as Sync Gateway defines them; its tools
//! hash the text between its marks. A field counts as user data unless it is listed as safe, so a new field is redacted
//! until it is listed.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;

use tracing::field::{self, Field, Value, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// The marks before and behind user data.
const MARKS: [&str; 2] = ["<ud>", "</ud>"];

/// Fields that never contain user data. Numbers and truth values never do.
const SAFE: &[&str] = &[
    "message",
    "database",
    "listen",
    "storage",
    "peer",
    "network",
    "by.from",
    "method",
    "request_id",
    "kind",
    "way",
    "section",
    "location",
    "certificate",
];

/// The treatment of user data in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redact {
    /// It is written as it is.
    None,
    /// It is written between marks, by which a tool finds it.
    Mark,
    /// A hash is written between the marks, the same for the same text during the process's life.
    Hide,
}

impl Redact {
    /// Parses the setting; `None` for any other word.
    pub(crate) fn from_name(text: &str) -> Option<Redact> {
        match text {
            "none" => Some(Redact::None),
            "mark" => Some(Redact::Mark),
            "hide" => Some(Redact::Hide),
            _ => None,
        }
    }
}

/// Passes events to a layer, without user data.
pub(crate) struct RedactingLayer<L> {
    inner: L,
    how: Redact,
    hashes: [RandomState; 2],
}

impl<L> RedactingLayer<L> {
    pub(crate) fn new(inner: L, how: Redact) -> RedactingLayer<L> {
        RedactingLayer { inner, how, hashes: [RandomState::new(), RandomState::new()] }
    }

    fn shown(&self, text: &str) -> String {
        let [before, behind] = MARKS;
        match self.how {
            Redact::None => text.to_owned(),
            // Escaped, so that a user name cannot end a mark.
            Redact::Mark => format!("{before}{}{behind}", text.replace(behind, "<\\/ud>")),
            Redact::Hide => {
                let [one, other] = self.hashes.each_ref().map(|hashes| hashes.hash_one(text));
                format!("{before}{one:016x}{other:016x}{behind}")
            }
        }
    }
}

enum FieldValue {
    Truth(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    /// A text that is written without quotation marks.
    Written(field::DisplayValue<String>),
}

impl FieldValue {
    fn value(&self) -> &dyn Value {
        match self {
            FieldValue::Truth(value) => value,
            FieldValue::Signed(value) => value,
            FieldValue::Unsigned(value) => value,
            FieldValue::Float(value) => value,
            FieldValue::Text(value) => value,
            FieldValue::Written(value) => value,
        }
    }
}

/// Collects an event's fields.
struct FieldCollector<'l, L> {
    of: &'l RedactingLayer<L>,
    /// True for Flatbed's own events. They quote user data only in fields, and never in the message.
    is_own: bool,
    fields: Vec<(Field, FieldValue)>,
}

/// Returns whether a target is one of Flatbed's own.
fn is_own(target: &str) -> bool {
    target.starts_with("flatbed") || matches!(target, "access" | "audit")
}

impl<L> FieldCollector<'_, L> {
    fn text(&self, field: &Field, text: String) -> String {
        let is_safe = SAFE.contains(&field.name()) && (self.is_own || field.name() != "message");
        if is_safe { text } else { self.of.shown(&text) }
    }
}

impl<L> Visit for FieldCollector<'_, L> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = self.text(field, format!("{value:?}"));
        self.fields.push((field.clone(), FieldValue::Written(field::display(text))));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let text = self.text(field, value.to_owned());
        self.fields.push((field.clone(), FieldValue::Text(text)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.clone(), FieldValue::Truth(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.clone(), FieldValue::Signed(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.clone(), FieldValue::Unsigned(value)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.fields.push((field.clone(), FieldValue::Float(value)));
    }
}

/// The most fields of an event.
const FIELDS_MAX: usize = 32;

impl<S: Subscriber + for<'s> LookupSpan<'s>, L: Layer<S>> Layer<S> for RedactingLayer<L> {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let is_own = is_own(event.metadata().target());
        let mut taking = FieldCollector { of: self, is_own, fields: Vec::with_capacity(8) };
        event.record(&mut taking);
        let fields = taking.fields;
        let Some((first, _)) = fields.first() else { return self.inner.on_event(event, context) };
        // An event with more fields is dropped, since it could not be redacted.
        if fields.len() > FIELDS_MAX {
            return;
        }
        let mut values: [(&Field, Option<&dyn Value>); FIELDS_MAX] = [(first, None); FIELDS_MAX];
        for (place, (field, given)) in values.iter_mut().zip(&fields) {
            *place = (field, Some(given.value()));
        }
        let values = event.metadata().fields().value_set(&values);
        let redacted = match event.parent() {
            Some(parent) => Event::new_child_of(parent.clone(), event.metadata(), &values),
            None if event.is_root() => Event::new_child_of(None::<Id>, event.metadata(), &values),
            None => Event::new(event.metadata(), &values),
        };
        self.inner.on_event(&redacted, context);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.inner.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.inner.on_record(id, values, context);
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        self.inner.on_follows_from(id, follows, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.inner.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.inner.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.inner.on_close(id, context);
    }

    fn on_id_change(&self, old: &Id, new: &Id, context: Context<'_, S>) {
        self.inner.on_id_change(old, new, context);
    }

    fn on_layer(&mut self, subscriber: &mut S) {
        self.inner.on_layer(subscriber);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.inner.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.inner.enabled(metadata, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.inner.max_level_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct WrittenLines(Arc<Mutex<Vec<u8>>>);

    impl Write for WrittenLines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for WrittenLines {
        type Writer = WrittenLines;

        fn make_writer(&self) -> WrittenLines {
            self.clone()
        }
    }

    /// Returns the log of some events.
    fn written(how: Redact, is_json: bool) -> String {
        let out = WrittenLines::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(out.clone()).with_ansi(false).without_time();
        let layer: Box<dyn Layer<_> + Send + Sync> = match is_json {
            false => Box::new(RedactingLayer::new(layer, how)),
            true => Box::new(RedactingLayer::new(layer.json().flatten_event(true), how)),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::error_span!("request", request_id = "abc");
            let _within = span.enter();
            let error = std::io::Error::other("no document \"secret\"");
            tracing::info!(
                user = "anna",
                path = "/db/secret",
                database = "db",
                status = 200,
                is_complete = true,
                "asked"
            );
            tracing::warn!(user = "anna", %error, unheard_of = ?["anna"], peer = None::<u64>, "failed");
            tracing::warn!("nothing else");
            tracing::warn!(target: "hyper", "GET /db/secret of {}", "anna");
        });
        let bytes = out.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_is_marked() {
        let text = written(Redact::Mark, false);
        for part in [
            r#"user="<ud>anna</ud>""#,
            r#"path="<ud>/db/secret</ud>""#,
            r#"database="db""#,
            "status=200",
            "is_complete=true",
            r#"error=<ud>no document "secret"</ud>"#,
            r#"unheard_of=<ud>["anna"]</ud>"#,
            r#"request{request_id="abc"}"#,
            " asked",
            "nothing else",
            "hyper: <ud>GET /db/secret of anna</ud>",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        let json = written(Redact::Mark, true);
        assert!(json.contains(r#""user":"<ud>anna</ud>""#) && json.contains(r#""message":"asked""#), "{json}");
        assert!(json.contains(r#""status":200"#), "{json}");
    }

    #[test]
    fn what_is_hidden() {
        for is_json in [false, true] {
            let text = written(Redact::Hide, is_json);
            assert!(!text.contains("anna") && !text.contains("secret"), "{text}");
            let names: Vec<&str> = text.match_indices("user").map(|(at, _)| &text[at..at + 46]).collect();
            assert_eq!(names.len(), 2, "{text}");
            assert_eq!(names[0], names[1], "the same name has the same hash");
            let plain = written(Redact::None, is_json);
            assert!(plain.contains("anna") && !plain.contains("<ud>"), "{plain}");
        }
    }

    #[test]
    fn nobody_ends_a_mark() {
        let redacting = RedactingLayer::new((), Redact::Mark);
        assert_eq!(redacting.shown("a</ud>b"), "<ud>a<\\/ud>b</ud>");
        assert_eq!([Redact::from_name("mark"), Redact::from_name("x")], [Some(Redact::Mark), None]);
    }
}
