//! Mango queries: bounded parsing, and plans that are executed page by page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_recursion::async_recursion as boxed;
use flatbed_layer::json::{self, Value};
use flatbed_layer::{Document, Error, FindOptions, JsonIndexes, QueryDocument, QueryRow, Reader, Refusal};
use flatbed_mango::{
    Bookmark, Catalog, ExecutionStats, Find, Index, MangoError, Plan, Projector, Source, explain_unless,
};
use tokio::time::Instant;

use crate::context::Context;
use crate::json_out;
use crate::selecting::{SelectorError, Selectors};
use crate::turns::Origin;

/// The selector weight, such as that of any regular expression, above which a selector is matched in turns on
/// blocking threads.
const HEAVY: usize = 16;

/// The largest product of the number of indexes and the selector's weight that is planned without a turn: some
/// milliseconds.
const SHORT_PLAN: usize = if cfg!(test) { 100 } else { 100_000 };

/// The largest selector weight that is planned without a turn, since planning compares each list of values with every
/// condition.
const SHORT_PLAN_WEIGHT: usize = if cfg!(test) { 50 } else { 1_000 };

/// The most plans of one query, which is planned again when the database's indexes change.
const PLANS_MAX: usize = 10;

/// The reason why a query, or a change of an index, fails.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// A refusal in CouchDB's words.
    #[error(transparent)]
    Refused(#[from] MangoError),
    /// The selector exceeds its bounds.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A failure of the layer.
    #[error(transparent)]
    Layer(#[from] Error),
}

pub(crate) type Result<T> = std::result::Result<T, QueryError>;

/// The result of a count.
#[derive(Debug)]
pub struct CountResult {
    /// The query.
    pub find: Find,
    /// The used index.
    pub index: Index,
    /// The number of selected documents.
    pub count: u64,
    /// The cost.
    pub stats: ExecutionStats,
}

impl Context {
    /// Parses a request to a database that contains selectors. Slow compilations run on blocking threads.
    ///
    /// # Errors
    /// What `read` refuses; [`SelectorError`].
    pub async fn read_query<T: Send + 'static>(
        &self,
        database: &str,
        body: Value<'static>,
        read: impl FnOnce(&Value<'_>, &dyn Fn() -> bool) -> std::result::Result<T, MangoError> + Send + 'static,
    ) -> Result<T> {
        Ok(self.selectors().read(&self.origin(database), body, read).await??)
    }

    /// Plans a query of a database. Reads no document.
    #[boxed]
    pub async fn query(&self, database: &Reader, find: Find) -> Result<Query> {
        let runtime = self.query_runtime(database);
        let plan = PlannedQuery::new(&runtime, &find, QueryOutput::Documents, None).await?;
        let began = database.clock().now();
        let projector = find.fields.as_deref().map(|fields| Arc::new(Projector::new(fields)));
        Ok(Query { find, projector, plan, plans: 1, is_begun: false, runtime, began })
    }

    /// Counts the documents that match a selector.
    #[boxed]
    pub async fn count(&self, database: &Reader, find: Find) -> Result<CountResult> {
        let (began, runtime) = (database.clock().now(), self.query_runtime(database));
        let mut known = None;
        for _ in 0..PLANS_MAX {
            let mut plan = PlannedQuery::new(&runtime, &find, QueryOutput::Count, known.take()).await?;
            let counted = loop {
                match plan.read(&runtime).await {
                    Ok(Some(_)) => {}
                    Ok(None) => break Ok(plan.stats),
                    Err(error) => break Err(error),
                }
            };
            match counted {
                Err(QueryError::Layer(Error::Refused(Refusal::IndexGone))) => {
                    known = Some(database.json_indexes().await?);
                }
                counted => {
                    let stats = ExecutionStats { time_ms: since(database, began), ..counted? };
                    return Ok(CountResult { find, index: plan.index, count: stats.results_returned, stats });
                }
            }
        }
        Err(Error::from(Refusal::IndexGone).into())
    }

    /// Returns the answer of `_explain` for a query.
    #[boxed]
    pub async fn explain_query(&self, database: &Reader, find: Find) -> Result<Value<'static>> {
        let indexes = database.json_indexes().await?;
        let (is_short, name) = (is_short(&indexes, &find), database.name().to_owned());
        let explain = move |stop: &dyn Fn() -> bool| {
            let (partitioned, indexes) = (indexes.is_partitioned(), indexes.all());
            explain_unless(&find, &Catalog { database: &name, partitioned, indexes }, stop)
        };
        let explained = if is_short {
            explain(&|| false)
        } else {
            let runtime = self.query_runtime(database);
            runtime.selectors.plan(&runtime.origin, explain).await?
        };
        Ok(explained?)
    }

    fn query_runtime(&self, database: &Reader) -> QueryRuntime {
        let (selectors, origin) = (self.selectors().clone(), self.origin(database.name()));
        QueryRuntime { database: database.clone(), selectors, origin }
    }
}

