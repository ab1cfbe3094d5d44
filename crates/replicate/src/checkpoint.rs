//! Replication logs: the checkpoints of a replication, stored on both sides in CouchDB's form.

use flatbed_clock::Clock;
use flatbed_flatten::json::{Limits, Object, Value, parse, to_vec};
use flatbed_revtree::local_id;

use crate::error::{Error, Result};
use crate::stats::Stats;
use crate::time;

/// The number of sessions in a log, as in CouchDB.
const HISTORY_MAX: usize = 50;

/// The longest accepted sequence, as JSON text in bytes. A checkpoint and the status of a job hold several of them.
/// CouchDB's grow by about 40 bytes per shard.
pub(crate) const SEQ_BYTES_MAX: usize = 8 << 10;

/// The most bytes of a peer's log that are kept while the replication runs, newest sessions first, as JSON text.
const HISTORY_BYTES_MAX: usize = 256 << 10;

const NAME_BYTES_MAX: usize = 1 << 10;

/// The first sequence of every source.
const BEGINNING: &[u8] = b"0";

/// The version of replication ids, as CouchDB writes it.
pub(crate) const ID_VERSION: u32 = 4;

#[derive(Debug, Default, Clone)]
pub(crate) struct Log {
    pub(crate) rev: Option<String>,
    session: Option<String>,
    last_seq: Option<Vec<u8>>,
    history: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    session: Option<String>,
    recorded: Option<Vec<u8>>,
    text: Vec<u8>,
}

impl Entry {
    fn read(value: &Value<'_>) -> Entry {
        let recorded = value.get("recorded_seq").or(value.get("last_seq")).and_then(seq_text);
        Entry { session: name_of(value, "session_id"), recorded, text: to_vec(value) }
    }
}

fn name_of(value: &Value<'_>, member: &str) -> Option<String> {
    value.get(member)?.as_str().filter(|name| name.len() <= NAME_BYTES_MAX).map(str::to_owned)
}

impl Log {
    /// Parses a document's text. Unknown content is ignored; the replication then starts over, which costs time and
    /// loses nothing.
    pub(crate) fn read(text: Option<&[u8]>) -> Log {
        let Some(Ok(value)) = text.map(|text| parse(text, &Limits::default())) else { return Log::default() };
        let mut bytes_left = HISTORY_BYTES_MAX;
        let mut keep = |entry: &Entry| match bytes_left.checked_sub(entry.text.len()) {
            Some(left) => {
                bytes_left = left;
                true
            }
            None => false,
        };
        let history = match value.get("history") {
            Some(Value::Array(items)) => {
                items.iter().take(HISTORY_MAX).map(Entry::read).take_while(&mut keep).collect()
            }
            _ => Vec::new(),
        };
        // PouchDB's name is `last_seq`.
        let last_seq = value.get("source_last_seq").or(value.get("last_seq")).and_then(seq_text);
        Log { rev: name_of(&value, "_rev"), session: name_of(&value, "session_id"), last_seq, history }
    }

    /// Writes the members of CouchDB's answer to a run without changes, without braces; none if no session is recorded.
    pub(crate) fn members(&self) -> Vec<u8> {
        let Some(session) = &self.session else { return Vec::new() };
        Object::members_text(|log| {
            log.string("session_id", session);
            if let Some(last_seq) = &self.last_seq {
                log.raw("source_last_seq", last_seq);
            }
            log.number("replication_id_version", ID_VERSION.into());
            let mut history = log.array("history");
            for entry in &self.history {
                history.raw(&entry.text);
            }
        })
    }

    /// Returns the sequence of the source that the log records for a session.
    fn recorded(&self, session: &str) -> Option<Vec<u8>> {
        self.history.iter().find(|entry| entry.session.as_deref() == Some(session))?.recorded.clone()
    }
}

/// Returns a sequence as JSON text; `None` if it is too long.
pub(crate) fn seq_text(value: &Value<'_>) -> Option<Vec<u8>> {
    Some(to_vec(value)).filter(|text| text.len() <= SEQ_BYTES_MAX)
}

/// Returns the sequence to resume from, as JSON text: that of the newest session that both logs record.
pub(crate) fn common(source: &Log, target: &Log) -> Vec<u8> {
    if let (Some(session), Some(last_seq)) = (&source.session, &source.last_seq)
        && target.session.as_ref() == Some(session)
    {
        return last_seq.clone();
    }
    for entry in &target.history {
        let Some(session) = &entry.session else { continue };
        if let Some(seq) = source.recorded(session) {
            return seq;
        }
    }
    BEGINNING.to_vec()
}

/// A run of a replication, from its start to its last checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    id: String,
    clock: Clock,
    start_time: u64,
    start_seq: Vec<u8>,
    /// The older sessions in the source's log.
    history: Vec<Entry>,
    /// True if the answer has counts beside the history, as CouchDB's has with `doc_ids`.
    pub(crate) has_counts: bool,
}

