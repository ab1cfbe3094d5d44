//! Leases of jobs over HTTP, `/_worker/_api/leases`: the server's answers, and the client of a remote process. Each
//! call is one transaction at the server and idempotent: an owner may take its lease again. A process holds all its
//! leases in one call.
//!
//! | call | meaning |
//! |---|---|
//! | `GET leases?after=JOB` | `lease_ms` (the server's setting, for all processes); `leases`: `id`, `owner`, `beats`;
//! at most 200, empty at the end |
//! | `POST leases/JOB/take`, `{"owner", "stale"}` | `stale`: a lease that was seen unchanged for its time. `{"ours":
//! true, "epoch", "told"}`, the epoch above all others by the server's clock; or `{"ours": false, "lease"}`. 404: no
//! such job |
//! | `POST leases/JOB/hold`, `{"owner", "told"}` | `told` is the state, with `epoch`. `{"ours": false}`: another
//! process has the job |
//! | `POST leases`, `{"owner", "held": [{"id", "told"}]}` | holds at most 100 different jobs, 500,000 bytes. `{"ours":
//! [...]}` in their order, false for a missing job. An older server answers 405 and gets a call for each |
//! | `POST leases/JOB/release` | as `hold`, and returns the lease |
//! | `DELETE leases/JOB` | removes the lease of a deleted job; 409 while the job exists, even if it was created again |
//!
//! Owners are 16 bytes in hexadecimal digits, `beats` is a number as text.

use std::collections::HashSet;
use std::time::Duration;

use flatbed_client::encode_segment;
use flatbed_jobs::{
    HOLDS_BYTES_MAX, HOLDS_MAX, HoldMany, LEASE_STATE_BYTES_MAX, Lease, LeaseError, LeaseRenewal, Leases, Owner,
    TakenLease,
};
use flatbed_worker::documents::JOB;
use hyper::Method;
use serde_json::{Value, json};

use crate::Dispatcher;
use crate::api::{ApiError, Refusal, Result};
use crate::home::{Takeover, epoch_of};
use crate::store::{self, Store, StoreError, text_of};

/// The bytes of an owner; also the longest that is accepted.
const OWNER_BYTES: usize = 16;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Parses the output of [`hex`]. `None`: malformed, or longer than an owner.
fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * OWNER_BYTES || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// Returns a lease as JSON. Beats are texts, because they exceed the integers that every JSON parser preserves.
fn seen(lease: &Lease) -> Value {
    json!({"owner": hex(&lease.owner), "beats": lease.beats.to_string()})
}

fn unseen(value: &Value) -> Option<Lease> {
    let (owner, beats) = (unhex(text_of(value, "owner"))?, text_of(value, "beats").parse().ok()?);
    Some(Lease { owner, beats, state: Vec::new() })
}

fn owner_of(body: &Value) -> Result<Owner> {
    let owner = unhex(text_of(body, "owner")).and_then(|owner| Owner::try_from(owner).ok());
    Ok(owner.ok_or_else(|| Refusal::Bad("`owner` must be 16 bytes in hexadecimal digits".to_owned()))?)
}

impl From<LeaseError> for ApiError {
    fn from(error: LeaseError) -> ApiError {
        match error {
            LeaseError::Gone => Refusal::NoJob.into(),
            LeaseError::Storage(error) => match error.downcast::<flatbed_layer::Error>() {
                Ok(error) => ApiError::Layer(*error),
                Err(error) => ApiError::Lease(error.to_string()),
            },
        }
    }
}

impl Dispatcher {
    /// Returns a page of leases, and the time after which a silent owner loses them.
    pub async fn list_leases(&self, after: Option<&str>) -> Result<Value> {
        let after = after.map(|id| format!("{JOB}{id}"));
        let page = self.home.page(after.as_deref()).await?;
        let row = |(id, lease): &(String, Lease)| {
            let mut row = seen(lease);
            store::set(&mut row, "id", id.strip_prefix(JOB)?);
            Some(row)
        };
        let rows: Vec<Value> = page.iter().filter_map(row).collect();
        let lease_ms = u64::try_from(self.lease().as_millis()).unwrap_or(u64::MAX);
        Ok(json!({"lease_ms": lease_ms, "leases": rows}))
    }

