//! Replicas of users, as replication builds them from a feed and separate reads of bodies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flatbed_testkit::{WaitLoop, pass};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::follow::{Told, told};
use super::model::{doc_id, doc_of};
use super::{Client, Who, World, ask, lock, parsed};
use flatbed_testkit::timeline::Span;

/// The final state of a replica.
pub struct Replicated {
    pub user: usize,
    /// True if it has all leaves that the user sees; otherwise only winners.
    pub all_leaves: bool,
    /// The live revisions of each document, by the numbers of their bodies.
    pub documents: BTreeMap<usize, Vec<u64>>,
    pub told: Told,
}

pub struct Replica {
    client: Client,
    user: usize,
    all_leaves: bool,
    since: String,
    documents: BTreeMap<usize, BTreeMap<String, u64>>,
    told: Told,
    has_end: bool,
}

impl Replica {
    pub fn new(world: &Arc<World>, user: usize) -> Replica {
        let client = Client::new(world, 0x20_000 + user as u64);
        let (documents, all_leaves) = (BTreeMap::new(), user.is_multiple_of(2));
        Replica { client, user, all_leaves, since: "0".into(), documents, told: Told::new(), has_end: false }
    }

    /// Replicates a few pages at intervals, and at the end all remaining ones.
    pub async fn run(mut self) -> Replicated {
        let world = self.client.world.clone();
        while !world.is_closed() {
            let pages = 1 + self.client.random.below(6);
            self.pages(pages).await;
            pass(Duration::from_millis(self.client.random.below(2_500))).await;
        }
        let mut waiting = WaitLoop::begin();
        loop {
            self.pages(1_000).await;
            if self.has_end {
                break;
            }
            waiting.pause(&format!("the replica of {} has the end", self.user)).await;
        }
        let documents = self.documents.into_iter().filter(|(_, leaves)| !leaves.is_empty());
        let documents = documents.map(|(doc, leaves)| (doc, leaves.into_values().collect())).collect();
        Replicated { user: self.user, all_leaves: self.all_leaves, documents, told: self.told }
    }

    async fn asked(&mut self, method: &str, path: &str, body: &str) -> Option<(Value, Span)> {
        let world = self.client.world.clone();
        let server = self.client.server();
        let from = Instant::now();
        let answer = self.client.call(server, method, path, &world.headers(Who::User(self.user)), body).await?;
        let span = Span { from, to: Instant::now() };
        match answer.status {
            200 => Some((parsed(&answer.body), span)),
            401 | 403 if !lock(&world.model).sure(self.user, span).is_enabled => None,
            503 => None,
            _ => world.fail(&format!("{method} {path} {body}: {answer:?}"), self.user, None),
        }
    }

    /// Replicates at most `count` pages.
    async fn pages(&mut self, count: u64) {
        for _ in 0..count {
            if !self.page().await {
                break;
            }
        }
    }

    /// Replicates a page, and returns whether there may be another one.
    async fn page(&mut self) -> bool {
        let world = self.client.world.clone();
        let limit = 1 + self.client.random.below(30);
        let style = if self.all_leaves { "all_docs" } else { "main_only" };
        let path = format!("/db/_changes?style={style}&revocations=true&limit={limit}&since={}", self.since);
        let Some((answer, span)) = self.asked("GET", &path, "").await else { return false };
        let rows = answer["results"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let (mut wanted, mut rows_of_wanted) = (Vec::new(), Vec::new());
        let mut gone = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let id = text(&row["id"]);
            if id.starts_with("_user/") || [super::END, super::NOTED].contains(&&*id) {
                continue;
            }
            let doc = doc_of(&id).unwrap_or_else(|| panic!("{row}"));
            told(&mut self.told, doc, &path, row);
            let is_revoked = row["revoked"] == true;
            let has_left = row["removed"].as_array().is_some_and(|removed| !removed.is_empty());
            if is_revoked || has_left {
                ask::was_had(&world, self.user, doc, || format!("{path}: {row}"));
            }
            if is_revoked {
                gone.push(doc);
                continue;
            }
            for leaf in row["changes"].as_array().expect("leaves") {
                let rev = text(&leaf["rev"]);
                if !has_left {
                    world.sent(self.user, doc, &rev, row["deleted"] == true, span, || format!("{path}: {row}"));
                }
                wanted.push(json!({"id": id, "rev": rev}));
                rows_of_wanted.push(at);
            }
        }
        let mut found = Vec::new();
        if !wanted.is_empty() {
            let body = json!({"docs": wanted}).to_string();
            // If the outcome is unknown the whole page is repeated.
            let Some((answer, span)) = self.asked("POST", "/db/_bulk_get?revs=true", &body).await else { return false };
            let results = answer["results"].as_array().expect("results");
            assert_eq!(results.len(), wanted.len(), "{answer}");
            for (result, row) in results.iter().zip(&rows_of_wanted) {
                let doc = doc_of(result["id"].as_str().expect("an id")).unwrap_or_else(|| panic!("{result}"));
                for one in result["docs"].as_array().expect("documents") {
                    if one["ok"].is_object() {
                        ask::shown(&world, self.user, doc, &one["ok"], span, &format!("_bulk_get behind {path}"));
                        found.push((*row, doc, one["ok"].clone()));
                    } else {
                        told(&mut self.told, doc, "_bulk_get", one);
                    }
                }
            }
        }
        for doc in gone {
            self.documents.remove(&doc);
            world.count("revoked in replicas");
        }
        // A page may have two rows of a document. The loss of one leaf does not imply the loss of the other leaves in
        // its row.
        found.sort_by_key(|(row, _, revision)| (*row, revision["_removed"] != true));
        for (_, doc, revision) in found {
            told(&mut self.told, doc, "_bulk_get", &revision);
            self.take(doc, &revision);
        }
        self.since = text(&answer["last_seq"]);
        self.has_end |= rows.iter().any(|row| row["id"] == super::END);
        rows.len() as u64 >= limit
    }

    fn take(&mut self, doc: usize, revision: &Value) {
        self.client.world.count("revisions replicated");
        if revision["_removed"] == true {
            self.documents.remove(&doc);
            return;
        }
        let leaves = self.documents.entry(doc).or_default();
        if !self.all_leaves {
            leaves.clear();
        }
        // Its ancestors are no longer leaves.
        let start = revision["_revisions"]["start"].as_u64().expect("a generation");
        let ids = revision["_revisions"]["ids"].as_array().unwrap_or_else(|| panic!("{} {revision}", doc_id(doc)));
        for (at, id) in ids.iter().enumerate() {
            leaves.remove(&format!("{}-{}", start - at as u64, id.as_str().expect("an id")));
        }
        if revision["_deleted"] != true {
            let rev = revision["_rev"].as_str().expect("a revision").to_owned();
            leaves.insert(rev, revision["n"].as_u64().expect("a number"));
        }
    }
}
