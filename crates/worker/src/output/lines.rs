//! JSON Lines, in a file or on the standard output.
//!
//! A line is an object: `id`, `rev`, `seq`, and `doc` with the document's product, or `deleted`. Readers use the last
//! line of each document, because a batch whose checkpoint was not written is repeated.

pub mod turns;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_flatten::json::Object;

use self::turns::Turn;
use super::{Delivery, DeliveryError, DeliveryState, Target};
use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::file_claim::FileClaim;
use crate::mapping::Table;
use crate::memory::Charge;
use crate::rows::{Product, rows_json};

const WRITTEN_BYTES: usize = 256 << 10;

/// A target that writes lines.
#[derive(Debug)]
pub struct Lines<W> {
    /// `None` while a thread owns it.
    writer: Option<Writer<W>>,
    tables: Arc<Vec<Table>>,
    turn: Turn,
    room: Option<Arc<Charge>>,
    kept_by: Option<Arc<File>>,
    claim: Option<Arc<FileClaim>>,
    /// True if lines were written since the last sync.
    is_unkept: bool,
}

/// Clears a flag of the writing thread when the delivery is dropped.
struct DeliveryGuard(Arc<AtomicBool>);

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct Writer<W> {
    to: W,
    /// True if the last write did not end with a whole line: the disk was full, or a process ended.
    is_torn: bool,
}

/// Returns the line of a delivery, with its end.
pub fn line(delivery: &Delivery, tables: &[Table]) -> Vec<u8> {
    let mut line = Vec::new();
    add_line(delivery, tables, &mut line);
    line
}

fn add_line(delivery: &Delivery, tables: &[Table], out: &mut Vec<u8>) {
    let mut object = Object::new(out);
    object.string("id", &delivery.id).string("rev", &delivery.rev).string("seq", &delivery.seq);
    match &delivery.state {
        DeliveryState::Is(Product::Json(text)) => {
            object.raw("doc", text.as_bytes());
        }
        DeliveryState::Is(Product::Rows(rows)) => {
            object.raw("doc", rows_json(tables, rows).as_bytes());
        }
        // A target without claims does not know whether it ever had the document.
        DeliveryState::Is(Product::Nothing) | DeliveryState::Gone => {
            object.bool("deleted", true);
        }
    }
    object.end();
    out.push(b'\n');
}

impl<W: Write> Writer<W> {
    /// Writes a batch, and stops early once the delivery is dropped.
    fn write_all(&mut self, batch: &[Delivery], tables: &[Table], is_wanted: &AtomicBool) -> io::Result<()> {
        let mut lines = Vec::new();
        if self.is_torn && !batch.is_empty() {
            // Otherwise the torn line and the next one would be one malformed line.
            lines.push(b'\n');
        }
        for delivery in batch {
            add_line(delivery, tables, &mut lines);
            if lines.len() >= WRITTEN_BYTES {
                self.write(&lines, is_wanted)?;
                lines.clear();
            }
        }
        self.write(&lines, is_wanted)?;
        self.to.flush()
    }

    fn write(&mut self, mut lines: &[u8], is_wanted: &AtomicBool) -> io::Result<()> {
        while !lines.is_empty() {
            if !is_wanted.load(Ordering::SeqCst) {
                return Err(io::Error::other("the delivery was cancelled"));
            }
            let count = match self.to.write(lines) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                written => written?,
            };
            let (written, rest) = lines.split_at_checked(count).unwrap_or((lines, &[]));
            let last = written.last().ok_or(ErrorKind::WriteZero)?;
            self.is_torn = *last != b'\n';
            lines = rest;
        }
        Ok(())
    }
}

fn breaks_off(file: &File) -> io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    Ok(file.read_at(&mut byte, last)? == 1 && byte != *b"\n")
}

fn refused(error: io::Error) -> DeliveryError {
    DeliveryError::failed(Failure::Storage, error)
}

