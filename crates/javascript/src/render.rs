//! Shows, updates and rewrites.

use std::time::Duration;

use flatbed_flatten::json::Object;

use crate::engine_request::{Answer, EngineRequest};
use crate::error::{Error, Result};
use crate::pool::Task;
use crate::{Caller, Design, Runner};

/// The result of an update; both are JSON texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateResult {
    /// The document to be written, or `null`, as the function returned it.
    pub document: String,
    /// The response, an object.
    pub response: String,
}

/// `{"path":[...],"args":[...]}`
pub(crate) fn input(path: &[&str], args: &[&str]) -> String {
    let text = Object::text(|object| {
        object.array("path").strings(path.iter().copied());
        let mut array = object.array("args");
        for arg in args {
            array.raw(arg.as_bytes());
        }
    });
    String::from_utf8(text).unwrap_or_default()
}

impl Runner {
    /// Runs `shows.NAME`. `document` is a JSON text, `null` if there is no document; `req` is the request as JSON
    /// text, with `path`, `headers` and `query`. Returns the response as JSON text: an object with `code`, `headers`,
    /// and `body`, `json` or `base64`, as far as the function sets them.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is no such member; [`Error::Compilation`]; [`Error::Thrown`] with the names and
    /// texts of CouchDB (`render_error`, `not_acceptable`, or a thrown error); and those of any call.
    pub async fn show(&self, design: &Design, caller: Caller, name: &str, document: &str, req: &str) -> Result<String> {
        self.render(design, caller, "show", input(&["shows", name], &[document, req])).await
    }

    /// Runs `updates.NAME` like [`Runner::show`]. The request also has its `method`.
    ///
    /// # Errors
    /// Those of [`Runner::show`].
    pub async fn update(
        &self,
        design: &Design,
        caller: Caller,
        name: &str,
        document: &str,
        req: &str,
    ) -> Result<UpdateResult> {
        let text = self.render(design, caller, "update", input(&["updates", name], &[document, req])).await?;
        let [document, response] = pair(&text).ok_or(Error::OutOfResources)?;
        Ok(UpdateResult { document: document.to_owned(), response: response.to_owned() })
    }

    /// Runs the function `rewrites`. Returns the new target of the request as a JSON object (`path`, `query`,
    /// `method`, `headers`, `body`), or a response (with `code`), or `None`. All rewrites of one request share the
    /// time of one call: `spent` is the processor time of the earlier ones, and this call adds its own.
    ///
    /// # Errors
    /// Those of [`Runner::show`], and `rewrite_error`.
    pub async fn rewrite(
        &self,
        design: &Design,
        caller: Caller,
        req: &str,
        spent: &mut Duration,
    ) -> Result<Option<String>> {
        let time_max = self.options.batch_max;
        let left = time_max.saturating_sub(*spent);
        if left.is_zero() {
            return Err(Error::TimedOut(time_max));
        }
        let ask = EngineRequest::Render { kind: "rewrite", input: input(&["rewrites"], &[req]) };
        let task = Task { design: design.clone(), caller, ask, time_max: left, step_max: left };
        match self.pool(&task.ask).run_counted(task, spent).await {
            Ok(Answer::Text(text)) => Ok((text != "null").then_some(text)),
            Ok(_) => Err(Error::OutOfResources),
            Err(Error::TimedOut(_)) => Err(Error::TimedOut(time_max)),
            Err(error) => Err(error),
        }
    }

    async fn render(&self, design: &Design, caller: Caller, kind: &'static str, input: String) -> Result<String> {
        match self.run(design, caller, EngineRequest::Render { kind, input }, self.options.batch_max).await? {
            Answer::Text(text) => Ok(text),
            _ => Err(Error::OutOfResources),
        }
    }
}

/// Splits an array of two members.
fn pair(text: &str) -> Option<[&str; 2]> {
    let comma = crate::rows::value_end(text.as_bytes(), 1)?;
    let end = crate::rows::value_end(text.as_bytes(), comma + 1)?;
    let is_whole = text.starts_with('[') && text.get(end..) == Some("]");
    is_whole.then_some([text.get(1..comma)?, text.get(comma + 1..end)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_taken_apart() {
        assert_eq!(pair(r#"[null,{"a":[1,"]"]}]"#), Some(["null", r#"{"a":[1,"]"]}"#]));
        for text in ["", "[", "[1]", "[1,2,3]", "1,2", "[1,2", "null"] {
            assert_eq!(pair(text), None, "{text}");
        }
    }
}
