//! Functions of mappings, run by the server's engines.

use std::sync::Arc;

use flatbed_javascript::{Error, Runner, TransformFunction};
use flatbed_worker::script::{Call, ScriptError, Scripts};

/// Runs functions with the server's own threads, which take turns between jobs as between databases.
pub(crate) fn scripts(runner: Runner) -> Scripts {
    Arc::new(move |call: Call| {
        let runner = runner.clone();
        Box::pin(async move {
            // No database has such a name.
            let function = TransformFunction::new(format!("/worker/{}", call.job), call.source);
            let called = match &call.document {
                Some(document) => runner.transform(&function, document).await,
                None => runner.check_transform(&function).await.map(|()| String::new()),
            };
            called.map_err(|error| match error {
                Error::Busy => ScriptError::Later(error.to_string()),
                Error::Compilation(_) | Error::Missing | Error::Language(_) => ScriptError::Broken(error.to_string()),
                Error::TimedOut(_) => ScriptError::Failed("it ran for too long".to_owned()),
                Error::OutOfResources => ScriptError::Failed("it took more memory than it may".to_owned()),
                Error::Thrown { .. } | Error::Forbidden(_) | Error::Unauthorized(_) => {
                    ScriptError::Failed(error.to_string())
                }
            })
        })
    })
}

/// Whether a source is a function, for a job.
///
/// # Errors
/// [`ScriptError`].
pub(crate) async fn check(scripts: Option<&Scripts>, job: &str, source: &Arc<str>) -> Result<(), ScriptError> {
    let scripts = scripts.ok_or_else(|| ScriptError::Broken("this server runs none".to_owned()))?;
    scripts(Call { job: job.into(), source: source.clone(), document: None }).await.map(drop)
}
