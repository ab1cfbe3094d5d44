//! The Python worker's files as documents of `_worker`: `config.json`, `mappings/`, `checkpoint.json`,
//! `failed_docs.jsonl`.
//!
//! Pure: the caller reads the files and writes the results. Each setting that cannot be carried over, or has another
//! meaning here, yields a note; nothing is guessed. Secrets are returned separately, to be written to the directory of
//! secrets.

use serde_json::{Map, Value, json};

use crate::checkpoint::Checkpoint;
use crate::documents;
use crate::mapping::Mapping;
use crate::output::http::path::{self, PathTemplateError};
use crate::output::s3::key::{KeyPurpose, Template, TemplateError};
use crate::queue::{DOCUMENT_BYTES_MAX, Entry, EntryState};
use crate::secret::Redactor;

/// The longest `config.json`.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;

/// The reason why nothing is imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// `config.json` is not a JSON object, or is longer than 1 MB.
    #[error("config.json is no JSON object of at most 1 MB")]
    Config,
    /// The target is missing or of a kind that Flatbed lacks.
    #[error("Flatbed has no output.mode {0:?}, which config.json names")]
    Mode(String),
    /// The result is not a valid document of `_worker`.
    #[error("config.json makes an invalid document: {0}")]
    Document(String),
}

/// The result of importing `config.json` and the mappings.
#[derive(Debug, Clone, Default)]
pub struct ImportResult {
    /// The ids and bodies of documents.
    pub documents: Vec<(String, Value)>,
    /// The names and contents of files for the directory of secrets.
    pub secrets: Vec<(String, String)>,
    /// Notes for the administrator.
    pub notes: Vec<String>,
}

/// Settings that have no meaning here, or that are settings of the whole server.
const ELSEWHERE: [&str; 9] =
    ["admin_ui", "metrics", "logging", "couchbase_lite", "collect", "threads", "retry", "shutdown", "attachments"];

/// Returns a member by its path.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| value.get(name)).filter(|value| !value.is_null())
}

fn text<'v>(value: &'v Value, path: &str) -> Option<&'v str> {
    at(value, path).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Sets a member that has a value.
fn set(into: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        into.insert(name.to_owned(), value);
    }
}

struct Import {
    imported: ImportResult,
    job: String,
}

impl Import {
    fn note(&mut self, note: impl Into<String>) {
        self.imported.notes.push(note.into());
    }

    /// Puts a secret's text into a file and returns its reference for the document.
    fn secret(&mut self, what: &str, value: Option<&str>) -> Option<Value> {
        let name = format!("{}.{what}", self.job);
        self.imported.secrets.push((name.clone(), value?.to_owned()));
        Some(Value::String(format!("file:{name}")))
    }

    fn auth(&mut self, auth: &Value, what: &str) -> Option<Value> {
        let mut made = Map::new();
        let (method, member, secret) = match text(auth, "method")? {
            "none" => return None,
            "basic" => ("basic", "password", text(auth, "password")),
            "bearer" => ("bearer", "token", text(auth, "bearer_token")),
            "session" => ("session", "token", text(auth, "session_cookie")),
            other => {
                self.note(format!("the way of signing in {other:?} is not carried over"));
                return None;
            }
        };
        let secret = self.secret(&format!("{what}-{member}"), secret)?;
        made.insert("method".to_owned(), method.into());
        set(&mut made, "username", text(auth, "username").map(Value::from));
        made.insert(member.to_owned(), secret);
        Some(Value::Object(made))
    }

