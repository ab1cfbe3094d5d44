//! Indexes of Mango, which are members of design documents: which there are, and how they come and go.

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{
    AllDocsQuery, AttachmentEdit, DESIGN_IDS, Document, Edit, Error, GetOptions, NotFound, Reader, Refusal,
    check_document_id,
};
use flatbed_mango::{Catalog, Index, IndexRequest, without_index};

use crate::database::Writer;
use crate::queries::{QueryError, Result, text_of};

/// How often a design document is read and written anew while others write it.
const ATTEMPTS_MAX: usize = 10;

/// All indexes of a database, that of all ids included.
#[derive(Debug, Clone)]
pub struct Indexes {
    database: String,
    partitioned: bool,
    list: Vec<Index>,
}

impl Indexes {
    /// Reads them.
    ///
    /// # Errors
    /// Those of the layer.
    pub async fn of(database: &Reader) -> Result<Indexes> {
        let (first, behind) = DESIGN_IDS;
        let query = AllDocsQuery {
            start: Some(first.to_owned()),
            end: Some(behind.to_owned()),
            exclusive_end: true,
            include_docs: true,
            ..AllDocsQuery::default()
        };
        let mut walk = database.all_docs(query);
        let mut list = vec![Index::all_docs()];
        // Without a design document the walk has no page that says that there is no database.
        database.exists().await?;
        while let Some(page) = walk.next_page().await? {
            for document in page.iter().filter_map(|row| row.doc.as_ref()) {
                list.extend(indexes_of(document));
            }
        }
        Ok(Indexes { database: database.name().to_owned(), partitioned: false, list })
    }

    /// What a plan depends on.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog { database: &self.database, partitioned: self.partitioned, indexes: &self.list }
    }

    /// All of them, in no order.
    pub fn list(&self) -> &[Index] {
        &self.list
    }
}

fn indexes_of(document: &Document) -> Vec<Index> {
    let text = text_of(document);
    match json::parse(&text, &Limits::default()) {
        Ok(value) => Index::of_design_document(&document.id, &value, false),
        Err(_) => Vec::new(),
    }
}

impl Writer {
    /// Puts an index into its design document; whether that was changed.
    ///
    /// # Errors
    /// [`QueryError`]
    pub async fn create_index(&self, request: &IndexRequest) -> Result<bool> {
        check_document_id(request.ddoc()).map_err(Error::from)?;
        self.exists().await?;
        let partitioned = false;
        let created = self.change(request.ddoc(), |existing| {
            Ok(match request.put_into(existing, partitioned)? {
                Some(body) => Change::Write(body),
                None => Change::Nothing,
            })
        });
        created.await
    }

    /// Takes indexes out of their design document, which goes too if nothing is left of it; whether it had any of them.
    ///
    /// # Errors
    /// [`QueryError`]
    pub async fn delete_indexes(&self, ddoc: &str, is_meant: impl Fn(&Index) -> bool) -> Result<bool> {
        let deleted = self.change(ddoc, |existing| {
            let Some(existing) = existing else { return Ok(Change::Nothing) };
            let mut left = Some(existing.clone().into_owned());
            let mut found = false;
            for index in Index::of_design_document(ddoc, existing, false).iter().filter(|index| is_meant(index)) {
                left = left.and_then(|left| without_index(&left, index.name()));
                found = true;
            }
            Ok(match (found, left) {
                (false, _) => Change::Nothing,
                (true, Some(body)) => Change::Write(body),
                (true, None) => Change::Delete,
            })
        });
        deleted.await
    }

    /// Changes a document as `change` says of what is there; whether there was anything to change.
    async fn change(
        &self,
        id: &str,
        change: impl Fn(Option<&Value<'_>>) -> std::result::Result<Change, flatbed_mango::Refused>,
    ) -> Result<bool> {
        let mut attempts = 0;
        loop {
            let existing = match self.get(id, &GetOptions::default()).await {
                Ok(document) => Some(document),
                Err(Error::Refused(Refusal::DocumentNotFound(NotFound::Missing | NotFound::Deleted))) => None,
                Err(error) => return Err(error.into()),
            };
            let text = existing.as_ref().map(text_of);
            let value = text.as_ref().and_then(|text| json::parse(text, &Limits::default()).ok());
            let (deleted, body) = match change(value.as_ref()).map_err(QueryError::Refused)? {
                Change::Nothing => return Ok(false),
                Change::Write(body) => (false, body),
                Change::Delete => (true, Value::Object(Vec::new())),
            };
            let parent = existing.as_ref().map(|document| document.rev.clone());
            let kept = existing.into_iter().filter(|_| !deleted).flat_map(|document| document.attachments);
            let attachments = kept.map(|attachment| (attachment.name, AttachmentEdit::Stub { revpos: None })).collect();
            let edit = Edit { id: id.into(), parent, history: None, deleted, attachments, body };
            attempts += 1;
            match self.update(&edit).await {
                Ok(_) => return Ok(true),
                Err(Error::Refused(Refusal::Conflict)) if attempts < ATTEMPTS_MAX => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What becomes of a document.
enum Change {
    Nothing,
    Write(Value<'static>),
    Delete,
}
