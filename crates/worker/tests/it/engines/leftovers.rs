//! Rows of a document's older state, whose newest state is in the queue.

use flatbed_worker::run::RunEnd;
use serde_json::Value;

use super::{Rule, Scenario};

/// Such rows do not block another document that takes their key and is deleted again.
pub(super) async fn what_the_guilty_left_keeps_nobody(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    place.order("a", 5, 3);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    place.rule(Rule::NoThirteen, true);
    place.order("a", 13, 3);
    place.order("b", 5, 1);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    assert_eq!(place.sql("SELECT id FROM orders"), ["b"]);
    place.source.write("b", Value::Null);
    let (end, counts) = place.once(&job).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 1, 0));
    assert_eq!(place.queue.documents().into_iter().collect::<Vec<_>>(), ["a"]);
    assert_eq!((place.count("orders"), place.count("items")), (0, 0));
}
