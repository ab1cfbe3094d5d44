//! Lists: rows come in pages, what they make of them goes out as they go.
//!
//! A list that waits, for rows or for who takes its text, holds an engine and its process. So it waits for so long and no
//! longer, less where others want its place, runs for so long between two waits, and is over after so long in all.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use rquickjs::Function;
use tokio::sync::mpsc as answers;

use crate::ask::{Answer, Ask};
use crate::clock::{Clock, now};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::message;
use crate::pool::Task;
use crate::render::input;
use crate::{Caller, Design, Runner};

/// How long a list waits for rows, or for its text to be taken.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a list may take in all.
const LIST_MAX: Duration = Duration::from_secs(600);

/// How often a list that waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// What a list has made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPart {
    /// The response, as a JSON object with `headers` and `code`, as far as the function gives them. The first part has
    /// one; a later one counts if no text came before it.
    pub response: Option<String>,
    /// What is to be sent of its body.
    pub text: String,
    /// Whether it wants rows now; else there is more text, or it is over.
    pub wants_rows: bool,
    /// Whether it is over: whatever rows there are, it wants none.
    pub is_end: bool,
}

/// A page of rows as a JSON array. `None`: there are no more, or none was wanted.
type Page = Option<String>;

/// What connects a list's thread with who runs it.
pub(crate) struct Link {
    pages: mpsc::Receiver<Page>,
    parts: answers::UnboundedSender<ListPart>,
    step_max: Duration,
    /// Since when it runs, once it does.
    began: Option<Duration>,
}

impl Link {
    /// Gives a part on and waits for a page. Meanwhile the list does not run, which `waits` is told; then its deadline is moved, to what is
    /// returned with the page. `is_stopped`: it is not to go on.
    pub(crate) fn exchange(
        &mut self,
        part: ListPart,
        clock: &Clock,
        is_stopped: impl Fn() -> bool,
        waits: impl Fn(bool),
    ) -> (message::Page, Duration) {
        let since = now();
        let end = *self.began.get_or_insert(since) + LIST_MAX;
        let _ = self.parts.send(part);
        waits(true);
        let page = loop {
            match self.pages.recv_timeout(LOOK) {
                Ok(page) => break page.map_or(message::Page::End, message::Page::Rows),
                Err(mpsc::RecvTimeoutError::Timeout) if !is_stopped() && now() < (since + WAIT_MAX).min(end) => {}
                Err(_) => break message::Page::Broken,
            }
        };
        waits(false);
        let until = if page == message::Page::Broken { since } else { end.min(now() + self.step_max) };
        clock.set(until);
        (page, until)
    }

    /// One of nobody's list.
    #[cfg(test)]
    pub(crate) fn loose() -> Link {
        Link { pages: mpsc::channel().1, parts: answers::unbounded_channel().0, step_max: Duration::ZERO, began: None }
    }

    /// It is over.
    pub(crate) fn end(&self) {
        let _ = self.parts.send(ListPart { is_end: true, ..ListPart::default() });
    }
}

/// Gives a part of a list's text on, as [`ListPart`] has it, and waits for a page.
pub(crate) type Exchange = Rc<dyn Fn(bool, &str, &str) -> message::Page>;

/// A list under way. Dropped, it ends.
pub struct List {
    pages: mpsc::SyncSender<Page>,
    parts: answers::UnboundedReceiver<ListPart>,
    run: Pin<Box<dyn Future<Output = Result<Answer>> + Send>>,
    /// It waits for rows.
    wants_rows: bool,
    /// It waits until its last part is taken.
    waits: bool,
    is_over: bool,
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List").field("wants_rows", &self.wants_rows).finish_non_exhaustive()
    }
}

impl Runner {
    /// Begins `lists.NAME`; `head` and `req` are JSON texts. Nothing runs before [`List::next`].
    pub fn list(&self, design: &Design, caller: Caller, name: &str, head: &str, req: &str) -> List {
        let (pages, taken) = mpsc::sync_channel(1);
        let (made, parts) = answers::unbounded_channel();
        let step_max = self.options.batch_max;
        let link = Link { pages: taken, parts: made, step_max, began: None };
        let ask = Ask::List { input: input(&["lists", name], &[head, req]), link };
        let pool = self.pool(&ask);
        let task = Task { design: design.clone(), caller, ask, time_max: LIST_MAX, step_max };
        let run = Box::pin(async move { pool.run(task).await });
        List { pages, parts, run, wants_rows: false, waits: false, is_over: false }
    }
}

impl List {
    /// What it makes next. Where it wants rows, [`List::feed`] comes first.
    ///
    /// # Errors
    /// Those of [`Runner::show`]; what was made before stays. [`Error::TimedOut`]: it ran for too long. [`Error::Busy`]: its caller kept
    /// it waiting for too long.
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
            // What came at its very end comes first.
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

    /// Gives it a page of rows, a JSON array; `None` or an empty one: there are no more. Rows that it does not want are dropped.
    pub fn feed(&mut self, page: Option<String>) {
        if std::mem::take(&mut self.wants_rows) {
            // It has none in hand: there is room. One that is gone says so itself.
            let _ = self.pages.try_send(page);
        }
    }
}

impl Machine {
    pub(crate) fn list(&self, input: &str, exchange: &Exchange, clock: &Clock) -> Result<String> {
        // Then it has no rows, and does not know: what it makes of that cannot be distinguished from a list that has all.
        let is_broken = Rc::new(Cell::new(false));
        let (broken, exchange) = (is_broken.clone(), exchange.clone());
        let answer: Result<String> = self.within(clock, |ctx| {
            let exchange = move |wants_rows: bool, response: String, text: String| -> Option<String> {
                if broken.get() {
                    return None;
                }
                match exchange(wants_rows, &response, &text) {
                    message::Page::Rows(rows) => Some(rows),
                    message::Page::End => None,
                    // The clock, which is over now, ends it.
                    message::Page::Broken => {
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
