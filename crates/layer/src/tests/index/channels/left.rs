//! Feeds and reads of documents that have left channels.
#![cfg(test)]

use flatbed_feeds::feed::query::{ChangesQuery, Since};
use flatbed_feeds::feed::row::RowKind;

use super::*;

async fn anna(server: &Database, channels: &[&str]) {
    let write = flatbed_databases::channels::PrincipalWrite {
        kind: flatbed_channels::PrincipalKind::User,
        name: "anna".to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: channels.iter().map(|name| (*name).to_owned()).collect(),
        admin_roles: BTreeSet::new(),
        signs_in: Some(flatbed_databases::channels::SignsIn::Password(b"{}".to_vec())),
        is_new: false,
    };
    server.put_principal(&write).await.unwrap();
}

/// Returns the documents of anna's feed behind a position, each with whether it is revoked or removed, and the feed's
/// new position.
async fn told(server: &Database, since: Since) -> (Vec<(String, bool)>, Since) {
    let reader = server.reader().asked_by(ReadPrincipal::Principal("anna".into()));
    let mut changes = reader.changes(ChangesQuery { since, revocations: true, ..ChangesQuery::default() });
    let mut rows = Vec::new();
    loop {
        let page = changes.next_page().await.unwrap();
        let found = page.rows.into_iter().filter(|row| row.kind != RowKind::User);
        rows.extend(found.map(|row| (row.id, matches!(row.kind, RowKind::Revoked | RowKind::Lost))));
        if page.at_end {
            return (rows, Since::After(page.last_seq));
        }
    }
}

