//! Rechecks the reader's access to an answer between its creation and its transmission.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// The age above which a decision is checked again before data is sent.
const JUDGED_WITHIN: Duration = Duration::from_millis(500);

type AccessCheck = Pin<Box<dyn Future<Output = bool> + Send>>;

/// The decision by which part of an answer was allowed. Opaque to this crate.
pub type AccessDecision = Arc<dyn Any + Send + Sync>;

/// Checks whether an answer may continue: for the given decision, or else for the decision at the time of the
/// request.
pub type Recheck = Box<dyn Fn(Option<AccessDecision>) -> AccessCheck + Send + Sync>;

/// The time and the decision by which a piece of an answer was allowed.
#[derive(Clone)]
pub struct Mark {
    pub(crate) at: Instant,
    pub(crate) by: Option<AccessDecision>,
}

impl Mark {
    pub(crate) fn is_by(&self, other: &Mark) -> bool {
        match (&self.by, &other.by) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mark").field(&self.at).finish()
    }
}

/// Holds back pieces of an answer that were allowed more than 500 ms ago until access has been rechecked. So data
/// that a slow reader has not fetched is not sent after its access was revoked.
pub struct Gate {
    recheck: Recheck,
    /// The decision at the time of the request.
    begun: Mark,
    /// The last positive check, with the time at which it began.
    found: Option<Mark>,
    /// A check in progress with its mark.
    looking: Option<(Mark, AccessCheck)>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("begun", &self.begun).field("found", &self.found).finish_non_exhaustive()
    }
}

impl Gate {
    /// `judged`: the time of the decision on the request.
    pub(crate) fn new(recheck: Recheck, judged: Instant) -> Gate {
        Gate { recheck, begun: Mark { at: judged, by: None }, found: None, looking: None }
    }

    /// Returns whether a piece may be sent. `judged`: the decision on the piece if it is later than that on the
    /// request. The caller polls with the same piece until this is ready.
    pub(crate) fn poll_pass(&mut self, context: &mut Context<'_>, judged: Option<&Mark>) -> Poll<bool> {
        let (look, looking) = match &mut self.looking {
            Some((look, looking)) => (look, looking),
            None => {
                let judged = judged.unwrap_or(&self.begun);
                let found = self.found.as_ref().filter(|found| found.is_by(judged));
                let at = found.map_or(judged.at, |found| found.at.max(judged.at));
                if at.elapsed() <= JUDGED_WITHIN {
                    return Poll::Ready(true);
                }
                let look = Mark { at: Instant::now(), by: judged.by.clone() };
                let (look, looking) = self.looking.insert((look, (self.recheck)(judged.by.clone())));
                (look, looking)
            }
        };
        let passes = std::task::ready!(looking.as_mut().poll(context));
        self.found = Some(look.clone());
        self.looking = None;
        Poll::Ready(passes)
    }

    pub(crate) async fn passes(&mut self, judged: Option<&Mark>) -> bool {
        std::future::poll_fn(|context| self.poll_pass(context, judged)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use flatbed_testkit::pass;
    use hyper::StatusCode;
    use hyper::body::{Body, Frame};

    use super::*;
    use crate::outlet::OutgoingText;
    use crate::reply::{AbortedBody, CHUNK_BYTES, Reply};

    /// Old decisions are rechecked, recent ones are not, and one check covers all that follows soon.
    #[tokio::test(start_paused = true)]
    async fn what_was_judged_long_ago_is_looked_at_again() {
        let (looks, holds) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        let (counted, held) = (Arc::clone(&looks), Arc::clone(&holds));
        let recheck: Recheck = Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let held = Arc::clone(&held);
            Box::pin(async move {
                pass(Duration::from_millis(5)).await;
                held.load(Ordering::Relaxed)
            })
        });
        let (reply, mut sender) = Reply::stream();
        let mut body = reply.while_checked(std::future::pending(), Some((recheck, Instant::now()))).body;
        let mut next = async || std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let mut write = async |judged: Option<Instant>| {
            if let Some(judged) = judged {
                sender.mark_judged(judged, None).await.unwrap();
            }
            sender.buffer.extend_from_slice(b"a");
            sender.flush().await.unwrap();
        };
        let is_sent = |frame: Option<Result<Frame<OutgoingText>, AbortedBody>>| frame.unwrap().is_ok();
        write(None).await;
        assert!(is_sent(next().await));
        assert_eq!(looks.load(Ordering::Relaxed), 0);
        write(None).await;
        pass(Duration::from_millis(600)).await;
        assert!(is_sent(next().await));
        write(None).await;
        assert!(is_sent(next().await));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        // A live feed needs no recheck, though its answer began long ago.
        pass(Duration::from_secs(60)).await;
        write(Some(Instant::now())).await;
        assert!(is_sent(next().await));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        write(Some(Instant::now())).await;
        pass(Duration::from_millis(600)).await;
        holds.store(false, Ordering::Relaxed);
        assert!(!is_sent(next().await));
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_is_looked_at_while_it_is_sent() {
        let holds = Arc::new(AtomicBool::new(true));
        let held = Arc::clone(&holds);
        let recheck: Recheck = Box::new(move |_| Box::pin(std::future::ready(held.load(Ordering::Relaxed))));
        let mut reply = Reply::json(StatusCode::OK, vec![b'1'; 4 * CHUNK_BYTES]);
        reply = reply.while_checked(std::future::pending(), Some((recheck, Instant::now())));
        reply.find_room(&crate::outlet::tests::any()).await.unwrap();
        let mut next = async || std::future::poll_fn(|context| Pin::new(&mut reply.body).poll_frame(context)).await;
        assert!(next().await.unwrap().is_ok());
        pass(Duration::from_millis(600)).await;
        assert!(next().await.unwrap().is_ok());
        holds.store(false, Ordering::Relaxed);
        assert!(next().await.unwrap().is_ok());
        pass(Duration::from_millis(600)).await;
        assert!(next().await.unwrap().is_err());
    }
}
