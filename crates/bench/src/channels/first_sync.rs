//! The first sync of users with 1,000 documents in 10 channels: alone, and among many documents that they may not see.

use std::{rc::Rc, time::Instant};

use hyper::Method;
use serde_json::{Value, json};

use super::{
    Aim, ChannelsError, Figure, Options, Result,
    world::{World, in_channels},
};
use crate::{
    documents::mix,
    stats::{cpu_s, own_cpu_s, percentiles, rounded},
    way::{OpenConnection, Way},
};

/// The users, each with channels of its own.
const USERS: u64 = 16;
const CHANNELS: u64 = 10;
const DOCUMENTS: u64 = 100;
/// The channels of all other documents.
const OTHERS: u64 = 1_000;

/// The database with only the users' documents, and the one with other documents among them.
const ALONE: &str = "/alone";
const AMONG: &str = "/among";

/// The latency of one answer in [`waits`].
const WAIT_MS: f64 = 50.0;

fn name(user: u64) -> String {
    format!("user{user}")
}

/// Returns the number of a user's documents in each channel: 100, or fewer in a small run, so that the others are nine
/// of ten.
fn each(documents: u64) -> u64 {
    (documents / (USERS * CHANNELS * 10)).clamp(1, DOCUMENTS)
}

/// Returns the channel of a document in a database of `documents`, and whether a user has it.
fn channel(number: u64, documents: u64) -> (String, bool) {
    let seen = USERS * CHANNELS * each(documents);
    let step = (documents / seen).max(1);
    if number.is_multiple_of(step) && number / step < seen {
        let at = number / step % (USERS * CHANNELS);
        return (format!("mine{}-{}", at / CHANNELS, at % CHANNELS), true);
    }
    (format!("other{}", mix(number) % OTHERS), false)
}

/// Fills both databases. Invisible documents are small: only their entries matter.
pub(super) async fn fill(world: &World, options: &Options) -> Result<()> {
    let user = |user: u64| {
        let channels: Vec<String> = (0..CHANNELS).map(|at| format!("mine{user}-{at}")).collect();
        (name(user), json!({ "admin_channels": channels }))
    };
    let documents = options.documents;
    let seen = USERS * CHANNELS * each(documents);
    for (database, count, of) in [(ALONE, seen, seen), (AMONG, documents, documents)] {
        world.make(database, &json!({"channels": true})).await?;
        world.put_users(database, USERS, user).await?;
        let document = move |number: u64| {
            let (channel, is_seen) = if of == seen {
                let at = number % (USERS * CHANNELS);
                (format!("mine{}-{}", at / CHANNELS, at % CHANNELS), true)
            } else {
                channel(number, of)
            };
            if is_seen { in_channels(number, &[channel]) } else { json!({ "channels": [channel] }).to_string() }
        };
        let took = world.fill(database, count, document).await?;
        let per_s = rounded(count as f64 / took.as_secs_f64(), 1.0);
        println!("{}", json!({"load": "channels", "filled": database, "documents": count, "per_s": per_s}));
    }
    Ok(())
}

/// Sends one request for all rows. Returns their number and the milliseconds.
async fn rows(open: &mut OpenConnection, path: &str) -> Result<(u64, f64)> {
    let sent = Instant::now();
    let (text, _) = open.expect(Method::GET, path, String::new()).await?;
    let ms = sent.elapsed().as_secs_f64() * 1e3;
    // The row of the user is not one of a document.
    let users = memchr::memmem::find_iter(&text, b"\"id\":\"_user/").count();
    Ok(((memchr::memmem::find_iter(&text, b"\"id\":").count() - users) as u64, ms))
}

/// Runs all users' first syncs in sequence.
async fn in_turn(ways: &[Way], path: &str, wanted: u64, rounds: u64) -> Result<Value> {
    let mut all_ms = Vec::new();
    for round in 0..=rounds {
        for way in ways {
            let mut open = way.open().await?;
            let (found, ms) = rows(&mut open, path).await?;
            if found != wanted {
                return Err(ChannelsError::Wrong(format!("{path}: {found} rows, not {wanted}")));
            }
            // The first round warms the server's caches.
            if round > 0 {
                all_ms.push(ms);
            }
        }
    }
    let per_s = wanted as f64 * all_ms.len() as f64 * 1e3 / all_ms.iter().sum::<f64>();
    Ok(json!({"per_s": rounded(per_s, 1.0), "ms": percentiles(&mut all_ms)}))
}

