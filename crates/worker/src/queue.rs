//! Entries of the queue of failed documents (the Python worker's dead letter queue), and what becomes of them.
//!
//! An entry is written before the checkpoint passes its change. Its id derives from job, document and sequence, so a worker that
//! dies between the two writes the same entry again. An entry waits until it is replayed; it goes only once it is delivered, or
//! deleted by somebody, or once it is overtaken and its time has come:
//!
//! | state | how it gets there | what a replay does |
//! |---|---|---|
//! | `waiting` | a change failed that is poison | is sent, unless the source has a newer revision of the document |
//! | `exhausted` | as many replays failed as there may be | nothing, unless somebody asks for this one |
//! | `overtaken` | the source has a newer revision, which the feed delivers | nothing |
//! | gone | delivered | |

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::secret::Redactor;

/// The longest document that an entry holds, in bytes of JSON. A larger one is left out, and a replay reads it from the source.
pub const DOCUMENT_BYTES_MAX: usize = 4 << 20;

/// Characters of an error that are kept.
pub const ERROR_CHARACTERS_MAX: usize = 2_000;

/// Failed replays until an entry is exhausted, where the job says nothing.
pub const REPLAYS_MAX: u32 = 10;

/// What is to be known of an entry that waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// To be replayed.
    #[default]
    Waiting,
    /// Replayed in vain too often.
    Exhausted,
    /// A newer revision of its document comes, or came, through the feed.
    Overtaken,
}

/// A change that was not delivered: the Python worker's members, and Flatbed's from `job` on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Always `dlq`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The document's id.
    pub doc_id_original: String,
    /// The change's place in the feed.
    pub seq: String,
    /// `PUT` or `DELETE`, or what an HTTP target was sent.
    pub method: String,
    /// HTTP's status; 0 where there is none.
    pub status: u16,
    /// What the target said, without secrets.
    pub error: String,
    /// The Python worker's word for why ([`Failure::reason`]).
    #[serde(default)]
    pub reason: String,
    /// When it failed first, in seconds of Unix time.
    pub time: u64,
    /// When it goes by itself, where it may; 0: never.
    #[serde(default)]
    pub expires_at: u64,
    /// Whether it was replayed with success, in what the Python worker has left.
    #[serde(default)]
    pub retried: bool,
    /// Replays that failed.
    #[serde(default)]
    pub replay_attempts: u32,
    /// Where it was sent, without secrets.
    #[serde(default)]
    pub target_url: String,
    /// The document as JSON text, its `_id` and `_rev` included. Empty where it is too large.
    pub doc_data: String,
    /// The job's id. Empty in what the Python worker has left.
    #[serde(default)]
    pub job: String,
    /// The document's revision, where it is known.
    #[serde(default)]
    pub rev: String,
    /// `poison`, or `outage` in what the Python worker has left.
    #[serde(default)]
    pub class: String,
    /// Deliveries that were tried, replays included.
    #[serde(default)]
    pub attempts: u32,
    /// When it failed last, in seconds of Unix time.
    #[serde(default)]
    pub last_time: u64,
    /// What may become of it.
    #[serde(default)]
    pub state: State,
    /// Whether somebody changed `doc_data` before a replay.
    #[serde(default)]
    pub edited: bool,
}

/// What failed.
#[derive(Debug, Clone, Copy)]
pub struct Failed<'f> {
    /// The job's id.
    pub job: &'f str,
    /// The document's.
    pub id: &'f str,
    /// Its revision.
    pub rev: &'f str,
    /// The change's place in the feed.
    pub seq: &'f str,
    /// `PUT` or `DELETE`.
    pub method: &'f str,
    /// The document as JSON; of a deletion its id and revision.
    pub document: &'f str,
    /// Where it was sent.
    pub target_url: &'f str,
    /// Why it was not taken.
    pub failure: &'f Failure,
    /// What the target said.
    pub error: &'f str,
    /// In seconds of Unix time.
    pub now: u64,
    /// For how long such an entry stays once it may go, in seconds; 0: for ever.
    pub retention_seconds: u64,
}

/// What the source says of a document whose entry is to be replayed, asked in the document's turn (design/worker.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtSource<'s> {
    /// It has this revision as its newest.
    Newest(&'s str),
    /// It has none: the document was deleted, or is none that the job may see.
    Gone,
}

/// What is to be done with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// It is sent.
    Send,
    /// It is not, and is marked.
    Overtaken,
    /// It is not: too many replays failed, and nobody asked for this one.
    Left,
}

