//! Limits of what is read from a target at once.

use flatbed_testkit::until_some;
use flatbed_worker::connect::AnyTarget;
use flatbed_worker::output::tables::{Claims, Driver, OpenParameters, Tables};
use flatbed_worker::output::{Delivery, DeliveryState, Target};
use flatbed_worker::run::RunEnd;
use serde_json::json;

use super::Scenario;

/// A batch reads only the claims of its documents, so that its cost does not grow with the tables.
pub(super) async fn claims_are_read_by_their_documents(place: &mut Scenario<'_>) {
    for at in 0..1_000 {
        place.order(&format!("d{at}"), at, 0);
    }
    let job = place.job(json!({}), json!({}), json!({"processing": {"batch": 50}}));
    assert_eq!(place.once(&job).await.1.delivered, 1_000);
    // The server updates its counters when a session ends or later.
    let read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'flatbed_rows' AND n_tup_ins = 1000";
    let look = async || place.sql(read).first().map(|read| read.parse::<u64>().unwrap());
    let read = until_some("the server says what was read", look).await;
    assert!(read <= 1_000, "{read} claims were read");
}

pub(super) async fn no_more_claims_are_read_than_there_is_room_for(place: &mut Scenario<'_>) {
    let job = place.plain_job();
    place.order("a", 1, 5);
    place.order("b", 2, 5);
    assert_eq!(place.once(&job).await.0, RunEnd::Done);
    let (mut target, epoch) = (place.target(&job), place.epoch + 1);
    target.begin(epoch).await.unwrap();
    match &mut target {
        AnyTarget::Sqlite(tables) => read(tables, epoch).await,
        AnyTarget::Postgres(tables) => read(tables, epoch).await,
        AnyTarget::MySql(tables) => read(tables, epoch).await,
        _ => unreachable!(),
    }
    // Unread claims do not disturb the connection.
    let gone = |id: &str, seq: &str| Delivery {
        id: id.into(),
        rev: "2-x".into(),
        seq: seq.into(),
        state: DeliveryState::Gone,
        attachments: Vec::new(),
    };
    target.deliver(vec![gone("a", "3"), gone("b", "4")], None).await.unwrap();
    assert_eq!((place.count("orders"), place.count("flatbed_rows")), (0, 0));
}

async fn read<D: Driver>(tables: &mut Tables<D>, epoch: u64) {
    let driver = tables.driver();
    // A claim takes at least 14 bytes.
    for (count_max, bytes_max, counts) in [(12, 1 << 20, 12..=12), (3, 1 << 20, 4..=4), (100, 40, 2..=3)] {
        driver.connect().await.unwrap();
        let opening = OpenParameters {
            job: "j".into(),
            epoch: epoch as i64,
            checkpoint: None,
            documents: vec!["a".into(), "b".into()],
            claims: Claims::within(count_max, bytes_max),
        };
        let claims = driver.open(opening).await.unwrap().unwrap();
        assert!(counts.contains(&claims.count()), "{count_max} {bytes_max}: {}", claims.count());
        assert_eq!(claims.all().is_some(), count_max == 12);
        driver.abandon().await;
    }
}
