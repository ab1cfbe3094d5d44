//! Entries of the queue of failed documents (the Python worker's dead letter queue) and their life cycle.
//!
//! An entry is written before the checkpoint passes its change. Its id derives from job, document and sequence, so a
//! worker that restarts in between writes the same entry again. An entry is removed after it was delivered, by an
//! administrator, or after it was overtaken and has expired:
//!
//! | state | reached when | effect of a replay |
//! |---|---|---|
//! | `waiting` | a change failed as poison | sends it, unless the source has a newer revision of the document |
//! | `exhausted` | as many replays failed as the job allows | none, unless the entry is requested by its id |
//! | `overtaken` | the source has a newer revision, which the feed delivers | none |
//! | removed | delivered | |

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::secret::Redactor;

/// The longest document in an entry, in bytes of JSON. A longer document is omitted, and a replay reads it from the
/// source.
pub const DOCUMENT_BYTES_MAX: usize = 4 << 20;

/// The longest error text in an entry, in characters. Longer texts are cut.
pub const ERROR_CHARACTERS_MAX: usize = 2_000;

/// The default number of failed replays after which an entry is exhausted.
pub const REPLAYS_MAX: u32 = 10;

/// The state of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryState {
    /// Waiting for a replay.
    #[default]
    Waiting,
    /// Too many replays failed.
    Exhausted,
    /// The feed delivers, or has delivered, a newer revision of the document.
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
    /// The change's position in the feed.
    pub seq: String,
    /// `PUT` or `DELETE`, or the method sent to an HTTP target.
    pub method: String,
    /// The HTTP status; 0 if there is none.
    pub status: u16,
    /// The target's message, redacted.
    pub error: String,
    /// The Python worker's word for the cause ([`Failure::reason`]).
    #[serde(default)]
    pub reason: String,
    /// The time of the first failure, in seconds of Unix time.
    pub time: u64,
    /// The time from which the entry may be removed automatically, in seconds of Unix time; 0: never.
    #[serde(default)]
    pub expires_at: u64,
    /// True if a replay succeeded, in entries of the Python worker.
    #[serde(default)]
    pub retried: bool,
    /// The number of failed replays.
    #[serde(default)]
    pub replay_attempts: u32,
    /// The destination, redacted.
    #[serde(default)]
    pub target_url: String,
    /// The document as JSON text, with its `_id` and `_rev`. Empty if it is too large.
    pub doc_data: String,
    /// The job's id. Empty in entries of the Python worker.
    #[serde(default)]
    pub job: String,
    /// The document's revision, if known.
    #[serde(default)]
    pub rev: String,
    /// `poison`, or `outage` in entries of the Python worker.
    #[serde(default)]
    pub class: String,
    /// The number of attempted deliveries, including replays.
    #[serde(default)]
    pub attempts: u32,
    /// The time of the last failure, in seconds of Unix time.
    #[serde(default)]
    pub last_time: u64,
    /// The state.
    #[serde(default)]
    pub state: EntryState,
    /// True if an administrator edited `doc_data`.
    #[serde(default)]
    pub edited: bool,
}

/// A failed change, the input of a new entry.
#[derive(Debug, Clone, Copy)]
pub struct FailedChange<'f> {
    /// The job's id.
    pub job: &'f str,
    /// The document's id.
    pub id: &'f str,
    /// The document's revision.
    pub rev: &'f str,
    /// The change's position in the feed.
    pub seq: &'f str,
    /// `PUT` or `DELETE`.
    pub method: &'f str,
    /// The document as JSON text; for a deletion its id and revision.
    pub document: &'f str,
    /// The destination.
    pub target_url: &'f str,
    /// The cause.
    pub failure: &'f Failure,
    /// The target's message.
    pub error: &'f str,
    /// The present, in seconds of Unix time.
    pub now: u64,
    /// The retention in seconds; 0: unlimited.
    pub retention_seconds: u64,
}

/// The state of an entry's document at the source, read in the document's turn (design/worker.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState<'s> {
    /// The document's newest revision.
    Newest(&'s str),
    /// The document is deleted, or the job has no access to it.
    Gone,
}

/// The action of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// Send the entry.
    Send,
    /// Mark it as overtaken.
    Overtaken,
    /// Leave it: too many replays failed, and it was not requested by its id.
    Left,
}