    fn input(&mut self, config: &Value) -> Value {
        let mut input = Map::new();
        input.insert("id".to_owned(), self.job.clone().into());
        let source = text(config, "gateway.src").unwrap_or("sync_gateway");
        input.insert("source_type".to_owned(), source.into());
        let base = text(config, "gateway.url").unwrap_or_default().trim_end_matches('/');
        let database = text(config, "gateway.database").unwrap_or_default();
        // Sync Gateway's paths contain the collection in the keyspace: db.scope.collection.
        let (scope, collection) = (text(config, "gateway.scope"), text(config, "gateway.collection"));
        let keyspace = match (scope, collection) {
            (Some(scope), Some(collection)) if source != "couchdb" => format!("{database}.{scope}.{collection}"),
            _ => database.to_owned(),
        };
        input.insert("url".to_owned(), format!("{base}/{keyspace}").into());
        if at(config, "gateway.accept_self_signed_certs") == Some(&Value::Bool(true)) {
            self.note("accept_self_signed_certs: set up the certificate's authority for the server instead");
        }
        let auth = at(config, "auth").cloned().unwrap_or_default();
        set(&mut input, "auth", self.auth(&auth, "source"));
        let mut feed = Map::new();
        let feed_of = |name: &str| at(config, &format!("changes_feed.{name}")).cloned();
        for name in ["since", "channels", "active_only", "include_docs", "heartbeat_ms", "timeout_ms"] {
            set(&mut feed, name, feed_of(name));
        }
        match feed_of("feed_type").as_ref().and_then(Value::as_str) {
            Some(kind @ ("normal" | "longpoll" | "continuous")) => set(&mut feed, "feed_type", Some(kind.into())),
            Some(other) => self.note(format!("feed_type {other:?} becomes longpoll")),
            None => {}
        }
        input.insert("changes_feed".to_owned(), Value::Object(feed));
        Value::Object(input)
    }

    fn output(&mut self, output: &Value) -> Result<(&'static str, Value), ImportError> {
        let mode = text(output, "mode").unwrap_or_default().to_owned();
        let mut made = Map::new();
        made.insert("id".to_owned(), self.job.clone().into());
        let kind = match mode.as_str() {
            "postgres" | "mysql" => {
                let of = |name: &str| at(output, &format!("{mode}.{name}")).cloned();
                made.insert("database_type".to_owned(), mode.as_str().into());
                for name in ["host", "port", "database", "schema", "ssl", "pool_max"] {
                    set(&mut made, name, of(name));
                }
                set(&mut made, "username", of("user").or_else(|| of("username")));
                let password = of("password").and_then(|password| password.as_str().map(str::to_owned));
                let secret = self.secret("password", password.as_deref().filter(|password| !password.is_empty()));
                set(&mut made, "password", secret);
                "rdbms"
            }
            "http" => {
                let target = text(output, "target_url").unwrap_or_default().trim_end_matches('/');
                let template = text(output, "url_template").unwrap_or("{target_url}/{doc_id}");
                let url = template.replace("{target_url}", target).replace("{doc_id}", "{id}");
                // The Python worker sent deletions even if they did not name their document.
                let is_told = at(output, "send_delete_body") == Some(&Value::Bool(true));
                let checked = path::check(&url, path::PathPurpose::Documents { is_deleted: true, is_told });
                if matches!(checked, Err(PathTemplateError::Lost(_) | PathTemplateError::Same)) {
                    self.note("url_template: a deletion would not name its document; none is sent");
                    made.insert("on_delete".to_owned(), "ignore".into());
                }
                made.insert("url".to_owned(), url.into());
                set(&mut made, "method", at(output, "write_method").cloned());
                set(&mut made, "delete_method", at(output, "delete_method").cloned());
                set(&mut made, "send_delete_body", at(output, "send_delete_body").cloned());
                set(&mut made, "timeout_seconds", at(output, "request_timeout_seconds").cloned());
                self.headers(output, &mut made);
                let auth = at(output, "target_auth").cloned().unwrap_or_default();
                set(&mut made, "auth", self.auth(&auth, "target"));
                "http"
            }
            "stdout" => {
                made.insert("provider".to_owned(), "stdout".into());
                "cloud"
            }
            "s3" => {
                made.insert("provider".to_owned(), "s3".into());
                for name in ["bucket", "region", "endpoint_url", "content_type", "on_delete"] {
                    set(&mut made, name, text(output, &format!("s3.{name}")).map(Value::from));
                }
                let prefix = text(output, "s3.key_prefix").unwrap_or_default();
                let template = text(output, "s3.key_template").unwrap_or("{prefix}/{doc_id}.json");
                let template = template.replace("{prefix}", prefix).replace("{doc_id}", "{id}");
                let template = template.trim_matches('/');
                // A deletion cannot find an object whose key has more than the document's id.
                let deletable = template.parse::<Template>().map(|it| it.check(KeyPurpose::Each { is_deleted: true }));
                if text(output, "s3.on_delete") != Some("ignore") && matches!(deletable, Ok(Err(TemplateError::Lost))) {
                    self.note("s3.on_delete: objects with such keys are not found by their document's id; they stay");
                    made.insert("on_delete".to_owned(), "ignore".into());
                }
                if at(output, "s3.batch.enabled") == Some(&Value::Bool(true)) {
                    self.note("s3.batch: `format: json_lines`, with {seq} in the key's template and no {id}, has objects of many documents");
                }
                made.insert("key_template".to_owned(), template.into());
                for name in ["access_key_id", "secret_access_key", "session_token"] {
                    let secret = self.secret(name, text(output, &format!("s3.{name}")));
                    set(&mut made, name, secret);
                }
                "cloud"
            }
            _ => return Err(ImportError::Mode(mode.chars().take(50).collect())),
        };
        Ok((kind, Value::Object(made)))
    }

