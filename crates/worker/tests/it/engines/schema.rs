//! Foreign tables that would silently lose part of a row.

use flatbed_worker::run::RunEnd;
use serde_json::json;

use super::{Engine, Scenario};

pub(super) async fn what_would_be_lost_is_said(place: &mut Scenario<'_>) {
    let columns =
        json!([{"name": "k", "path": "$.k", "type": "integer"}, {"name": "id", "path": "$.id", "type": "timestamptz"}]);
    let table = json!({"alone": true, "table": {"name": "moments", "primary_key": "k", "columns": columns}});
    let job = place.job(json!({}), table, json!({}));
    let is_maria = matches!(place.engine, Engine::MariaDb(_));
    let rounding: &[&str] = if is_maria {
        &["id datetime", "id datetime(3)", "id timestamp(0) NULL"]
    } else {
        place.sql("CREATE DOMAIN seconds AS timestamptz(0)");
        &["id timestamp(0)", "id timestamptz(3)", "id seconds"]
    };
    for column in rounding {
        place.sql(&format!("CREATE TABLE moments (k bigint PRIMARY KEY, {column})"));
        let RunEnd::Unfit(reason) = place.once(&job).await.0 else { panic!("{column}: it is taken") };
        assert!(reason.ends_with(", which does not hold timestamptz"), "{column}: {reason}");
        place.sql("DROP TABLE moments");
    }
    if is_maria {
        // The worker's own tables are created only if they are missing.
        for own in ["flatbed_checkpoints", "flatbed_rows"] {
            place.sql(&format!("RENAME TABLE {own} TO kept; CREATE TABLE {own} (x int) ENGINE=Aria"));
            let reason = format!("the table {own}: its engine Aria has no transactions");
            assert_eq!(place.once(&job).await.0, RunEnd::Unfit(reason));
            place.sql(&format!("DROP TABLE {own}; RENAME TABLE kept TO {own}"));
        }
        for engine in ["MyISAM", "Aria", "MEMORY"] {
            place.sql(&format!("CREATE TABLE moments (k bigint PRIMARY KEY, id datetime(6)) ENGINE={engine}"));
            let reason = format!("the table moments: its engine {engine} has no transactions");
            assert_eq!(place.once(&job).await.0, RunEnd::Unfit(reason));
            place.sql("DROP TABLE moments");
        }
        place.sql("CREATE TABLE moments (k bigint PRIMARY KEY, id datetime(6))");
    } else {
        place.sql("CREATE DOMAIN moment AS timestamptz");
        place.sql("CREATE TABLE moments (k bigint PRIMARY KEY, id moment)");
    }
    place.source.write("a", json!({"t": "order", "k": 1, "id": "2026-11-23T14:05:09.123456Z"}));
    let (end, counts) = place.once(&job).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 1));
    assert_eq!(place.sql("SELECT count(*) FROM moments WHERE CAST(id AS char(40)) LIKE '%09.123456%'"), ["1"]);
}
