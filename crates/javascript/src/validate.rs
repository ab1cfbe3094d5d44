//! `validate_doc_update` for the writes of a request.
//!
//! The writes of a request go together in calls. The function sees objects of its own for each write: the texts that
//! all writes share go to the process once, and are parsed for each write.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine_request::{Answer, EngineRequest, ValidatedPart};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::pool::Task;
use crate::together::{SLICE, all_in_parts};
use crate::writes::{TOLD_BYTES_MAX, WriteContext, WriteTexts};
use crate::{Caller, Design, Runner};

/// The arguments of `validate_doc_update`, as JSON texts.
#[derive(Debug, Clone, Copy)]
pub struct Validation<'a> {
    /// The new document.
    pub document: &'a str,
    /// The revision that it replaces, or `null`.
    pub old: &'a str,
    /// The writer: `{"db":...,"name":...,"roles":[...]}`.
    pub user: &'a str,
    /// The database's `_security`.
    pub security: &'a str,
}

impl Runner {
    /// Runs `validate_doc_update` for a write.
    ///
    /// # Errors
    /// [`Error::Forbidden`] and [`Error::Unauthorized`] if the function refuses the write; and those of any call.
    pub async fn validate(&self, design: &Design, caller: Caller, write: &Validation<'_>) -> Result<()> {
        let Validation { document, old, user, security } = *write;
        let context = WriteContext { user: user.into(), security: security.into() };
        let texts = WriteTexts { document: document.to_owned(), old: Some(old.to_owned()) };
        self.validate_all(design, caller, &context, vec![texts]).await.pop().unwrap_or(Err(Error::OutOfResources))
    }

    /// Runs `validate_doc_update` for several writes of a request in order. Each write has its own time limit, and an
    /// answer as of [`Runner::validate`]; other databases take turns in between. After a kill of the process the
    /// function may run again for a write. The caller bounds the memory of the arguments ([`Runner::try_room`]).
    pub async fn validate_all(
        &self,
        design: &Design,
        caller: Caller,
        context: &WriteContext,
        writes: Vec<WriteTexts>,
    ) -> Vec<Result<()>> {
        all_in_parts(writes, |writes| self.validate_some(design, caller, context, writes, SLICE)).await
    }

    /// Judges the first writes of a queue for a slice of time.
    async fn validate_some(
        &self,
        design: &Design,
        caller: Caller,
        context: &WriteContext,
        writes: VecDeque<WriteTexts>,
        slice: Duration,
    ) -> Result<ValidatedPart> {
        let step_max = self.options.validation_max;
        let ask = EngineRequest::Validate { context: context.clone(), writes, slice, step_max };
        let task = Task { design: design.clone(), caller, ask, time_max: step_max + slice, step_max };
        match self.pool(&task.ask).run(task).await {
            Ok(Answer::Validated(part)) => Ok(part),
            Ok(_) => Err(Error::OutOfResources),
            Err(Error::TimedOut(_)) => Err(Error::TimedOut(step_max)),
            Err(error) => Err(error),
        }
    }
}

impl Machine {
    /// Runs the function for a write. Returns an empty text, or what the function has thrown. After an error the
    /// machine must not be used again.
    pub(crate) fn validate(
        &self,
        [user, security]: [&str; 2],
        (document, old): (&str, Option<&str>),
        clock: &Clock,
    ) -> Result<String> {
        let given = (document, old.unwrap_or("null"), user, security);
        let told: String = self.within(clock, |ctx| self.export(ctx, "validate")?.call(given))?;
        if told.len() > TOLD_BYTES_MAX { Err(Error::OutOfResources) } else { Ok(told) }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::PATIENCE;

    use super::*;
    use crate::RunnerOptions;

    #[tokio::test]
    async fn the_writes_of_a_request_are_one_call() {
        let (wait_max, validation_max) = (PATIENCE, 10 * PATIENCE);
        let runner = Runner::new(RunnerOptions { wait_max, validation_max, ..RunnerOptions::default() }).unwrap();
        let source = "function (doc, old, user) { if (doc.n % 7 === 3) throw({forbidden: user.name + doc.n}); user.name = 'eva'; }";
        let design = Design::new("db/1", format!(r#"{{"validate_doc_update":"{source}"}}"#));
        let context = WriteContext { user: r#"{"name":"jan"}"#.into(), security: "{}".into() };
        let write = |n: usize| WriteTexts { document: format!(r#"{{"n":{n}}}"#), old: None };
        let writes = (0..32).map(write).collect();
        let part = runner.validate_some(&design, runner.caller(), &context, writes, 10 * PATIENCE).await.unwrap();
        assert!(part.rest.is_empty() && part.killed.is_none());
        for (n, answer) in part.answers.into_iter().enumerate() {
            let expected = if n % 7 == 3 { Err(Error::Forbidden(format!("jan{n}"))) } else { Ok(()) };
            assert_eq!(answer, expected, "{n}");
        }
        assert_eq!(runner.figures().function_calls.get(), 1);
    }
}
