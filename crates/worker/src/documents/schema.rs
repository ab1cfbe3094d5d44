//! Validates documents by the schemas under `json_schema/`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

/// The `type` of documents that each schema validates, its name, and its text.
const TEXTS: [(&str, &str, &str); 9] = [
    ("inputs_changes", "inputs_changes", include_str!("../../../../json_schema/inputs_changes.json")),
    ("outputs_rdbms", "outputs_rdbms", include_str!("../../../../json_schema/outputs_rdbms.json")),
    ("outputs_http", "outputs_http", include_str!("../../../../json_schema/outputs_http.json")),
    ("outputs_cloud", "outputs_cloud", include_str!("../../../../json_schema/outputs_cloud.json")),
    ("tables_rdbms", "tables_rdbms", include_str!("../../../../json_schema/tables_rdbms.json")),
    ("job", "jobs", include_str!("../../../../json_schema/jobs.json")),
    ("checkpoint", "checkpoints", include_str!("../../../../json_schema/checkpoints.json")),
    ("mapping", "mappings", include_str!("../../../../json_schema/mappings.json")),
    ("dlq", "dlq", include_str!("../../../../json_schema/dlq.json")),
];

const FAULTS_MAX: usize = 5;

struct CompiledSchemas {
    schemas: Schemas,
    by_type: BTreeMap<&'static str, SchemaIndex>,
}

static COMPILED: OnceLock<Result<CompiledSchemas, String>> = OnceLock::new();

/// Returns the names and texts of the schemas.
pub fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEXTS.iter().map(|(_, name, text)| (*name, *text))
}

fn compile() -> Result<CompiledSchemas, String> {
    let (mut schemas, mut compiler, mut by_type) = (Schemas::new(), Compiler::new(), BTreeMap::new());
    for (kind, name, text) in TEXTS {
        let place = format!("flatbed:///{name}.json");
        let value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        compiler.add_resource(&place, value).map_err(|error| error.to_string())?;
        by_type.insert(kind, compiler.compile(&place, &mut schemas).map_err(|error| error.to_string())?);
    }
    Ok(CompiledSchemas { schemas, by_type })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SchemaError {
    Type,
    Faults(String),
}

/// Validates a document without its underscore members by the schema of its type.
pub(super) fn check(kind: &str, value: &Value) -> Result<(), SchemaError> {
    let compiled = COMPILED.get_or_init(compile).as_ref().map_err(|error| SchemaError::Faults(error.clone()))?;
    let index = compiled.by_type.get(kind).ok_or(SchemaError::Type)?;
    compiled.schemas.validate(value, *index).map_err(|error| {
        let mut faults = Vec::new();
        leaves(&error, &mut faults);
        SchemaError::Faults(faults.join("; "))
    })
}

/// Collects the innermost faults of a validation error, each with its location. Values are left out, since they may be
/// secrets.
fn leaves(error: &boon::ValidationError<'_, '_>, faults: &mut Vec<String>) {
    use boon::ErrorKind;
    if faults.len() >= FAULTS_MAX {
        return;
    }
    if error.causes.is_empty() {
        let place = match error.instance_location.to_string() {
            place if place.is_empty() => "the document".to_owned(),
            place => place.chars().take(200).collect(),
        };
        let what: String = match &error.kind {
            ErrorKind::Pattern { .. } => "is not of the form that it must have".to_owned(),
            ErrorKind::Const { .. } | ErrorKind::Enum { .. } => {
                let wanted = error.kind.to_string();
                wanted.split(" got ").next().unwrap_or_default().to_owned()
            }
            ErrorKind::Format { .. } | ErrorKind::FalseSchema => "must not stand there".to_owned(),
            kind => kind.to_string().chars().take(200).collect(),
        };
        faults.push(format!("{place}: {what}"));
    }
    error.causes.iter().for_each(|cause| leaves(cause, faults));
}
