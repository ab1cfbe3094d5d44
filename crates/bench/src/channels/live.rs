//! Users of 10 channels each that follow at once: the time from a write's acknowledgement to the row at the last user
//! that may see it, and the memory of a follower beside one of a database without channels.

use std::{
    cell::RefCell,
    ops::Range,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::json;

use super::{
    Aim, ChannelsError, Figure, Options, Result,
    world::{World, in_channels, token},
};
use crate::{
    documents,
    feeds::{
        followers::{FeedRequest, Followers, Plan},
        tally::Tally,
    },
    stats::{cpu_s, own_cpu_s, percentiles, resident, rounded},
    way::{OpenConnection, Way, WayError, together},
};

/// Databases with and without channels.
const CHANNELS: &str = "/channels";
pub(super) const PLAIN: &str = "/plain";

/// The channels of each of two kinds that a user has. The kinds differ in the number of users of a channel.
const OF_A_KIND: usize = 5;
const KINDS: [(&str, usize); 2] = [("wide", 100), ("narrow", 10)];

/// The writes that reach all users, and their rate per second.
const TO_ALL: usize = 20;
const TO_ALL_RATE: u64 = 2;

const WRITERS: usize = 32;
/// The idle time before the measurement.
const SETTLE: Duration = Duration::from_secs(2);
/// The time limit for the remaining rows, counted from the last row.
const DRAIN_MAX: Duration = Duration::from_secs(30);

fn name(user: usize) -> String {
    format!("user{user}")
}

fn channels_of(users: usize, shared: usize) -> usize {
    users * OF_A_KIND / shared
}

/// Returns a user's channels of a kind. Each channel has exactly `shared` users if these divide the number of users.
fn held(user: usize, users: usize, shared: usize) -> impl Iterator<Item = usize> {
    let channels = channels_of(users, shared);
    (0..OF_A_KIND).map(move |at| (user + at * (channels / OF_A_KIND)) % channels)
}

/// Creates both databases, and the users.
pub(super) async fn fill(world: &World, options: &Options) -> Result<()> {
    let users = options.users;
    if users == 0 || !users.is_multiple_of(100) {
        return Err(ChannelsError::Wrong(format!("{users} users: a multiple of 100 is needed")));
    }
    world.make(CHANNELS, &json!({"channels": true})).await?;
    world.make(PLAIN, &json!({})).await?;
    let user = move |user: u64| {
        let user = user as usize;
        let channels: Vec<String> = KINDS
            .iter()
            .flat_map(|(kind, shared)| held(user, users, *shared).map(move |at| format!("{kind}{at}")))
            .collect();
        (name(user), json!({ "admin_channels": channels }))
    };
    world.put_users(CHANNELS, users as u64, user).await
}

async fn follow(world: &World, options: &Options, database: &str, tally: Arc<Tally>) -> Result<Followers> {
    let asks: Vec<FeedRequest> = (0..options.users)
        .map(|user| FeedRequest { database: database.to_owned(), authorization: token(&name(user)) })
        .collect();
    let plan =
        Plan { address: world.admin.address, feeds: asks.len(), databases: 1, streams: 0, asks: Some(asks.into()) };
    let followers = Followers::start(plan, tally)?;
    if followers.opened(options.users).await {
        return Ok(followers);
    }
    Err(ChannelsError::Wrong(format!("not all feeds began: {:?}", followers.stop()?.failures)))
}

/// Returns the memory of a server that has just started, before the first follower.
async fn at_rest_mb(world: &World) -> Result<f64> {
    world.user("user0").open().await?.expect(Method::GET, "/", String::new()).await?;
    tokio::time::sleep(SETTLE).await;
    Ok(resident(world.pid()).anonymous_mb)
}

/// Returns the kB for each idle follower of a database, and stops the server.
pub(super) async fn memory(world: World, options: &Options, database: &str) -> Result<f64> {
    let before_mb = at_rest_mb(&world).await?;
    let followers = follow(&world, options, database, Arc::new(Tally::new(0))).await?;
    tokio::time::sleep(SETTLE).await;
    let idle_mb = resident(world.pid()).anonymous_mb;
    let failures = followers.stop()?.failures;
    world.stop().await?;
    if let Some(failure) = failures.first() {
        return Err(ChannelsError::Wrong(failure.clone()));
    }
    Ok((idle_mb - before_mb) * 1024.0 / options.users as f64)
}

/// Writes documents of these numbers at a rate. Each is new, and in the channel of its number.
pub(super) async fn write(
    way: &Way,
    database: &'static str,
    tally: &Arc<Tally>,
    numbers: Range<usize>,
    per_s: u64,
    channel: impl Fn(usize) -> String + Clone + 'static,
) -> Result<Vec<f64>> {
    let (tally, started) = (tally.clone(), Instant::now());
    let times = Rc::new(RefCell::new(Vec::new()));
    let into = times.clone();
    let put = async move |open: &mut OpenConnection, at: u64| {
        let number = numbers.start + at as usize;
        if number >= numbers.end {
            return Ok::<_, WayError>(false);
        }
        let due = started + Duration::from_nanos(at * 1_000_000_000 / per_s);
        tokio::time::sleep_until(due.into()).await;
        let sent = Instant::now();
        let body = in_channels(number as u64, &[channel(number)]);
        open.expect(Method::PUT, &format!("{database}/{}", documents::id(number as u64)), body).await?;
        tally.acknowledge(number);
        into.borrow_mut().push(sent.elapsed().as_secs_f64() * 1e3);
        Ok(true)
    };
    together(way, WRITERS, put).await?;
    Ok(times.take())
}

/// Waits until `wanted` rows have come, or none came for [`DRAIN_MAX`].
pub(super) async fn drain(tally: &Tally, wanted: u64) {
    let (mut last, mut since) = (tally.rows(), Instant::now());
    while last < wanted && since.elapsed() < DRAIN_MAX {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let rows = tally.rows();
        if rows > last {
            (last, since) = (rows, Instant::now());
        }
    }
}

/// Runs everything, for the `round`th time on the same data. `plain_kb`: the memory of a follower of a database without
/// channels.
pub(super) async fn run(world: World, options: &Options, round: usize, plain_kb: f64) -> Result<Vec<Figure>> {
    let (users, seconds) = (options.users, options.seconds as usize);
    let before_mb = at_rest_mb(&world).await?;
    let (wide, narrow) = (100 * seconds, 1_000 * seconds);
    let writes = wide + narrow + TO_ALL;
    let (from, tally) = (round * writes, Arc::new(Tally::new((round + 1) * writes)));
    let followers = follow(&world, options, CHANNELS, tally.clone()).await?;
    tokio::time::sleep(SETTLE).await;
    let follower_kb = (resident(world.pid()).anonymous_mb - before_mb) * 1024.0 / users as f64;
    let mut figures = vec![Figure::new(
        "kB that a follower of 10 channels takes more than a plain one",
        Aim::AtMost(4.0),
        follower_kb - plain_kb,
        json!({"users": users, "plain_kb": rounded(plain_kb, 100.0), "channels_kb": rounded(follower_kb, 100.0)}),
    )];
    let loads = [
        (
            "ms p99 to the last of 100 followers, 100 writes/s",
            Aim::AtMost(50.0),
            from..from + wide,
            100,
            100,
            Some("wide"),
        ),
        (
            "ms p99 to the last of 10 followers, 1,000 writes/s",
            Aim::AtMost(50.0),
            from + wide..from + wide + narrow,
            1_000,
            10,
            Some("narrow"),
        ),
        (
            "ms until a write to `!` has reached all",
            Aim::AtMost(300.0),
            from + wide + narrow..from + writes,
            TO_ALL_RATE,
            users,
            None,
        ),
    ];
    let mut wanted = 0;
    for (figure, aim, numbers, per_s, shared, kind) in loads {
        let channel = move |number: usize| match kind {
            Some(kind) => format!("{kind}{}", documents::mix(number as u64) as usize % channels_of(users, shared)),
            None => "!".to_owned(),
        };
        let (server_s, client_s, begun) = (cpu_s(world.pid()), own_cpu_s(), Instant::now());
        wanted += numbers.len() as u64 * shared as u64;
        let mut writes_ms = write(&world.admin, CHANNELS, &tally, numbers.clone(), per_s, channel).await?;
        let wrote_s = begun.elapsed().as_secs_f64();
        drain(&tally, wanted).await;
        let took_s = begun.elapsed().as_secs_f64();
        let (last, missing) = tally.last_rows_of(numbers.clone(), shared as u32);
        if missing > 0 || tally.rows() != wanted {
            let text = format!("{figure}: {missing} rows are missing, {} came instead of {wanted}", tally.rows());
            return Err(ChannelsError::Wrong(text));
        }
        let found = if kind.is_some() { &last["p99"] } else { &last["max"] };
        let more = json!({
            "users": users, "writes": numbers.len(), "writes_per_s": rounded(numbers.len() as f64 / wrote_s, 10.0),
            "acknowledged_to_last_row_ms": last, "write_ms": percentiles(&mut writes_ms),
            "server_cores": rounded((cpu_s(world.pid()) - server_s) / took_s, 100.0),
            "client_cores": rounded((own_cpu_s() - client_s) / took_s, 100.0),
        });
        figures.push(Figure::new(figure, aim, found.as_f64().unwrap_or(f64::NAN), more));
    }
    let report = followers.stop()?;
    world.stop().await?;
    if let Some(failure) = report.failures.first() {
        return Err(ChannelsError::Wrong(failure.clone()));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_has_as_many_users_as_it_should() {
        for users in [100, 1_000, 10_000] {
            for (_, shared) in KINDS {
                let mut counts = vec![0; channels_of(users, shared)];
                for user in 0..users {
                    held(user, users, shared).for_each(|channel| counts[channel] += 1);
                }
                assert!(counts.iter().all(|count| *count == shared), "{users} {shared}");
            }
        }
    }
}
