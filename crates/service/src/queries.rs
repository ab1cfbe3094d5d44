//! Queries of Mango: requests read within bounds, and plans carried out page by page.

mod scan;

use std::time::Instant;

use flatbed_layer::json::{self, Value};
use flatbed_layer::{Document, Reader};
use flatbed_mango::{Bookmark, ExecutionStats, Find, Index, Refused, Sort, Source, plan, project};

use crate::context::Context;
use crate::indexes::Indexes;
use crate::json_out;
use crate::selecting::{SelectorError, Selectors};
use scan::Scan;

/// Why a query, or a change of an index, was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// It cannot be, in CouchDB's words.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Its selector is beyond its bounds.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// What the layer says.
    #[error(transparent)]
    Layer(#[from] flatbed_layer::Error),
}

pub(crate) type Result<T> = std::result::Result<T, QueryError>;

/// A query under way.
pub struct Query {
    find: Find,
    index: Index,
    scan: Option<Scan>,
    selectors: Selectors,
    began: Instant,
}

impl Context {
    /// Reads a request that has selectors, with what may take long apart from the threads of the runtime.
    ///
    /// # Errors
    /// What `read` refuses; [`SelectorError`].
    pub async fn read_query<T: Send + 'static>(
        &self,
        body: Value<'static>,
        read: impl FnOnce(&Value<'_>, &dyn Fn() -> bool) -> std::result::Result<T, Refused> + Send + 'static,
    ) -> Result<T> {
        Ok(self.selectors().read(body, read).await??)
    }

    /// Plans a query of a database that was given to whoever asks. Of its documents none is read.
    ///
    /// # Errors
    /// [`QueryError`]
    pub async fn query(&self, database: &Reader, find: Find) -> Result<Query> {
        let indexes = Indexes::of(database).await?;
        let plan = plan(&find, &indexes.catalog())?;
        let index = plan.index.clone();
        let selectors = self.selectors().clone();
        let scan = match plan.source {
            Source::Nothing => None,
            Source::Keys(_) if find.sort != Sort::default() => {
                let reason = "Sorting by an index: not in this version of Flatbed.".to_owned();
                return Err(Refused { status: 501, error: "not_implemented", reason }.into());
            }
            _ => Some(Scan::new(database, &find, plan, selectors.clone())),
        };
        Ok(Query { find, index, scan, selectors, began: Instant::now() })
    }
}

impl Query {
    /// What it was asked for.
    pub fn find(&self) -> &Find {
        &self.find
    }

    /// The index that it uses.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Whether its selector selects no document by itself: then its answer has documents and nothing else.
    pub fn is_nothing(&self) -> bool {
        self.scan.is_none()
    }

    /// The next documents as JSON text, whole or with the fields that were asked for; perhaps none. `None` at the end.
    ///
    /// # Errors
    /// [`QueryError`]
    pub async fn next_page(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        let Some(documents) = scan.next_page().await? else { return Ok(None) };
        let Some(fields) = self.find.fields.clone() else {
            return Ok(Some(documents.iter().map(text_of).collect()));
        };
        let project = move |value: &Value<'_>, _: &dyn Fn() -> bool| {
            let mut text = Vec::new();
            json::write(&project(value, &fields), &mut text);
            Ok(text)
        };
        let texts = documents.iter().map(text_of).collect();
        Ok(Some(self.selectors.each(1, texts, project).await?))
    }

    /// The bookmark behind what was read.
    pub fn bookmark(&self) -> String {
        Bookmark::of_answer(self.scan.as_ref().and_then(Scan::last), self.find.bookmark.as_deref())
    }

    /// What it has cost so far.
    pub fn stats(&self) -> ExecutionStats {
        let stats = self.scan.as_ref().map_or_else(ExecutionStats::default, Scan::stats);
        ExecutionStats { time_ms: self.began.elapsed().as_secs_f64() * 1_000.0, ..stats }
    }
}

/// A document as CouchDB writes it.
pub(crate) fn text_of(document: &Document) -> Vec<u8> {
    let mut text = Vec::new();
    json_out::document(document, &mut text);
    text
}
