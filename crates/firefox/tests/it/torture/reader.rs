//! A device that reads while another device of the user writes. At either server it sees all of a batch or nothing,
//! everything acknowledged, and no time that goes back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_testkit::Random;

use super::model::time;
use super::world::{ApiRequest, Client, Timed, World};
use super::writer::{GROUP, Generations, times_of};

pub struct Reader {
    client: Client,
    world: Arc<World>,
    random: Random,
    group: Arc<Generations>,
    /// The greatest times seen, of the store and of the collection.
    store_time: i64,
    group_time: i64,
    /// The last number seen in the group, and its collection's time then.
    generation: u64,
    seen_at: i64,
}

impl Reader {
    pub fn new(world: &Arc<World>, uid: u64, random: Random, group: Arc<Generations>) -> Reader {
        let (client, world) = (Client::new(world, uid), world.clone());
        Reader { client, world, random, group, store_time: 0, group_time: 0, generation: 0, seen_at: 0 }
    }

    /// Reads until the end, with pauses of up to `pause` milliseconds.
    pub async fn run(mut self, pause: u64) {
        let torture = self.world.torture.clone();
        while torture.pass(Duration::from_millis(self.random.below(pause + 1))).await {
            let acknowledged = self.group.acknowledged.load(Ordering::SeqCst);
            match self.random.below(6) {
                0 => self.times().await,
                1 => self.some(acknowledged).await,
                2 => self.news().await,
                3 => self.by_pages(acknowledged).await,
                _ => self.whole(acknowledged).await,
            }
            self.world.count("looks of readers");
        }
    }

    fn sort(&mut self) -> &'static str {
        ["newest", "oldest", "index"][usize::try_from(self.random.below(3)).unwrap()]
    }

    async fn list(&mut self, query: &str, condition: Option<i64>) -> Timed {
        let mut asked = ApiRequest::get(format!("/storage/{GROUP}?{query}"));
        asked.header = condition.map(|since| ("x-if-unmodified-since", time(since)));
        let timed = self.client.read(&asked, &mut self.random).await;
        let modified = timed.time("x-last-modified").unwrap();
        let before = self.group_time;
        assert!(modified >= before, "user {}: {before} was seen before {timed:.2000?}", self.client.uid);
        self.group_time = modified;
        timed
    }

    /// Returns the numbers in a list, and how many records of the group it has.
    fn generations(timed: &Timed) -> (BTreeSet<u64>, u64) {
        let (mut found, mut count) = (BTreeSet::new(), 0);
        let modified = timed.time("x-last-modified").unwrap();
        for record in timed.answer.json().as_array().unwrap() {
            let id = record["id"].as_str().unwrap();
            let at: i64 = record["modified"].to_string().replace('.', "").parse().unwrap();
            assert!(at <= modified, "{id} of {at} in a list of {modified}");
            if id.starts_with('g') || id == "marker" {
                count += 1;
                found.insert(record["payload"].as_str().unwrap().split_once(':').unwrap().0.parse().unwrap());
            }
        }
        (found, count)
    }

    /// Checks that there is one number, not superseded, in all records.
    fn judge(&mut self, what: &str, (found, count): (BTreeSet<u64>, u64), size: u64, acknowledged: u64) {
        let uid = self.client.uid;
        assert!(found.len() <= 1, "user {uid}: {what}: half of a batch: {found:?}");
        let Some(generation) = found.first().copied() else {
            assert_eq!((acknowledged, self.generation), (0, 0), "user {uid}: {what}: nothing");
            return;
        };
        assert_eq!(count, size, "user {uid}: {what}: half of generation {generation}");
        let begun = self.group.begun.load(Ordering::SeqCst);
        let least = acknowledged.max(self.generation);
        assert!((least..=begun).contains(&generation), "user {uid}: {what}: {generation}, not {least} to {begun}");
        (self.generation, self.seen_at) = (generation, self.group_time);
    }

    /// Reads the whole collection in one answer, as far as that is possible.
    async fn whole(&mut self, acknowledged: u64) {
        let query = format!("full=1&sort={}", self.sort());
        let Some(found) = self.pages(&query).await else { return };
        self.judge(&query, found, self.group.size + 1, acknowledged);
    }

    /// Reads the collection by small pages.
    async fn by_pages(&mut self, acknowledged: u64) {
        let query = format!("full=1&sort={}&limit={}", self.sort(), 1 + self.group.size / 3);
        let Some(found) = self.pages(&query).await else { return };
        self.judge(&query, found, self.group.size + 1, acknowledged);
    }

    async fn some(&mut self, acknowledged: u64) {
        let ids: BTreeSet<u64> = (0..5).map(|_| self.random.below(self.group.size)).collect();
        let names: Vec<String> = ids.iter().map(|at| format!("g{at:05}")).collect();
        let query = format!("full=1&ids=marker,{}", names.join(","));
        let timed = self.list(&query, None).await;
        self.judge(&query, Reader::generations(&timed), ids.len() as u64 + 1, acknowledged);
    }

    /// Reads the records newer than the last seen ones: the whole group after a new batch.
    async fn news(&mut self) {
        let query = format!("full=1&newer={}&sort={}", time(self.seen_at), self.sort());
        let Some(found) = self.pages(&query).await else { return };
        // Some records may have been written again.
        if found.1 > 0 && found.0.iter().ne([&self.generation]) {
            self.judge(&query, found, self.group.size + 1, 0);
        }
    }

    /// Reads all pages; `None` if another device has written meanwhile.
    async fn pages(&mut self, query: &str) -> Option<(BTreeSet<u64>, u64)> {
        let (mut found, mut condition, mut offset) = ((BTreeSet::new(), 0), None, String::new());
        loop {
            let timed = self.list(&format!("{query}{offset}"), condition).await;
            if timed.answer.status == 412 {
                return None;
            }
            let (generations, count) = Reader::generations(&timed);
            found.0.extend(generations);
            found.1 += count;
            condition = timed.time("x-last-modified");
            match timed.answer.header("x-weave-next-offset") {
                Some(next) => offset = format!("&offset={next}"),
                None => return Some(found),
            }
        }
    }

    async fn times(&mut self) {
        let timed = self.client.read(&ApiRequest::get("/info/collections"), &mut self.random).await;
        let (shown, times) = (timed.time("x-last-modified").unwrap(), times_of(&timed));
        let group = times.get(GROUP).copied().unwrap_or_default();
        let (store_before, group_before) = (self.store_time, self.group_time);
        assert!(shown >= store_before && group >= group_before, "{store_before}, {group_before}: {timed:?}");
        assert!(times.values().all(|time| *time <= shown), "{timed:?}");
        (self.store_time, self.group_time) = (shown, group);
    }
}