    fn headers(&mut self, output: &Value, made: &mut Map<String, Value>) {
        let Some(Value::Object(headers)) = at(output, "request_options.headers") else { return };
        let mut kept = Map::new();
        for (name, value) in headers {
            let Some(value) = value.as_str() else { continue };
            let kept_value = if crate::secret::is_secret_name(name) {
                let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
                self.secret(&format!("header-{plain}"), Some(value))
            } else {
                Some(value.into())
            };
            set(&mut kept, name, kept_value);
        }
        if !kept.is_empty() {
            made.insert("headers".to_owned(), Value::Object(kept));
        }
        if at(output, "request_options.params").and_then(Value::as_object).is_some_and(|params| !params.is_empty()) {
            self.note("request_options.params: put them into the target's url");
        }
    }

    fn system(&mut self, config: &Value) -> Value {
        let mut processing = Map::new();
        for name in ["sequential", "max_concurrent", "ignore_delete", "ignore_remove", "dry_run"] {
            set(&mut processing, name, at(config, &format!("processing.{name}")).cloned());
        }
        let mut retry = Map::new();
        for name in ["max_retries", "backoff_base_seconds", "backoff_max_seconds"] {
            set(&mut retry, name, at(config, &format!("output.retry.{name}")).cloned());
        }
        let mut queue = Map::new();
        set(&mut queue, "retention_seconds", at(config, "output.dlq.retention_seconds").cloned());
        set(&mut queue, "max_replay_attempts", at(config, "output.dlq.max_replay_attempts").cloned());
        let mut checkpoint = Map::new();
        for name in ["client_id", "every_n_docs", "every_seconds"] {
            set(&mut checkpoint, name, at(config, &format!("checkpoint.{name}")).cloned());
        }
        if at(config, "output.halt_on_failure") == Some(&Value::Bool(false)) {
            self.note("halt_on_failure: false put outages into the queue; here they are waited for");
        }
        if text(config, "output.data_error_action") == Some("skip") {
            self.note("data_error_action: skip dropped documents; here they go to the queue");
        }
        json!({"processing": processing, "retry": retry, "dlq": queue, "checkpoint": checkpoint})
    }
}

