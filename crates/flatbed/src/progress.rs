//! A progress bar of one line on stderr, drawn only on a terminal.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const BAR_COLUMNS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Documents, beside a total in any unit.
    Documents,
    /// Bytes, shown as megabytes.
    Bytes,
}

/// The bar of one command. It writes nothing if stderr is not a terminal.
pub(crate) struct Progress {
    label: String,
    unit: Unit,
    total: Option<u64>,
    started: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// Creates a bar with a label. It is full at `total`, in any unit; without a total it shows only counts.
    pub(crate) fn new(label: String, unit: Unit, total: Option<u64>) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let total = total.filter(|total| *total > 0);
        Progress { label, unit, total, started: Instant::now(), drawn: None, terminal }
    }

    /// Sets the total when it is known.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = Some(total).filter(|total| *total > 0);
    }

    /// Draws, at most ten times a second: `done` in the unit of the total, `count` for the count and the rate.
    pub(crate) fn draw(&mut self, done: u64, count: u64) {
        if !self.terminal || self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        self.drawn = Some(Instant::now());
        let line = line(&self.label, done, self.total, (self.unit, count), self.started.elapsed());
        // A closed terminal must not stop the work.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Erases the bar, so that other output can follow.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

fn line(label: &str, done: u64, total: Option<u64>, (unit, count): (Unit, u64), elapsed: Duration) -> String {
    let rate = rate(count, elapsed);
    let bar = total.map(|total| {
        let share = done.min(total) as f64 / total as f64;
        let full = (share * BAR_COLUMNS as f64) as usize;
        format!(" [{}{}] {:3.0} %", "#".repeat(full), ".".repeat(BAR_COLUMNS - full), share * 100.0)
    });
    let bar = bar.unwrap_or_default();
    match unit {
        Unit::Documents => format!("{label}{bar} {count} documents, {rate}/s"),
        Unit::Bytes => format!("{label}{bar} {} MB, {} MB/s", megabytes(count), megabytes(rate)),
    }
}

/// Bytes as megabytes with one decimal.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// Documents a second, for a message.
pub(crate) fn rate(documents: u64, elapsed: Duration) -> u64 {
    (documents as f64 / elapsed.as_secs_f64().max(0.001)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let second = Duration::from_secs(1);
        assert_eq!(line("load db", 50, None, (Unit::Documents, 7), second), "load db 7 documents, 7/s");
        let half = line("dump db", 50, Some(100), (Unit::Documents, 7), second);
        assert_eq!(half, "dump db [############............]  50 % 7 documents, 7/s");
        let over = line("dump db", 500, Some(100), (Unit::Documents, 7), second);
        assert!(over.contains("[########################] 100 %"), "{over}");
        let bytes = line("backup", 5_250_000, Some(21_000_000), (Unit::Bytes, 5_250_000), 2 * second);
        assert_eq!(bytes, "backup [######..................]  25 % 5.2 MB, 2.6 MB/s");
    }
}
