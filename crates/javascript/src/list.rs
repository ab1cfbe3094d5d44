//! Lists: rows arrive in pages, and the text leaves as the function produces it.
//!
//! A list that waits for rows or for its reader holds an engine and its process. So each wait is bounded, and shorter
//! if other calls need the thread; so are the time between two waits and the time in total.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use rquickjs::Function;
use tokio::sync::mpsc as answers;

use crate::clock::{Clock, now};
use crate::engine_request::{Answer, EngineRequest};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::message;
use crate::pool::Task;
use crate::render::input;
use crate::{Caller, Design, Runner};

/// The longest wait of a list for rows or for its reader.
const WAIT_MAX: Duration = Duration::from_secs(10);

const LIST_MAX: Duration = Duration::from_secs(600);

/// The interval at which a waiting list checks whether it must stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A part of the output of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPart {
    /// The response, a JSON object with `headers` and `code` as far as the function sets them. The first part has
    /// one. A later one counts only if no text preceded it.
    pub response: Option<String>,
    /// The text to be sent.
    pub text: String,
    /// True if the list waits for rows. False if more text follows or the list is over.
    pub wants_rows: bool,
    /// True if the list is over and accepts no more rows.
    pub is_end: bool,
}

/// A page of rows as a JSON array. `None` if there are no more rows, or the list waits for its reader only.
type RowPage = Option<String>;

/// The thread's end of the channels to a [`List`].
pub(crate) struct Link {
    pages: mpsc::Receiver<RowPage>,
    parts: answers::UnboundedSender<ListPart>,
    step_max: Duration,
    began: Option<Duration>,
}

impl Link {
    /// Sends a part and waits for a page. `waits` brackets the wait. Afterwards the deadline moves to the time
    /// returned with the page. `is_stopped`: returns true if the list must stop.
    pub(crate) fn exchange(
        &mut self,
        part: ListPart,
        clock: &Clock,
        is_stopped: impl Fn() -> bool,
        waits: impl Fn(bool),
    ) -> (message::ListPage, Duration) {
        let since = now();
        let end = *self.began.get_or_insert(since) + LIST_MAX;
        let _ = self.parts.send(part);
        waits(true);
        let page = loop {
            match self.pages.recv_timeout(POLL_INTERVAL) {
                Ok(page) => break page.map_or(message::ListPage::End, message::ListPage::Rows),
                Err(mpsc::RecvTimeoutError::Timeout) if !is_stopped() && now() < (since + WAIT_MAX).min(end) => {}
                Err(_) => break message::ListPage::Broken,
            }
        };
        waits(false);
        let until = if page == message::ListPage::Broken { since } else { end.min(now() + self.step_max) };
        clock.set(until);
        (page, until)
    }

    #[cfg(test)]
    pub(crate) fn loose() -> Link {
        Link { pages: mpsc::channel().1, parts: answers::unbounded_channel().0, step_max: Duration::ZERO, began: None }
    }

    pub(crate) fn end(&self) {
        let _ = self.parts.send(ListPart { is_end: true, ..ListPart::default() });
    }
}

/// Sends a part of a list's text with the members of [`ListPart`] and waits for a page.
pub(crate) type Exchange = Rc<dyn Fn(bool, &str, &str) -> message::ListPage>;

/// A list in progress. It ends when dropped.
pub struct List {
    pages: mpsc::SyncSender<RowPage>,
    parts: answers::UnboundedReceiver<ListPart>,
    run: Pin<Box<dyn Future<Output = Result<Answer>> + Send>>,
    wants_rows: bool,
    /// True if the list waits until its last part is taken.
    waits: bool,
    is_over: bool,
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List").field("wants_rows", &self.wants_rows).finish_non_exhaustive()
    }
}

impl Runner {
    /// Begins `lists.NAME`; `head` and `req` are JSON texts. The function runs only once [`List::next`] is called.
    pub fn list(&self, design: &Design, caller: Caller, name: &str, head: &str, req: &str) -> List {
        let (pages, taken) = mpsc::sync_channel(1);
        let (made, parts) = answers::unbounded_channel();
        let step_max = self.options.batch_max;
        let link = Link { pages: taken, parts: made, step_max, began: None };
        let ask = EngineRequest::List { input: input(&["lists", name], &[head, req]), link };
        let pool = self.pool(&ask);
        let task = Task { design: design.clone(), caller, ask, time_max: LIST_MAX, step_max };
        let run = Box::pin(async move { pool.run(task).await });
        List { pages, parts, run, wants_rows: false, waits: false, is_over: false }
    }
}

impl List {
    /// Returns the next part. If the last part wants rows, the caller calls [`List::feed`] first.
    ///
    /// # Errors
    /// Those of [`Runner::show`]; earlier parts stay valid. [`Error::TimedOut`] if the function ran too long;
    /// [`Error::Busy`] if its caller kept it waiting too long.
    pub async fn next(&mut self) -> Result<ListPart> {
        if self.is_over {
            return Ok(ListPart { is_end: true, ..ListPart::default() });
        }
        if std::mem::take(&mut self.waits) {
            let _ = self.pages.try_send(None);
        }
        let part = std::future::poll_fn(|context| {
            if let Poll::Ready(Some(part)) = self.parts.poll_recv(context) {
                return Poll::Ready(Ok(Some(part)));
            }
            let Poll::Ready(ended) = self.run.as_mut().poll(context) else { return Poll::Pending };
            // A last part precedes the end.
            match self.parts.try_recv() {
                Ok(part) => Poll::Ready(Ok(Some(part))),
                Err(_) => Poll::Ready(ended.map(|_| None)),
            }
        });
        match part.await {
            Ok(Some(part)) => {
                self.wants_rows = part.wants_rows;
                self.is_over = part.is_end;
                self.waits = !part.wants_rows && !part.is_end;
                Ok(part)
            }
            Ok(None) => Err(Error::OutOfResources),
            Err(error) => {
                self.is_over = true;
                Err(error)
            }
        }
    }

    /// Passes a page of rows, a JSON array; `None` or an empty array if there are no more. Drops rows that the list
    /// does not want.
    pub fn feed(&mut self, page: Option<String>) {
        if std::mem::take(&mut self.wants_rows) {
            // The channel has room: the list waits with no page in hand. A list that is gone reports its own error.
            let _ = self.pages.try_send(page);
        }
    }
}

impl Machine {
    pub(crate) fn list(&self, input: &str, exchange: &Exchange, clock: &Clock) -> Result<String> {
        // A broken list gets no rows. Its output would look like that of a complete list, so it becomes an error
        // below.
        let is_broken = Rc::new(Cell::new(false));
        let (broken, exchange) = (is_broken.clone(), exchange.clone());
        let answer: Result<String> = self.within(clock, |ctx| {
            let exchange = move |wants_rows: bool, response: String, text: String| -> Option<String> {
                if broken.get() {
                    return None;
                }
                match exchange(wants_rows, &response, &text) {
                    message::ListPage::Rows(rows) => Some(rows),
                    message::ListPage::End => None,
                    // The deadline has passed, so the clock ends the function.
                    message::ListPage::Broken => {
                        broken.set(true);
                        None
                    }
                }
            };
            self.export(ctx, "render")?.call(("list", input, Function::new(ctx.clone(), exchange)?))
        });
        let answer = answer?;
        if is_broken.get() {
            return Err(Error::TimedOut(WAIT_MAX));
        }
        match answer.strip_prefix('!') {
            Some(failure) => Err(crate::failure(failure)),
            None => Ok(answer),
        }
    }
}
