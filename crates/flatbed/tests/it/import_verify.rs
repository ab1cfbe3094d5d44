//! `flatbed import --verify` finds revisions of one id whose content differs.

use hyper::Method;
use serde_json::{Value, json};

use crate::import::write;
use crate::support::{Server, ask, run, text};

#[tokio::test(flavor = "multi_thread")]
async fn revisions_of_one_id_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    for (server, data, parent) in [(&source, "AAEC", "b"), (&target, "AAED", "c")] {
        let mut connection = server.connect().await;
        ask(&mut connection, Method::PUT, "/db", &Value::Null).await;
        let attached = |name: &str| json!({ name: { "content_type": "image/png", "data": data } });
        let documents = [
            json!({ "_id": "equal", "_rev": "1-a" }),
            json!({ "_id": "deep and equal", "_rev": "1-a", "of": deep }),
            json!({ "_id": "content", "_rev": "1-a", "text": data }),
            json!({ "_id": "named", "_rev": "1-a", "_attachments": attached("a b") }),
            json!({ "_id": "unnamed", "_rev": "1-a", "_attachments": attached("") }),
            json!({ "_id": "history", "_rev": "2-a", "_revisions": { "start": 2, "ids": ["a", parent] } }),
        ];
        for document in documents {
            write(&mut connection, "db", &[document]).await;
        }
    }
    let compared = run(&["import", &source.url.to_string(), "--to", &target.url.to_string(), "--verify"]);
    assert_eq!(compared.status.code(), Some(1), "{}", text(&compared));
    let said = text(&compared);
    for difference in [
        "revision 1-a of \"content\": the content differs",
        "revision 1-a of \"named\": the data of the attachment \"a b\" differ",
        "revision 1-a of \"unnamed\": the data of the attachment \"\" differ",
        "revision 2-a of \"history\": the history differs",
    ] {
        assert!(said.contains(difference), "{difference}: {said}");
    }
    assert!(!said.contains("equal"), "{said}");
}
