use serde_json::json;

use super::*;

fn input_of(members: Value) -> Value {
    let mut input = json!({"id": "src", "source_type": "couchdb", "url": "http://localhost:5984/db"});
    merge(&mut input, members);
    input
}

fn merge(into: &mut Value, members: Value) {
    let Value::Object(members) = members else { panic!() };
    for (name, value) in members {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(&name);
        } else {
            into[name] = value;
        }
    }
}

fn job_of(members: Value) -> Value {
    let mut job = json!({
        "_id": "job::a", "_rev": "1-x", "type": "job", "id": "a", "inputs": [{"id": "src"}], "outputs": [{"id": "out"}],
        "output_type": "rdbms",
        "mapping": {"tables": [{"name": "t", "primary_key": "id", "columns": {"id": "$._id"}}]}});
    merge(&mut job, members);
    job
}

fn read_of(value: &Value) -> Result<Document, DocumentError> {
    read(value.to_string().as_bytes())
}

fn refused(value: &Value) -> String {
    read_of(value).map(|_| ()).unwrap_err().to_string()
}

fn sqlite() -> Value {
    json!({"id": "out", "database_type": "sqlite", "database": "orders.sqlite", "create_tables": true})
}

#[test]
fn schemas_are_schemas() {
    let names: Vec<_> = texts().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "inputs_changes",
            "outputs_rdbms",
            "outputs_http",
            "outputs_cloud",
            "tables_rdbms",
            "jobs",
            "checkpoints",
            "mappings",
            "dlq"
        ]
    );
    assert!(schema::check("job", &json!(7)).is_err());
    assert_eq!(schema::check("gone", &json!({})), Err(schema::SchemaError::Type));
}

#[test]
fn jobs_and_what_they_name() {
    let mut connections = Connections::default();
    let inputs = json!({"type": "inputs_changes", "src": [input_of(json!({"auth": {"method": "basic", "username": "anna", "password": "file:couch"}}))]});
    let outputs = json!({"type": "outputs_rdbms", "src": [sqlite()]});
    let mapping = json!({"type": "mapping", "name": "order.yaml",
        "content": "tables:\n  - name: orders\n    primary_key: id\n    columns:\n      id: $._id\n"});
    let Document::Job(job) = read_of(&job_of(json!({"mapping": "order.yaml", "enabled": false}))).unwrap() else {
        panic!()
    };
    assert!(!job.is_enabled);
    let missing = |connections: &Connections| connections.resolve(&job).map(|_| ()).unwrap_err().to_string();
    assert_eq!(missing(&connections), "there is no input \"src\"");
    connections.add(read_of(&inputs).unwrap());
    assert_eq!(missing(&connections), "there is no output \"out\"");
    connections.add(read_of(&outputs).unwrap());
    assert_eq!(missing(&connections), "there is no mapping \"order.yaml\"");
    connections.add(read_of(&mapping).unwrap());
    let description = connections.resolve(&job).unwrap();
    assert_eq!(description.mapping.tables()[0].name, "orders");
    assert_eq!(description.input.auth.password, Some(SecretRef::File("couch".to_owned())));
    // Inline objects, and a mapping without tables.
    let whole = job_of(json!({"inputs": [input_of(json!({}))], "outputs": [sqlite()]}));
    let Document::Job(job) = read_of(&whole).unwrap() else { panic!() };
    assert!(Connections::default().resolve(&job).is_ok() && job.is_enabled);
    let Document::Job(job) = read_of(&job_of(json!({"mapping": {}}))).unwrap() else { panic!() };
    assert_eq!(
        connections.resolve(&job).map(|_| ()),
        Err(ConfigurationError::Unfit("an SQL target needs a mapping with tables"))
    );
    // Options that the source would ignore are refused.
    for (input, is_fit) in [
        (json!({"changes_feed": {"selector": {"a": 1}}}), true),
        (json!({"changes_feed": {"doc_ids": ["a"]}}), true),
        (json!({"changes_feed": {"doc_ids": ["a"], "selector": {"a": 1}}}), false),
        (json!({"changes_feed": {"filter": "a/b", "channels": ["x"]}}), false),
        (json!({"scope": "s", "collection": "c"}), false),
        (json!({"source_type": "sync_gateway", "scope": "s", "collection": "c"}), true),
        (json!({"source_type": "sync_gateway", "collection": "c"}), true),
        (json!({"source_type": "sync_gateway", "scope": "s"}), false),
    ] {
        let job = job_of(json!({"inputs": [input_of(input.clone())], "outputs": [sqlite()]}));
        let Document::Job(job) = read_of(&job).unwrap() else { panic!() };
        assert_eq!(connections.resolve(&job).is_ok(), is_fit, "{input}");
    }
}

