use flatbed_auth::{AuthMethod, Principal};
use flatbed_layer::CreateOptions;
use flatbed_testkit::{soon, until, until_some};

use super::*;
use crate::configuration::Configuration;
use crate::test_store::Store;

/// The watch of a user with this role who has begun to read `db`.
fn watch(watching: &Arc<WatchState>, role: &str) -> RightsWatch {
    let principal = Principal::user(role, [role.to_owned()], AuthMethod::Password);
    let judged = Arc::new(GrantedRights::default());
    judged.note(Some("db"), Requirement::Member, (flatbed_auth::security::Access::Member, false));
    RightsWatch::new(Arc::clone(watching), Standing::new(principal, RightsBasis::Nothing), judged).at_once()
}

/// The first judgement: the status of a refusal, or `Ok` if all rights are still held.
async fn judged(watch: &mut RightsWatch) -> Result<(), u16> {
    until_some("the rights are judged", async || {
        if watch.following.as_ref().is_some_and(|following| following.is_judged) {
            return Some(Ok(()));
        }
        let refused = tokio::time::timeout(Duration::from_millis(50), watch.lost()).await.ok()?;
        Some(Err(refused.kind.status()))
    })
    .await
}

/// A user admitted by a change since the last poll is not refused by that poll's result.
#[tokio::test]
async fn a_look_that_is_late_refuses_nobody() {
    let store = Store::new().await;
    let (elsewhere, authority) = store.again_with_authority().await;
    let db = elsewhere.database("db", authority.for_job("test"));
    db.create(&CreateOptions::default()).await.unwrap();
    let members = |role: &str| format!(r#"{{"members":{{"roles":["{role}"]}}}}"#);
    db.set_security(members("a").as_bytes()).await.unwrap();
    let accounts = Accounts::new(store.layer.clone(), Configuration::default());
    let watching = Arc::new(WatchState::new(store.layer.clone(), Arc::clone(&accounts)));
    let mut anna = watch(&watching, "a");
    assert_eq!(judged(&mut anna).await, Ok(()));
    let mut known = watching.follow(&"db".into());
    let is_known = |known: &KnownSecurity| matches!(known, KnownSecurity::Present(_));
    soon(known.known.wait_for(is_known)).await.unwrap();
    // Blocks the polls, so that the result of the last one becomes old.
    let stopped = accounts.stop_polling().await;
    until("the last poll is too old", async || !accounts.is_confirmed(None)).await;
    db.set_security(members("b").as_bytes()).await.unwrap();
    assert_eq!(judged(&mut watch(&watching, "c")).await, Err(403));
    db.set_security(members("d").as_bytes()).await.unwrap();
    let mut dora = watch(&watching, "d");
    assert_eq!(judged(&mut dora).await, Ok(()));
    // The result of a poll counts for all followers.
    let lost = soon(anna.lost()).await;
    assert_eq!(lost.kind.status(), 403);
    db.set_security(members("a").as_bytes()).await.unwrap();
    let asked = (0..20).map(|_| async { judged(&mut watch(&watching, "a")).await });
    assert!(futures_util::future::join_all(asked).await.into_iter().all(|found| found == Ok(())));
    // A refusal after a poll that began since then counts.
    assert_eq!(judged(&mut watch(&watching, "d")).await, Err(403));
    drop(stopped);
    let lost = soon(dora.lost()).await;
    assert_eq!(lost.kind.status(), 403);
}
