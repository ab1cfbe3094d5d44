//! Checks design documents before they are written: the types of the members that Flatbed uses, as CouchDB checks them,
//! and whether functions of views are functions.

use std::sync::Arc;
use std::time::Duration;

use flatbed_collate::reduce::Reducer;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::Value;
use flatbed_mango::Index;
use flatbed_store::error::{DesignFault, NotJudged, Refusal};
use flatbed_store::view_bounds::ViewBounds;
use flatbed_store::view_definition::GroupDefinition;
use flatbed_store::view_functions::{FunctionFailure, ViewFunctions};

use crate::index::apart::selector_lock;
use crate::index::definitions::has_selectors;
use crate::index::selector::definition as selectors;

#[derive(Debug, Clone, Copy)]
enum Type {
    Array,
    Boolean,
    Object,
    String,
}

use Type::{Array, Boolean, Object, String as Text};

impl Type {
    fn is_of(self, value: &Value<'_>) -> bool {
        matches!(
            (self, value),
            (Array, Value::Array(_))
                | (Boolean, Value::Bool(_))
                | (Object, Value::Object(_))
                | (Text, Value::String(_))
        )
    }

    fn name(self) -> &'static str {
        match self {
            Array => "array",
            Boolean => "boolean",
            Object => "object",
            Text => "string",
        }
    }
}

/// A step of a path: a member of this name, or any, and the permitted types.
type Step = (Option<&'static str>, &'static [Type]);

const ANY: Option<&str> = None;

const PATHS: &[&[Step]] = &[
    &[(Some("filters"), &[Object]), (ANY, &[Object, Text])],
    &[(Some("language"), &[Text])],
    &[(Some("lists"), &[Object]), (ANY, &[Object, Text])],
    &[(Some("options"), &[Object])],
    &[(Some("options"), &[Object]), (Some("include_design"), &[Boolean])],
    &[(Some("options"), &[Object]), (Some("local_seq"), &[Boolean])],
    &[(Some("options"), &[Object]), (Some("partitioned"), &[Boolean])],
    &[(Some("rewrites"), &[Array, Text])],
    &[(Some("shows"), &[Object]), (ANY, &[Object, Text])],
    &[(Some("updates"), &[Object]), (ANY, &[Object, Text])],
    &[(Some("validate_doc_update"), &[Text])],
    &[(Some("views"), &[Object]), (Some("lib"), &[Object])],
];

const MAPS: &[Step] = &[(Some("views"), &[Object]), (ANY, &[Object]), (Some("map"), &[Text])];
const MAPS_OF_FIELDS: &[Step] = &[(Some("views"), &[Object]), (ANY, &[Object]), (Some("map"), &[Object])];
const REDUCES: &[Step] = &[(Some("views"), &[Object]), (ANY, &[Object]), (Some("reduce"), &[Text])];

/// Checks whether a design document may be written to a database. `named` identifies the database. Functions are not
/// checked if the server runs none, or none of their language, as in CouchDB.
///
/// # Errors
/// [`Refusal::InvalidDesign`]; [`Refusal::NotJudged`]: its functions could not be checked.
pub(super) async fn check(
    body: &Value<'_>,
    (inner, instance): (&Inner, &Instance),
    named: &str,
    functions: Option<&Arc<dyn ViewFunctions>>,
) -> Result<(), Refusal> {
    let partitioned = instance.record.partitioned;
    check_members(body, partitioned)?;
    check_selectors(body, inner, instance).await?;
    let (Some(functions), Ok(Some(group))) = (functions, GroupDefinition::of_design(body, partitioned)) else {
        return Ok(());
    };
    if group.is_of_fields() {
        return Ok(());
    }
    functions.load(named, &group.source(), ViewBounds::default()).check().await.or_else(|failure| {
        let reason = failure.to_string();
        let because = match failure {
            FunctionFailure::Compilation(_) | FunctionFailure::Thrown { .. } => {
                return Err(Refusal::InvalidDesign { what: DesignFault::Compilation, reason });
            }
            FunctionFailure::TimedOut(_) => NotJudged::TimedOut,
            FunctionFailure::OutOfResources(_) => NotJudged::OutOfResources,
            FunctionFailure::Busy(_) => NotJudged::Busy,
            FunctionFailure::TooMuch(_) | FunctionFailure::NotRun => return Ok(()),
        };
        Err(Refusal::NotJudged { because, reason })
    })
}

/// The time limit for compiling a design document's selectors.
const SELECTORS_TIME_MAX: Duration = Duration::from_secs(2);

/// Checks the selectors of a design document's indexes. Slow ones are compiled outside of the runtime's threads.
async fn check_selectors(body: &Value<'_>, inner: &Inner, instance: &Instance) -> Result<(), Refusal> {
    let clock = inner.clock.clone();
    let check = move |body: &Value<'_>| {
        let until = clock.now() + SELECTORS_TIME_MAX;
        let stop = || clock.now() >= until;
        match body.get(selectors::MEMBER) {
            _ if !Index::compiles_unless(body, &stop) => None,
            Some(member) => selectors::check(member, &stop),
            None => Some(Ok(())),
        }
    };
    let checked = if has_selectors(body) {
        let body = body.clone().into_owned();
        let checked = inner.turns.select(selector_lock(instance), move || check(&body)).await;
        checked.map_err(|_| Refusal::not_judged(NotJudged::Internal, "the selectors were not checked"))?
    } else {
        check(body)
    };
    checked.unwrap_or_else(|| Err(Refusal::not_judged(NotJudged::TimedOut, "the selectors take too long")))
}

