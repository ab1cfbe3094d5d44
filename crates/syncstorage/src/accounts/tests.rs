//! The token server's users on storage: their numbers, and the replaced users.

use std::collections::HashSet;

use super::*;
use crate::tests::support::{Storage, id, name};
use crate::{Change, Maintenance, MaintenanceOptions, Precondition};

fn claim(account: &str, generation: u64, state: &str) -> Claim {
    let generation = Some(generation);
    Claim { account: account.into(), generation, keys_changed_at: generation, client_state: state.into() }
}

fn everyone() -> Admission {
    Admission { everyone: true, ..Admission::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_client_state_has_a_new_user() {
    let storage = Storage::new();
    let store = storage.store().await;
    let accounts = Accounts::new(&store);
    let sign_in =
        async |generation, state| accounts.sign_in(&claim("a", generation, state), &everyone()).await.unwrap();
    let first = sign_in(1, "x").await.unwrap();
    assert_eq!(sign_in(1, "x").await.unwrap(), first);
    let change = Change { id: id("r"), payload: Some("p".into()), sortindex: None, ttl: None };
    let written = |uid| (uid, name("tabs"), change.clone());
    let (uid, tabs, change) = written(first.uid);
    store.put(uid, &tabs, change, Precondition::None).await.unwrap();
    let second = sign_in(2, "y").await.unwrap();
    assert_ne!(first.uid, second.uid);
    assert_eq!(sign_in(2, "y").await.unwrap(), second);
    assert_eq!(sign_in(3, "x").await, Err(Refusal::ClientState(StateRefusal::Stale)));
    // The stored data stays for a week, and then goes.
    let maintenance = Maintenance::new(&store, MaintenanceOptions::default()).unwrap();
    storage.advance(u64::from(REPLACED_SECONDS) * 100 - 100);
    maintenance.round().await.unwrap();
    assert!(store.get(first.uid, &tabs, &id("r"), Precondition::None).await.is_ok());
    storage.advance(200);
    maintenance.round().await.unwrap();
    assert!(store.get(first.uid, &tabs, &id("r"), Precondition::None).await.is_err());
    assert_eq!(store.check().await.unwrap().problems, 0);
    let checked = accounts.check().await.unwrap();
    assert_eq!((checked.accounts, checked.problems), (1, 0), "{:?}", checked.texts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_is_admitted() {
    let storage = Storage::new();
    let accounts = Accounts::new(&storage.store().await);
    let sign_in = async |account: &str, admission: &Admission| {
        accounts.sign_in(&claim(account, 1, "x"), admission).await.unwrap().is_ok()
    };
    let listed: HashSet<String> = ["a".to_owned()].into();
    let listed = Admission { accounts: listed, ..Admission::default() };
    let first_two = Admission { first_users: 2, ..listed.clone() };
    assert!(!sign_in("a", &Admission::default()).await && !sign_in("b", &listed).await);
    assert!(sign_in("a", &listed).await && sign_in("b", &first_two).await);
    assert!(!sign_in("c", &first_two).await && sign_in("b", &first_two).await);
    assert!(!sign_in("b", &listed).await && sign_in("c", &everyone()).await);
    let long = claim(&"x".repeat(Claim::ACCOUNT_BYTES_MAX + 1), 1, "x");
    assert!(accounts.sign_in(&long, &everyone()).await.is_err());
    assert!(accounts.sign_in(&claim("", 1, "x"), &everyone()).await.is_err());
}

/// Many sign-ins at once, at two servers, on an engine with faults. An account has one user for each client state, a
/// number has one account, and the limit of accounts holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_once_under_faults() {
    let Some(storage) = Storage::with_faults() else { return };
    let stores = [Accounts::new(&storage.store().await), Accounts::new(&storage.store().await)];
    let admission = Admission { first_users: 3, ..Admission::default() };
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..120_u64 {
        let (accounts, admission) = (stores[(number % 2) as usize].clone(), admission.clone());
        asked.spawn(async move {
            let account = ["a", "b", "c", "d", "e"][(number / 2 % 5) as usize];
            let generation = 1 + number / 40;
            let claim = claim(account, generation, &format!("s{generation}"));
            (account, generation, accounts.sign_in(&claim, &admission).await)
        });
    }
    let (mut users, mut accounts) = (HashSet::new(), HashSet::new());
    while let Some(done) = asked.join_next().await {
        let (account, generation, result) = done.unwrap();
        // A storage failure is an error; a claim that is behind is a refusal.
        let Ok(Ok(signed_in)) = result else { continue };
        users.insert((account, generation, signed_in.uid));
        accounts.insert(account);
    }
    let states: HashSet<_> = users.iter().map(|(account, generation, _)| (*account, *generation)).collect();
    let numbers: HashSet<_> = users.iter().map(|(_, _, uid)| *uid).collect();
    assert_eq!((states.len(), numbers.len()), (users.len(), users.len()), "{users:?}");
    assert!((1..=3).contains(&accounts.len()), "{accounts:?}");
    let checked = stores[0].check().await.unwrap();
    assert_eq!((checked.accounts, checked.problems), (accounts.len() as u64, 0), "{:?}", checked.texts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_finds_what_is_wrong() {
    let storage = Storage::new();
    let store = storage.store().await;
    let accounts = Accounts::new(&store);
    let signed_in = accounts.sign_in(&claim("a", 1, "x"), &everyone()).await.unwrap().unwrap();
    let inner = &store.inner;
    let key = by_uid(&inner.keys, signed_in.uid);
    inner
        .runner
        .write(|trx, _| {
            let key = key.clone();
            async move {
                trx.clear(&key);
                Ok(())
            }
        })
        .await
        .unwrap();
    assert_eq!(accounts.check().await.unwrap().problems, 1);
    let stray = by_uid(&inner.keys, Uid(5));
    inner
        .runner
        .write(|trx, _| {
            let key = stray.clone();
            async move {
                trx.set(&key, b"nobody");
                Ok(())
            }
        })
        .await
        .unwrap();
    assert_eq!(accounts.check().await.unwrap().problems, 2);
}
