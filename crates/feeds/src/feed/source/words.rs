#![cfg(feature = "test-hooks")]
//! A source for tests: documents whose body has a word. Another word makes a document leave the feed. It has no index,
//! scans by-seq, and reads documents whatever the feed shows.

use std::sync::Arc;

use flatbed_databases::document::edit::Document;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::transaction::Transaction;

use crate::feed::query::{Extras, Scope};
use crate::feed::row::ChangesPage;
use crate::feed::source::by_seq::BySeq;
use crate::feed::source::{AnySource, FeedPage, PendingCount, RowVerdict, Source};
use crate::feed::tail::{TailDocument, TailRow};

pub const OURS: &str = "ours";

/// A document with this word has left the feed.
pub const GIVEN_AWAY: &str = "given away";

pub struct Words {
    walk: BySeq,
}

impl Words {
    pub fn source() -> AnySource {
        AnySource::Words(Words { walk: BySeq::new(Scope::All) })
    }
}

fn of(document: Option<&Document>) -> RowVerdict {
    let body = document.map(|document| String::from_utf8_lossy(&document.body)).unwrap_or_default();
    match (body.contains(OURS), body.contains(GIVEN_AWAY)) {
        (true, _) => RowVerdict::Changed,
        (false, true) => RowVerdict::Lost,
        (false, false) => RowVerdict::Other,
    }
}

impl Source for Words {
    fn needs(&self) -> Extras {
        Extras::DOCUMENTS
    }

    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &FeedPage<'_>) -> Result<ChangesPage> {
        // By-seq has more rows than the feed.
        let limit = if page.limit == 0 { 0 } else { u64::MAX };
        let mut read = self.walk.read(trx, instance, &FeedPage { limit, ..*page }).await?;
        let shown = read.rows.into_iter().filter_map(|row| match of(row.doc.as_ref()) {
            RowVerdict::Other | RowVerdict::Unknown => None,
            RowVerdict::Changed => Some(row),
            RowVerdict::Lost => Some(row.lost()),
        });
        read.rows = shown.collect();
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        if let Some(last) = limit.checked_sub(1).and_then(|last| read.rows.get(last)) {
            (read.at_end, read.last_seq) = (true, last.place());
            read.rows.truncate(limit);
        }
        Ok(read)
    }

    fn sees(&self, row: &TailRow) -> RowVerdict {
        let TailDocument::Read { document, .. } = &row.document else { unreachable!("the source needs documents") };
        of(Some(document))
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        self.walk.pending(trx, inner, instance, behind).await
    }
}
