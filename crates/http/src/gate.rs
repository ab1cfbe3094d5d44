//! Answers whose reader may lose the right to what is in them, between when that was judged and when it is sent.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// What goes on after it was found that it may is looked at again before it is sent, where that was longer ago.
const JUDGED_WITHIN: Duration = Duration::from_millis(500);

/// A look whether an answer may go on.
type Looking = Pin<Box<dyn Future<Output = bool> + Send>>;

/// By what something in an answer was judged, as whoever looks again knows it.
pub type JudgedBy = Arc<dyn Any + Send + Sync>;

/// Says whether an answer may go on, as of now: with what was judged by this, if that is said, else with what was judged when its request
/// came and since.
pub type Recheck = Box<dyn Fn(Option<JudgedBy>) -> Looking + Send + Sync>;

/// When, and by what, a piece of an answer was judged.
#[derive(Clone)]
pub struct Mark {
    pub(crate) at: Instant,
    pub(crate) by: Option<JudgedBy>,
}

impl Mark {
    /// Whether both were judged by the same.
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

/// Lets pieces of an answer through whose reader may still have what is in them: each that was judged longer than 500 ms ago
/// waits until that is looked at again. So what a slow reader has not taken is not sent once they have lost it.
pub struct Gate {
    recheck: Recheck,
    /// What was judged when its request came.
    begun: Mark,
    /// What was found to be so still, as of when that look began.
    found: Option<Mark>,
    /// A look under way.
    looking: Option<(Mark, Looking)>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("begun", &self.begun).field("found", &self.found).finish_non_exhaustive()
    }
}

impl Gate {
    /// For an answer that was judged when its request came.
    pub(crate) fn new(recheck: Recheck, judged: Instant) -> Gate {
        Gate { recheck, begun: Mark { at: judged, by: None }, found: None, looking: None }
    }

    /// Whether a piece may be sent; `judged`: when all that is in it was judged, if that was later than when its request came. The same piece is
    /// asked about until that is known.
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

    /// The same, for who waits.
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
    use crate::outlet::Outgoing;
    use crate::reply::{BrokenOff, CHUNK_BYTES, Reply};

    /// What was judged long ago is looked at before it is sent, what was judged just now is not, and one look is for all that follows soon.
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
                sender.judged(judged, None).await.unwrap();
            }
            sender.buffer.extend_from_slice(b"a");
            sender.flush().await.unwrap();
        };
        let is_sent = |frame: Option<Result<Frame<Outgoing>, BrokenOff>>| frame.unwrap().is_ok();
        write(None).await;
        assert!(is_sent(next().await));
        assert_eq!(looks.load(Ordering::Relaxed), 0);
        write(None).await;
        pass(Duration::from_millis(600)).await;
        assert!(is_sent(next().await));
        write(None).await;
        assert!(is_sent(next().await));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        // What a follower takes as it comes needs no look, though its answer began long ago.
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
