//! Ends the function calls of a request that nothing waits for, without dropping its commits.

use flatbed_javascript::{Error, Result};
use tokio::sync::watch;

tokio::task_local! {
    /// True once the current work must not call functions any more.
    static ENDED: watch::Receiver<bool>;
}

/// Runs `work` to its end. Once `ended` resolves, the running, queued and later function calls of `work` fail with
/// [`Error::Busy`], so the documents that they judge are refused. A commit in flight completes.
pub async fn with_functions_until<T>(ended: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    let (end, is_ended) = watch::channel(false);
    let mut work = std::pin::pin!(ENDED.scope(is_ended, work));
    tokio::select! {
        biased;
        () = ended => {}
        done = &mut work => return done,
    }
    end.send_replace(true);
    work.await
}

/// Runs a function call of the current work: see [`with_functions_until`].
pub(crate) async fn unless_ended<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let Ok(mut is_ended) = ENDED.try_with(watch::Receiver::clone) else { return call.await };
    tokio::select! {
        biased;
        _ = is_ended.wait_for(|is_ended| *is_ended) => Err(Error::Busy),
        said = call => said,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn calls_end_and_the_work_completes() {
        let (end, ended) = oneshot::channel::<()>();
        let work = async move {
            let running = async move {
                drop(end);
                std::future::pending::<Result<()>>().await
            };
            (unless_ended(running).await, unless_ended(async { Ok(()) }).await)
        };
        let said = with_functions_until(async move { drop(ended.await) }, work).await;
        assert_eq!(said, (Err(Error::Busy), Err(Error::Busy)));
        let said = with_functions_until(std::future::pending(), unless_ended(async { Ok(()) })).await;
        assert_eq!(said, Ok(()));
        assert_eq!(unless_ended(async { Ok(()) }).await, Ok(()));
    }
}
