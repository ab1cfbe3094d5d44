//! Checkpoints: a job's position in its source's feed, as stored at the source, as a copy in `_worker`, and in a
//! target's tables.
//!
//! The Python worker has two forms. At the source `remote` is the sequence; in its own store `SGs_Seq` is the sequence
//! and `remote` a counter. This module reads both and writes the first, with Flatbed's additions under `flatbed`.

use flatbed_flatten::json::{Limits, Object, Value, parse, to_string};
use sha1::{Digest, Sha1};

/// The longest sequence, in bytes. CouchDB's sequences grow by about 40 bytes per shard.
pub const SEQ_BYTES_MAX: usize = 8 << 10;

/// The longest checkpoint that is read, in bytes.
pub const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// A position in a source's feed: the value of `since` that resumes after it. Opaque to the worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seq(String);

impl Default for Seq {
    /// Returns the beginning of the feed.
    fn default() -> Seq {
        Seq("0".to_owned())
    }
}

impl Seq {
    /// Parses a text. `None`: it is empty, too long, or has control characters.
    pub fn parse(text: &str) -> Option<Seq> {
        let is_seq = !text.is_empty() && text.len() <= SEQ_BYTES_MAX && !text.contains(char::is_control);
        is_seq.then(|| Seq(text.to_owned()))
    }

    /// Returns a sequence that no source produces.
    pub(crate) fn unlike_any() -> Seq {
        Seq(String::new())
    }

    /// Parses the `seq` of a row: a text, a number, or an array as old clusters write it.
    pub fn of(value: &Value<'_>) -> Option<Seq> {
        match value {
            Value::String(text) | Value::Number(text) => Seq::parse(text),
            Value::Array(_) => Seq::parse(&to_string(value)),
            _ => None,
        }
    }

    /// Returns the value of `since`, not percent-encoded.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the part of the sequence that identifies the database. In Flatbed's form (16 to 30 digits, a dash, 24
    /// hexadecimal digits) it is the first 16 of the hexadecimal digits. `None`: another form.
    pub fn incarnation(&self) -> Option<&str> {
        let (number, rest) = self.0.split_once('-')?;
        let is_number = (16..=30).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_rest = rest.len() == 24 && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        rest.get(..16).filter(|_| is_number && is_rest)
    }

    /// Returns the increasing number in the sequence, for lag and to detect a source that went back: of `1500`, of
    /// CouchDB's `1500-g1AA...`, and the last of Sync Gateway's `12:34`. In Flatbed's it has up to 30 digits. `None`: it
    /// has no number.
    pub fn number(&self) -> Option<u128> {
        let head = self.0.split('-').next().unwrap_or_default();
        head.rsplit(':').next()?.parse().ok()
    }
}

/// The identity of a source, compared with that in a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceIdentity {
    /// The database's `instance_start_time`. CouchDB from 3.0 on and Flatbed set it to the creation time; `0` carries
    /// no information.
    pub instance: Option<String>,
    /// The server's `uuid`, if it reports one.
    pub server: Option<String>,
    /// The identity of a Flatbed database. It also differs between databases of the same name created within one
    /// second.
    pub incarnation: Option<String>,
}

/// A job's position, with its context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// All changes up to here are delivered or in the queue.
    pub seq: Seq,
    /// The worker's name, in the Python worker's form.
    pub client_id: String,
    /// The time of writing, in seconds of Unix time.
    pub time: u64,
    /// True if the feed has been read to its end once.
    pub is_initial_sync_done: bool,
    /// The epoch of the writing process. Each takeover of the job raises it. 0 for the Python worker.
    pub epoch: u64,
    /// The source that the position belongs to.
    pub source: SourceIdentity,
}

/// The reason why a checkpoint does not belong to a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SourceMismatch {
    /// The database was deleted and created again under the same name.
    #[error("the source's database was created again after the checkpoint")]
    MadeAgain,
    /// The feed ends before the checkpoint.
    #[error("the source's feed ends before the checkpoint: it was restored, or is another database")]
    Behind,
}

