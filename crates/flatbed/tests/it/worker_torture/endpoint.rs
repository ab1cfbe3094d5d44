//! An HTTP endpoint. It may get a state twice, and an older one late from a suspended process. It keeps
//! the state of a document with the highest epoch and sequence in the headers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use flatbed_testkit::http::{ServerConnection, listen};
use serde_json::{Value, json};

use super::gate::{Gate, Mode};
use super::model::{HEAVY, Rows, add_sent_rows};
use super::target::{Fault, Target};

#[derive(Default)]
struct State {
    /// By document: epoch, number of the sequence, and the body.
    taken: Mutex<HashMap<String, (u64, u64, Value)>>,
    /// The status that replaces all others; 0: none.
    status: AtomicU16,
    denies: AtomicBool,
    relents: AtomicBool,
}

pub(super) struct Endpoint {
    state: Arc<State>,
    gate: Gate,
}

impl Endpoint {
    pub(super) async fn new() -> Endpoint {
        let state = Arc::<State>::default();
        let served = state.clone();
        let address = listen(move |connection| serve(connection, served.clone())).await;
        Endpoint { state, gate: Gate::to(address.port()).await }
    }
}

async fn serve(mut connection: ServerConnection, state: Arc<State>) -> Option<()> {
    loop {
        let request = connection.read().await?;
        let epoch = request.header("flatbed-epoch").map_or(Some(0), |epoch| epoch.parse().ok())?;
        let seq = request.header("flatbed-seq").map_or(Some(0), |seq| seq.split('-').next()?.parse().ok())?;
        let status = state.take(request.path.strip_prefix("/in/")?, epoch, seq, &request.body);
        connection.answer(status, "retry-after: 0\r\n", "").await?;
    }
}

impl State {
    fn take(&self, id: &str, epoch: u64, seq: u64, body: &[u8]) -> u16 {
        match self.status.load(Ordering::Relaxed) {
            0 => {}
            // For a deletion this would mean that the object is gone.
            404 if body.is_empty() => return 500,
            status => return status,
        }
        let sent = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap() };
        let is_heavy = sent["orders"][0]["weight"].as_i64().is_some_and(|weight| weight >= HEAVY);
        if is_heavy && !self.relents.load(Ordering::Relaxed) {
            return 422;
        }
        let mut taken = self.taken.lock().unwrap();
        let before = taken.entry(id.to_owned()).or_default();
        if (before.0, before.1) <= (epoch, seq) {
            *before = (epoch, seq, sent);
        }
        if self.denies.load(Ordering::Relaxed) { 500 } else { 200 }
    }
}

impl Target for Endpoint {
    fn id(&self) -> &'static str {
        "http"
    }

    fn output(&self) -> (&'static str, Value) {
        let url = format!("http://127.0.0.1:{}/in/{{id}}", self.gate.port);
        ("http", json!({"url": url, "timeout_seconds": 2}))
    }

    fn judges(&self) -> bool {
        true
    }

    fn keeps_what_it_has(&self) -> bool {
        true
    }

    fn relents(&self) {
        self.state.relents.store(true, Ordering::Relaxed);
    }

    fn rows(&self) -> Rows {
        let mut rows = Rows::new();
        for (_, _, sent) in self.state.taken.lock().unwrap().values() {
            add_sent_rows(sent, &mut rows);
        }
        rows
    }

    fn faults(&self) -> &'static [Fault] {
        const STATUSES: [Fault; 5] =
            [Fault::Answers(500), Fault::Answers(503), Fault::Answers(429), Fault::Answers(401), Fault::Answers(404)];
        const ALL: [Fault; 8] = [
            Fault::Refuses,
            Fault::Hangs,
            Fault::Denies,
            STATUSES[0],
            STATUSES[1],
            STATUSES[2],
            STATUSES[3],
            STATUSES[4],
        ];
        &ALL
    }

    fn suffers(&self, fault: Fault, is_on: bool) {
        match fault {
            Fault::Refuses if is_on => self.gate.set(Mode::Refuses),
            Fault::Hangs if is_on => self.gate.set(Mode::Hangs),
            Fault::Refuses | Fault::Hangs => self.gate.set(Mode::Passes),
            Fault::Denies => self.state.denies.store(is_on, Ordering::Relaxed),
            Fault::Answers(status) => self.state.status.store(if is_on { status } else { 0 }, Ordering::Relaxed),
            _ => panic!("no tables"),
        }
    }
}
