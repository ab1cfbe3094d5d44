//! The cost of a sync function for writers: a database with one beside a database without channels, in turn.

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use super::{
    Aim, ChannelsError, Figure, Options, Result,
    world::{World, with},
};
use crate::{
    documents,
    stats::{cpu_s, median, percentiles, rounded},
    way::{OpenConnection, WayError, together},
};

/// Five requirements, two channels, one grant.
const FUNCTION: &str = "function (doc, oldDoc, meta) {
  requireUser(['writer', 'editor']);
  requireRole('authors');
  requireAccess('desk');
  requireRole(['authors', 'editors']);
  requireAccess(['desk', 'archive']);
  channel(doc.channels);
  access(doc.owner, doc.inbox);
}";

const WITH: &str = "/with";
const WITHOUT: &str = "/without";

const WORKERS: usize = 64;
const BATCH: u64 = 1_000;
/// The channels of documents, and the users that they admit.
const CHANNELS: u64 = 100;
const OWNERS: u64 = 1_000;

/// Creates the writer, a user of the database with channels.
pub(super) async fn fill(world: &World) -> Result<()> {
    world.make(WITH, &json!({ "sync": FUNCTION })).await?;
    world.make(WITHOUT, &json!({})).await?;
    let writer = |_| ("writer".to_owned(), json!({"admin_channels": ["desk"], "admin_roles": ["authors"]}));
    world.put_users(WITH, 1, writer).await
}

/// Returns the same document for both databases: without channels its channel is an ordinary member.
fn document(number: u64) -> String {
    let members = json!({
        "channels": [format!("c{}", number % CHANNELS), format!("d{}", number % CHANNELS)],
        "owner": format!("owner{}", number % OWNERS), "inbox": "inbox",
    });
    with(&documents::text(number, false), &members)
}

async fn single(world: &World, database: &'static str, from: u64, seconds: u64) -> Result<(f64, Value, f64)> {
    let (begun, server_s) = (Instant::now(), cpu_s(world.pid()));
    let end = begun + Duration::from_secs(seconds);
    let put = async move |open: &mut OpenConnection, number: u64| {
        if Instant::now() >= end {
            return Ok::<_, WayError>(false);
        }
        let path = format!("{database}/{}", documents::id(from + number));
        open.expect(Method::PUT, &path, document(from + number)).await?;
        Ok(true)
    };
    let mut ms = together(&world.user("writer"), WORKERS, put).await?;
    let per_s = ms.len() as f64 / begun.elapsed().as_secs_f64();
    let us = (cpu_s(world.pid()) - server_s) * 1e6 / ms.len() as f64;
    Ok((per_s, percentiles(&mut ms), us))
}

/// Returns the time of the requests alone, since writing the texts takes the client as long.
async fn bulk(world: &World, database: &'static str, from: u64, seconds: u64) -> Result<(f64, f64)> {
    let mut open = world.user("writer").open().await?;
    let (begun, server_s) = (Instant::now(), cpu_s(world.pid()));
    let (mut written, mut busy_s) = (0, 0.0);
    while begun.elapsed().as_secs() < seconds {
        let docs: Vec<String> = (from + written..from + written + BATCH)
            .map(|number| with(&document(number), &json!({"_id": documents::id(number)})))
            .collect();
        let body = format!("{{\"docs\":[{}]}}", docs.join(","));
        let sent = Instant::now();
        let (answer, _) = open.expect(Method::POST, &format!("{database}/_bulk_docs"), body).await?;
        busy_s += sent.elapsed().as_secs_f64();
        if memchr::memmem::find(&answer, b"\"error\"").is_some() {
            let text = String::from_utf8_lossy(&answer).chars().take(300).collect();
            return Err(ChannelsError::Wrong(text));
        }
        written += BATCH;
    }
    Ok((written as f64 / busy_s, (cpu_s(world.pid()) - server_s) * 1e6 / written as f64))
}

/// Measures both databases in turn, created anew in each round: single writes, then bulks.
pub(super) async fn run(world: World, options: &Options) -> Result<Vec<Figure>> {
    let (mut single_shares, mut bulk_shares, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(1) {
        fill(&world).await?;
        let mut found = Vec::new();
        for database in [WITHOUT, WITH] {
            // Lets the users join the channels before the measurement.
            bulk(&world, database, 10_000_000, 1).await?;
            let (single_per_s, ms, single_us) = single(&world, database, 0, options.seconds).await?;
            let (bulk_per_s, bulk_us) = bulk(&world, database, 20_000_000, options.seconds.div_ceil(2)).await?;
            found.push((single_per_s, bulk_per_s));
            rounds.push(json!({
                "database": database, "single_per_s": rounded(single_per_s, 1.0), "single_ms": ms,
                "single_server_us": rounded(single_us, 10.0), "bulk_per_s": rounded(bulk_per_s, 1.0),
                "bulk_server_us": rounded(bulk_us, 10.0),
            }));
        }
        if let [without, with] = found[..] {
            single_shares.push(with.0 / without.0 * 100.0);
            bulk_shares.push(with.1 / without.1 * 100.0);
        }
    }
    world.stop().await?;
    let single = "% of single writes by 64 clients that a function leaves";
    let bulk = "% of bulk that a function leaves";
    Ok(vec![
        Figure::new(single, Aim::AtLeast(70.0), median(&mut single_shares), json!(rounds)),
        Figure::new(bulk, Aim::AtLeast(40.0), median(&mut bulk_shares), Value::Null),
    ])
}
