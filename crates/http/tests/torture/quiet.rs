//! Followers of a database where nothing else happens: only the watch tells them of a change.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use super::client::{Broken, Feed};
use super::{Random, World, lock};

/// Less than the time after which the server looks again without being told.
const PATIENCE: Duration = Duration::from_secs(30);

/// One write after the other, each seen at each server before the next.
pub async fn wakes(world: Arc<World>) {
    let mut random = Random(!world.seed);
    let servers = lock(&world.servers).len();
    let mut feeds: Vec<Option<Feed>> = (0..servers).map(|_| None).collect();
    let mut places = vec!["now".to_owned(); servers];
    let mut number = 0;
    while !world.is_over() {
        for (server, feed) in feeds.iter_mut().enumerate() {
            while feed.is_none() {
                let address = lock(&world.servers)[server];
                let path = format!("/quiet/_changes?feed=continuous&heartbeat=1000&since={}", places[server]);
                match Feed::open(address, &path, None, "", 64 * 1024).await {
                    Ok((status, open)) => {
                        assert_eq!(status, 200, "{path}");
                        *feed = Some(open);
                    }
                    Err(Broken) => world.broke(&path).await,
                }
            }
        }
        let id = format!("quiet{number}");
        let (status, answer) = world.call(&mut random, Method::PUT, &format!("/quiet/{id}"), "{}").await;
        assert!(matches!(status, 201 | 409), "{id}: {status} {answer}");
        for (server, feed) in feeds.iter_mut().enumerate() {
            let Some(open) = feed else { continue };
            let woken = tokio::time::timeout(PATIENCE, row(open)).await;
            match woken.unwrap_or_else(|_| panic!("{id} does not wake the follower at server {server}")) {
                Ok(row) => {
                    assert_eq!(row["id"], *id, "server {server}: {row}");
                    places[server] = row["seq"].as_str().expect("a place").to_owned();
                    world.wakes.fetch_add(1, Ordering::Relaxed);
                }
                Err(Broken) => {
                    world.broke(&id).await;
                    // It began at `now`, and never got a place: what it missed it cannot know.
                    *feed = None;
                }
            }
        }
        // One that broke while it waited goes on behind this write, or before it: all begin anew at its end.
        if feeds.iter().any(Option::is_none) {
            feeds.iter_mut().for_each(|feed| *feed = None);
            places.iter_mut().for_each(|place| "now".clone_into(place));
        }
        number += 1;
        tokio::time::sleep(Duration::from_millis(random.below(60))).await;
    }
}

async fn row(feed: &mut Feed) -> Result<Value, Broken> {
    loop {
        let line = feed.line().await?.ok_or(Broken)?;
        if !line.is_empty() {
            return Ok(serde_json::from_str(&line).expect("a row is JSON"));
        }
    }
}
