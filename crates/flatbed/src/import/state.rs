//! The state of a running import: what is shown meanwhile, and what was not moved.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flatbed_replicate::Progress;

use crate::progress::megabytes;

/// The most lines about one database, and about all.
pub(crate) const LINES_OF_ONE: usize = 100;
const LINES_MAX: usize = 10_000;

/// The intervals of progress on a terminal, and elsewhere.
const REDRAW: Duration = Duration::from_millis(250);
const REPORT: Duration = Duration::from_secs(30);

/// The list of data that were not moved, with reasons; bounded.
#[derive(Debug, Default)]
pub(crate) struct UnmovedList {
    lines: Vec<String>,
    /// The lines beyond the limit.
    further: u64,
}

impl UnmovedList {
    pub(crate) fn add(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect());
        } else {
            self.further += 1;
        }
    }

    /// Counts things that no line names.
    pub(crate) fn add_further(&mut self, count: u64) {
        self.further = self.further.saturating_add(count);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.further == 0
    }

    pub(crate) fn append(&mut self, other: UnmovedList) {
        other.lines.into_iter().for_each(|line| self.add(line));
        self.add_further(other.further);
    }

    /// Returns the lines, sorted, as the end of the import prints them.
    pub(crate) fn into_lines(mut self) -> Vec<String> {
        self.lines.sort();
        if self.further > 0 {
            self.lines.push(format!("and {} more", self.further));
        }
        self.lines
    }
}

/// A database that is being copied.
struct RunningCopy {
    name: String,
    documents: u64,
    progress: Arc<Progress>,
    /// True while `--verify` compares the copied database with its source.
    is_compared: bool,
}

#[derive(Default)]
struct Counts {
    databases: u64,
    databases_done: u64,
    /// The documents of the databases that have not begun.
    documents_waiting: u64,
    /// The figures of the databases that are done.
    checked: u64,
    written: u64,
    bytes: u64,
    running: Vec<RunningCopy>,
}

/// The progress of an import.
pub(crate) struct ImportProgress {
    started: Instant,
    counts: Mutex<Counts>,
}

impl ImportProgress {
    pub(crate) fn new(databases: u64, documents: u64) -> ImportProgress {
        let counts = Counts { databases, documents_waiting: documents, ..Counts::default() };
        ImportProgress { started: Instant::now(), counts: Mutex::new(counts) }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a database of so many documents.
    pub(crate) fn begin(&self, name: &str, documents: u64) -> Arc<Progress> {
        let progress = Arc::<Progress>::default();
        let mut counts = self.counts();
        counts.documents_waiting = counts.documents_waiting.saturating_sub(documents);
        let name = name.to_owned();
        counts.running.push(RunningCopy { name, documents, progress: progress.clone(), is_compared: false });
        progress
    }

    /// Notes that the comparison of a database has begun.
    pub(crate) fn compare(&self, name: &str) {
        if let Some(running) = self.counts().running.iter_mut().find(|running| running.name == name) {
            running.is_compared = true;
        }
    }

    /// Ends a database.
    pub(crate) fn end(&self, name: &str) {
        let mut counts = self.counts();
        counts.databases_done += 1;
        if let Some(at) = counts.running.iter().position(|running| running.name == name) {
            let ended = counts.running.swap_remove(at);
            let stats = ended.progress.stats();
            counts.checked += stats.missing_checked;
            counts.written += stats.docs_written;
            counts.bytes += ended.progress.bytes_read();
        }
    }

    /// Returns the line that shows the state.
    pub(crate) fn line(&self) -> String {
        let counts = self.counts();
        let (mut checked, mut written, mut bytes) = (counts.checked, counts.written, counts.bytes);
        let mut left = counts.documents_waiting;
        for RunningCopy { documents, progress, .. } in &counts.running {
            let stats = progress.stats();
            checked += stats.missing_checked;
            written += stats.docs_written;
            bytes += progress.bytes_read();
            left += if stats.missing_checked == 0 { *documents } else { progress.pending() };
        }
        let shown = |running: &RunningCopy| {
            if running.is_compared { format!("comparing {}", running.name) } else { running.name.clone() }
        };
        let names: Vec<String> = counts.running.iter().take(3).map(shown).collect();
        // How long a comparison takes is not known.
        let is_copied = counts.documents_waiting == 0 && counts.running.iter().all(|running| running.is_compared);
        let time_left = if is_copied { String::new() } else { time_left(self.started.elapsed(), checked, left) };
        format!(
            "import: {} of {} databases, {written} revisions copied, {} MB{time_left} {}",
            counts.databases_done,
            counts.databases,
            megabytes(bytes),
            names.join(" ")
        )
    }

    /// Writes the revisions copied, the bytes read and the time taken.
    pub(crate) fn say_totals(&self) {
        let (written, bytes) = {
            let counts = self.counts();
            (counts.written, counts.bytes)
        };
        let seconds = self.started.elapsed().as_secs_f64();
        self.say(&format!("{written} revisions copied, {} MB read in {seconds:.1} s", megabytes(bytes)));
    }

    /// Shows the progress on stderr until it is dropped.
    pub(crate) async fn show(&self) {
        let is_terminal = std::io::stderr().is_terminal();
        loop {
            tokio::time::sleep(if is_terminal { REDRAW } else { REPORT }).await;
            let line = self.line();
            // A closed terminal must not stop the work.
            let _ = if is_terminal {
                write!(std::io::stderr(), "\r{line}\x1b[K")
            } else {
                writeln!(std::io::stderr(), "{line}")
            };
        }
    }

    /// Writes a line beside the progress.
    pub(crate) fn say(&self, line: &str) {
        let erase = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{erase}{line}");
    }
}

/// Returns the estimated time left, as `, 5 min left`; empty as long as it is unknown.
fn time_left(elapsed: Duration, done: u64, left: u64) -> String {
    if done == 0 || elapsed.is_zero() {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() * left as f64 / done as f64;
    match seconds {
        s if s < 90.0 => format!(", {s:.0} s left"),
        s if s < 5_400.0 => format!(", {:.0} min left", s / 60.0),
        s => format!(", {:.1} h left", s / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_sorted() {
        let mut unmoved = UnmovedList::default();
        assert!(unmoved.is_empty());
        unmoved.add("b\nx".to_owned());
        let mut further = UnmovedList::default();
        further.add("a".to_owned());
        further.add_further(2);
        unmoved.append(further);
        assert_eq!(unmoved.into_lines(), ["a", "b x", "and 2 more"]);
        let mut many = UnmovedList::default();
        (0..=LINES_MAX).for_each(|at| many.add(at.to_string()));
        assert!(many.into_lines().last().is_some_and(|last| last == "and 1 more"));
    }

    #[test]
    fn times() {
        let second = Duration::from_secs(1);
        assert_eq!(time_left(second, 0, 5), "");
        assert_eq!(time_left(second, 10, 100), ", 10 s left");
        assert_eq!(time_left(second, 1, 600), ", 10 min left");
        assert_eq!(time_left(second, 1, 36_000), ", 10.0 h left");
    }

    #[test]
    fn a_line_counts_what_waits_runs_and_is_done() {
        let progress = ImportProgress::new(3, 30);
        progress.begin("a", 10);
        assert_eq!(progress.line(), "import: 0 of 3 databases, 0 revisions copied, 0.0 MB a");
        progress.compare("a");
        assert_eq!(progress.line(), "import: 0 of 3 databases, 0 revisions copied, 0.0 MB comparing a");
        progress.end("a");
        assert_eq!(progress.line(), "import: 1 of 3 databases, 0 revisions copied, 0.0 MB ");
    }
}