/// Checks everything except the functions.
fn check_members(body: &Value<'_>, partitioned: bool) -> Result<(), Refusal> {
    let language = body.get("language").and_then(Value::as_str);
    let is_of_fields = language == Some("query");
    // CouchDB stores design documents in an unknown language, and does not check their functions.
    let is_known = is_of_fields || language.is_none_or(|name| name.eq_ignore_ascii_case("javascript"));
    let maps = if is_of_fields { MAPS_OF_FIELDS } else { MAPS };
    let mut path = Vec::new();
    for steps in PATHS.iter().copied().chain([maps, REDUCES]) {
        path.clear();
        check_path(body, steps, &mut path)?;
    }
    let refused = |what, reason: String| Err(Refusal::InvalidDesign { what, reason });
    if let Some(Value::Object(views)) = body.get("views") {
        for (name, view) in views.iter().filter(|(name, _)| name != "lib") {
            if view.get("map").is_none() {
                return refused(DesignFault::Member, format!("View `{name}` must contain map function"));
            }
            if !is_known {
                continue;
            }
            if ["map", "reduce"].iter().any(|member| view.get(member).and_then(Value::as_str) == Some("")) {
                return refused(DesignFault::NoFunction, "missing function".to_owned());
            }
            let reduce = view.get("reduce").and_then(Value::as_str).unwrap_or_default();
            if let Err(error) = Reducer::from_name(reduce) {
                return refused(DesignFault::Member, error.to_string());
            }
        }
    }
    let option = body.get("options").and_then(|options| options.get("partitioned"));
    if !partitioned && matches!(option, Some(Value::Bool(true))) {
        let reason = "partitioned option cannot be true in a non-partitioned database.";
        return refused(DesignFault::Member, reason.to_owned());
    }
    Ok(())
}

/// `path`: the names of the members that lead to `value`.
fn check_path<'b>(value: &'b Value<'_>, steps: &[Step], path: &mut Vec<&'b str>) -> Result<(), Refusal> {
    let (Some(((name, types), rest)), Value::Object(members)) = (steps.split_first(), value) else { return Ok(()) };
    for (found, value) in members.iter().filter(|(found, _)| name.is_none_or(|name| name == found)) {
        path.push(found);
        if !types.iter().any(|of| of.is_of(value)) {
            let types: Vec<&str> = types.iter().map(|of| of.name()).collect();
            let reason = format!("`{}` field must have {} type", path.join("."), types.join(" or "));
            return Err(Refusal::InvalidDesign { what: DesignFault::Member, reason });
        }
        check_path(value, rest, path)?;
        path.pop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{self, Limits};

    use super::*;

    fn refused(body: &str) -> Option<String> {
        let body = json::parse(body.as_bytes(), &Limits::default()).unwrap();
        check_members(&body, false).err().map(|refusal| refusal.to_string())
    }

    #[test]
    fn members_have_their_types() {
        let must = |path: &str, types: &str| Some(format!("`{path}` field must have {types} type"));
        for (body, reason) in [
            (r#"{"views":[]}"#, must("views", "object")),
            (r#"{"views":{"x":5}}"#, must("views.x", "object")),
            (r#"{"views":{"x":{"map":null}}}"#, must("views.x.map", "string")),
            (r#"{"views":{"x":{"map":"m","reduce":5}}}"#, must("views.x.reduce", "string")),
            (r#"{"views":{"lib":5}}"#, must("views.lib", "object")),
            (r#"{"views":{"x":{}}}"#, Some("View `x` must contain map function".to_owned())),
            (r#"{"views":{"x":{"map":""}}}"#, Some("missing function".to_owned())),
            (r#"{"views":{"x":{"map":"m","reduce":""}}}"#, Some("missing function".to_owned())),
            (
                r#"{"views":{"x":{"map":"m","reduce":"_average"}}}"#,
                Some("`_average` is not a supported reduce function.".to_owned()),
            ),
            (r#"{"views":{"x":{"map":"m","reduce":"_top_x"}}}"#, Some("invalid rank reducer".to_owned())),
            (
                r#"{"views":{"x":{"map":"m","reduce":"_top_0"}}}"#,
                Some("rank value must be between 1 and 100".to_owned()),
            ),
            (r#"{"language":5}"#, must("language", "string")),
            (r#"{"options":5}"#, must("options", "object")),
            (r#"{"options":{"include_design":"yes"}}"#, must("options.include_design", "boolean")),
            (r#"{"filters":"x","updates":[]}"#, must("filters", "object")),
            (r#"{"shows":{"a":1}}"#, must("shows.a", "object or string")),
            (r#"{"rewrites":5}"#, must("rewrites", "array or string")),
            (r#"{"validate_doc_update":5}"#, must("validate_doc_update", "string")),
            (r#"{"language":"query","views":{"n":{"map":"m"}}}"#, must("views.n.map", "object")),
            (r#"{"language":"query","views":{"n":{"map":{"fields":{}},"reduce":"_count"}}}"#, None),
            (r#"{"views":{"lib":{"a":"exports.x=1"},"x":{"map":"m","reduce":"_sum"}},"autoupdate":"yes"}"#, None),
            (r#"{"filters":{"a":{"map":"x"}},"options":{"partitioned":false},"rewrites":[]}"#, None),
            (r#"{"language":"erlang","views":{"x":{"map":"","reduce":"_average"}}}"#, None),
            (r#"{"language":"erlang","views":{"x":{"map":5}}}"#, must("views.x.map", "string")),
            ("{}", None),
        ] {
            assert_eq!(refused(body), reason, "{body}");
        }
        assert!(refused(r#"{"options":{"partitioned":true}}"#).is_some_and(|reason| reason.starts_with("partitioned")));
    }
}
