//! Queries of views, streamed page by page.

mod parameters;
mod reading;

use std::time::{Duration, Instant};

use flatbed_http::{Client, PagePermit, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::Value;
use flatbed_layer::{Error as LayerError, Reader, View, ViewUpdate, design_id};
use flatbed_service::Read;
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object, take};
use crate::reply::Interrupted;
use crate::request::{Body, Memory, Request};

pub(crate) use parameters::{Parameters, Rows};
pub(crate) use reading::{CheckedQuery, Page, ViewReading};

/// The largest number of queries in one request; more are 400.
const QUERIES_MAX: usize = 1_000;

/// Timeout of retries while the design document keeps changing before the first page.
const LOOKS_FOR: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Interval at which a query checks whether its view is being built. A query that waits for the build releases its
/// memory.
const READY_AT_ONCE: Duration = Duration::from_millis(250);

/// Handles `_view` paths. `rest`: the path after `_view`.
pub(crate) async fn view(mut request: Request, name: &str, design: &str, rest: &[String]) -> Result<Reply> {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let is_read = matches!(request.method, Method::GET | Method::HEAD);
    match rest[..] {
        [view] if is_read => {
            let parameters = match request.is_of_list {
                true => Parameters::of_list_query(&request.query),
                false => Parameters::of_query(&request.query),
            };
            one(&request, Memory::default(), (name, design, view), parameters).await
        }
        [view] if request.method == Method::POST => {
            let Body { bytes, memory } = json_body(&mut request).await?;
            let parameters = object(&bytes).and_then(|body| match request.is_of_list {
                true => Parameters::of_list_body(&body, &request.query),
                false => Parameters::of_body(&body, &request.query),
            });
            drop(bytes);
            one(&request, memory, (name, design, view), parameters).await
        }
        [view, "queries"] => several(request, (name, design, view)).await,
        _ => request.refuse(Failure::method("GET,POST,HEAD")).await,
    }
}

type ViewName<'n> = (&'n str, &'n str, &'n str);

/// Opens a view. As in CouchDB, a missing database or design document is reported before wrong parameters, and these
/// before a missing view.
async fn open(
    database: &Reader,
    (_, design, view): ViewName<'_>,
    update: ViewUpdate,
    parameters: Result<()>,
) -> Result<View> {
    match database.view(&design_id(design), view, update).await {
        Ok(view) => parameters.map(|()| view),
        Err(error @ LayerError::View(_)) => {
            parameters?;
            Err(error.into())
        }
        Err(error) => Err(error.into()),
    }
}