impl Checkpoint {
    /// Parses the Python worker's forms and Flatbed's. `None`: not a checkpoint. The job then halts instead of starting
    /// over.
    pub fn read(text: &[u8]) -> Option<Checkpoint> {
        if text.len() > CHECKPOINT_BYTES_MAX {
            return None;
        }
        let value = parse(text, &Limits { depth_max: 16 }).ok()?;
        // `remote` is a counter if `SGs_Seq` exists; `last_seq` is the form of the Python worker's oldest files.
        let seq = ["SGs_Seq", "remote", "last_seq"].iter().find_map(|name| value.get(name)).and_then(Seq::of)?;
        let text = |of: Option<&Value<'_>>| {
            let text = of.and_then(Value::as_str).filter(|text| text.len() <= 1_000);
            text.map(str::to_owned)
        };
        let number = |of: Option<&Value<'_>>| match of {
            Some(Value::Number(text)) => text.parse().unwrap_or(0),
            _ => 0,
        };
        let own = value.get("flatbed");
        let of_own = |name| own.and_then(|own| own.get(name));
        let is_initial_sync_done = match value.get("initial_sync_done") {
            Some(Value::Bool(is_done)) => *is_done,
            _ => seq != Seq::default(),
        };
        Some(Checkpoint {
            seq,
            client_id: text(value.get("client_id")).unwrap_or_default(),
            time: number(value.get("time")),
            is_initial_sync_done,
            epoch: number(of_own("epoch")),
            source: SourceIdentity {
                instance: text(of_own("instance")),
                server: text(of_own("server")),
                incarnation: text(of_own("incarnation")),
            },
        })
    }

    /// Returns the JSON text; `rev` is the revision of the local document that it replaces.
    pub fn write(&self, rev: Option<&str>) -> Vec<u8> {
        Object::text(|object| {
            if let Some(rev) = rev {
                object.string("_rev", rev);
            }
            object.string("client_id", &self.client_id).number("time", self.time).string("remote", self.seq.as_str());
            object.bool("initial_sync_done", self.is_initial_sync_done);
            let mut own = object.object("flatbed");
            own.number("epoch", self.epoch);
            own.string_or_null("instance", self.source.instance.as_deref());
            own.string_or_null("server", self.source.server.as_deref());
            own.string_or_null("incarnation", self.source.incarnation.as_deref());
            own.end();
        })
    }

    /// Checks that a source that now stands at `update_seq` is the source of this checkpoint.
    ///
    /// # Errors
    /// [`SourceMismatch`]: the job halts until an administrator resets it.
    pub fn check(&self, source: &SourceIdentity, update_seq: &Seq) -> Result<(), SourceMismatch> {
        let differs = |before: &Option<String>, now: &Option<String>| match (before, now) {
            (Some(before), Some(now)) => before != now && before != "0" && now != "0",
            _ => false,
        };
        let is_other = match (&self.source.incarnation, &source.incarnation) {
            (Some(before), Some(now)) => before != now,
            // A time in whole seconds.
            _ => differs(&self.source.instance, &source.instance),
        };
        if is_other {
            return Err(SourceMismatch::MadeAgain);
        }
        match (self.seq.number(), update_seq.number()) {
            (Some(before), Some(now)) if now < before => Err(SourceMismatch::Behind),
            _ => Ok(()),
        }
    }
}