    /// Takes a job's lease for a remote process: `body` has its `owner` and, to take an expired lease, `stale`, the
    /// lease as it was seen.
    pub async fn take_lease(&self, id: &str, body: &Value) -> Result<Value> {
        let owner = owner_of(body)?;
        let stale = match body.get("stale") {
            None | Some(Value::Null) => None,
            Some(stale) => Some(unseen(stale).ok_or_else(|| Refusal::Bad("`stale` is no lease".to_owned()))?),
        };
        match self.home.take(&format!("{JOB}{id}"), &owner, stale.as_ref()).await? {
            TakenLease::Ours(lease) => {
                let given: Takeover = serde_json::from_slice(&lease.state).unwrap_or_default();
                Ok(json!({"ours": true, "epoch": given.epoch, "told": given.told}))
            }
            TakenLease::Others(lease) => Ok(json!({"ours": false, "lease": seen(&lease)})),
        }
    }

    /// Renews a job's lease for a remote process and stores its state; with `release` returns the lease. `body` has
    /// `owner` and `told`, which contains the epoch.
    pub async fn hold_lease(&self, id: &str, body: &Value, release: bool) -> Result<Value> {
        let (owner, told) = (owner_of(body)?, body.get("told").cloned().unwrap_or_default());
        let text = told.to_string();
        if epoch_of(text.as_bytes()) == 0 || text.len() > LEASE_STATE_BYTES_MAX {
            let reason = format!("`told` must have an `epoch`, and at most {LEASE_STATE_BYTES_MAX} bytes");
            return Err(Refusal::Bad(reason).into());
        }
        let is_ours = self.home.hold(&format!("{JOB}{id}"), &owner, text.as_bytes(), release).await?;
        Ok(json!({"ours": is_ours}))
    }

    /// Renews the leases of several jobs of a process in one transaction, as [`Dispatcher::hold_lease`]: `body` has
    /// `owner`, and `held` with `id` and `told` of each.
    pub async fn hold_leases(&self, body: &Value) -> Result<Value> {
        let bad = || {
            Refusal::Bad(format!(
                "`held` must be at most {HOLDS_MAX} jobs, none twice, each with `id` and `told` as to hold one, of at most {HOLDS_BYTES_MAX} bytes"
            ))
        };
        let (owner, held) = (owner_of(body)?, body.get("held").and_then(Value::as_array).ok_or_else(bad)?);
        if held.len() > HOLDS_MAX {
            return Err(bad().into());
        }
        let hold = |row: &Value| {
            let (id, told) = (text_of(row, "id"), row.get("told")?.to_string());
            let is_right = !id.is_empty() && epoch_of(told.as_bytes()) > 0 && told.len() <= LEASE_STATE_BYTES_MAX;
            is_right.then(|| LeaseRenewal { id: format!("{JOB}{id}"), state: told.into_bytes() })
        };
        let holds: Vec<LeaseRenewal> = held.iter().map(hold).collect::<Option<_>>().ok_or_else(bad)?;
        let ids: HashSet<&str> = holds.iter().map(|hold| hold.id.as_str()).collect();
        let bytes: usize = holds.iter().map(LeaseRenewal::bytes).sum();
        if ids.len() < holds.len() || holds.len() > 1 && bytes > HOLDS_BYTES_MAX {
            return Err(bad().into());
        }
        Ok(json!({"ours": self.home.hold_many(&owner, &holds).await?}))
    }

    /// Removes the lease of a deleted job.
    pub async fn forget_lease(&self, id: &str) -> Result<Value> {
        if !self.home.forget(&format!("{JOB}{id}")).await? {
            return Err(Refusal::Conflict("the job is still there").into());
        }
        Ok(json!({"ok": true}))
    }
}

fn path(id: &str, what: &str) -> String {
    format!("/_api/leases/{}{what}", encode_segment(id.strip_prefix(JOB).unwrap_or(id)))
}

fn nonsense(what: &str) -> StoreError {
    StoreError::Refused {
        status: 502,
        error: "bad_answer".to_owned(),
        reason: format!("the server's answer is no {what}"),
    }
}

/// Returns the time after which a silent owner loses its leases at this server.
pub(crate) async fn silence_max(store: &Store) -> std::result::Result<Duration, StoreError> {
    let answer = match store.call(Method::GET, "/_api/leases?after=~", None).await {
        Err(StoreError::Refused { status: 404 | 501, .. }) => {
            return Err(StoreError::Refused {
                status: 404,
                error: "not_found".to_owned(),
                reason: "the server has no leases of jobs: it is no Flatbed, or an older one".to_owned(),
            });
        }
        answer => answer?,
    };
    let milliseconds = answer.get("lease_ms").and_then(Value::as_u64).filter(|milliseconds| *milliseconds >= 1_000);
    milliseconds.map(Duration::from_millis).ok_or_else(|| nonsense("time of leases"))
}