async fn one(request: &Request, memory: Memory, named: ViewName<'_>, parameters: Result<Parameters>) -> Result<Reply> {
    let database = request.context.database(named.0, Read).await?;
    let (parameters, refused) = match parameters {
        Ok(parameters) => (parameters, Ok(())),
        Err(failure) => (Parameters::default(), Err(failure)),
    };
    let known = if refused.is_ok() { begin_known(&database, named, &parameters, request).await? } else { None };
    let StartedQuery { asked, pages, reading, first, room } = match known {
        Some(begun) => begun,
        None => begin_anew(&database, named, parameters, refused, request).await?,
    };
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let _memory = memory;
        let answer = Answer { database: &database, pages: &pages, asked: &asked };
        if answer.write(reading, first, room, &mut sender).await.is_ok() {
            sender.buffer.push(b'\n');
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

struct StartedQuery {
    asked: CheckedQuery,
    pages: Pages,
    reading: ViewReading,
    first: Page,
    room: PagePermit,
}

async fn begin(view: &View, asked: CheckedQuery, client: Option<&Client>) -> Result<StartedQuery> {
    let pages = Pages::new(asked.has_documents());
    let mut reading = asked.begin(view);
    let (first, room) = unless_gone(client, first_page(view, &mut reading, &pages)).await?;
    Ok(StartedQuery { asked, pages, reading, first, room })
}

/// Begins a query with the design document's current definition.
async fn begin_anew(
    database: &Reader,
    named: ViewName<'_>,
    parameters: Parameters,
    mut refused: Result<()>,
    request: &Request,
) -> Result<StartedQuery> {
    let since = Instant::now();
    loop {
        let view = open(database, named, parameters.update, std::mem::replace(&mut refused, Ok(()))).await?;
        let asked = CheckedQuery::new(parameters.clone(), &view)?.of_list(request.is_of_list);
        match begin(&view, asked, request.client.as_ref()).await {
            Err(failure) if failure.status == StatusCode::NOT_FOUND && since.elapsed() < LOOKS_FOR => {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            begun => return begun,
        }
    }
}

/// Begins a query with this process's cached definition, which saves a transaction. The first page detects a changed
/// definition. `None`: the caller must read the definition, if only to report the error.
async fn begin_known(
    database: &Reader,
    (_, design, view): ViewName<'_>,
    parameters: &Parameters,
    request: &Request,
) -> Result<Option<StartedQuery>> {
    let Some(view) = database.view_known(&design_id(design), view, parameters.update) else { return Ok(None) };
    let Ok(asked) = CheckedQuery::new(parameters.clone(), &view) else { return Ok(None) };
    match begin(&view, asked.of_list(request.is_of_list), request.client.as_ref()).await {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => Ok(None),
        begun => begun.map(Some),
    }
}

async fn several(mut request: Request, named: ViewName<'_>) -> Result<Reply> {
    let (name, design, view) = named;
    let Body { bytes, memory } = json_body(&mut request).await?;
    let queries = object(&bytes).and_then(|body| match take(body.into_owned(), "queries") {
        Some(Value::Array(queries)) => Ok(queries),
        Some(_) => Err(Failure::bad_request("`queries` member must be an array.")),
        None => Err(Failure::bad_request("POST body must include `queries` parameter.")),
    });
    drop(bytes);
    let (queries, refused) = match queries {
        Ok(queries) if queries.len() > QUERIES_MAX => {
            (Vec::new(), Err(Failure::bad_request(format!("at most {QUERIES_MAX} queries"))))
        }
        Ok(queries) => (queries, Parameters::of_all(&request.query).map(drop)),
        Err(failure) => (Vec::new(), Err(failure)),
    };
    let database = request.context.database(name, Read).await?;
    let parameters = std::mem::take(&mut request.query);
    let mut views = Views { database, named, all: Vec::new() };
    let all = open(&views.database, named, ViewUpdate::False, refused).await?;
    let mut has_documents = false;
    // All queries are checked before the answer begins. CouchDB cuts the answer instead.
    for query in &queries {
        has_documents |= CheckedQuery::new(Parameters::of_one(&parameters, query)?, &all)?.has_documents();
        // Parsing copies the request's parameters, which may be long.
        tokio::task::yield_now().await;
    }
    let pages = Pages::new(has_documents);
    let mut first = None;
    if let Some(query) = queries.first() {
        let begun = views.begin(Parameters::of_one(&parameters, query)?, &pages);
        first = Some(unless_gone(request.client.as_ref(), begun).await?);
    }
    let (design, view) = (design.to_owned(), view.to_owned());
    let Views { database, all: opened, .. } = views;
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let _memory = memory;
        let mut views = Views { database: database.clone(), named: ("", &design, &view), all: opened };
        let written = async {
            sender.buffer.extend_from_slice(b"{\"results\":[");
            for (at, query) in queries.into_iter().enumerate() {
                sender.buffer.extend_from_slice(if at > 0 { b",\r\n" } else { b"\r\n" });
                let (asked, reading, page, room) = match first.take() {
                    Some(first) => first,
                    None => {
                        let begun = views.begin(Parameters::of_one(&parameters, &query)?, &pages);
                        sender.unless_gone(begun).await??
                    }
                };
                let answer = Answer { database: &database, pages: &pages, asked: &asked };
                answer.write(reading, page, room, &mut sender).await?;
            }
            Ok::<(), Interrupted>(())
        };
        if written.await.is_ok() {
            sender.buffer.extend_from_slice(b"\r\n]}\n");
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

/// A view, opened once per update mode.
struct Views<'n> {
    database: Reader,
    named: ViewName<'n>,
    all: Vec<(ViewUpdate, View)>,
}

impl Views<'_> {
    async fn begin(
        &mut self,
        parameters: Parameters,
        pages: &Pages,
    ) -> Result<(CheckedQuery, ViewReading, Page, PagePermit)> {
        let since = Instant::now();
        loop {
            let view = self.get(parameters.update).await?;
            let asked = CheckedQuery::new(parameters.clone(), &view)?;
            let mut reading = asked.begin(&view);
            match first_page(&view, &mut reading, pages).await {
                Err(failure) if failure.status == StatusCode::NOT_FOUND && since.elapsed() < LOOKS_FOR => {
                    self.all.retain(|(update, _)| *update != parameters.update);
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                }
                begun => return begun.map(|(page, room)| (asked, reading, page, room)),
            }
        }
    }

    async fn get(&mut self, update: ViewUpdate) -> Result<View> {
        if let Some((_, view)) = self.all.iter().find(|(found, _)| *found == update) {
            return Ok(view.clone());
        }
        let view = open(&self.database, self.named, update, Ok(())).await?;
        self.all.push((update, view.clone()));
        Ok(view)
    }
}

async fn unless_gone<T>(client: Option<&Client>, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        () = Client::wait_until_gone(client) => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "gone", "the client is gone")),
        done = work => done,
    }
}