/// A reader that lost a channel gets the revocation of each of its documents, whatever happened to them since, and of
/// no others.
#[tokio::test]
async fn who_lost_a_channel_hears_of_what_was_there() {
    let ([server, db], _storage) = database(true).await;
    anna(&server, &["A", "C"]).await;
    let mut revs = BTreeMap::new();
    for id in ["back", "gone", "moved", "stays", "twice"] {
        revs.insert(id, put(&db, id, None, r#"{"channels":"A"}"#).await);
    }
    let before = put(&db, "before", None, r#"{"channels":"B"}"#).await;
    let (rows, since) = told(&server, Since::Beginning).await;
    assert_eq!(rows.len(), 5, "{rows:?}");
    anna(&server, &["C"]).await;
    for (id, channels) in
        [("back", "[]"), ("gone", "[]"), ("moved", r#""B""#), ("twice", "[]"), ("twice", r#""A""#), ("twice", "[]")]
    {
        let body = format!(r#"{{"channels":{channels}}}"#);
        let rev = put(&db, id, revs.get(id), &body).await;
        revs.insert(id, rev);
    }
    for id in ["back", "twice"] {
        put(&db, id, revs.get(id), r#"{"channels":"A"}"#).await;
    }
    // These were added after she lost it, and one of them has been removed since.
    put(&db, "before", Some(&before), r#"{"channels":"A"}"#).await;
    let new = put(&db, "new", None, r#"{"channels":"A"}"#).await;
    put(&db, "new", Some(&new), r#"{"channels":[]}"#).await;
    assert_clean(&db).await;
    let mut lost: Vec<_> = ["back", "gone", "moved", "stays", "twice"].map(|id| (id.to_owned(), true)).into();
    let sorted = |(mut rows, _): (Vec<_>, Since)| {
        rows.sort();
        rows
    };
    assert_eq!(sorted(told(&server, since).await), lost);
    // A regrant sends the channel's current documents, and revocations of the others.
    anna(&server, &["A", "C"]).await;
    lost.iter_mut().for_each(|(id, is_gone)| *is_gone = ["gone", "moved"].contains(&&**id));
    lost.insert(1, ("before".to_owned(), false));
    assert_eq!(sorted(told(&server, since).await), lost);
}

/// The same for documents in more channels than their infos name: the beginning of a stay in one of them says nothing
/// about changes of the others.
#[tokio::test]
async fn who_lost_one_of_many_channels_hears_of_what_was_there() {
    let ([server, db], _storage) = database(true).await;
    anna(&server, &["A", "C"]).await;
    let body = |from: usize, named: &[&str]| {
        let many: Vec<_> =
            (from..from + 20).map(|n| format!("many{n}")).chain(named.iter().map(|name| (*name).to_owned())).collect();
        format!(r#"{{"channels":{many:?}}}"#)
    };
    let mut revs = BTreeMap::new();
    for id in ["fewer", "gone", "more", "other"] {
        revs.insert(id, put(&db, id, None, &body(0, &["A"])).await);
    }
    let came = put(&db, "came", None, &body(0, &[])).await;
    let (rows, since) = told(&server, Since::Beginning).await;
    assert_eq!(rows.len(), 4, "{rows:?}");
    anna(&server, &["C"]).await;
    // None of these changes says that a document was not in the channel before.
    for (id, body) in [
        ("fewer", r#"{"channels":["A","B"]}"#.to_owned()),
        ("gone", body(1, &["A"])),
        ("gone", body(1, &["B"])),
        ("more", body(1, &["A"])),
        ("more", body(2, &["A"])),
        ("other", r#"{"channels":["A"]}"#.to_owned()),
        ("other", body(3, &["A", "B"])),
    ] {
        let rev = put(&db, id, revs.get(id), &body).await;
        revs.insert(id, rev);
    }
    // This one was added after she lost it.
    let came = put(&db, "came", Some(&came), &body(0, &["A"])).await;
    put(&db, "came", Some(&came), &body(1, &["A"])).await;
    assert_clean(&db).await;
    let (mut rows, _) = told(&server, since).await;
    rows.sort();
    assert_eq!(rows, ["fewer", "gone", "more", "other"].map(|id| (id.to_owned(), true)));
}

#[tokio::test]
async fn who_lost_all_hears_of_what_there_was() {
    let ([server, db], _storage) = database(true).await;
    anna(&server, &["*"]).await;
    let [edited, entered] = ["edited", "entered"];
    let revs = [put(&db, edited, None, "{}").await, put(&db, entered, None, "{}").await];
    let (rows, since) = told(&server, Since::Beginning).await;
    assert_eq!(rows.len(), 2, "{rows:?}");
    anna(&server, &[]).await;
    put(&db, edited, Some(&revs[0]), "{}").await;
    put(&db, entered, Some(&revs[1]), r#"{"channels":"A"}"#).await;
    put(&db, "new", None, "{}").await;
    let (mut rows, _) = told(&server, since).await;
    rows.sort();
    assert_eq!(rows, [(edited.to_owned(), true), (entered.to_owned(), true)]);
    assert_clean(&db).await;
}

/// A reader that was told that a document left gets the same answer when it reads the revision with which it left, even
/// with access to that revision's channel since: it would otherwise keep a body that it is to remove.
#[tokio::test]
async fn the_revision_with_which_a_document_left_says_so() {
    let ([server, db], _storage) = database(true).await;
    anna(&server, &["A"]).await;
    let first = put(&db, "d", None, r#"{"channels":"A"}"#).await;
    let gone = put(&db, "d", Some(&first), r#"{"channels":"B"}"#).await;
    let third = put(&db, "d", Some(&gone), r#"{"channels":"C"}"#).await;
    anna(&server, &["A", "B"]).await;
    let reader = server.reader().asked_by(ReadPrincipal::Principal("anna".into()));
    let options = |rev: &RevId, latest| GetOptions { rev: Some(rev.clone()), latest, ..GetOptions::default() };
    let shown = async |rev: &RevId| {
        let mut found = Vec::new();
        for latest in [false, true] {
            let options = options(rev, latest);
            found.push(reader.get("d", &options).await.unwrap());
            match reader.get_many(&[("d".to_owned(), options.clone())]).await.unwrap().pop() {
                Some(crate::GetOutcome::Document(document)) => found.push(*document),
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
    // A visible revision is shown whatever the document has left; older ones are judged by their own channels.
    put(&db, "d", Some(&third), r#"{"channels":"B"}"#).await;
    let shown = reader.get("d", &options(&gone, false)).await.unwrap();
    assert_eq!((shown.rev, shown.body), (gone, br#""channels":"B""#.to_vec()));
    assert_eq!(reader.get("d", &options(&first, false)).await.unwrap().body, br#""channels":"A""#);
}