impl Entry {
    /// Of a change that failed for the first time.
    pub fn new(failed: &Failed<'_>, redactor: &Redactor) -> Entry {
        let fits = failed.document.len() <= DOCUMENT_BYTES_MAX;
        Entry {
            kind: "dlq".to_owned(),
            doc_id_original: failed.id.to_owned(),
            seq: failed.seq.to_owned(),
            method: failed.method.to_owned(),
            status: failed.failure.status(),
            error: redactor.text(failed.error, ERROR_CHARACTERS_MAX),
            reason: failed.failure.reason(),
            time: failed.now,
            expires_at: if failed.retention_seconds == 0 {
                0
            } else {
                failed.now.saturating_add(failed.retention_seconds)
            },
            retried: false,
            replay_attempts: 0,
            target_url: redactor.url(failed.target_url),
            doc_data: if fits { failed.document.to_owned() } else { String::new() },
            job: failed.job.to_owned(),
            rev: failed.rev.to_owned(),
            class: failed.failure.class().as_str().to_owned(),
            attempts: 1,
            last_time: failed.now,
            state: State::Waiting,
            edited: false,
        }
    }

    /// The id of its document in `_worker`.
    pub fn id(&self) -> String {
        entry_id(&self.job, &self.doc_id_original, &self.seq)
    }

    /// What a replay does. `by_hand`: somebody asked for this entry, and not for all that match something.
    pub fn replay(&self, at_source: AtSource<'_>, by_hand: bool) -> Replay {
        // A deletion is still the newest where there is no document.
        let is_newest = match at_source {
            AtSource::Newest(rev) => self.rev.is_empty() || rev == self.rev,
            AtSource::Gone => self.method == "DELETE",
        };
        match self.state {
            State::Overtaken => Replay::Overtaken,
            _ if !is_newest => Replay::Overtaken,
            State::Exhausted if !by_hand => Replay::Left,
            State::Waiting | State::Exhausted => Replay::Send,
        }
    }

    /// A newer revision comes, or came, through the feed.
    pub fn overtake(&mut self, now: u64, retention_seconds: u64) {
        self.state = State::Overtaken;
        self.last_time = now;
        if retention_seconds > 0 {
            self.expires_at = now.saturating_add(retention_seconds);
        }
    }

    /// A replay failed. What the target's state is to blame for does not count: it says nothing of the document.
    pub fn fail_again(&mut self, failure: &Failure, error: &str, now: u64, replays_max: u32, redactor: &Redactor) {
        self.attempts = self.attempts.saturating_add(1);
        self.last_time = now;
        self.status = failure.status();
        self.reason = failure.reason();
        self.error = redactor.text(error, ERROR_CHARACTERS_MAX);
        if failure.class() == crate::failure::Class::Poison {
            self.replay_attempts = self.replay_attempts.saturating_add(1);
            if self.replay_attempts >= replays_max && self.state == State::Waiting {
                self.state = State::Exhausted;
            }
        }
    }

    /// Somebody puts another document in its place, to be sent when it is replayed.
    pub fn edit(&mut self, document: String) {
        self.doc_data = document;
        self.edited = true;
        self.replay_attempts = 0;
        if self.state == State::Exhausted {
            self.state = State::Waiting;
        }
    }

    /// Whether it may go by itself: its time has come, and it was delivered or overtaken, or the job gives up what still waits
    /// (`drop_waiting`), which is counted.
    pub fn is_expired(&self, now: u64, drop_waiting: bool) -> bool {
        let is_due = self.expires_at > 0 && self.expires_at <= now;
        is_due && (self.retried || self.state == State::Overtaken || drop_waiting)
    }
}