impl<W: Write> Lines<W> {
    /// Creates a target for a mapping with these tables.
    pub fn new(to: W, tables: Vec<Table>) -> Lines<W> {
        let writer = Some(Writer { to, is_torn: false });
        let (tables, turn) = (Arc::new(tables), Turn::default());
        Lines { writer, tables, turn, room: None, kept_by: None, claim: None, is_unkept: false }
    }

    /// Shares the destination with other runs: only the holder of the turn writes.
    #[must_use]
    pub fn with_turn(self, turn: Turn) -> Lines<W> {
        Lines { turn, ..self }
    }

    /// Syncs `file`, which is the destination and must be readable. A pipe or another special file is not synced.
    #[must_use]
    pub fn with_synced_file(self, file: Arc<File>) -> Lines<W> {
        let is_file = file.metadata().is_ok_and(|of| of.is_file());
        Lines { kept_by: Some(file).filter(|_| is_file), ..self }
    }

    /// Sets the claim on the destination. A writing thread keeps it even if the run is dropped.
    #[must_use]
    pub fn with_claim(self, claim: Arc<FileClaim>) -> Lines<W> {
        Lines { claim: Some(claim), ..self }
    }

    /// Returns the destination. `None`: the writing thread was lost.
    pub fn into_inner(self) -> Option<W> {
        self.writer.map(|writer| writer.to)
    }
}

