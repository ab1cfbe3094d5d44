//! Requests to a server that are under way.

use std::time::Duration;

use flatbed_clock::Clock;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Error;

use super::{Fault, Session};

/// A request that has been sent. Its answer may be waited for after others have been sent; the server takes them in this order.
pub(super) enum Sent<'s, T> {
    /// It is answered, or was not sent at all: it could not be written, or there is no connection.
    Answered(Result<T, Error>),
    /// It has been sent.
    UnderWay(BoxFuture<'s, Result<T, Error>>),
}

impl<'s, T> Sent<'s, T> {
    /// Sends what a method of [`tokio_postgres::Client`] says, for a statement that is prepared: that is done where it is polled first.
    pub(super) fn now(work: impl Future<Output = Result<T, Error>> + Send + 's) -> Sent<'s, T> {
        let mut work = work.boxed();
        match work.as_mut().now_or_never() {
            Some(answer) => Sent::Answered(answer),
            None => Sent::UnderWay(work),
        }
    }

    /// Waits for the answer, as long as the server may take for it.
    pub(super) async fn answer(self, clock: &Clock, time_max: Duration) -> Result<T, Fault> {
        match self {
            Sent::Answered(answer) => Ok(answer?),
            Sent::UnderWay(work) => Session::in_time(clock, time_max, work).await,
        }
    }
}
