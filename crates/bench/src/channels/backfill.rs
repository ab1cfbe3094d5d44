//! A live follower gets a channel of many documents, while rows of other channels pass to others and to it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    Aim, ChannelsError, Figure, Options, Result,
    live::{drain, write},
    world::{World, token},
};
use crate::{
    feeds::{
        followers::{FeedRequest, Followers, Plan},
        tally::Tally,
    },
    stats::{percentiles, rounded},
};

const DATABASE: &str = "/late";
/// The users that follow the channel which is written to meanwhile.
const OTHERS: usize = 20;
const RATE: u64 = 100;
/// The time between the others' first rows and the grant.
const BEFORE: Duration = Duration::from_secs(1);

/// The number of the channel's documents. Documents written meanwhile have higher numbers.
fn documents(options: &Options) -> u64 {
    (options.documents / 10).max(1)
}

fn late(round: u64) -> String {
    format!("late{round}")
}

/// Fills the channel, and creates the users.
pub(super) async fn fill(world: &World, options: &Options) -> Result<()> {
    world.make(DATABASE, &json!({"channels": true})).await?;
    world.fill(DATABASE, documents(options), |_| json!({"channels": ["archive"]}).to_string()).await?;
    let other = |user| (format!("other{user}"), json!({"admin_channels": ["now"]}));
    world.put_users(DATABASE, OTHERS as u64, other).await
}

async fn follow(world: &World, names: Vec<String>, tally: &Arc<Tally>) -> Result<Followers> {
    let asks: Vec<FeedRequest> =
        names.iter().map(|name| FeedRequest { database: DATABASE.to_owned(), authorization: token(name) }).collect();
    let feeds = asks.len();
    let plan = Plan { address: world.admin.address, feeds, databases: 1, streams: 0, asks: Some(asks.into()) };
    let followers = Followers::start(plan, tally.clone())?;
    if followers.opened(feeds).await {
        return Ok(followers);
    }
    Err(ChannelsError::Wrong(format!("not all feeds began: {:?}", followers.stop()?.failures)))
}

/// Measures backfills, each of a user that has not had the channel.
pub(super) async fn run(world: World, options: &Options, is_model: bool) -> Result<Vec<Figure>> {
    let count = documents(options);
    let (mut rates, mut worst_ms, mut rounds) = (Vec::new(), 0.0_f64, Vec::new());
    for round in 0..options.rounds.max(1) {
        let id = round + if is_model { 1_000 } else { 0 };
        world.put_users(DATABASE, 1, move |_| (late(id), json!({"admin_channels": ["own"]}))).await?;
        let writes = RATE * options.seconds;
        let from = count + id * writes;
        let size = usize::try_from(from + writes).unwrap_or(usize::MAX);
        let (tally, other_tally) = (Arc::new(Tally::new(size)), Arc::new(Tally::new(size)));
        let late_follower = follow(&world, vec![late(id)], &tally).await?;
        let others = follow(&world, (0..OTHERS).map(|user| format!("other{user}")).collect(), &other_tally).await?;
        tokio::time::sleep(BEFORE).await;
        let numbers = from as usize..size;
        let writing = write(&world.admin, DATABASE, &other_tally, numbers.clone(), RATE, |_| "now".to_owned());
        let giving = async {
            tokio::time::sleep(BEFORE).await;
            let given = move |_| (late(id), json!({"admin_channels": ["own", "archive"]}));
            world.put_users(DATABASE, 1, given).await?;
            let begun = Instant::now();
            drain(&tally, count).await;
            Ok::<_, ChannelsError>(begun.elapsed().as_secs_f64())
        };
        let (wrote_ms, took_s) = tokio::join!(writing, giving);
        let (mut write_ms, took_s) = (wrote_ms?, took_s?);
        drain(&other_tally, writes * OTHERS as u64).await;
        let (last, missing) = other_tally.last_rows_of(numbers, OTHERS as u32);
        let rows = tally.rows();
        for follower in [late_follower, others] {
            if let Some(failure) = follower.stop()?.failures.first() {
                return Err(ChannelsError::Wrong(failure.clone()));
            }
        }
        if missing > 0 || rows != count {
            return Err(ChannelsError::Wrong(format!("{rows} rows of {count}; {missing} of others are missing")));
        }
        rates.push(count as f64 / took_s);
        worst_ms = worst_ms.max(last["p99"].as_f64().unwrap_or(f64::INFINITY));
        rounds.push(json!({
            "rows": count, "s": rounded(took_s, 1000.0), "acknowledged_to_last_row_ms": last,
            "write_ms": percentiles(&mut write_ms),
        }));
    }
    world.stop().await?;
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(vec![
        Figure::new("rows/s of a backfill", Aim::AtLeast(50_000.0), slowest, json!(rounds)),
        Figure::new("ms p99 of others' rows beside it", Aim::AtMost(100.0), worst_ms, json!({"writes_per_s": RATE})),
    ])
}
