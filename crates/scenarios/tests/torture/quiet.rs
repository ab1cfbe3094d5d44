//! Followers of a database without other writes, where only the watch signals a change. Some writes are so close that
//! one falls between the server's read and its next watch.

use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use super::client::{BrokenConnection, Feed};
use super::{Random, World, lock, pass, within};

/// Less than the interval of polls without a signal.
const WOKEN_WITHIN: Duration = Duration::from_secs(30);

/// Writes a little, and waits for each server's follower before the next write, until `is_over`.
pub async fn wakes(world: &World, is_over: impl Fn() -> bool) {
    let mut random = Random(!world.seed);
    let servers = lock(&world.servers).len();
    let mut feeds: Vec<Option<Feed>> = (0..servers).map(|_| None).collect();
    let mut places = vec!["now".to_owned(); servers];
    let mut number = 0;
    while !is_over() {
        for (server, feed) in feeds.iter_mut().enumerate() {
            while feed.is_none() {
                let address = lock(&world.servers)[server];
                let path =
                    format!("{}/_changes?feed=continuous&heartbeat=1000&since={}", world.quiet(), places[server]);
                match Feed::open(address, &path, None, "", 64 * 1024).await {
                    Ok((status, open)) => {
                        assert_eq!(status, 200, "{path}");
                        *feed = Some(open);
                    }
                    Err(BrokenConnection) => world.broke(&path).await,
                }
            }
        }
        let mut id = String::new();
        for _ in 0..1 + random.below(4) {
            id = format!("quiet{}-{number}", world.torture.counted("wakes"));
            let (status, answer) = world.call(&mut random, Method::PUT, &format!("{}/{id}", world.quiet()), "{}").await;
            assert!(matches!(status, 201 | 409), "{id}: {status} {answer}");
            number += 1;
        }
        // A request for the changes makes the server read, so it is sent only sometimes.
        if random.percent(20) {
            for (server, place) in places.iter().enumerate().filter(|(_, place)| *place != "now") {
                let address = lock(&world.servers)[server];
                let path = format!("{}/_changes?since={place}", world.quiet());
                let Ok((_, mut answer)) = Feed::open(address, &path, None, "", 64 * 1024).await else { continue };
                let mut text = String::new();
                while let Ok(Some(line)) = answer.line().await {
                    text += &line;
                }
                let has_it =
                    text.contains(&format!("\"{id}\"")) || (world.plan.may_break && !text.contains("last_seq"));
                assert!(has_it, "{path} at server {server} lacks {id}: {text}");
            }
        }
        for (server, feed) in feeds.iter_mut().enumerate() {
            let Some(open) = feed else { continue };
            let woken = within(WOKEN_WITHIN, read_to(open, &id, &mut places[server])).await;
            match woken.unwrap_or_else(|| panic!("{id} does not wake the follower at server {server}")) {
                Ok(()) => world.torture.count("wakes"),
                Err(BrokenConnection) => {
                    world.broke(&id).await;
                    *feed = None;
                }
            }
        }
        // A broken feed does not know what it missed, so all begin again.
        if feeds.iter().any(Option::is_none) {
            feeds.iter_mut().for_each(|feed| *feed = None);
            places.iter_mut().for_each(|place| "now".clone_into(place));
        }
        pass(Duration::from_millis(random.below(4))).await;
    }
}

/// Reads rows up to that of a document.
async fn read_to(feed: &mut Feed, id: &str, place: &mut String) -> Result<(), BrokenConnection> {
    loop {
        let row = row(feed).await?;
        row["seq"].as_str().expect("a place").clone_into(place);
        if row["id"] == *id {
            return Ok(());
        }
    }
}

async fn row(feed: &mut Feed) -> Result<Value, BrokenConnection> {
    loop {
        let line = feed.line().await?.ok_or(BrokenConnection)?;
        if !line.is_empty() {
            return Ok(serde_json::from_str(&line).expect("a row is JSON"));
        }
    }
}