pub(crate) async fn page(
    store: &Store,
    after: Option<&str>,
    time_max: Duration,
) -> std::result::Result<Vec<(String, Lease)>, StoreError> {
    let mut path = "/_api/leases".to_owned();
    if let Some(after) = after {
        path.push_str(&format!("?after={}", encode_segment(after.strip_prefix(JOB).unwrap_or(after))));
    }
    let answer = store.call_within(Method::GET, &path, None, time_max).await?;
    let rows = answer.get("leases").and_then(Value::as_array).ok_or_else(|| nonsense("list of leases"))?;
    let row = |row: &Value| Some((format!("{JOB}{}", text_of(row, "id")), unseen(row)?));
    rows.iter().map(row).collect::<Option<_>>().ok_or_else(|| nonsense("list of leases"))
}

/// Removes the lease of a deleted job. False: the job exists.
pub(crate) async fn forget(store: &Store, id: &str, time_max: Duration) -> std::result::Result<bool, StoreError> {
    match store.call_within(Method::DELETE, &path(id, ""), None, time_max).await {
        Err(error) if error.status() == Some(409) => Ok(false),
        done => done.map(|_| true),
    }
}

pub(crate) async fn take(
    store: &Store,
    id: &str,
    owner: &Owner,
    stale: Option<&Lease>,
    time_max: Duration,
) -> std::result::Result<TakenLease, StoreError> {
    let body = json!({"owner": hex(owner), "stale": stale.map(seen)});
    let answer = store.call_within(Method::POST, &path(id, "/take"), Some(&body), time_max).await?;
    match answer.get("ours") {
        Some(Value::Bool(true)) => {
            let state = json!({"epoch": answer.get("epoch"), "told": answer.get("told")}).to_string().into_bytes();
            Ok(TakenLease::Ours(Lease { owner: owner.to_vec(), beats: 0, state }))
        }
        Some(Value::Bool(false)) => {
            answer.get("lease").and_then(unseen).map(TakenLease::Others).ok_or_else(|| nonsense("lease"))
        }
        _ => Err(nonsense("lease")),
    }
}

pub(crate) async fn hold(
    store: &Store,
    id: &str,
    owner: &Owner,
    state: &[u8],
    release: bool,
    time_max: Duration,
) -> std::result::Result<bool, StoreError> {
    let told: Value = serde_json::from_slice(state).unwrap_or_default();
    let body = json!({"owner": hex(owner), "told": told});
    let path = path(id, if release { "/release" } else { "/hold" });
    let answer = store.call_within(Method::POST, &path, Some(&body), time_max).await?;
    answer.get("ours").and_then(Value::as_bool).ok_or_else(|| nonsense("lease"))
}

/// Renews several leases. Returns an answer for each, or an error.
pub(crate) async fn hold_many(
    store: &Store,
    owner: &Owner,
    holds: &[LeaseRenewal],
    time_max: Duration,
) -> std::result::Result<Vec<bool>, StoreError> {
    let row = |hold: &LeaseRenewal| {
        let told: Value = serde_json::from_slice(&hold.state).unwrap_or_default();
        json!({"id": hold.id.strip_prefix(JOB).unwrap_or(&hold.id), "told": told})
    };
    let body = json!({"owner": hex(owner), "held": holds.iter().map(row).collect::<Vec<_>>()});
    let answer = store.call_within(Method::POST, "/_api/leases", Some(&body), time_max).await?;
    let ours = answer.get("ours").and_then(Value::as_array).filter(|ours| ours.len() == holds.len());
    ours.and_then(|ours| ours.iter().map(Value::as_bool).collect()).ok_or_else(|| nonsense("list of leases"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_cross_as_they_are() {
        let lease = Lease { owner: (0..16).collect(), beats: u64::MAX, state: Vec::new() };
        assert_eq!(unseen(&seen(&lease)), Some(lease));
        assert_eq!(unseen(&seen(&Lease::default())), Some(Lease::default()));
        for value in [json!({}), json!({"owner": "0", "beats": "1"}), json!({"owner": "zz", "beats": "1"})] {
            assert_eq!(unseen(&value), None, "{value}");
        }
        for owner in [json!("00"), json!("00".repeat(17)), json!("é".repeat(16)), json!(7)] {
            assert!(owner_of(&json!({"owner": owner})).is_err());
        }
    }
}