#[test]
fn settings_have_defaults_and_bounds() {
    let Document::Job(job) = read_of(&job_of(json!({}))).unwrap() else { panic!() };
    assert_eq!((job.system.processing.at_once(), job.system.processing.batch()), (20, 1_000));
    assert_eq!((job.system.dlq.replays_max(), job.system.dlq.retention_seconds()), (10, 86_400));
    assert_eq!(job.system.schedule(), crate::retry::Schedule::default());
    let system = json!({"processing": {"sequential": true, "max_concurrent": 50}, "halt_on_failure": true,
        "retry": {"max_retries": 3, "backoff_base_seconds": 0.5, "backoff_max_seconds": 10, "retry_on_status": [500]}});
    let Document::Job(job) = read_of(&job_of(json!({"system": system}))).unwrap() else { panic!() };
    assert_eq!((job.system.processing.at_once(), job.system.processing.batch()), (1, 1));
    let schedule = job.system.schedule();
    assert_eq!((schedule.first.as_millis(), schedule.max.as_secs(), schedule.tries_max), (500, 10, Some(3)));
    for system in [
        json!({"processing": {"max_concurrent": 0}}),
        json!({"processing": {"batch": 10_001}}),
        json!({"retry": {"backoff_max_seconds": 86_401}}),
        json!({"retry": {"backoff_base_seconds": -1}}),
        json!({"data_error_action": "skip"}),
        json!({"unknown": 1}),
    ] {
        assert!(refused(&job_of(json!({"system": system}))).starts_with("/system"), "{system}");
    }
}

#[test]
fn secrets_are_in_no_document_and_in_no_message() {
    let of = |input: Value| refused(&json!({"type": "inputs_changes", "src": [input]}));
    for input in [
        input_of(json!({"auth": {"method": "basic", "username": "anna", "password": "hunter2"}})),
        input_of(json!({"auth": {"method": "bearer", "token": "hunter2"}})),
        input_of(json!({"url": "http://anna:hunter2@localhost/db"})),
        input_of(json!({"url": "http://hunter2@localhost/db"})),
        input_of(json!({"headers": {"Authorization": "Bearer hunter2"}})),
        input_of(json!({"headers": {"X-Api-Key": "hunter2"}})),
        input_of(json!({"headers": {"x": "env:hunter2"}})),
        input_of(json!({"password": "hunter2"})),
        input_of(json!({"auth": {"method": "hunter2"}})),
    ] {
        let message = of(input.clone());
        assert!(!message.contains("hunter2"), "{input}: {message}");
    }
    let output = json!({"type": "outputs_rdbms", "src": [{"id": "pg", "database_type": "postgres", "host": "h", "database": "d",
        "username": "u", "password": "hunter2"}]});
    assert_eq!(refused(&output), "/src/0/password: is not of the form that it must have");
}