/// Runs all users' first syncs at once. Returns the rows per second of all together.
async fn at_once(world: &World, ways: &[Way], path: &'static str, wanted: u64, seconds: u64) -> Result<Value> {
    let local = tokio::task::LocalSet::new();
    let mut tasks = tokio::task::JoinSet::new();
    let (begun, total) = (Instant::now(), Rc::new(std::cell::Cell::new(0_u64)));
    let (server_s, client_s) = (cpu_s(world.pid()), own_cpu_s());
    for way in ways {
        let (way, total) = (way.clone(), total.clone());
        let work = async move {
            let mut open = way.open().await?;
            while begun.elapsed().as_secs() < seconds {
                let (found, _) = rows(&mut open, path).await?;
                if found != wanted {
                    return Err(ChannelsError::Wrong(format!("{path}: {found} rows, not {wanted}")));
                }
                total.set(total.get() + found);
            }
            Ok(())
        };
        tasks.spawn_local_on(work, &local);
    }
    local
        .run_until(async {
            while let Some(done) = tasks.join_next().await {
                done.map_err(std::io::Error::other)??;
            }
            Ok::<_, ChannelsError>(())
        })
        .await?;
    let took_s = begun.elapsed().as_secs_f64();
    let server_s = cpu_s(world.pid()) - server_s;
    Ok(json!({
        "per_s": rounded(total.get() as f64 / took_s, 1.0),
        "server_us_a_row": rounded(server_s * 1e6 / total.get() as f64, 100.0),
        "server_cores": rounded(server_s / took_s, 100.0),
        "client_cores": rounded((own_cpu_s() - client_s) / took_s, 100.0),
    }))
}

/// Measures rows per second, without and with documents, in both databases.
pub(super) async fn run(world: World, options: &Options) -> Result<Vec<Figure>> {
    let ways: Vec<Way> = (0..USERS).map(|user| world.user(&name(user))).collect();
    let wanted = CHANNELS * each(options.documents);
    let mut figures = Vec::new();
    for (figure, aim, path, beside) in [
        ("rows/s of first syncs", 200_000.0, "/among/_changes", "/alone/_changes"),
        (
            "documents/s of first syncs",
            60_000.0,
            "/among/_changes?include_docs=true",
            "/alone/_changes?include_docs=true",
        ),
    ] {
        let together = at_once(&world, &ways, path, wanted, options.seconds).await?;
        let one = in_turn(&ways, path, wanted, options.rounds).await?;
        let alone = in_turn(&ways, beside, wanted, options.rounds).await?;
        let alone_together = at_once(&world, &ways, beside, wanted, options.seconds).await?;
        let most = together["per_s"].as_f64().unwrap_or(f64::NAN);
        let share =
            |a: &Value, b: &Value| a["per_s"].as_f64().unwrap_or(f64::NAN) / b["per_s"].as_f64().unwrap_or(f64::NAN);
        let beside_others = share(&one, &alone);
        let more = json!({
            "rows": wanted, "of": options.documents, "users_at_once": USERS, "at_once": together, "in_turn": one,
            "alone_at_once": alone_together, "alone_in_turn": alone,
        });
        figures.push(Figure::new(figure, Aim::AtLeast(aim), most, more));
        let name = if aim > 100_000.0 {
            "share of its speed that a first sync keeps among rows of others"
        } else {
            "the same with documents"
        };
        figures.push(Figure::new(name, Aim::AtLeast(0.9), beside_others, Value::Null));
    }
    world.stop().await?;
    Ok(figures)
}

/// Measures the waits of a page, at a server whose storage takes 50 ms for each answer.
pub(super) async fn waits(world: World, options: &Options) -> Result<Vec<Figure>> {
    let mut open = world.user(&name(0)).open().await?;
    let mut figures = Vec::new();
    for (figure, path) in [
        ("waits of a page of a first sync", "/among/_changes?limit=2000"),
        ("waits of a page with documents", "/among/_changes?limit=500&include_docs=true"),
    ] {
        let mut found = Vec::new();
        for _ in 0..=options.rounds.max(1) {
            let (rows, ms) = rows(&mut open, path).await?;
            found.push(json!({"rows": rows, "waits": rounded(ms / WAIT_MS, 10.0)}));
        }
        // The first request fills the caches of the others.
        let last = found.last().and_then(|last| last["waits"].as_f64()).unwrap_or(f64::NAN);
        figures.push(Figure::new(figure, Aim::AtMost(10.0), last.floor(), json!(found)));
    }
    world.stop().await?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_as_many_as_wanted() {
        for documents in [1_600, 10_000, 1_000_000] {
            let mut mine = 0;
            for number in 0..documents {
                let (channel, is_seen) = channel(number, documents);
                mine += u64::from(is_seen && channel.starts_with("mine3-"));
            }
            assert_eq!(mine, CHANNELS * each(documents), "{documents}");
        }
    }
}
