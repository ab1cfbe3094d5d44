//! The destination of the log's lines: stderr, systemd's journal behind stderr, or a file that is rotated.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The variable by which systemd names the stream that it reads into its journal.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// The mode of a new log file: lines name users and documents.
const MODE: u32 = 0o640;

/// The log file of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFileOptions {
    pub path: PathBuf,
    /// The size at which the file is rotated, in bytes; 0: never.
    pub bytes_max: u64,
    /// The most files, the current one included.
    pub files_max: u32,
}

/// The log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("log_file {} cannot be written: {source}", .path.display())]
pub(crate) struct LogFileError {
    path: PathBuf,
    source: io::Error,
}

/// The destination of lines. Clones share it.
#[derive(Clone)]
pub(crate) struct LogSink(Arc<Mutex<Target>>);

enum Target {
    Stderr,
    /// Stderr, where each line begins with its priority (sd-daemon(3)).
    Journal,
    File(LogFile),
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSink").finish_non_exhaustive()
    }
}

impl LogSink {
    /// Returns stderr, with priorities if the journal reads it.
    pub(crate) fn stderr() -> LogSink {
        LogSink(Arc::new(Mutex::new(Target::stderr())))
    }

    /// Opens the log file, or returns stderr without one.
    ///
    /// # Errors
    /// [`LogFileError`].
    pub(crate) fn open(options: Option<&LogFileOptions>) -> Result<LogSink, LogFileError> {
        Ok(LogSink(Arc::new(Mutex::new(Target::open(options)?))))
    }

    /// Opens the file of the options again, after a rename by logrotate or a change of the settings; without one the
    /// log goes to stderr.
    ///
    /// # Errors
    /// [`LogFileError`]; the log then stays where it is.
    pub(crate) fn reopen(&self, options: Option<&LogFileOptions>) -> Result<(), LogFileError> {
        let target = Target::open(options)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = target;
        Ok(())
    }

    /// Writes a line. A line that the file does not take goes to stderr.
    fn write_line(&self, level: Level, line: &[u8]) -> io::Result<()> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Target::Stderr => io::stderr().write_all(line),
            Target::Journal => {
                // In one write, so that lines of other threads and processes do not come between.
                let mut text = format!("<{}>", priority(level)).into_bytes();
                text.extend_from_slice(line);
                io::stderr().write_all(&text)
            }
            Target::File(file) => file.write_line(line).or_else(|_| io::stderr().write_all(line)),
        }
    }
}

impl Target {
    fn stderr() -> Target {
        if is_journal(env::var_os(JOURNAL_STREAM).as_deref()) { Target::Journal } else { Target::Stderr }
    }

    fn open(options: Option<&LogFileOptions>) -> Result<Target, LogFileError> {
        match options {
            None => Ok(Target::stderr()),
            Some(options) => match LogFile::open(options) {
                Ok(file) => Ok(Target::File(file)),
                Err(source) => Err(LogFileError { path: options.path.clone(), source }),
            },
        }
    }
}

/// Returns whether stderr is the stream that the variable names by device and inode. A child of a service may have
/// inherited the variable with another stderr.
fn is_journal(stream: Option<&OsStr>) -> bool {
    let Some(stream) = stream.and_then(OsStr::to_str) else { return false };
    let metadata = io::stderr().as_fd().try_clone_to_owned().and_then(|stderr| File::from(stderr).metadata());
    metadata.is_ok_and(|metadata| stream == format!("{}:{}", metadata.dev(), metadata.ino()))
}

/// Returns the priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl<'w> MakeWriter<'w> for LogSink {
    type Writer = LineWriter;

    fn make_writer(&'w self) -> LineWriter {
        LineWriter { sink: self.clone(), level: Level::INFO }
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> LineWriter {
        LineWriter { sink: self.clone(), level: *metadata.level() }
    }
}

/// Writes one event. One call of `write` is a line with its end.
#[derive(Debug)]
pub(crate) struct LineWriter {
    sink: LogSink,
    level: Level,
}

