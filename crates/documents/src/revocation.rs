//! Ends answers whose reader loses its rights.

use std::time::Duration;

use flatbed_http::{Recheck, Reply};
use flatbed_service::RightsWatch;

/// Grace period for feeds to send the reason of their end.
const CUT_AFTER: Duration = Duration::from_millis(250);

/// Cuts the answer when its reader has lost the rights that `watch` covers. If the reader sees only parts of databases,
/// they are checked before each part of the answer.
#[must_use]
pub fn while_allowed(reply: Reply, mut watch: RightsWatch) -> Reply {
    let parts = watch.parts().map(|parts| {
        let since = parts.since();
        let recheck: Recheck = Box::new(move |judged_by| Box::pin(parts.is_whole(judged_by)));
        (recheck, since)
    });
    let lost = async move {
        watch.lost().await;
        tokio::time::sleep(CUT_AFTER).await;
    };
    reply.while_checked(lost, parts)
}