/// Converts a configuration and its mappings (file names with texts) into documents of the job with this id.
pub fn import(job: &str, config: &str, mappings: &[(String, String)]) -> Result<ImportResult, ImportError> {
    let config: Value = match serde_json::from_str(config) {
        Ok(Value::Object(members)) if config.len() <= CONFIG_BYTES_MAX => Value::Object(members),
        _ => return Err(ImportError::Config),
    };
    let mut import = Import { imported: ImportResult::default(), job: job.to_owned() };
    let input = import.input(&config);
    let output = at(&config, "output").cloned().unwrap_or_default();
    let (kind, target) = import.output(&output)?;
    let system = import.system(&config);
    for name in ELSEWHERE.iter().filter(|name| config.get(**name).is_some()) {
        import.note(format!("{name} is not carried over"));
    }
    let mut named = Vec::new();
    for (name, content) in mappings {
        // A sidecar file that records when a mapping was made.
        if name.ends_with(".meta.json") {
            continue;
        }
        match Mapping::from_yaml(content) {
            Err(error) => import.note(format!("mapping {name:?}: {error}")),
            Ok(mapping) => {
                let is_by_position = |table: &&crate::mapping::Table| {
                    table.columns.iter().any(|column| column.name == crate::mapping::POSITION_COLUMN)
                };
                for table in mapping.tables().iter().filter(is_by_position) {
                    let column = crate::mapping::POSITION_COLUMN;
                    import.note(format!(
                        "mapping {name:?}: table {:?} needs a column {column} of integers in its key",
                        table.name
                    ));
                }
                let document = json!({"type": "mapping", "name": name, "content": content});
                import.imported.documents.push((format!("mapping:{name}"), document));
                named.push(name.clone());
            }
        }
    }
    // A job has one mapping. Each further mapping becomes a job of its own that shares only the connections.
    let jobs: Vec<(String, Option<String>)> = match named.len() {
        0 => vec![(job.to_owned(), None)],
        1 => vec![(job.to_owned(), named.pop())],
        _ => named.into_iter().enumerate().map(|(at, name)| (format!("{job}-{}", at + 1), Some(name))).collect(),
    };
    if jobs.len() > 1 {
        import.note("there are several mappings: each has a job of its own, and reads the feed for itself");
    }
    import.imported.documents.push(("inputs_changes".to_owned(), json!({"type": "inputs_changes", "src": [input]})));
    let outputs = format!("outputs_{kind}");
    import.imported.documents.push((outputs.clone(), json!({"type": outputs, "src": [target]})));
    for (id, mapping) in jobs {
        let document = json!({"type": "job", "id": id, "enabled": false, "inputs": [{"id": job}], "outputs": [{"id": job}],
            "output_type": kind, "mapping": mapping, "system": system});
        import.imported.documents.push((format!("job::{id}"), document));
    }
    import.note("jobs are not enabled: look at them, and set `enabled`");
    for (id, document) in &import.imported.documents {
        documents::read(document.to_string().as_bytes())
            .map_err(|error| ImportError::Document(format!("{id}: {error}")))?;
    }
    Ok(import.imported)
}

/// Parses a job's position from `checkpoint.json`. `None`: not a checkpoint.
pub fn checkpoint(text: &[u8]) -> Option<Checkpoint> {
    Checkpoint::read(text)
}

