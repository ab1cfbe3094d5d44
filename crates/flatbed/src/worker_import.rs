//! `flatbed worker import`: turns files of the Python worker into documents of a running server's `_worker`.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flatbed_client::{Connection, Url, encode_segment};
use flatbed_worker::import;
use hyper::Method;
use serde_json::{Value, json};

use crate::output::say;

/// The longest file of a mapping, and of a checkpoint, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most mappings of a directory.
const MAPPINGS_MAX: usize = 1_000;

/// The bytes of entries sent at once.
const SENT_BYTES: usize = 4 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Import {
    /// The directory of the Python worker's files.
    pub directory: PathBuf,
    /// The id of the new job.
    pub job: String,
    /// The server, if not `FLATBED_URL` or the default.
    pub url: Option<String>,
    pub secrets: Option<PathBuf>,
}

/// The reason why an import failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// A file cannot be read or written.
    #[error("{path}: {error}", path = .0.display(), error = .1)]
    File(PathBuf, io::Error),
    /// The files have invalid content.
    #[error(transparent)]
    Import(#[from] import::ImportError),
    /// The server cannot be reached.
    #[error("the server: {0}")]
    Server(#[from] flatbed_client::Error),
    /// The server refuses a request.
    #[error("{what}: {status} {reason}")]
    Refused {
        /// The refused request.
        what: String,
        /// HTTP's status.
        status: u16,
        /// The server's reason.
        reason: String,
    },
    /// The files have secrets, and no directory for them is given.
    #[error("config.json has secrets: say with --secrets where the server's worker_secrets are")]
    Secrets,
}

fn read(path: &Path, bytes_max: u64) -> Result<String, ImportError> {
    let failed = |error| ImportError::File(path.to_owned(), error);
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    let read = file.take(bytes_max + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > bytes_max {
        return Err(failed(io::Error::other(format!("it is longer than {bytes_max} bytes"))));
    }
    Ok(text)
}

fn mappings(directory: &Path) -> Result<Vec<(String, String)>, ImportError> {
    let failed = |error| ImportError::File(directory.to_owned(), error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries.take(MAPPINGS_MAX) {
        let path = entry.map_err(failed)?.path();
        let is_one =
            path.extension().and_then(|end| end.to_str()).is_some_and(|end| ["json", "yaml", "yml"].contains(&end));
        if let (true, Some(name)) = (is_one, path.file_name().and_then(|name| name.to_str())) {
            found.push((name.to_owned(), read(&path, FILE_BYTES_MAX)?));
        }
    }
    found.sort();
    Ok(found)
}

struct Server(Connection);

impl Server {
    async fn ask(&mut self, method: Method, path: &str, body: String) -> Result<(u16, Value), ImportError> {
        let answer = self.0.call(method, path, body).await?;
        Ok((answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
    }

    async fn call(&mut self, method: Method, path: &str, body: String) -> Result<Value, ImportError> {
        let (status, value) = self.ask(method, path, body).await?;
        if (200..300).contains(&status) {
            return Ok(value);
        }
        let reason = value.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(ImportError::Refused { what: path.to_owned(), status, reason })
    }

    /// Writes a document over the existing one. Connections with other ids in it stay.
    async fn put(&mut self, id: &str, mut document: Value) -> Result<(), ImportError> {
        let path = format!("/_worker/{}", encode_segment(id));
        let (status, before) = self.ask(Method::GET, &path, String::new()).await?;
        if status == 200 {
            if let (Some(Value::Array(old)), Some(Value::Array(new))) = (before.get("src"), document.get_mut("src")) {
                let ids: Vec<Value> = new.iter().filter_map(|one| one.get("id").cloned()).collect();
                let others = old.iter().filter(|one| one.get("id").is_none_or(|id| !ids.contains(id)));
                new.extend(others.cloned());
            }
            if let (Some(members), Some(rev)) = (document.as_object_mut(), before.get("_rev")) {
                members.insert("_rev".to_owned(), rev.clone());
            }
        }
        self.call(Method::PUT, &path, document.to_string()).await.map(drop)
    }
}

/// Imports the files, and prints a summary and advice.
///
/// # Errors
/// [`ImportError`]. Documents written before the error stay; the next import overwrites them.
pub(crate) async fn import(options: &Import, url: &Url) -> Result<(), ImportError> {
    let at = |name: &str| options.directory.join(name);
    let config = read(&at("config.json"), import::CONFIG_BYTES_MAX as u64)?;
    let imported = import::import(&options.job, &config, &mappings(&at("mappings"))?)?;
    if !imported.secrets.is_empty() {
        let directory = options.secrets.as_deref().ok_or(ImportError::Secrets)?;
        for (name, secret) in &imported.secrets {
            let path = directory.join(name);
            let failed = |error| ImportError::File(path.clone(), error);
            let mut open = fs::File::options();
            let mut file = open.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(failed)?;
            file.write_all(secret.as_bytes()).map_err(failed)?;
        }
    }
    let mut server = Server(Connection::open(url).await?);
    let (status, made) = server.ask(Method::PUT, "/_worker", String::new()).await?;
    if !matches!(status, 201 | 202 | 412) {
        let reason = made.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
        return Err(ImportError::Refused { what: "/_worker".to_owned(), status, reason });
    }
    let jobs: Vec<&str> = imported.documents.iter().filter_map(|(id, _)| id.strip_prefix("job::")).collect();
    if let Some(checkpoint) = optional(&at("checkpoint.json"))? {
        match import::checkpoint(checkpoint.as_bytes()) {
            None => say!("checkpoint.json is none: jobs begin where their inputs say"),
            Some(checkpoint) => {
                let text = checkpoint.write(None);
                let mut document: Value = serde_json::from_slice(&text).unwrap_or_else(|_| json!({}));
                if let Some(members) = document.as_object_mut() {
                    members.insert("type".to_owned(), "checkpoint".into());
                }
                for job in &jobs {
                    server.put(&format!("checkpoint::{job}"), document.clone()).await?;
                }
            }
        }
    }
    // Jobs come last, so that the documents that they name exist.
    let is_job = |id: &str| id.starts_with("job::");
    let (last, first): (Vec<_>, Vec<_>) = imported.documents.iter().partition(|(id, _)| is_job(id));
    for (id, document) in first.into_iter().chain(last) {
        server.put(id, document.clone()).await?;
        say!("{id}");
    }
    if let (Some(job), true) = (jobs.first(), at("failed_docs.jsonl").exists()) {
        let entries = failed(&mut server, job, &at("failed_docs.jsonl")).await?;
        say!("{entries} entries of failed_docs.jsonl are in the queue of job {job}");
    }
    for note in &imported.notes {
        say!("note: {note}");
    }
    Ok(())
}

fn optional(path: &Path) -> Result<Option<String>, ImportError> {
    if path.exists() { read(path, FILE_BYTES_MAX).map(Some) } else { Ok(None) }
}

/// Sends the lines of failed documents. Returns how many became entries.
async fn failed(server: &mut Server, job: &str, path: &Path) -> Result<u64, ImportError> {
    let failed = |error| ImportError::File(path.to_owned(), error);
    let lines = io::BufRead::lines(io::BufReader::new(fs::File::open(path).map_err(failed)?));
    let (mut batch, mut entries) = (String::new(), 0);
    let to = format!("/_worker/_api/dlq/import?job={}", encode_segment(job));
    for line in lines.map(Some).chain([None]) {
        let line = line.transpose().map_err(failed)?;
        let is_end = line.is_none();
        if let Some(line) = line {
            batch.push_str(&line);
            batch.push('\n');
        }
        if !batch.is_empty() && (is_end || batch.len() >= SENT_BYTES) {
            let done = server.call(Method::POST, &to, std::mem::take(&mut batch)).await?;
            entries += done.get("imported").and_then(Value::as_u64).unwrap_or(0);
            for fault in done.get("faults").and_then(Value::as_array).into_iter().flatten() {
                say!("note: failed_docs.jsonl: {fault}");
            }
        }
    }
    Ok(entries)
}
