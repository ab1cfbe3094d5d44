//! Dropped runs whose thread still writes.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_testkit::soon;
use flatbed_worker::memory::Memory;
use flatbed_worker::output::lines::Lines;
use flatbed_worker::output::lines::turns::Turns;
use flatbed_worker::output::{Delivery, DeliveryState, Target};
use flatbed_worker::run::Runner;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::fake::{FakeQueue, FakeSource, job, redactor};

/// A disk that writes some bytes and then blocks until released.
struct Stuck {
    file: Arc<File>,
    has_begun: Arc<Notify>,
    go_on: Mutex<Receiver<()>>,
    writes: Arc<AtomicUsize>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let written = self.file.write(&bytes[..10])?;
        self.has_begun.notify_one();
        let _ = self.go_on.lock().unwrap().recv();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread completes its write; the next run writes after that, and the memory of the lines stays acquired until
/// then.
#[tokio::test]
async fn a_thread_that_still_writes_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.jsonl");
    let open = || Arc::new(File::options().read(true).append(true).create(true).open(&path).unwrap());
    let (turns, memory, source) = (Turns::default(), Memory::default(), FakeSource::default());
    for at in 0..20 {
        source.write(&format!("d{at}"), json!({"text": "old"}));
    }
    let (has_begun, writes, (release, go_on)) = (Arc::<Notify>::default(), Arc::<AtomicUsize>::default(), channel());
    let file = open();
    let stuck =
        Stuck { file: file.clone(), has_begun: has_begun.clone(), go_on: Mutex::new(go_on), writes: writes.clone() };
    let target = Lines::new(stuck, Vec::new()).with_synced_file(file).with_turn(turns.at(&path));
    let run = tokio::spawn({
        let memory = memory.clone();
        async move {
            let job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({}));
            let (_stop, stopping) = watch::channel(false);
            let runner = Runner::new(&job, source, target, FakeQueue::default(), redactor(), stopping, 1);
            let _ = runner.with_memory(memory).run().await;
        }
    });
    has_begun.notified().await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    // The changes' memory is released, the memory of the write is not.
    assert!(memory.taken().0 == 0 && memory.taken().1 > 0);
    let file = open();
    let next = |wait_max| {
        Lines::new(file.clone(), Vec::new()).with_synced_file(file.clone()).with_turn(turns.at(&path).within(wait_max))
    };
    assert!(next(Duration::ZERO).begin(2).await.is_err());
    let elsewhere = turns.at(Path::new("/dev/null")).within(Duration::ZERO);
    assert!(Lines::new(io::sink(), Vec::new()).with_turn(elsewhere).begin(2).await.is_ok());
    let waiting = tokio::spawn({
        let mut next = next(Duration::from_secs(600));
        async move {
            next.begin(2).await.unwrap();
            let id = "d0".to_owned();
            let gone = Delivery {
                id,
                rev: "2-x".into(),
                seq: "99".into(),
                state: DeliveryState::Gone,
                attachments: Vec::new(),
            };
            next.deliver(vec![gone], None).await.unwrap();
        }
    });
    release.send(()).unwrap();
    drop(release);
    soon(waiting).await.unwrap();
    // The dropped run writes nothing more, and the torn line spoils no other.
    assert_eq!(writes.load(Ordering::SeqCst), 1);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["{\"id\":\"d0\"", "{\"id\":\"d0\",\"rev\":\"2-x\",\"seq\":\"99\",\"deleted\":true}"]);
    assert_eq!(memory.taken(), (0, 0));
}