impl Entry {
    /// Creates the entry of a change that failed for the first time.
    pub fn new(failed: &FailedChange<'_>, redactor: &Redactor) -> Entry {
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
            state: EntryState::Waiting,
            edited: false,
        }
    }

    /// Returns the id of its document in `_worker`.
    pub fn id(&self) -> String {
        entry_id(&self.job, &self.doc_id_original, &self.seq)
    }

    /// Decides the action of a replay. `by_hand`: the entry was requested by its id.
    pub fn replay(&self, at_source: SourceState<'_>, by_hand: bool) -> Replay {
        // A deletion still is the newest state if the document does not exist.
        let is_newest = match at_source {
            SourceState::Newest(rev) => self.rev.is_empty() || rev == self.rev,
            SourceState::Gone => self.method == "DELETE",
        };
        match self.state {
            EntryState::Overtaken => Replay::Overtaken,
            _ if !is_newest => Replay::Overtaken,
            EntryState::Exhausted if !by_hand => Replay::Left,
            EntryState::Waiting | EntryState::Exhausted => Replay::Send,
        }
    }

    /// Marks the entry as overtaken by a newer revision.
    pub fn mark_overtaken(&mut self, now: u64, retention_seconds: u64) {
        self.state = EntryState::Overtaken;
        self.last_time = now;
        if retention_seconds > 0 {
            self.expires_at = now.saturating_add(retention_seconds);
        }
    }

    /// Records a failed replay. Outages do not count, because they say nothing about the document.
    pub fn fail_again(&mut self, failure: &Failure, error: &str, now: u64, replays_max: u32, redactor: &Redactor) {
        self.attempts = self.attempts.saturating_add(1);
        self.last_time = now;
        self.status = failure.status();
        self.reason = failure.reason();
        self.error = redactor.text(error, ERROR_CHARACTERS_MAX);
        if failure.class() == crate::failure::Class::Poison {
            self.replay_attempts = self.replay_attempts.saturating_add(1);
            if self.replay_attempts >= replays_max && self.state == EntryState::Waiting {
                self.state = EntryState::Exhausted;
            }
        }
    }

    /// Replaces the document that the next replay sends.
    pub fn edit(&mut self, document: String) {
        self.doc_data = document;
        self.edited = true;
        self.replay_attempts = 0;
        if self.state == EntryState::Exhausted {
            self.state = EntryState::Waiting;
        }
    }
}

/// Returns the id of an entry, which is the same for the same change.
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
        let failed = FailedChange {
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
        // An entry of the Python worker.
        let seeds = r#"{"type":"dlq","doc_id_original":"order::12345","seq":"42","method":"PUT","status":500,
            "error":"Internal Server Error","time":1768521600,"retried":false,"doc_data":"{\"_id\":\"order::12345\"}"}"#;
        assert_eq!(serde_json::from_str::<Entry>(seeds).unwrap().state, EntryState::Waiting);
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
        let newest = SourceState::Newest("3-abc");
        assert_eq!(entry.replay(newest, false), Replay::Send);
        assert_eq!(entry.replay(SourceState::Newest("4-abc"), true), Replay::Overtaken);
        assert_eq!(entry.replay(SourceState::Gone, true), Replay::Overtaken);
        for _ in 0..20 {
            entry.fail_again(&Failure::Connection, "", 1_001, 2, &Redactor::default());
        }
        assert_eq!((entry.state, entry.replay_attempts, entry.attempts), (EntryState::Waiting, 0, 21));
        for _ in 0..2 {
            entry.fail_again(&Failure::Http(400), "", 1_002, 2, &Redactor::default());
        }
        assert_eq!(
            (entry.state, entry.reason.as_str(), entry.last_time),
            (EntryState::Exhausted, "client_error:400", 1_002)
        );
        assert_eq!([entry.replay(newest, false), entry.replay(newest, true)], [Replay::Left, Replay::Send]);
        entry.edit("{\"a\":1}".to_owned());
        assert_eq!((entry.replay(newest, false), entry.edited), (Replay::Send, true));
        entry.mark_overtaken(2_000, 60);
        assert_eq!(entry.replay(newest, true), Replay::Overtaken);
        let deletion = Entry { method: "DELETE".to_owned(), ..self::entry("{}") };
        assert_eq!(deletion.replay(SourceState::Gone, false), Replay::Send);
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
                        entry.mark_overtaken(at, 0);
                        is_overtaken = true;
                    }
                }
                let replay = entry.replay(SourceState::Newest("3-abc"), true);
                prop_assert_eq!(replay == Replay::Overtaken, is_overtaken);
                prop_assert!(entry.attempts >= attempts);
                attempts = entry.attempts;
                prop_assert!(entry.state != EntryState::Exhausted || entry.replay_attempts >= 3);
                let json = serde_json::to_string(&entry).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Entry>(&json).unwrap(), &entry);
            }
        }
    }
}
