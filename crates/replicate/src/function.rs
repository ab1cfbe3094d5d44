//! The function of a design document that selects a replication's documents. Its code is part of the id of the
//! replication's log, because a checkpoint does not hold for another function.

use flatbed_flatten::json::{Value, to_vec};
use flatbed_revtree::DESIGN;
use hyper::Method;
use md5::{Digest, Md5};

use crate::error::{Error, Result};
use crate::peer::Peer;
use crate::spec::Filter;

/// The prefix of Sync Gateway's built-in filters, which have no design document.
const SYNC_GATEWAY: &str = "sync_gateway";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    /// The hash of the design document's revision: it detects a function that was changed and changed back.
    revision: [u8; 16],
    code: [u8; 16],
}

impl Function {
    /// The MD5 hash of the code, without surrounding white space, as in CouchDB.
    pub(crate) fn code(&self) -> &[u8; 16] {
        &self.code
    }

    /// Reads the function from the design document; `None` if it does not exist.
    fn of(document: &Value<'_>, place: &FunctionPlace<'_>) -> Option<Function> {
        let found = document.get(place.kind)?.get(place.name)?;
        let code = if place.kind == "views" { found.get("map")? } else { found };
        let code = match code.as_str() {
            Some(text) => Md5::digest(text.trim()),
            // The map of a view in the language `query` is a selector.
            None => Md5::digest(to_vec(code)),
        };
        let revision = Md5::digest(document.get("_rev").map(to_vec).unwrap_or_default());
        Some(Function { revision: revision.into(), code: code.into() })
    }
}

#[derive(Debug, PartialEq, Eq)]
struct FunctionPlace<'f> {
    design: &'f str,
    /// `filters` or `views`.
    kind: &'static str,
    name: &'f str,
}

impl FunctionPlace<'_> {
    /// The place of the filter's function; `None`: no function of a design document selects documents.
    fn of(filter: Option<&Filter>) -> Option<FunctionPlace<'_>> {
        let Some(Filter::Function(filter, parameters)) = filter else { return None };
        let (kind, path) = match filter.as_str() {
            "_view" => ("views", parameters.iter().find(|(name, _)| name == "view")?.1.as_str()),
            path if path.starts_with('_') => return None,
            path => ("filters", path),
        };
        let (design, name) = path.split_once('/')?;
        (design != SYNC_GATEWAY).then_some(FunctionPlace { design, kind, name })
    }
}

/// Returns whether a function, which may change, selects the documents.
pub(crate) fn is_by_function(filter: Option<&Filter>) -> bool {
    FunctionPlace::of(filter).is_some()
}

impl Peer {
    /// Reads the current function of a filter. `None`: the filter has no function, or the function does not exist,
    /// which `_changes` answers with an error.
    pub(crate) async fn function(&self, filter: Option<&Filter>) -> Result<Option<Function>> {
        let Some(place) = FunctionPlace::of(filter) else { return Ok(None) };
        let path = Peer::document_path(&format!("{DESIGN}/{}", place.design));
        let answer = self.call(Method::GET, &path, None).await?;
        match answer.status {
            200 => {}
            404 => return Ok(None),
            401 | 403 => return Err(Error::Unauthorized(self.shown.clone())),
            _ => return Err(self.refused("the filter's design document", &answer)),
        }
        let tree = answer.json().await.map_err(|error| self.no_room(error))?;
        Ok(Function::of(&tree.value, &place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_flatten::json::{Limits, parse};

    fn filter(name: &str, view: &str) -> Filter {
        Filter::Function(name.to_owned(), vec![("view".to_owned(), view.to_owned())])
    }

    #[test]
    fn places_of_functions() {
        let place = |design, kind, name| Some(FunctionPlace { design, kind, name });
        assert_eq!(FunctionPlace::of(Some(&filter("d/f/g", ""))), place("d", "filters", "f/g"));
        assert_eq!(FunctionPlace::of(Some(&filter("_view", "d/v"))), place("d", "views", "v"));
        for (name, view) in [("_design", "d/v"), ("_view", "v"), ("f", ""), ("sync_gateway/bychannel", "")] {
            assert!(!is_by_function(Some(&filter(name, view))), "{name}");
        }
        assert!(!is_by_function(None) && !is_by_function(Some(&Filter::Ids(b"[]".to_vec()))));
    }

    #[test]
    fn code_and_revision_tell_functions_apart() {
        let function = |text: &str, filter: &Filter| {
            let document = parse(text.as_bytes(), &Limits::default()).unwrap();
            Function::of(&document, &FunctionPlace::of(Some(filter)).unwrap())
        };
        let (by_filter, by_view) = (filter("d/f", ""), filter("_view", "d/v"));
        let code = |text: &str, filter| *function(text, filter).unwrap().code();
        let one = r#"{"_rev":"1-a","filters":{"f":" one\n","g":"two"},"views":{"v":{"map":"three"}}}"#;
        let other = r#"{"_rev":"2-b","filters":{"f":"one","g":"other"},"views":{"v":{"map":"3","reduce":"_sum"}}}"#;
        assert_eq!(code(one, &by_filter), code(other, &by_filter));
        assert_ne!(function(one, &by_filter), function(other, &by_filter));
        assert_ne!(code(one, &by_view), code(other, &by_view));
        let selector = |n: u8| code(&format!(r#"{{"views":{{"v":{{"map":{{"fields":{{"a":{n}}}}}}}}}}}"#), &by_view);
        assert_ne!(selector(1), selector(2));
        assert_eq!((function("{}", &by_filter), function(r#"{"views":{"v":1}}"#, &by_view)), (None, None));
    }
}