impl Session {
    pub(crate) fn new(start_seq: Vec<u8>, source: &Log, target: &Log, clock: &Clock) -> Result<Session> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|_| Error::NoRandomness)?;
        let id = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let shared = |entry: &&Entry| {
            let session = entry.session.as_ref();
            session.is_some_and(|session| target.recorded(session).is_some())
        };
        let is_old = start_seq != BEGINNING;
        let history = source.history.iter().filter(shared).take(if is_old { HISTORY_MAX - 1 } else { 0 }).cloned();
        let (start_time, clock, history) = (clock.unix_seconds(), clock.clone(), history.collect());
        Ok(Session { id, clock, start_time, start_seq, history, has_counts: false })
    }

    /// Writes the members that logs and answers share, without braces: `session_id`, `source_last_seq`,
    /// `replication_id_version`, counts if `has_counts`, and `history`.
    pub(crate) fn members(&self, through: &[u8], stats: &Stats) -> Vec<u8> {
        Object::members_text(|log| self.write_members(through, stats, log))
    }

    fn write_members(&self, through: &[u8], stats: &Stats, object: &mut Object<'_>) {
        object.string("session_id", &self.id).raw("source_last_seq", through);
        object.number("replication_id_version", ID_VERSION.into());
        let now = self.clock.unix_seconds();
        if self.has_counts {
            self.write_times(now, object);
            object.number("docs_read", stats.docs_read).number("docs_written", stats.docs_written);
            object.number("doc_write_failures", stats.doc_write_failures);
        }
        let mut history = object.array("history");
        self.write_entry(through, stats, now, &mut history.object());
        for entry in &self.history {
            history.raw(&entry.text);
        }
    }

    fn write_entry(&self, through: &[u8], stats: &Stats, now: u64, entry: &mut Object<'_>) {
        entry.string("session_id", &self.id);
        self.write_times(now, entry);
        entry.raw("start_last_seq", &self.start_seq).raw("end_last_seq", through).raw("recorded_seq", through);
        entry.number("missing_checked", stats.missing_checked).number("missing_found", stats.missing_found);
        entry.number("docs_read", stats.docs_read).number("docs_written", stats.docs_written);
        entry.number("doc_write_failures", stats.doc_write_failures);
        entry.number("bulk_get_docs", stats.bulk_get_docs).number("bulk_get_attempts", stats.bulk_get_attempts);
    }

    fn write_times(&self, now: u64, object: &mut Object<'_>) {
        object.string("start_time", &time::http(self.start_time)).string("end_time", &time::http(now));
    }

    /// Returns the log that replaces revision `rev`.
    pub(crate) fn log(&self, id: &str, rev: Option<&str>, through: &[u8], stats: &Stats) -> Vec<u8> {
        Object::text(|log| {
            log.string("_id", &local_id(id));
            if let Some(rev) = rev.filter(|rev| !rev.is_empty()) {
                log.string("_rev", rev);
            }
            self.write_members(through, stats, log);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(text: &str) -> Log {
        Log::read(Some(text.as_bytes()))
    }

    #[test]
    fn the_newest_common_session_counts() {
        let source =
            log(r#"{"session_id":"c","source_last_seq":"9-x","history":[{"session_id":"c","recorded_seq":"9-x"},
               {"session_id":"b","recorded_seq":6},{"session_id":"a","recorded_seq":3}]}"#);
        assert_eq!(common(&source, &source), b"\"9-x\"");
        let behind = log(r#"{"session_id":"b","source_last_seq":6,"history":[{"session_id":"b","recorded_seq":6}]}"#);
        assert_eq!(common(&source, &behind), b"6");
        assert_eq!(common(&source, &Log::default()), b"0");
        assert_eq!(common(&source, &log(r#"{"session_id":"z","history":[1,{}]}"#)), b"0");
        // In PouchDB's form.
        let pouch = log(r#"{"session_id":"p","last_seq":7,"history":[{"session_id":"p","last_seq":7}]}"#);
        assert_eq!(common(&pouch, &pouch), b"7");
    }

    #[test]
    fn of_long_logs_the_newest_sessions_are_kept() {
        let entry =
            |n: usize| format!(r#"{{"session_id":"{n}","recorded_seq":"{}","pad":"{}"}}"#, n, "x".repeat(50_000));
        let entries: Vec<String> = (0..50).map(entry).collect();
        let text = format!(r#"{{"history":[{}],"session_id":"{}"}}"#, entries.join(","), "s".repeat(2_000));
        let long = log(&text);
        assert_eq!((long.history.len(), &long.session), (5, &None));
        assert_eq!(common(&long, &long), b"\"0\"");
        let session = Session::new(b"\"0\"".to_vec(), &long, &long, &Clock::system()).unwrap();
        assert!(session.log("id", None, b"1", &Stats::default()).len() < HISTORY_BYTES_MAX + 1_000);
        // A sequence beyond the limit is ignored.
        let seq = log(&format!(r#"{{"session_id":"a","source_last_seq":"{}"}}"#, "x".repeat(9_000)));
        assert_eq!(common(&seq, &seq), b"0");
    }

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let session = Session::new(b"0".to_vec(), &Log::default(), &Log::default(), &Clock::system()).unwrap();
        let text = session.log("id", None, b"\"5-y\"", &Stats { docs_read: 2, ..Stats::default() });
        let first = log(std::str::from_utf8(&text).unwrap());
        assert_eq!(common(&first, &first), b"\"5-y\"");
        let next = Session::new(b"\"5-y\"".to_vec(), &first, &first, &Clock::system()).unwrap();
        let text = next.log("id", Some("0-1"), b"\"8-z\"", &Stats::default());
        let second = log(std::str::from_utf8(&text).unwrap());
        assert_eq!(second.rev.as_deref(), Some("0-1"));
        assert_eq!(second.history.len(), 2);
        // A run without changes answers the members of the last recorded run.
        let members = String::from_utf8(second.members()).unwrap();
        let recorded = std::str::from_utf8(&text).unwrap();
        assert!(recorded.ends_with(&format!(",{members}}}")), "{members} {recorded}");
        assert_eq!(Log::default().members(), b"");
        // The target missed the second checkpoint: the first is the newest common one.
        assert_eq!(common(&second, &first), b"\"5-y\"");
    }
}
