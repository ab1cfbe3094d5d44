//! What feeds and reads say of documents that have left channels.
#![cfg(test)]

use super::*;

/// Whoever was told that a document left, and asks for the revision with which it did, hears that: also who has been given the channel of that
/// revision since, and would keep its body in the place of what they are to forget.
#[tokio::test]
async fn the_revision_with_which_a_document_left_says_so() {
    let ([server, db], _directory) = database(true).await;
    let anna = async |channels: &[&str]| {
        let write = crate::channels::PrincipalWrite {
            kind: flatbed_channels::Kind::User,
            name: "anna".to_owned(),
            email: String::new(),
            is_disabled: false,
            admin_channels: channels.iter().map(|name| (*name).to_owned()).collect(),
            admin_roles: BTreeSet::new(),
            signs_in: Some(crate::channels::SignsIn::Password(b"{}".to_vec())),
            is_new: false,
        };
        server.put_principal(&write).await.unwrap();
    };
    anna(&["A"]).await;
    let first = put(&db, "d", None, r#"{"channels":"A"}"#).await;
    let gone = put(&db, "d", Some(&first), r#"{"channels":"B"}"#).await;
    let third = put(&db, "d", Some(&gone), r#"{"channels":"C"}"#).await;
    anna(&["A", "B"]).await;
    let reader = server.reader().asked_by(Asker::Principal("anna".into()));
    let options = |rev: &RevId, latest| GetOptions { rev: Some(rev.clone()), latest, ..GetOptions::default() };
    let shown = async |rev: &RevId| {
        let mut found = Vec::new();
        for latest in [false, true] {
            let options = options(rev, latest);
            found.push(reader.get("d", &options).await.unwrap());
            match reader.get_many(&[("d".to_owned(), options.clone())]).await.unwrap().pop() {
                Some(crate::Got::Document(document)) => found.push(*document),
                other => panic!("{other:?}"),
            }
            let revs = crate::OpenRevs::Some(vec![rev.clone()]);
            let (mut some, _) = reader.open_revs("d", &revs, 0, false, &options).await.unwrap();
            found.push(some.pop().unwrap().unwrap());
        }
        found.into_iter().map(|document| (document.rev, document.body)).collect::<BTreeSet<_>>()
    };
    let removed = br#""_removed":true"#.to_vec();
    assert_eq!(shown(&gone).await, [(gone.clone(), removed)].into());
    // One that is seen is as it is, whatever it has left; and older ones are by their own channels.
    put(&db, "d", Some(&third), r#"{"channels":"B"}"#).await;
    let shown = reader.get("d", &options(&gone, false)).await.unwrap();
    assert_eq!((shown.rev, shown.body), (gone, br#""channels":"B""#.to_vec()));
    assert_eq!(reader.get("d", &options(&first, false)).await.unwrap().body, br#""channels":"A""#);
}