/// The id of an entry: the same for the same change.
pub fn entry_id(job: &str, document: &str, seq: &str) -> String {
    let mut hash = Sha256::new();
    for part in [job, document, seq] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).fold("dlq:".to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::secret::{Secret, SecretRef};

    fn entry(document: &str) -> Entry {
        let secret = Secret::of(&SecretRef::File("x".to_owned()), b"hunter2").unwrap();
        let failed = Failed {
            job: "j",
            id: "order::1",
            rev: "3-abc",
            seq: "42",
            method: "PUT",
            document,
            target_url: "https://anna:hunter2@host/x?token=7",
            failure: &Failure::Http(422),
            error: "no: hunter2",
            now: 1_000,
            retention_seconds: 60,
        };
        Entry::new(&failed, &Redactor::new([&secret], []))
    }

    #[test]
    fn entries_have_seeds_members_and_no_secrets() {
        let entry = entry(r#"{"_id":"order::1"}"#);
        let json = serde_json::to_value(&entry).unwrap();
        for (member, value) in [
            ("type", "dlq"),
            ("doc_id_original", "order::1"),
            ("seq", "42"),
            ("method", "PUT"),
            ("error", "no: ***"),
            ("reason", "client_error:422"),
            ("target_url", "https://host/x?token=***"),
            ("class", "poison"),
            ("state", "waiting"),
        ] {
            assert_eq!(json[member], value, "{member}");
        }
        assert_eq!((&json["status"], &json["time"], &json["expires_at"]), (&422.into(), &1_000.into(), &1_060.into()));
        assert!(!json.to_string().contains("hunter2"));
        assert_eq!(serde_json::from_value::<Entry>(json).unwrap(), entry);
        assert_eq!(self::entry(&"x".repeat(DOCUMENT_BYTES_MAX + 1)).doc_data, "");
        // What the Python worker has left.
        let seeds = r#"{"type":"dlq","doc_id_original":"order::12345","seq":"42","method":"PUT","status":500,
            "error":"Internal Server Error","time":1768521600,"retried":false,"doc_data":"{\"_id\":\"order::12345\"}"}"#;
        assert_eq!(serde_json::from_str::<Entry>(seeds).unwrap().state, State::Waiting);
    }

    #[test]
    fn ids_are_the_same_for_the_same_change_alone() {
        assert_eq!(entry_id("j", "d", "1"), entry_id("j", "d", "1"));
        let others =
            [entry_id("j", "d", "2"), entry_id("j", "d1", ""), entry_id("jd", "", "1"), entry_id("j", "", "d1")];
        assert!(!others.contains(&entry_id("j", "d", "1")));
        assert_eq!(entry("{}").id(), entry_id("j", "order::1", "42"));
        assert_eq!(entry("{}").id().len(), 36);
    }

    #[test]
    fn replays_are_sent_left_or_overtaken() {
        let mut entry = entry("{}");
        let newest = AtSource::Newest("3-abc");
        assert_eq!(entry.replay(newest, false), Replay::Send);
        assert_eq!(entry.replay(AtSource::Newest("4-abc"), true), Replay::Overtaken);
        assert_eq!(entry.replay(AtSource::Gone, true), Replay::Overtaken);
        // The target's state counts for nothing.
        for _ in 0..20 {
            entry.fail_again(&Failure::Connection, "", 1_001, 2, &Redactor::default());
        }
        assert_eq!((entry.state, entry.replay_attempts, entry.attempts), (State::Waiting, 0, 21));
        for _ in 0..2 {
            entry.fail_again(&Failure::Http(400), "", 1_002, 2, &Redactor::default());
        }
        assert_eq!(
            (entry.state, entry.reason.as_str(), entry.last_time),
            (State::Exhausted, "client_error:400", 1_002)
        );
        assert_eq!([entry.replay(newest, false), entry.replay(newest, true)], [Replay::Left, Replay::Send]);
        entry.edit("{\"a\":1}".to_owned());
        assert_eq!((entry.replay(newest, false), entry.edited), (Replay::Send, true));
        entry.overtake(2_000, 60);
        assert_eq!(entry.replay(newest, true), Replay::Overtaken);
        let deletion = Entry { method: "DELETE".to_owned(), ..self::entry("{}") };
        assert_eq!(deletion.replay(AtSource::Gone, false), Replay::Send);
    }

    #[test]
    fn only_what_is_delivered_or_overtaken_goes_by_itself() {
        let mut entry = entry("{}");
        assert_eq!(
            [entry.is_expired(1_060, false), entry.is_expired(1_060, true), entry.is_expired(1_059, true)],
            [false, true, false]
        );
        entry.overtake(2_000, 60);
        assert_eq!([entry.is_expired(2_059, false), entry.is_expired(2_060, false)], [false, true]);
        assert!(Entry { retried: true, ..self::entry("{}") }.is_expired(1_060, false));
        assert!(!Entry { retried: true, expires_at: 0, ..self::entry("{}") }.is_expired(u64::MAX, true));
    }

    proptest! {
        #[test]
        fn what_is_overtaken_is_never_sent(steps in proptest::collection::vec((0_u8..4, 0_u64..10), 0..30)) {
            let mut entry = entry("{}");
            let (mut is_overtaken, mut attempts) = (false, entry.attempts);
            for (step, at) in steps {
                match step {
                    0 => entry.fail_again(&Failure::Http(422), "", at, 3, &Redactor::default()),
                    1 => entry.fail_again(&Failure::Http(503), "", at, 3, &Redactor::default()),
                    2 => entry.edit("{}".to_owned()),
                    _ => {
                        entry.overtake(at, 0);
                        is_overtaken = true;
                    }
                }
                let replay = entry.replay(AtSource::Newest("3-abc"), true);
                prop_assert_eq!(replay == Replay::Overtaken, is_overtaken);
                prop_assert!(entry.attempts >= attempts);
                attempts = entry.attempts;
                prop_assert!(entry.state != State::Exhausted || entry.replay_attempts >= 3);
                let json = serde_json::to_string(&entry).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Entry>(&json).unwrap(), &entry);
            }
        }
    }
}