/// Returns the id of the local document at the source. It equals the Python worker's, so that a job resumes from the
/// checkpoint of the worker that it replaces. `job` is empty for a worker with a single job.
pub fn local_id(client_id: &str, url: &str, channels: &[String], job: &str) -> String {
    let mut channels: Vec<&str> = channels.iter().map(String::as_str).collect();
    channels.sort_unstable();
    let hash = Sha1::digest(format!("{client_id}{url}{}{job}", channels.join(",")));
    hash.iter().fold("checkpoint-".to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_of_seed_003() {
        let at_the_source =
            Checkpoint::read(br#"{"client_id":"changes_worker","time":1768521600,"remote":"12:34"}"#).unwrap();
        assert_eq!(at_the_source.seq.as_str(), "12:34");
        assert_eq!(
            (at_the_source.time, at_the_source.epoch, at_the_source.is_initial_sync_done),
            (1_768_521_600, 0, true)
        );
        let in_its_store =
            br#"{"type":"checkpoint","client_id":"changes_worker","SGs_Seq":"1500","time":1768521600,"remote":42}"#;
        let in_its_store = Checkpoint::read(in_its_store).unwrap();
        assert_eq!((in_its_store.seq.as_str(), in_its_store.client_id.as_str()), ("1500", "changes_worker"));
        for (text, seq, is_done) in [
            (&br#"{"remote":1500,"initial_sync_done":false}"#[..], "1500", false),
            (br#"{"last_seq":"7"}"#, "7", true),
            (br#"{"remote":"0"}"#, "0", false),
            (br#"{"remote":[5,"g1"]}"#, "[5,\"g1\"]", true),
        ] {
            let read = Checkpoint::read(text).unwrap();
            assert_eq!((read.seq.as_str(), read.is_initial_sync_done), (seq, is_done));
        }
        for text in [
            &b""[..],
            b"{}",
            b"[]",
            b"{\"remote\":null}",
            b"{\"remote\":\"\"}",
            b"{\"remote\":{}}",
            b"{\"remote\":\"a\\u0000\"}",
        ] {
            assert_eq!(Checkpoint::read(text), None);
        }
        assert_eq!(Checkpoint::read(format!("{{\"remote\":\"{}\"}}", "1".repeat(SEQ_BYTES_MAX + 1)).as_bytes()), None);
    }

    #[test]
    fn the_local_document_is_where_seed_003_has_it() {
        // printf '%s' 'changes_workerhttp://localhost:4984/dba,b' | sha1sum
        assert_eq!(
            local_id("changes_worker", "http://localhost:4984/db", &["b".to_owned(), "a".to_owned()], ""),
            "checkpoint-9918bb981c6fdae122018ca2826a4b0300c8ad78"
        );
        assert_ne!(local_id("w", "u", &[], ""), local_id("w", "u", &[], "job"));
    }

    #[test]
    fn numbers_of_sequences() {
        let number = |text: &str| Seq::parse(text).unwrap().number();
        assert_eq!(
            [number("1500"), number("1500-g1AAAA"), number("12:34"), number("1::34")],
            [Some(1_500), Some(1_500), Some(34), Some(34)]
        );
        assert_eq!([number("[5,\"x\"]"), number("now")], [None, None]);
        // Flatbed's, before a restore and after it: the epoch comes first.
        let restored = "176454000000000000000000000012-0123456789abcdef00000001";
        let before = number("0009876543210123-0123456789abcdef00000001");
        assert!(before < number(restored) && Seq(restored.to_owned()).incarnation() == Some("0123456789abcdef"));
    }

    #[test]
    fn sources_that_are_others() {
        let identity =
            |instance: &str| SourceIdentity { instance: Some(instance.to_owned()), ..SourceIdentity::default() };
        let checkpoint = Checkpoint { seq: Seq("100-x".to_owned()), source: identity("17"), ..Checkpoint::default() };
        let at = |text: &str| Seq(text.to_owned());
        assert_eq!(checkpoint.check(&identity("17"), &at("100-y")), Ok(()));
        assert_eq!(checkpoint.check(&identity("0"), &at("200-y")), Ok(()));
        assert_eq!(checkpoint.check(&SourceIdentity::default(), &at("what")), Ok(()));
        assert_eq!(checkpoint.check(&identity("18"), &at("200-y")), Err(SourceMismatch::MadeAgain));
        assert_eq!(checkpoint.check(&identity("17"), &at("99-y")), Err(SourceMismatch::Behind));
        // A database created again within the same second, and a source that writes the time in another form.
        let of =
            |instance: &str, other: &str| SourceIdentity { incarnation: Some(other.to_owned()), ..identity(instance) };
        let checkpoint = Checkpoint { source: of("17", "ab"), ..checkpoint };
        assert_eq!(checkpoint.check(&of("17", "cd"), &at("200-y")), Err(SourceMismatch::MadeAgain));
        assert_eq!(checkpoint.check(&of("18", "ab"), &at("200-y")), Ok(()));
        assert_eq!(checkpoint.check(&identity("18"), &at("200-y")), Err(SourceMismatch::MadeAgain));
        let incarnation = |text: &str| Seq(text.to_owned()).incarnation().map(str::to_owned);
        assert_eq!(incarnation("0000000000000123-0123456789abcdef00000001").as_deref(), Some("0123456789abcdef"));
        for text in ["1500", "1500-g1AAAA", "0000000000000123-0123456789abcdeg00000001", "123-0123456789abcdef00000001"]
        {
            assert_eq!(incarnation(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            seq in "[ -~]{1,30}", client_id in "\\PC{0,20}", time in any::<u64>(), is_initial_sync_done in any::<bool>(),
            epoch in any::<u64>(), instance in proptest::option::of("[ -~]{1,20}"), server in proptest::option::of("[ -~]{1,20}"),
            incarnation in proptest::option::of("[0-9a-f]{16}"),
        ) {
            let source = SourceIdentity { instance, server, incarnation };
            let checkpoint = Checkpoint { seq: Seq(seq), client_id, time, is_initial_sync_done, epoch, source };
            prop_assert_eq!(Checkpoint::read(&checkpoint.write(Some("0-1"))), Some(checkpoint));
        }

        #[test]
        fn anything_is_read_or_refused(text in "[{}\\[\\]\":,a-zA-Z_0-9]{0,60}") {
            let _ = Checkpoint::read(text.as_bytes());
        }
    }
}
