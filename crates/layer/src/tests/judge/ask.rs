//! Tests of `judge::ask` with a whole layer.
#![cfg(test)]

use std::sync::Arc;

use flatbed_channels::{Grant, GrantedItem, Grantee};
use flatbed_databases::document::edit::{Document, Edit};
use flatbed_databases::document::verdict::Verdict;
use flatbed_flatten::json;
use flatbed_flatten::json::Limits;
use flatbed_operations::judge::ask::*;
use flatbed_operations::judge::judgement::{Judge, Judgement, ProposedWrite, Rule};
use flatbed_store::error::{NotJudged, Refusal};
use futures_util::future::BoxFuture;

#[test]
fn reasons_of_many_edits_are_short() {
    let reason = "\u{20ac}".repeat(10_000);
    for (edits, least, most) in [(1, 30_000, 30_000), (1_000, 7_900, 8_000), (100_000_000, 38, 40)] {
        for refusal in [
            Refusal::Forbidden(reason.clone()),
            Refusal::Unauthorized(reason.clone()),
            Refusal::Rejected { status: 418, reason: reason.clone() },
            Refusal::NotJudged { because: NotJudged::TimedOut, reason: reason.clone() },
        ] {
            let told = cut(refusal, edits).to_string();
            assert!((least..=most).contains(&told.len()) && reason.starts_with(&told), "{edits}: {}", told.len());
        }
    }
}

/// Assigns each edit to a channel named after its design document, and grants `anna` access to it for a while.
struct Channels;

struct Channel(String);

impl Judge for Channels {
    fn load(&self, design: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(Channel(design.id.clone()))
    }

    fn caller(&self) -> u64 {
        0
    }
}

fn anna_has(channel: &str) -> Grant {
    Grant { to: Grantee::User("anna".into()), what: GrantedItem::Channel(channel.into()) }
}

impl Rule for Channel {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        assert_eq!((write.user.name.as_deref(), write.database), (Some("anna"), "db"));
        let grants = [anna_has(&self.0)].into();
        let expires_at_ms = Some(self.0.len() as u64);
        let channels = [self.0.clone()].into();
        Box::pin(async move { Ok(Verdict { channels, grants, expires_at_ms, ..Verdict::default() }) })
    }
}

#[tokio::test]
async fn what_several_rules_say_holds_together() {
    let (layer, authority, _storage) = crate::tests::fenced::layer_judged_by(Some(Arc::new(Channels))).await;
    let server = layer.database("db", authority.for_job("test"));
    let body = || json::parse(br#"{"validate_doc_update":"function () {}"}"#, &Limits::default()).unwrap();
    let edit = |id: &'static str| Edit {
        expiry: None,
        id: id.into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body: body(),
    };
    for id in ["_design/long", "_design/a"] {
        server.update(&edit(id)).await.unwrap();
    }
    server.exists().await.unwrap();
    let instance = flatbed_operations::write::batch::instance_of(&layer.inner, "db").await.unwrap();
    let anna = layer.database("db", crate::tests::fenced::user("anna"));
    let (document, design) = (edit("d"), edit("_design/a"));
    let asked = |edit| EditRequest { edit, upon: None };
    let said = judge(&anna.handle, &instance, &[asked(&document), asked(&design)], (0, 2), false).await.unwrap();
    let said: Vec<Judgement> = said.into_iter().map(|judged| judged.judgement).collect();
    let channels = ["_design/a", "_design/long"].map(str::to_owned);
    let grants = channels.clone().map(|channel| anna_has(&channel));
    let both =
        Verdict { channels: channels.into(), grants: grants.into(), expires_at_ms: Some(9), ..Verdict::default() };
    // Neither design documents nor the server are judged.
    assert_eq!(said, [Ok(both), Ok(Verdict::default())]);
    let said = judge(&server.handle, &instance, &[asked(&document)], (0, 1), false).await.unwrap();
    assert_eq!(said[0].judgement, Ok(Verdict::default()));
}
