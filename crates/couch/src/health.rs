//! The state of the storage as `/_up` and `/metrics` show it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flatbed_http::Reply;
use flatbed_layer::json::Object;
use flatbed_service::Service;
use hyper::StatusCode;
use hyper::header::HeaderName;

use crate::error::Failure;

/// The header of `/_up` with the storage's state (`ok`, `unreachable`, `failed`), its engine and its response time. A
/// header, because monitors may compare CouchDB's body.
const STORAGE: HeaderName = HeaderName::from_static("x-flatbed-storage");

/// The error of a storage that accepts no more writes.
const STORAGE_FAILED: &str = "storage_failed";

/// Timeout of the storage's answer to `/_up`.
const PING_MAX: Duration = Duration::from_secs(5);

/// The storage's name and permanent failure, reported by the program that runs a [`Server`](flatbed_http::Server) and
/// shown by `GET /_up` and `/metrics`. Clones share the state.
///
/// `GET /_up` itself detects storage that does not answer.
#[derive(Debug, Clone, Default)]
pub struct StorageHealth {
    engine: Option<&'static str>,
    failure: Arc<OnceLock<String>>,
}

impl StorageHealth {
    /// `engine`: one word that names the storage.
    pub fn new(engine: &'static str) -> StorageHealth {
        StorageHealth { engine: Some(engine), failure: Arc::default() }
    }

    /// Records that the storage accepts no more writes until the program restarts. `reason` is for the operator. The
    /// first reason stays.
    pub fn fail(&self, reason: impl Into<String>) {
        // `set` fails if an earlier reason is recorded.
        let _ = self.failure.set(reason.into());
    }

    /// Returns the reason of the storage's failure, if it has failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Returns a request's failure as the client sees it: of a failed storage, the error and reason of `GET /_up`.
    pub(crate) fn tell(&self, failure: Failure) -> Failure {
        match self.failure() {
            Some(reason) if failure.is_of_storage => {
                Failure { error: STORAGE_FAILED.into(), reason: reason.to_owned(), ..failure }
            }
            _ => failure,
        }
    }

    /// Answers `GET /_up` within [`PING_MAX`]. Load balancers read the status alone.
    pub(crate) async fn up(&self, service: &Service) -> Reply {
        self.answer(service.ping()).await
    }

    async fn answer(&self, ping: impl Future<Output = flatbed_layer::Result<()>>) -> Reply {
        let started = Instant::now();
        let unreachable = match tokio::time::timeout(PING_MAX, ping).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("the storage does not answer: {error}")),
            Err(_) => Some(format!("the storage does not answer within {} s", PING_MAX.as_secs())),
        };
        let ping = unreachable.is_none().then(|| started.elapsed());
        let (state, failure) = match (self.failure(), unreachable) {
            (Some(reason), _) => ("failed", Some((STORAGE_FAILED, reason.to_owned()))),
            (None, Some(reason)) => ("unreachable", Some(("service_unavailable", reason))),
            (None, None) => ("ok", None),
        };
        let out = Object::text(|object| {
            object.string("status", failure.as_ref().map_or("ok", |(error, _)| error)).raw("seeds", b"{}");
            if let Some((error, reason)) = &failure {
                object.string("error", error).string("reason", reason);
            }
        });
        let mut reply =
            Reply::json(if failure.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, out);
        let mut told = format!("state={state}");
        if let Some(engine) = self.engine {
            told.push_str(&format!("; engine={engine}"));
        }
        if let Some(took) = ping {
            told.push_str(&format!("; ping_ms={}", took.as_micros() as f64 / 1_000.0));
        }
        reply.header(STORAGE, &told);
        reply
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use flatbed_http::ReplyBody;

    async fn told(
        health: &StorageHealth,
        ping: impl Future<Output = flatbed_layer::Result<()>>,
    ) -> (u16, Value, String) {
        let reply = health.answer(ping).await;
        let ReplyBody::Full(Some(body)) = reply.body else { panic!("a whole body") };
        let storage = reply.headers[STORAGE].to_str().unwrap().to_owned();
        (reply.status.as_u16(), serde_json::from_slice(&body).unwrap(), storage)
    }

    #[tokio::test(start_paused = true)]
    async fn a_storage_that_does_not_answer_is_told_in_time() {
        let health = StorageHealth::new("cluster");
        // Tokio's paused clock advances only while all tasks wait.
        let answered = tokio::time::timeout(Duration::from_secs(6), told(&health, std::future::pending())).await;
        let (status, answer, storage) = answered.expect("an answer within the timeout");
        assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")));
        assert_eq!(storage, "state=unreachable; engine=cluster");
        let (status, _, storage) = told(&health, async { Err(flatbed_layer::Error::NoRandomness) }).await;
        assert_eq!((status, storage.as_str()), (503, "state=unreachable; engine=cluster"));
        let (status, answer, storage) = told(&health, async { Ok(()) }).await;
        assert_eq!((status, answer), (200, json!({"status": "ok", "seeds": {}})));
        assert!(storage.starts_with("state=ok; engine=cluster; ping_ms="));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_storage_stays_failed() {
        let health = StorageHealth::default();
        assert_eq!(told(&health, async { Ok(()) }).await.0, 200);
        health.fail("the disk is full");
        health.fail("and more");
        for _ in 0..2 {
            let (status, answer, storage) = told(&health, async { Ok(()) }).await;
            assert_eq!((status, &answer["error"]), (503, &json!("storage_failed")));
            assert_eq!(answer["reason"], "the disk is full");
            assert!(storage.starts_with("state=failed; ping_ms="));
        }
        // A request that met the storage gets the same words, another one its own.
        let of = |error: flatbed_layer::Error| health.tell(Failure::from(error));
        let failure = of(flatbed_layer::Error::timed_out());
        assert_eq!((failure.status.as_u16(), &*failure.error), (503, "storage_failed"));
        assert_eq!(failure.reason, "the disk is full");
        assert_eq!(of(flatbed_layer::Error::DatabaseNotFound).error, "not_found");
        let sound = StorageHealth::default().tell(Failure::from(flatbed_layer::Error::timed_out()));
        assert_eq!(sound.error, "service_unavailable");
        // A permanent failure takes precedence over a timeout.
        assert_eq!(told(&health, std::future::pending()).await.2, "state=failed");
    }
}