struct QueryRuntime {
    database: Reader,
    selectors: Selectors,
    origin: Origin,
}

impl QueryRuntime {
    /// Chooses the index of a query. A slow choice runs in a turn on a blocking thread.
    async fn choose(
        &self,
        indexes: &Arc<JsonIndexes>,
        find: &Find,
    ) -> Result<std::result::Result<IndexChoice, MangoError>> {
        if is_short(indexes, find) {
            return Ok(indexes.plan(self.database.name(), find).map(IndexChoice::of));
        }
        let (indexes, find, name) = (indexes.clone(), find.clone(), self.database.name().to_owned());
        let choose = move |stop: &dyn Fn() -> bool| indexes.plan_unless(&name, &find, stop).map(IndexChoice::of);
        Ok(self.selectors.plan(&self.origin, choose).await?)
    }
}

/// True if planning a query takes at most some milliseconds.
fn is_short(indexes: &JsonIndexes, find: &Find) -> bool {
    !is_long(indexes.all().len(), find.selector.weight())
}

fn is_long(indexes: usize, weight: usize) -> bool {
    weight > SHORT_PLAN_WEIGHT || indexes.saturating_mul(weight) > SHORT_PLAN
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryOutput {
    Documents,
    Count,
}

/// Sets a flag when it is dropped, so that work for a dropped request stops.
struct StopGuard(Arc<AtomicBool>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

fn stop_pair() -> (StopGuard, Stop) {
    let mark = Arc::new(AtomicBool::new(false));
    (StopGuard(mark.clone()), Arc::new(move || mark.load(Ordering::Relaxed)))
}

/// Plans with the cached indexes, or with indexes that were just read.
async fn plan_query(
    runtime: &QueryRuntime,
    find: &Find,
    read: Option<Arc<JsonIndexes>>,
) -> Result<(Arc<JsonIndexes>, IndexChoice)> {
    let database = &runtime.database;
    let known = if read.is_none() { database.json_indexes_known() } else { None };
    if let Some(known) = known {
        let choice = runtime.choose(&known, find).await?;
        // A query that reads nothing must fail if the database is missing; and a missing index may have been defined
        // since.
        if let Ok(choice) = choice
            && choice.source != Source::Nothing
        {
            return Ok((known, choice));
        }
    }
    let indexes = match read {
        Some(read) => read,
        None => database.json_indexes().await?,
    };
    let choice = runtime.choose(&indexes, find).await??;
    Ok((indexes, choice))
}

/// A plan without borrowed data.
struct IndexChoice {
    index: Index,
    source: Source,
    partition: Option<String>,
    reverse: bool,
    covering: bool,
    residual: Option<flatbed_mango::Selector>,
    after: Option<Bookmark>,
}

impl IndexChoice {
    fn of(plan: Plan<'_>) -> IndexChoice {
        let Plan { index, source, partition, reverse, covering, residual, after } = plan;
        IndexChoice { index: index.clone(), source, partition, reverse, covering, residual, after }
    }

    fn plan(&self) -> Plan<'_> {
        Plan {
            index: &self.index,
            source: self.source.clone(),
            partition: self.partition.clone(),
            reverse: self.reverse,
            covering: self.covering,
            residual: self.residual.clone(),
            after: self.after.clone(),
        }
    }

    fn is_heavy(&self) -> bool {
        self.residual.as_ref().is_some_and(|residual| residual.weight() > HEAVY)
    }
}

/// A running query.
pub struct Query {
    find: Find,
    /// `None`: whole documents are answered.
    projector: Option<Arc<Projector>>,
    plan: PlannedQuery,
    plans: usize,
    is_begun: bool,
    runtime: QueryRuntime,
    began: Instant,
}

struct PlannedQuery {
    index: Index,
    is_nothing: bool,
    is_heavy: bool,
    /// Taken while a page is read elsewhere, and lost if that is cancelled.
    rows: Option<flatbed_layer::Find>,
    /// The last selected row, as of the last page.
    last: Option<Bookmark>,
    stats: ExecutionStats,
    _stopped: StopGuard,
}

impl PlannedQuery {
    async fn new(
        runtime: &QueryRuntime,
        find: &Find,
        output: QueryOutput,
        indexes: Option<Arc<JsonIndexes>>,
    ) -> Result<PlannedQuery> {
        let database = &runtime.database;
        let (indexes, choice) = plan_query(runtime, find, indexes).await?;
        let (stopped, stop) = stop_pair();
        let is_heavy = choice.is_heavy();
        let selectors = runtime.selectors.clone();
        let has_waiters: Stop = Arc::new(move || selectors.has_waiting());
        let has_waiters = is_heavy.then_some(has_waiters);
        let base = FindOptions { is_alone: is_heavy, has_waiters, stop: Some(stop), ..FindOptions::default() };
        let options = match output {
            QueryOutput::Documents => FindOptions {
                skip: find.skip,
                limit: find.limit,
                conflicts: find.conflicts,
                exact_stats: find.execution_stats,
                counts_each: find.r > 1,
                ..base
            },
            QueryOutput::Count => FindOptions { limit: u64::MAX, counts: true, ..base },
        };
        Ok(PlannedQuery {
            index: choice.index.clone(),
            is_nothing: choice.source == Source::Nothing,
            is_heavy,
            rows: Some(database.find(&indexes, &choice.plan(), options)),
            last: None,
            stats: ExecutionStats::default(),
            _stopped: stopped,
        })
    }

    async fn read(&mut self, runtime: &QueryRuntime) -> Result<Option<Vec<QueryRow>>> {
        // No turn is taken while an index is being built.
        if let Some(rows) = &mut self.rows
            && !rows.wait().await?
        {
            return Ok(Some(Vec::new()));
        }
        // A finished query takes no turn.
        let Some(mut rows) = self.rows.take_if(|rows| rows.has_more()) else { return Ok(None) };
        let (rows, page) = if self.is_heavy {
            let page = async move {
                let page = rows.read_page().await;
                (rows, page)
            };
            runtime.selectors.long(&runtime.origin, page).await?
        } else {
            let page = rows.read_page().await;
            (rows, page)
        };
        (self.last, self.stats) = (rows.last().cloned(), rows.stats());
        self.rows = Some(rows);
        Ok(page?)
    }
}

impl Query {
    /// The request.
    pub fn find(&self) -> &Find {
        &self.find
    }

    /// The used index.
    pub fn index(&self) -> &Index {
        &self.plan.index
    }

    /// True if the selector can match no document: then the answer has documents and nothing else.
    pub fn is_nothing(&self) -> bool {
        self.plan.is_nothing
    }

    /// Reads the next rows. Plans again if the database's indexes change before the first row.
    async fn read(&mut self) -> Result<Option<Vec<QueryRow>>> {
        loop {
            match self.plan.read(&self.runtime).await {
                Err(QueryError::Layer(Error::Refused(Refusal::IndexGone)))
                    if !self.is_begun && self.plans < PLANS_MAX =>
                {
                    let indexes = self.runtime.database.json_indexes().await?;
                    self.plan =
                        PlannedQuery::new(&self.runtime, &self.find, QueryOutput::Documents, Some(indexes)).await?;
                    self.plans += 1;
                }
                read => {
                    self.is_begun |= self.plan.stats.keys_examined > 0;
                    return read;
                }
            }
        }
    }

    /// Returns the next documents as JSON text, whole or with the requested fields. The page may be empty while the
    /// query still searches or waits for its index. `None` at the end.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(page) = self.read().await? else { return Ok(None) };
        let Some(projector) = self.projector.clone() else {
            return Ok(Some(page.iter().map(|row| text_of_found(&row.document)).collect()));
        };
        let weight = projector.weight();
        let projected = move |value: &Value<'_>| json::to_vec(&projector.project(value));
        if page.iter().all(|row| matches!(row.document, QueryDocument::Covered(_))) {
            let value = |row: &QueryRow| match &row.document {
                QueryDocument::Covered(value) => Some(projected(value)),
                QueryDocument::Whole(_) => None,
            };
            return Ok(Some(page.iter().filter_map(value).collect()));
        }
        let texts = page.iter().map(|row| text_of_found(&row.document)).collect();
        let QueryRuntime { selectors, origin, .. } = &self.runtime;
        Ok(Some(selectors.each(origin, weight, texts, move |value, _| Ok(projected(value))).await?))
    }

    /// The bookmark after the last row that was read.
    pub fn bookmark(&self) -> String {
        Bookmark::of_answer(self.plan.last.as_ref(), self.find.bookmark.as_deref())
    }

    /// The cost so far.
    pub fn stats(&self) -> ExecutionStats {
        ExecutionStats { time_ms: since(&self.runtime.database, self.began), ..self.plan.stats }
    }
}

