//! All documents between some ids, asked one by one.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use flatbed_layer::json::Value;
use flatbed_layer::{AllDocs, AllDocsQuery, Document, DocumentId, Reader};
use flatbed_mango::{Bookmark, ExecutionStats, Find, IdRange, Plan, Selector, Source};

use crate::queries::{Result, text_of};
use crate::selecting::{SelectorError, Selectors};

/// A walk, and the id in it that is not meant.
type Part = (AllDocsQuery, Option<String>);

/// A plan that is carried out.
pub(crate) struct Scan {
    database: Reader,
    /// What is still to be walked, behind the walk under way.
    ranges: VecDeque<Part>,
    walk: Option<(AllDocs, Option<String>)>,
    selector: Option<Arc<Selector>>,
    selectors: Selectors,
    skip: u64,
    left: u64,
    /// Whether it goes on to the first row that is one too many, as CouchDB does: so it costs what CouchDB says.
    beyond: bool,
    over: bool,
    last: Option<Bookmark>,
    stats: ExecutionStats,
}

impl Scan {
    pub(crate) fn new(database: &Reader, find: &Find, plan: Plan<'_>, selectors: Selectors) -> Scan {
        // Json indexes cannot be read yet: all documents are asked instead.
        let (ranges, selector) = match plan.source {
            Source::Ids(ranges) => (ranges, plan.residual),
            Source::Nothing => (Vec::new(), None),
            Source::Keys(_) => {
                let all = IdRange { start: Bound::Unbounded, end: Bound::Unbounded };
                (vec![all], Some(find.selector.clone()))
            }
        };
        let after = plan.after.as_ref().map(|after| after.id.as_str());
        let query = |range: IdRange| walk_of(range, plan.reverse, after, find.conflicts);
        let mut ranges: VecDeque<Part> = ranges.into_iter().filter_map(query).collect();
        if plan.reverse {
            ranges.make_contiguous().reverse();
        }
        Scan {
            database: database.clone(),
            ranges,
            walk: None,
            selector: selector.map(Arc::new),
            selectors,
            skip: find.skip,
            left: find.limit,
            beyond: find.execution_stats,
            over: false,
            last: None,
            stats: ExecutionStats::default(),
        }
    }

    /// The next documents, perhaps none; `None` at the end.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Vec<Document>>> {
        if self.over || self.left == 0 && !self.beyond {
            return Ok(None);
        }
        let Some(rows) = self.rows().await? else {
            self.over = true;
            return Ok(None);
        };
        let documents: Vec<Document> = rows.into_iter().filter(|row| !DocumentId::of(&row.id).is_design()).collect();
        let selected = match self.selector.clone() {
            None => vec![true; documents.len()],
            Some(selector) => {
                let texts = documents.iter().map(text_of).collect();
                let weight = selector.weight();
                let matches = move |value: &Value<'_>, stop: &dyn Fn() -> bool| {
                    selector.matches_unless(value, stop).map_err(SelectorError::Exhausted)
                };
                self.selectors.each(weight, texts, matches).await?
            }
        };
        let mut found = Vec::new();
        for (document, selected) in documents.into_iter().zip(selected) {
            if self.left == 0 && !self.beyond {
                break;
            }
            self.stats.keys_examined += 1;
            self.stats.docs_examined += 1;
            if !selected {
                continue;
            }
            if self.left == 0 {
                self.over = true;
                break;
            }
            let key = Value::String(document.id.clone().into());
            self.last = Some(Bookmark { id: document.id.clone(), key });
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.left -= 1;
            self.stats.results_returned += 1;
            found.push(document);
        }
        Ok(Some(found))
    }

    pub(crate) fn last(&self) -> Option<&Bookmark> {
        self.last.as_ref()
    }

    pub(crate) fn stats(&self) -> ExecutionStats {
        self.stats
    }

    async fn rows(&mut self) -> Result<Option<Vec<Document>>> {
        loop {
            if let Some((walk, without)) = &mut self.walk
                && let Some(page) = walk.next_page().await?
            {
                let documents = page.into_iter().filter_map(|row| row.doc);
                return Ok(Some(documents.filter(|document| Some(&document.id) != without.as_ref()).collect()));
            }
            let Some((query, without)) = self.ranges.pop_front() else { return Ok(None) };
            self.walk = Some((self.database.all_docs(query), without));
        }
    }
}

/// A walk through a range behind a row; `None`: there is nothing.
fn walk_of(range: IdRange, reverse: bool, after: Option<&str>, conflicts: bool) -> Option<Part> {
    // The next id in the order of bytes.
    let behind = |id: String| id + "\0";
    let mut low = match range.start {
        Bound::Unbounded => None,
        Bound::Included(id) => Some(id),
        Bound::Excluded(id) => Some(behind(id)),
    };
    let (mut high, mut exclusive) = match range.end {
        Bound::Unbounded => (None, false),
        Bound::Included(id) => (Some(id), false),
        Bound::Excluded(id) => (Some(id), true),
    };
    match after {
        Some(after) if reverse && high.as_deref().is_none_or(|high| after <= high) => {
            (high, exclusive) = (Some(after.to_owned()), true);
        }
        Some(after) if !reverse && low.as_deref().is_none_or(|low| low <= after) => {
            low = Some(behind(after.to_owned()))
        }
        _ => {}
    }
    if let (Some(low), Some(high)) = (&low, &high)
        && (low > high || exclusive && low == high)
    {
        return None;
    }
    let without = high.clone().filter(|_| exclusive);
    let mut walk = AllDocsQuery { descending: reverse, include_docs: true, conflicts, ..AllDocsQuery::default() };
    (walk.start, walk.end) = if reverse { (high, low) } else { (low, high) };
    Some((walk, without))
}