impl<W: Write + Send + 'static> Target for Lines<W> {
    /// Waits for the thread of a dropped run.
    async fn begin(&mut self, _: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        drop(self.turn.take().await?);
        Ok(None)
    }

    fn hold(&mut self, room: Arc<Charge>) {
        self.room = Some(room);
    }

    /// Writes a batch on a thread that may block on the disk. If the future is dropped, the thread completes the write
    /// in progress and ends.
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        let room = self.room.take();
        let lost = || DeliveryError::failed(Failure::Storage, "the file or stream is lost");
        let turn = self.turn.take().await?;
        let mut writer = self.writer.take().ok_or_else(lost)?;
        let (tables, file, is_wanted) = (self.tables.clone(), self.kept_by.clone(), Arc::new(AtomicBool::new(true)));
        let (claim, _wanted) = (self.claim.clone(), DeliveryGuard(is_wanted.clone()));
        let written = tokio::task::spawn_blocking(move || {
            // The previous writer, another job or a dropped run, may have ended within a line.
            let is_torn = file.map_or(Ok(writer.is_torn), |file| breaks_off(&file));
            let written = is_torn.and_then(|is_torn| {
                writer.is_torn = is_torn;
                writer.write_all(&batch, &tables, &is_wanted)
            });
            drop((batch, room, turn, claim));
            (writer, written)
        });
        let (writer, written) = written.await.map_err(|_| lost())?;
        self.writer = Some(writer);
        self.is_unkept = true;
        written.map_err(refused)
    }

    async fn persist(&mut self) -> Result<(), DeliveryError> {
        let Some(file) = self.kept_by.clone().filter(|_| self.is_unkept) else { return Ok(()) };
        let kept = tokio::task::spawn_blocking(move || file.sync_data()).await;
        kept.map_err(io::Error::other).and_then(|kept| kept).map_err(refused)?;
        self.is_unkept = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use flatbed_testkit::until;
    use tokio::sync::Notify;

    use super::*;
    use crate::file_claim::FileUse;

    #[tokio::test]
    async fn a_line_a_document() {
        let of = |state| Delivery {
            id: "a\n".to_owned(),
            rev: "1-x".to_owned(),
            seq: "7-y".to_owned(),
            state,
            attachments: Vec::new(),
        };
        let mut lines = Lines::new(Vec::new(), Vec::new());
        let batch = [
            DeliveryState::Is(Product::Json("{\"n\":1}".to_owned())),
            DeliveryState::Gone,
            DeliveryState::Is(Product::Nothing),
            DeliveryState::Is(Product::Rows(Vec::new())),
        ];
        lines.deliver(batch.map(of).to_vec(), None).await.unwrap();
        let text = String::from_utf8(lines.into_inner().unwrap()).unwrap();
        let head = r#"{"id":"a\n","rev":"1-x","seq":"7-y","#;
        let ends = [r#""doc":{"n":1}}"#, r#""deleted":true}"#, r#""deleted":true}"#, r#""doc":{}}"#];
        assert_eq!(text.lines().collect::<Vec<_>>(), ends.map(|end| format!("{head}{end}")));
    }

    struct Small(Vec<u8>, usize);
    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 == 0 {
                self.1 = usize::MAX;
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.1);
            self.1 -= taken;
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_line_that_broke_off_spoils_no_other() {
        let gone = |id: &str| Delivery {
            id: id.to_owned(),
            rev: String::new(),
            seq: String::new(),
            state: DeliveryState::Gone,
            attachments: Vec::new(),
        };
        let mut lines = Lines::new(Small(Vec::new(), 10), Vec::new());
        let batch = vec![gone("a"), gone("b")];
        assert!(lines.deliver(batch.clone(), None).await.is_err());
        lines.deliver(batch, None).await.unwrap();
        let text = String::from_utf8(lines.into_inner().unwrap().0).unwrap();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        assert_eq!(whole.map(|line| line["id"].clone()).collect::<Vec<_>>(), ["a", "b"], "{text}");
    }

    #[tokio::test]
    async fn a_line_that_another_job_broke_off_spoils_no_other() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut lines = Lines::new(file.clone(), Vec::new()).with_synced_file(file.clone());
        lines.begin(1).await.unwrap();
        for id in ["a", "b"] {
            let gone = Delivery {
                id: id.to_owned(),
                rev: String::new(),
                seq: String::new(),
                state: DeliveryState::Gone,
                attachments: Vec::new(),
            };
            (&*file).write_all(b"{\"id\":\"tor").unwrap();
            lines.deliver(vec![gone], None).await.unwrap();
        }
        let mut text = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut text, 0).unwrap();
        let text = String::from_utf8(text).unwrap();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        assert_eq!(whole.map(|line| line["id"].clone()).collect::<Vec<_>>(), ["a", "b"], "{text}");
    }

    /// A disk that accepts nothing until released.
    struct Stuck {
        has_begun: Arc<Notify>,
        go_on: Receiver<()>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.has_begun.notify_one();
            let _ = self.go_on.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_thread_of_a_dropped_run_keeps_the_claim() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.jsonl");
        File::create(&path).unwrap();
        let (has_begun, (release, go_on)) = (Arc::<Notify>::default(), channel());
        let claim = Arc::new(FileClaim::take(&path, FileUse::Lines, "first").unwrap());
        let stuck = Stuck { has_begun: has_begun.clone(), go_on };
        let mut lines = Lines::new(stuck, Vec::new()).with_claim(claim);
        let gone = Delivery {
            id: "a".to_owned(),
            rev: String::new(),
            seq: String::new(),
            state: DeliveryState::Gone,
            attachments: Vec::new(),
        };
        tokio::select! {
            delivered = lines.deliver(vec![gone], None) => panic!("{delivered:?}"),
            () = has_begun.notified() => {}
        }
        drop(lines);
        let is_taken = || FileClaim::take(&path, FileUse::Lines, "second").is_err();
        assert!(is_taken());
        release.send(()).unwrap();
        until("the thread has ended", async || !is_taken()).await;
    }

    #[tokio::test]
    async fn a_full_disk_is_the_targets_state() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let gone = Delivery {
            id: "a".to_owned(),
            rev: String::new(),
            seq: String::new(),
            state: DeliveryState::Gone,
            attachments: Vec::new(),
        };
        let Err(DeliveryError::Failed { failure, .. }) = Lines::new(Full, Vec::new()).deliver(vec![gone], None).await
        else {
            panic!()
        };
        assert_eq!(failure.class(), crate::failure::Class::Outage);
    }
}