/// Converts a line of `failed_docs.jsonl`. `None`: not an entry.
pub fn failed_line(job: &str, line: &str, redactor: &Redactor) -> Option<Entry> {
    let value: Value = serde_json::from_str(line).ok()?;
    let id = text(&value, "doc_id").or_else(|| text(&value, "doc_id_original"))?;
    let number = |name: &str| at(&value, name).and_then(Value::as_u64).unwrap_or(0);
    let document = match (at(&value, "doc"), text(&value, "doc_data")) {
        (Some(document), _) => document.to_string(),
        (None, text) => text.unwrap_or_default().to_owned(),
    };
    let rev = serde_json::from_str::<Value>(&document).ok();
    let rev = rev.as_ref().and_then(|document| text(document, "_rev")).unwrap_or_default();
    let seq = match at(&value, "seq") {
        Some(Value::String(seq)) => seq.clone(),
        Some(other) => other.to_string(),
        None => "0".to_owned(),
    };
    let method = text(&value, "method").filter(|method| ["POST", "PUT", "PATCH", "DELETE"].contains(method));
    let short = |text: &str, max: usize| text.chars().take(max).collect::<String>();
    Some(Entry {
        kind: "dlq".to_owned(),
        doc_id_original: id.to_owned(),
        seq,
        method: method.unwrap_or("PUT").to_owned(),
        status: u16::try_from(number("status")).unwrap_or_default().min(999),
        error: redactor.text(text(&value, "error").unwrap_or_default(), crate::queue::ERROR_CHARACTERS_MAX),
        reason: short(text(&value, "reason").unwrap_or("unknown"), 100),
        time: number("time"),
        expires_at: number("expires_at"),
        retried: at(&value, "retried") == Some(&Value::Bool(true)),
        replay_attempts: u32::try_from(number("replay_attempts")).unwrap_or(u32::MAX),
        target_url: redactor.url(text(&value, "target_url").unwrap_or_default()),
        doc_data: if document.len() > DOCUMENT_BYTES_MAX { String::new() } else { document.clone() },
        job: job.to_owned(),
        rev: short(rev, 500),
        class: String::new(),
        attempts: 1,
        last_time: number("time"),
        state: EntryState::Waiting,
        edited: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAPPING: &str = r#"{"source": {"match": {"field": "type", "value": "order"}}, "output_format": "tables", "tables": [
        {"name": "orders", "primary_key": "doc_id", "columns": {"doc_id": "$._id"}},
        {"name": "items", "primary_key": "id", "columns": {"order_doc_id": "$._id", "qty": "$.qty"}, "parent": "orders",
         "foreign_key": {"column": "order_doc_id", "references": "doc_id"}, "source_array": "$.items"}]}"#;

    /// Returns a `config.json` with the relevant members, under the Python worker's names.
    fn config(output: Value) -> String {
        json!({
            "gateway": {"src": "sync_gateway", "url": "http://host:4984/", "database": "db", "scope": "us", "collection": "prices"},
            "auth": {"method": "basic", "username": "bob", "password": "hunter2", "session_cookie": "", "bearer_token": ""},
            "changes_feed": {"feed_type": "websocket", "active_only": true, "include_docs": false, "since": "0", "channels": ["a"], "limit": 0},
            "threads": 4,
            "processing": {"sequential": false, "max_concurrent": 20, "ignore_delete": false, "get_batch_number": 100},
            "checkpoint": {"enabled": true, "client_id": "changes_worker", "file": "checkpoint.json", "every_n_docs": 1000},
            "output": output,
            "logging": {}
        }).to_string()
    }

    fn postgres() -> Value {
        json!({"mode": "postgres", "postgres": {"host": "pg", "port": 5432, "database": "d", "user": "u", "password": "hunter2", "schema": "public", "ssl": false, "pool_min": 2, "pool_max": 10},
            "retry": {"max_retries": 3, "backoff_base_seconds": 1, "backoff_max_seconds": 30, "retry_on_status": [500]},
            "halt_on_failure": false, "dlq": {"retention_seconds": 86400, "max_replay_attempts": 10}})
    }

    fn body<'i>(imported: &'i ImportResult, id: &str) -> &'i Value {
        &imported.documents.iter().find(|(of, _)| of == id).unwrap_or_else(|| panic!("{id}")).1
    }

    #[test]
    fn a_worker_into_postgres() {
        let mappings =
            [("orders.json".to_owned(), MAPPING.to_owned()), ("orders.meta.json".to_owned(), "{}".to_owned())];
        let imported = import("orders", &config(postgres()), &mappings).unwrap();
        let input = &body(&imported, "inputs_changes")["src"][0];
        assert_eq!(input["url"], "http://host:4984/db.us.prices");
        assert_eq!(
            input["auth"],
            json!({"method": "basic", "username": "bob", "password": "file:orders.source-password"})
        );
        assert_eq!(input["changes_feed"]["channels"], json!(["a"]));
        let output = &body(&imported, "outputs_rdbms")["src"][0];
        assert_eq!((&output["username"], &output["password"]), (&json!("u"), &json!("file:orders.password")));
        let job = body(&imported, "job::orders");
        assert_eq!((&job["mapping"], &job["enabled"]), (&json!("orders.json"), &json!(false)));
        assert_eq!(job["system"]["checkpoint"], json!({"client_id": "changes_worker", "every_n_docs": 1000}));
        assert_eq!(imported.secrets.len(), 2);
        for (_, document) in &imported.documents {
            assert!(!document.to_string().contains("hunter2"));
        }
        let notes = imported.notes.join("\n");
        for said in ["websocket", "halt_on_failure", "flatbed_position", "threads", "not enabled"] {
            assert!(notes.contains(said), "{said}: {notes}");
        }
    }

    #[test]
    fn other_targets() {
        let http = json!({"mode": "http", "target_url": "https://h/in/", "url_template": "{target_url}/{doc_id}", "write_method": "PUT",
            "delete_method": "DELETE", "request_timeout_seconds": 30, "target_auth": {"method": "bearer", "bearer_token": "hunter2"},
            "request_options": {"headers": {"X-Api-Key": "hunter2", "X-From": "me"}, "params": {"a": 1}}});
        let imported = import("j", &config(http), &[]).unwrap();
        let output = &body(&imported, "outputs_http")["src"][0];
        assert_eq!((&output["url"], &output["on_delete"]), (&json!("https://h/in/{id}"), &Value::Null));
        assert_eq!(output["headers"], json!({"X-Api-Key": "file:j.header-XApiKey", "X-From": "me"}));
        assert!(imported.notes.join("\n").contains("params"));
        let hook = json!({"mode": "http", "target_url": "https://h/hook", "url_template": "{target_url}"});
        let imported = import("j", &config(hook), &[]).unwrap();
        assert_eq!(body(&imported, "outputs_http")["src"][0]["on_delete"], "ignore");
        assert!(imported.notes.join("\n").contains("a deletion would not name its document"));
        let stdout = import("j", &config(json!({"mode": "stdout"})), &[]).unwrap();
        assert_eq!(body(&stdout, "outputs_cloud")["src"][0]["provider"], "stdout");
        let s3 = json!({"mode": "s3", "s3": {"bucket": "b", "key_prefix": "p", "key_template": "{prefix}/{doc_id}.json", "access_key_id": "hunter2", "secret_access_key": "hunter2"}});
        let s3 = import("j", &config(s3), &[]).unwrap();
        assert_eq!(body(&s3, "outputs_cloud")["src"][0]["key_template"], "p/{id}.json");
        assert_eq!(
            import("j", &config(json!({"mode": "oracle"})), &[]).map(|_| ()),
            Err(ImportError::Mode("oracle".to_owned()))
        );
        assert_eq!(import("j", "[]", &[]).map(|_| ()), Err(ImportError::Config));
        assert!(matches!(import("a/b", &config(postgres()), &[]), Err(ImportError::Document(_))));
    }

    #[test]
    fn each_mapping_has_a_job() {
        let broken = ("c.yaml".to_owned(), "tables: [".to_owned());
        let mappings = [("a.json".to_owned(), MAPPING.to_owned()), ("b.yaml".to_owned(), MAPPING.to_owned()), broken];
        let imported = import("j", &config(postgres()), &mappings).unwrap();
        assert_eq!(
            [&body(&imported, "job::j-1")["mapping"], &body(&imported, "job::j-2")["mapping"]],
            ["a.json", "b.yaml"]
        );
        assert!(imported.notes.iter().any(|note| note.contains("c.yaml")));
    }

    #[test]
    fn lines_of_failed_documents() {
        let line = r#"{"doc_id":"order::12345","seq":"42","method":"PUT","status":500,"error":"Internal Server Error","time":1713456789,
            "target_url":"https://u:p@api.example.com","replay_attempts":2,"doc":{"_id":"order::12345","_rev":"3-abc"}}"#;
        let entry = failed_line("j", line, &Redactor::default()).unwrap();
        assert_eq!(
            (entry.doc_id_original.as_str(), entry.seq.as_str(), entry.rev.as_str()),
            ("order::12345", "42", "3-abc")
        );
        assert_eq!(
            (entry.status, entry.replay_attempts, entry.target_url.as_str()),
            (500, 2, "https://api.example.com")
        );
        let document = serde_json::to_vec(&entry).unwrap();
        assert!(documents::read(&document).is_ok());
        for line in ["", "{}", "[]", "{\"doc_id\":7}", "x"] {
            assert_eq!(failed_line("j", line, &Redactor::default()), None, "{line}");
        }
        assert_eq!(checkpoint(br#"{"SGs_Seq":"7","remote":1}"#).unwrap().seq.as_str(), "7");
    }

    proptest! {
        #[test]
        fn any_line_makes_an_entry_that_is_one(
            id in "\\PC{1,20}", seq in any::<i64>(), status in any::<u64>(), method in "[A-Z]{0,6}", error in "\\PC{0,2100}", number in any::<u64>(),
        ) {
            let line = json!({"doc_id": id, "seq": seq, "status": status, "method": method, "error": error, "reason": error,
                "time": number % (1 << 50), "target_url": error, "replay_attempts": number, "doc": {"_rev": error}});
            let entry = failed_line("j", &line.to_string(), &Redactor::default()).unwrap();
            let read = documents::read(&serde_json::to_vec(&entry).unwrap());
            prop_assert!(read.is_ok(), "{:?}", read.map(|_| ()));
        }
    }
}
