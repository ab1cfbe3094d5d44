//! Reads revisions beside the winner: which of them count as deleted or expired, and the cost of finding out.
#![cfg(test)]

use std::collections::BTreeMap;

use flatbed_databases::channels::PrincipalWrite;
use flatbed_store::waits::count;

use super::*;
use crate::{GetOutcome, OpenRevs, Reader};

fn user() -> PrincipalWrite {
    PrincipalWrite {
        kind: flatbed_channels::PrincipalKind::User,
        name: "anna".to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: ["A".to_owned()].into(),
        admin_roles: BTreeSet::new(),
        signs_in: Some(flatbed_databases::channels::SignsIn::Password(b"{}".to_vec())),
        is_new: false,
    }
}

async fn readers(server: &Database) -> [Reader; 2] {
    server.put_principal(&user()).await.unwrap();
    let anna = server.reader().asked_by(ReadPrincipal::Principal("anna".into()));
    [anna, server.reader().asked_by(ReadPrincipal::All)]
}

fn of(rev: &RevId) -> GetOptions {
    GetOptions { rev: Some(rev.clone()), ..GetOptions::default() }
}

/// The revisions shown to a reader: their bodies, or nothing if they are missing.
type ShownRevisions = BTreeMap<RevId, Option<(bool, Vec<u8>)>>;

fn shown(document: Document) -> (bool, Vec<u8>) {
    (document.deleted, document.body)
}

async fn one_by_one(reader: &Reader, revs: &[RevId]) -> ShownRevisions {
    let mut found = ShownRevisions::new();
    for rev in revs {
        let document = reader.get("d", &of(rev)).await;
        assert!(document.is_ok() || matches!(document, Err(crate::Error::Refused(Refusal::DocumentNotFound(_)))));
        found.insert(rev.clone(), document.ok().map(shown));
    }
    found
}

/// Reads all revisions, in requests up to the limit.
async fn in_bulk(reader: &Reader, revs: &[RevId]) -> ShownRevisions {
    let requests: Vec<_> = revs.iter().map(|rev| ("d".to_owned(), of(rev))).collect();
    let mut found = Vec::new();
    while found.len() < requests.len() {
        let some = reader.get_many(&requests[found.len()..]).await.unwrap();
        assert!(!some.is_empty());
        found.extend(some);
    }
    let each = revs.iter().cloned().zip(found).map(|(rev, got)| match got {
        GetOutcome::Document(document) => (rev, Some(shown(*document))),
        GetOutcome::Missing(_) => (rev, None),
        GetOutcome::Several => panic!("one is meant"),
    });
    each.collect()
}

async fn open(reader: &Reader, revs: &OpenRevs) -> ShownRevisions {
    let (found, count) = reader.open_revs("d", revs, 0, false, &GetOptions::default()).await.unwrap();
    assert_eq!(found.len(), count);
    let each = found.into_iter().map(|revision| match revision {
        Ok(document) => (document.rev.clone(), Some(shown(document))),
        Err(rev) => (rev, None),
    });
    each.collect()
}