#[test]
fn what_is_refused() {
    for (document, says) in [
        (json!([]), "no JSON object"),
        (json!({"_id": "a"}), "`type` must be"),
        (json!({"type": "config"}), "`type` must be"),
        (job_of(json!({"id": "a/b"})), "/id: is not of the form"),
        (job_of(json!({"inputs": []})), "/inputs"),
        (job_of(json!({"outputs": [{"id": "a", "url": "http://x/"}]})), "/outputs/0"),
        (job_of(json!({"mapping": 7})), "/mapping"),
        (job_of(json!({"more": 7})), "more"),
        (json!({"type": "inputs_changes", "src": [input_of(json!({"url": null}))]}), "/src/0"),
        (json!({"type": "inputs_changes", "src": [input_of(json!({"local": "db"}))]}), "/src/0"),
        (json!({"type": "inputs_changes", "src": [input_of(json!({})), input_of(json!({}))]}), "occurs twice"),
        (json!({"type": "inputs_changes", "src": [input_of(json!({"url": "ftp://x/y"}))]}), "must start with http"),
        (
            json!({"type": "inputs_changes", "src": [input_of(json!({"auth": {"method": "basic"}}))]}),
            "needs `username`",
        ),
        (json!({"type": "inputs_changes", "src": [input_of(json!({"headers": {"a b": "c"}}))]}), "no name of a header"),
        (json!({"type": "inputs_changes", "src": [input_of(json!({"headers": {"Host": "c"}}))]}), "the worker's own"),
        (
            json!({"type": "inputs_changes", "src": [input_of(json!({"headers": {"x": "a\r\nb"}}))]}),
            "control characters",
        ),
        (
            json!({"type": "inputs_changes", "src": [input_of(json!({"accept_self_signed_certs": true}))]}),
            "/src/0/accept_self_signed_certs",
        ),
        (json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://{host}/x"}]}), "behind the server's name"),
        (json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://h/{type}/{_id}"}]}), "sent to {type}"),
        (json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://h/hook"}]}), "which document it is of"),
        (json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://h/{id"}]}), "unbalanced brace"),
        (json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://h/{id}\r\nX: y"}]}), "control characters"),
        (json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://h/{id}/a b"}]}), "no blanks"),
        (
            json!({"type": "outputs_http", "src": [{"id": "a", "url": "http://h/{id}", "method": "GET"}]}),
            "/src/0/method",
        ),
        (
            json!({"type": "outputs_rdbms", "src": [{"id": "a", "database_type": "sqlite", "database": "../x"}]}),
            "/src/0/database",
        ),
        (
            json!({"type": "outputs_rdbms", "src": [{"id": "a", "database_type": "postgres", "database": "x"}]}),
            "/src/0",
        ),
        (json!({"type": "outputs_cloud", "src": [{"id": "a", "provider": "file"}]}), "/src/0"),
        (
            json!({"type": "outputs_cloud", "src": [{"id": "a", "provider": "file", "file": "/etc/passwd"}]}),
            "/src/0/file",
        ),
        (json!({"type": "mapping", "name": "a", "content": "a: &x 1"}), "an anchor"),
        (json!({"type": "checkpoint", "client_id": "a", "time": 1}), "the document: "),
    ] {
        let message = refused(&document);
        assert!(message.contains(says), "{document}: {message}");
    }
    assert_eq!(read(&vec![b' '; DOCUMENT_BYTES_MAX + 1]).map(|_| ()), Err(DocumentError::TooLong));
    // Nested deeper than serde_json's limit.
    assert_eq!(read("[".repeat(100_000).as_bytes()).map(|_| ()), Err(DocumentError::Json));
}

#[test]
fn the_others() {
    let http = json!({"type": "outputs_http", "src": [{"id": "a", "url": "https://h:8443/in/{id}", "headers": {"Authorization": "env:FLATBED_WORKER_H"}}]});
    assert!(matches!(read_of(&http), Ok(Document::Outputs(OutputType::Http, all)) if all.len() == 1));
    for members in [
        json!({"url": "http://h/{type}/{_id}", "on_delete": "ignore"}),
        json!({"url": "http://h", "send_delete_body": true}),
    ] {
        let mut output = json!({"id": "a"});
        output.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        assert!(read_of(&json!({"type": "outputs_http", "src": [output]})).is_ok(), "{members}");
    }
    // Documents that the worker writes are valid, with everything that a source may report about itself.
    let source = crate::checkpoint::SourceIdentity {
        instance: Some("17".to_owned()),
        server: Some("x".to_owned()),
        incarnation: Some("0123456789abcdef".to_owned()),
    };
    let written = crate::checkpoint::Checkpoint { source, client_id: "c".to_owned(), ..Default::default() };
    let mut written: Value = serde_json::from_slice(&written.write(None)).unwrap();
    written["type"] = "checkpoint".into();
    assert!(matches!(read_of(&written), Ok(Document::Checkpoint(_))));
    let long = br#"{"type":"checkpoint","client_id":"c","SGs_Seq":12345678901234567890123,"time":1,"remote":1}"#;
    let seq = "12345678901234567890123";
    assert!(matches!(read(long), Ok(Document::Checkpoint(checkpoint)) if checkpoint.seq.as_str() == seq));
    let seeds = json!({"type": "checkpoint", "client_id": "changes_worker", "SGs_Seq": "1500", "time": 1_768_521_600, "remote": 42});
    assert!(matches!(read_of(&seeds), Ok(Document::Checkpoint(checkpoint)) if checkpoint.seq.as_str() == "1500"));
    let entry = json!({"type": "dlq", "doc_id_original": "a", "seq": "1", "method": "PUT", "status": 500, "error": "", "time": 1, "doc_data": ""});
    assert!(matches!(read_of(&entry), Ok(Document::Entry(entry)) if entry.doc_id_original == "a"));
    let tables = json!({"type": "tables_rdbms", "tables": [{"id": "tbl-orders", "name": "orders", "columns": [{"name": "id", "type": "TEXT"}]}]});
    assert!(matches!(read_of(&tables), Ok(Document::Tables(_))));
}

#[test]
fn ids_are_those_of_their_types() {
    let entry = json!({"type": "dlq", "doc_id_original": "a", "seq": "1", "method": "PUT", "status": 0, "error": "", "time": 1, "doc_data": "{}", "job": "j"});
    let entry_id = crate::queue::entry_id("j", "a", "1");
    let mapping = json!({"type": "mapping", "name": "m.yaml", "content": "tables:\n  - name: t\n    primary_key: id\n    columns:\n      id: $._id\n"});
    for (id, document) in [
        ("job::a", job_of(json!({}))),
        ("outputs_rdbms", json!({"type": "outputs_rdbms", "src": [sqlite()]})),
        ("inputs_changes", json!({"type": "inputs_changes", "src": []})),
        ("mapping:m.yaml", mapping),
        ("checkpoint::a", json!({"type": "checkpoint", "client_id": "c", "time": 1, "remote": "7"})),
        (entry_id.as_str(), entry),
    ] {
        let text = document.to_string();
        assert_eq!(check(id, text.as_bytes()), Ok(()), "{id}");
        let Err(error) = check("job::b", text.as_bytes()) else { panic!("{id}") };
        assert!(error.to_string().starts_with("the `_id`"), "{error}");
    }
    let order = |order: Value| read_of(&job_of(json!({"orders": [order]}))).is_ok();
    assert!(order(json!({"id": "x", "do": "replay", "entries": [entry_id], "per_second": 5})));
    assert!(order(json!({"id": "x", "do": "reset", "to": "as_is"})));
    for wrong in
        [json!({"id": "x"}), json!({"id": "x", "do": "drop"}), json!({"id": "x", "do": "replay", "entries": ["a"]})]
    {
        assert!(!order(wrong));
    }
}

#[test]
fn tables_that_mappings_share() {
    let mut connections = Connections::default();
    let job = |primary_key: Value| {
        let input = json!({"id": "in", "source_type": "couchdb", "url": "http://h/db"});
        let output = json!({"id": "out", "database_type": "sqlite", "database": "x"});
        let columns = json!({"id": "$._id", "n": "$.n", "own": {"path": "$.own", "type": "bigint"}, "odd": "$.odd"});
        let mut table = json!({"name": "t", "columns": columns});
        table.as_object_mut().unwrap().extend(primary_key.as_object().unwrap().clone());
        let child = json!({"name": "c", "parent": "t", "foreign_key": {"column": "k", "references": "n"}, "source_array": "$.c", "columns": {"v": "$"}});
        let job = json!({"type": "job", "id": "j", "inputs": [input], "outputs": [output], "output_type": "rdbms", "mapping": {"tables": [table, child]}});
        let Document::Job(job) = read(job.to_string().as_bytes()).unwrap() else { panic!() };
        job
    };
    let error = connections.resolve(&job(json!({}))).unwrap_err().to_string();
    assert!(error.contains("no `primary_key`"), "{error}");
    let column = |name: &str, kind: &str, is_key: bool| json!({"name": name, "type": kind, "primary_key": is_key, "nullable": !is_key});
    let tables = json!({"type": "tables_rdbms", "tables": [{"id": "1", "name": "t", "columns": [
        column("id", "VARCHAR(9)", true), column("n", "NUMERIC(6,2)", true), column("own", "integer", false), column("odd", "int(11)", false)]}]});
    connections.add(read(tables.to_string().as_bytes()).unwrap());
    let described = connections.resolve(&job(json!({}))).unwrap();
    let [table, child] = described.mapping.tables() else { panic!() };
    let kinds: Vec<String> =
        table.columns.iter().map(|column| column.kind.map_or("-".to_owned(), |kind| kind.to_string())).collect();
    assert_eq!(kinds, ["varchar(9)", "numeric(6,2)", "-", "bigint"]);
    assert_eq!(table.key.iter().map(|at| table.columns[*at].name.as_str()).collect::<Vec<_>>(), ["id", "n"]);
    assert!(table.columns.iter().all(|column| column.is_nullable != (column.name == "id" || column.name == "n")));
    let foreign = child.columns.iter().find(|column| column.name == "k").unwrap();
    assert_eq!(foreign.kind.unwrap().to_string(), "numeric(6,2)");
    // Settings of the mapping take precedence.
    let described = connections.resolve(&job(json!({"primary_key": "own"}))).unwrap();
    assert_eq!(described.mapping.tables()[0].key.len(), 1);
    let twice = json!({"type": "tables_rdbms", "tables": [{"id": "1", "name": "t"}, {"id": "2", "name": "t"}]});
    assert!(read(twice.to_string().as_bytes()).unwrap_err().to_string().contains("twice"));
}