fn since(database: &Reader, began: Instant) -> f64 {
    database.clock().since(began).as_secs_f64() * 1_000.0
}

fn text_of_found(document: &QueryDocument) -> Vec<u8> {
    match document {
        QueryDocument::Whole(document) => text_of(document),
        QueryDocument::Covered(value) => json::to_vec(value),
    }
}

/// Returns a document as CouchDB writes it.
pub(crate) fn text_of(document: &Document) -> Vec<u8> {
    let mut text = Vec::new();
    json_out::document(document, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use flatbed_layer::json::Limits;

    use super::*;
    use crate::feeds::tests::Store;
    use crate::rights::Read;

    #[tokio::test]
    async fn a_plan_that_takes_long_has_a_turn() {
        let store = Store::new().await;
        let database = store.context.database("db", Read).await.unwrap();
        let find = |values: usize| {
            let body = format!(r#"{{"selector":{{"a":{{"$in":[{}0]}}}}}}"#, "0,".repeat(values));
            Find::parse(&json::parse(body.as_bytes(), &Limits::default()).unwrap(), None, &|| false).unwrap()
        };
        let turns = || store.context.selectors().compile_turns();
        store.context.query(&database, find(1)).await.unwrap();
        store.context.explain_query(&database, find(1)).await.unwrap();
        assert_eq!(turns(), 0);
        store.context.query(&database, find(200)).await.unwrap();
        assert_eq!(turns(), 1);
        let explained = store.context.explain_query(&database, find(200)).await.unwrap();
        assert_eq!((explained.get("dbname").and_then(Value::as_str), turns()), (Some("db"), 2));
        // The weight alone can require a turn.
        assert!(!is_long(SHORT_PLAN, 1) && is_long(SHORT_PLAN + 1, 1) && is_long(1, SHORT_PLAN_WEIGHT + 1));
    }

    #[tokio::test]
    async fn many_fields_are_projected_in_a_turn() {
        let store = Store::new().await;
        store.put("d", r#"{"a":1}"#).await;
        let database = store.context.database("db", Read).await.unwrap();
        let matched = async |fields: usize| {
            // Two names of one array index: such fields are searched one by one.
            let body = format!(r#"{{"selector":{{}},"fields":["0","+0",{}"a"]}}"#, r#""b","#.repeat(fields));
            let body = json::parse(body.as_bytes(), &Limits::default()).unwrap();
            let mut query = store.context.query(&database, Find::parse(&body, None, &|| false).unwrap()).await.unwrap();
            let before = store.context.selectors().match_turns();
            assert_eq!(query.next_page().await.unwrap(), Some(vec![br#"{"a":1}"#.to_vec()]));
            store.context.selectors().match_turns() - before
        };
        assert_eq!((matched(10).await, matched(40_000).await), (0, 1));
    }
}