impl Write for LineWriter {
    /// Writes all of `line`, or fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.sink.write_line(self.level, line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An open log file. `PATH.1` is the newest of the rotated ones.
struct LogFile {
    options: LogFileOptions,
    file: File,
    bytes: u64,
}

impl LogFile {
    fn open(options: &LogFileOptions) -> io::Result<LogFile> {
        let file = OpenOptions::new().create(true).append(true).mode(MODE).open(&options.path)?;
        let bytes = file.metadata()?.len();
        Ok(LogFile { options: options.clone(), file, bytes })
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        let bytes = line.len() as u64;
        let is_full = self.bytes > 0 && self.bytes.saturating_add(bytes) > self.options.bytes_max;
        if self.options.bytes_max > 0 && is_full {
            self.rotate();
        }
        self.file.write_all(line)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Renames the files and opens a new one. If that fails, the old file grows by its size before the next attempt.
    fn rotate(&mut self) {
        match rename_files(&self.options).and_then(|()| LogFile::open(&self.options)) {
            Ok(new) => *self = new,
            Err(error) => {
                self.bytes = 0;
                let path = self.options.path.display();
                // An event would come back to this file, whose lock is held.
                let _ = writeln!(io::stderr(), "flatbed: the log file {path} cannot be rotated: {error}");
            }
        }
    }
}

/// Renames each file to the next number; the last one goes.
fn rename_files(options: &LogFileOptions) -> io::Result<()> {
    let path = &options.path;
    for number in (1..options.files_max.saturating_sub(1)).rev() {
        unless_missing(fs::rename(rotated(path, number), rotated(path, number + 1)))?;
    }
    match options.files_max {
        0 | 1 => unless_missing(fs::remove_file(path)),
        _ => unless_missing(fs::rename(path, rotated(path, 1))),
    }
}

fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn unless_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path, bytes_max: u64, files_max: u32) -> LogFileOptions {
        LogFileOptions { path: directory.join("log"), bytes_max, files_max }
    }

    fn write(sink: &LogSink, lines: std::ops::Range<u32>) {
        for number in lines {
            sink.write_line(Level::INFO, format!("line {number}\n").as_bytes()).unwrap();
        }
    }

    /// Returns the names and texts of the directory's files.
    fn files(directory: &Path) -> Vec<(String, String)> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    fn file(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn full_files_are_rotated_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let sink = LogSink::open(Some(&options(directory.path(), 14, 3))).unwrap();
        write(&sink, 0..9);
        let expected = [file("log", "line 8\n"), file("log.1", "line 6\nline 7\n"), file("log.2", "line 4\nline 5\n")];
        assert_eq!(files(directory.path()), expected);
        // A further process continues the file.
        drop(sink);
        write(&LogSink::open(Some(&options(directory.path(), 14, 3))).unwrap(), 9..10);
        assert_eq!(files(directory.path())[0], file("log", "line 8\nline 9\n"));
    }

    #[test]
    fn one_file_begins_again_and_zero_bytes_are_no_limit() {
        let directory = tempfile::tempdir().unwrap();
        write(&LogSink::open(Some(&options(directory.path(), 7, 1))).unwrap(), 0..3);
        assert_eq!(files(directory.path()), [file("log", "line 2\n")]);
        write(&LogSink::open(Some(&options(directory.path(), 0, 1))).unwrap(), 3..5);
        assert_eq!(files(directory.path()), [file("log", "line 2\nline 3\nline 4\n")]);
    }

    #[test]
    fn a_line_longer_than_a_file_has_a_file() {
        let directory = tempfile::tempdir().unwrap();
        write(&LogSink::open(Some(&options(directory.path(), 3, 2))).unwrap(), 0..2);
        assert_eq!(files(directory.path()), [file("log", "line 1\n"), file("log.1", "line 0\n")]);
    }

    #[test]
    fn a_renamed_file_is_left_when_the_log_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path(), 0, 1);
        let sink = LogSink::open(Some(&options)).unwrap();
        fs::rename(&options.path, directory.path().join("moved")).unwrap();
        write(&sink, 0..1);
        sink.reopen(Some(&options)).unwrap();
        write(&sink, 1..2);
        let missing = LogFileOptions { path: directory.path().join("none/log"), ..options };
        assert!(sink.reopen(Some(&missing)).is_err());
        write(&sink, 2..3);
        assert_eq!(files(directory.path()), [file("log", "line 1\nline 2\n"), file("moved", "line 0\n")]);
    }

    #[test]
    fn a_file_that_cannot_be_rotated_grows() {
        let directory = tempfile::tempdir().unwrap();
        let sink = LogSink::open(Some(&options(directory.path(), 7, 2))).unwrap();
        // No file can replace a directory.
        fs::create_dir_all(directory.path().join("log.1/full")).unwrap();
        write(&sink, 0..2);
        assert_eq!(fs::read_to_string(directory.path().join("log")).unwrap(), "line 0\nline 1\n");
        assert!(LogSink::open(Some(&options(&directory.path().join("none"), 7, 2))).is_err());
    }

    #[test]
    fn other_streams_are_not_the_journal() {
        for stream in [None, Some(""), Some("1:2"), Some("x")] {
            assert!(!is_journal(stream.map(OsStr::new)), "{stream:?}");
        }
        let priorities = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG].map(priority);
        assert_eq!(priorities, [3, 4, 6, 7]);
    }
}
