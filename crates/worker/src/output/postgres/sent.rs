//! Pipelined requests to a server.

use std::time::Duration;

use flatbed_clock::Clock;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Error;

use super::{Fault, Session};

/// A request that has been sent. The caller may send others before it waits for the answer. The server processes them
/// in order.
pub(super) enum SentRequest<'s, T> {
    /// Answered, or not sent: the write failed, or there is no connection.
    Answered(Result<T, Error>),
    /// Sent, without an answer yet.
    UnderWay(BoxFuture<'s, Result<T, Error>>),
}

impl<'s, T> SentRequest<'s, T> {
    /// Sends a request of a method of [`tokio_postgres::Client`] with a prepared statement. Such a method sends when it
    /// is first polled.
    pub(super) fn now(work: impl Future<Output = Result<T, Error>> + Send + 's) -> SentRequest<'s, T> {
        let mut work = work.boxed();
        match work.as_mut().now_or_never() {
            Some(answer) => SentRequest::Answered(answer),
            None => SentRequest::UnderWay(work),
        }
    }

    /// Waits for the answer, at most for `time_max`.
    pub(super) async fn answer(self, clock: &Clock, time_max: Duration) -> Result<T, Fault> {
        match self {
            SentRequest::Answered(answer) => Ok(answer?),
            SentRequest::UnderWay(work) => Session::in_time(clock, time_max, work).await,
        }
    }
}