/// Reads the first page with its memory reservation. A query that waits for the view's build holds no memory.
pub(crate) async fn first_page(view: &View, reading: &mut ViewReading, pages: &Pages) -> Result<(Page, PagePermit)> {
    let room = first_room(pages).await?;
    if let Some(page) = unless_waiting(reading.next_page(), || view.is_waiting()).await {
        return charge_page(page?, room);
    }
    drop(room);
    CheckedQuery::wait_for(view).await?;
    let room = first_room(pages).await?;
    charge_page(reading.next_page().await?, room)
}

/// Runs work, but gives up with `None` if it waits for a build. Slow work is not restarted, because it would be as slow
/// again.
async fn unless_waiting<T>(work: impl Future<Output = T>, is_waiting: impl Fn() -> bool) -> Option<T> {
    tokio::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(READY_AT_ONCE, &mut work).await {
            return Some(done);
        }
        if is_waiting() {
            return None;
        }
    }
}

/// Charges the first page to its memory reservation; a query without rows has an empty page.
fn charge_page(page: Option<Page>, mut room: PagePermit) -> Result<(Page, PagePermit)> {
    let page = page.unwrap_or_default();
    shrink(&mut room, page.bytes());
    Ok((page, room))
}

struct Answer<'a> {
    database: &'a Reader,
    pages: &'a Pages,
    asked: &'a CheckedQuery,
}

impl Answer<'_> {
    async fn write(
        &self,
        mut reading: ViewReading,
        first: Page,
        mut room: PagePermit,
        sender: &mut Sender,
    ) -> std::result::Result<(), Interrupted> {
        self.asked.write_head(&first, &mut sender.buffer);
        let (mut page, mut is_first) = (Some(first), true);
        while let Some(rows) = page {
            self.asked.write_page(self.database, rows, &mut is_first, sender).await?;
            drop(room);
            room = sender.page_room(self.pages).await?;
            page = sender.unless_gone(reading.next_page()).await??;
            shrink(&mut room, page.as_ref().map_or(0, Page::bytes));
        }
        sender.buffer.extend_from_slice(b"\r\n]}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_slow_is_not_begun_again() {
        let slow = async {
            flatbed_testkit::pass(2 * READY_AT_ONCE).await;
            7
        };
        assert_eq!(unless_waiting(slow, || false).await, Some(7));
        assert_eq!(unless_waiting(std::future::pending::<()>(), || true).await, None);
        assert_eq!(unless_waiting(std::future::ready(7), || true).await, Some(7));
    }
}
