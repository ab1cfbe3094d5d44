//! Runs functions of mappings in the server's JavaScript processes.

use std::sync::Arc;

use flatbed_javascript::{Error, Runner, TransformFunction};
use flatbed_worker::script::{Call, ScriptError, Scripts};

/// Returns a runner of functions. Jobs take turns as databases do.
pub(crate) fn scripts(runner: Runner) -> Scripts {
    Arc::new(move |call: Call| {
        let runner = runner.clone();
        Box::pin(async move {
            // No database can have this name.
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

/// Checks that a source is a function.
pub(crate) async fn check(scripts: Option<&Scripts>, job: &str, source: &Arc<str>) -> Result<(), ScriptError> {
    let scripts = scripts.ok_or_else(|| ScriptError::Broken("this server cannot run functions".to_owned()))?;
    scripts(Call { job: job.into(), source: source.clone(), document: None }).await.map(drop)
}