#[tokio::test]
async fn what_came_to_an_end_is_over_with_all_that_it_came_of() {
    let mut random = Random(0x6f76_6572);
    for _ in 0..8 {
        let ([server, db], _storage) = database(true).await;
        let readers = readers(&server).await;
        // Each with its ancestry, newest first, and whether it has expired.
        let mut revs: Vec<(Vec<String>, bool)> = Vec::new();
        for n in 0..24 {
            let below = match random.below(5) {
                0 => Vec::new(),
                _ if revs.is_empty() => Vec::new(),
                _ => revs[random.below(revs.len() as u64) as usize].0.clone(),
            };
            let has_ended = random.below(6) == 0;
            let line = [vec![format!("{}-{n:032x}", below.len() + 1)], below].concat();
            let path: Vec<&str> = line.iter().map(String::as_str).collect();
            let ends = if has_ended { r#","ends":1"# } else { "" };
            replicate(&db, "d", &path, &format!(r#"{{"channels":"A","n":{n}{ends}}}"#)).await;
            revs.push((line, has_ended));
        }
        let mut expected = ShownRevisions::new();
        for (n, (line, has_ended)) in revs.iter().enumerate() {
            let is_over = revs.iter().any(|(other, has_ended)| *has_ended && other[1..].contains(&line[0]));
            let body = if *has_ended { Vec::new() } else { format!(r#""channels":"A","n":{n}"#).into_bytes() };
            expected.insert(line[0].parse().unwrap(), (!is_over).then_some((*has_ended, body)));
        }
        let all: Vec<RevId> = expected.keys().rev().cloned().collect();
        for reader in &readers {
            assert_eq!(one_by_one(reader, &all).await, expected);
            assert_eq!(in_bulk(reader, &all).await, expected);
            assert_eq!(open(reader, &OpenRevs::Some(all.clone())).await, expected);
            let leaves = open(reader, &OpenRevs::All).await;
            assert!(leaves.iter().all(|(rev, shown)| expected[rev] == *shown), "{leaves:?}");
        }
        assert_clean(&server).await;
    }
}

/// The revision that the feed names as the one that left stays shown as such after the document has expired or is
/// deleted and the reader has been given its new channel: a newly granted channel brings no tombstones.
#[tokio::test]
async fn what_has_left_before_the_end_has_left() {
    for last in [r#"{"channels":"C","ends":1}"#, r#"{"channels":"B","ends":1}"#, r#"{"channels":"B","_deleted":true}"#]
    {
        let ([server, db], _storage) = database(true).await;
        let [anna, _] = readers(&server).await;
        let [one, two, three] = [1, 2, 3].map(|n| format!("{n}-{n:032x}"));
        replicate(&db, "d", &[&one], r#"{"channels":"A"}"#).await;
        replicate(&db, "d", &[&two, &one], r#"{"channels":"B"}"#).await;
        replicate(&db, "d", &[&three, &two, &one], last).await;
        let write = PrincipalWrite { admin_channels: ["A".to_owned(), "B".to_owned()].into(), is_new: false, ..user() };
        server.put_principal(&write).await.unwrap();
        let two: RevId = two.parse().unwrap();
        let expected = ShownRevisions::from([(two.clone(), Some((false, br#""_removed":true"#.to_vec())))]);
        assert_eq!(one_by_one(&anna, std::slice::from_ref(&two)).await, expected, "{last}");
        assert_eq!(in_bulk(&anna, std::slice::from_ref(&two)).await, expected, "{last}");
        assert_eq!(open(&anna, &OpenRevs::Some(vec![two])).await, expected, "{last}");
    }
}

/// The records of a document with many revisions are read once for all requested revisions, and not at all for a leaf.
#[tokio::test]
async fn records_are_gone_through_once() {
    const REVISIONS: usize = 40;
    let ([server, db], _storage) = database(true).await;
    let readers = readers(&server).await;
    let leaf = "1-00000000000000000000000000000001";
    replicate(&db, "d", &[leaf], r#"{"channels":"A"}"#).await;
    let mut revs: Vec<RevId> = vec![put(&db, "e", None, "{}").await];
    revs.clear();
    let first = "1-ffffffffffffffffffffffffffffffff";
    replicate(&db, "d", &[first], r#"{"channels":"A"}"#).await;
    revs.push(first.parse().unwrap());
    while revs.len() < REVISIONS {
        let rev = put(&db, "d", revs.last(), r#"{"channels":"A"}"#).await;
        revs.push(rev);
    }
    for reader in &readers {
        let (found, waits) = count(open(reader, &OpenRevs::Some(revs.clone()))).await;
        assert!(found.values().all(Option::is_some), "{found:?}");
        // A range for each body, and the tree, the winner, the records and the field names.
        let is_exact = flatbed_store::waits::are_exact();
        assert!(!is_exact || waits.range_reads <= REVISIONS as u64 + 6, "{waits:?}");
        let (found, waits) = count(in_bulk(reader, &revs)).await;
        assert!(found.values().all(Option::is_some), "{found:?}");
        assert!(!is_exact || waits.range_reads <= 2 * REVISIONS as u64 + 6, "{waits:?}");
        assert_eq!(waits.transactions, 1, "{waits:?}");
        let (found, waits) = count(one_by_one(reader, &[leaf.parse().unwrap()])).await;
        assert!(found.values().all(Option::is_some), "{found:?}");
        assert!(waits.keys_read < 12, "{waits:?}");
    }
}

/// A read of one revision is bounded even with large records: old revisions are then missing, leaves never.
#[tokio::test]
async fn records_are_gone_through_no_further_than_there_is_room() {
    let ([server, db], _storage) = database(true).await;
    let readers = readers(&server).await;
    let leaf = "1-00000000000000000000000000000001";
    replicate(&db, "d", &[leaf], r#"{"channels":"A"}"#).await;
    let channels: Vec<String> = (0..200).map(|n| format!(r#""channel of a long name {n}""#)).collect();
    let body = format!(r#"{{"channels":["A",{}]}}"#, channels.join(","));
    let first = "1-ffffffffffffffffffffffffffffffff";
    replicate(&db, "d", &[first], &body).await;
    let mut revs: Vec<RevId> = vec![first.parse().unwrap()];
    while revs.len() < 60 {
        let rev = put(&db, "d", revs.last(), &body).await;
        revs.push(rev);
    }
    for reader in &readers {
        for at in [0, 1, 50, 58, 59] {
            let rev = &revs[at..=at];
            let (found, waits) = count(one_by_one(reader, rev)).await;
            assert_eq!(found.values().all(Option::is_some), at > 40, "{at}");
            assert!(waits.bytes_read < 200_000, "{at}: {waits:?}");
            let (again, waits) = count(in_bulk(reader, rev)).await;
            assert_eq!(again, found);
            assert!(waits.bytes_read < 200_000, "{at}: {waits:?}");
        }
        let mut asked = revs.clone();
        asked.push(leaf.parse().unwrap());
        let (found, _) = count(open(reader, &OpenRevs::Some(asked))).await;
        assert!(found[&leaf.parse::<RevId>().unwrap()].is_some());
        assert_eq!(found[&revs[0]], None);
        assert!(found[&revs[58]].is_some());
        let (found, _) = count(open(reader, &OpenRevs::All)).await;
        assert_eq!(found.len(), 2);
        assert!(found.values().all(Option::is_some));
        let options = GetOptions { conflicts: true, revs_info: true, ..GetOptions::default() };
        let document = reader.get("d", &options).await.unwrap();
        assert_eq!(document.conflicts, Some(vec![leaf.parse().unwrap()]));
        let infos = document.revs_info.unwrap();
        assert_eq!((infos.len(), infos[0].1, infos[59].1), (60, true, false));
        let wanted = [("d".to_owned(), revs.clone())];
        assert_eq!(reader.missing_revs(&wanted).await.unwrap()[0].0, []);
    }
}
