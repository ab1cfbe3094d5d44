//! A write that was judged by rights which change before its commit is not committed: the change comes between the
//! reads of the write's transaction, which found the rights unchanged, and its commit.
#![cfg(test)]

use flatbed_databases::channels::{PrincipalKind, PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_databases::document::edit::{Edit, GetOptions};
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::judge::ask::{self, EditRequest};
use flatbed_operations::write::batch::{Work, WriteBatch, prepare, resolved};
use flatbed_revtree::RevId;
use flatbed_store::transaction::{Attempt, Operation, Transaction};

use super::{names, role, user};
use crate::handle::Database;
use crate::handle::Layer;
use crate::tests::index::channels::{ByBody, assert_clean, give_channels};

/// The change before the commit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RightsChange {
    ChannelGoes,
    ChannelComes,
    IsDisabled,
    IsDeleted,
    LeavesRole,
    RoleLosesChannel,
    RoleGoes,
    DocumentGivesNoMore,
    /// An account that is only a member becomes a user.
    BecomesUser,
    /// The guest is admitted.
    IsLetIn,
    OthersChange,
    AnotherDocument,
}

use RightsChange::*;

fn edit<'e>(id: &'e str, parent: Option<RevId>, body: &'e str) -> Edit<'e> {
    let body = parse(body.as_bytes(), &Limits::default()).unwrap();
    Edit { id: id.into(), parent, history: None, deleted: false, expiry: None, attachments: Vec::new(), body }
}

fn anna() -> PrincipalWrite {
    PrincipalWrite { admin_channels: names(&["A"]), admin_roles: names(&["staff"]), ..user("anna") }
}

impl RightsChange {
    fn writer(self) -> ReadPrincipal {
        match self {
            BecomesUser => ReadPrincipal::Account { name: "carl".into(), is_member: true },
            IsLetIn => ReadPrincipal::Guest,
            _ => ReadPrincipal::Principal("anna".into()),
        }
    }

    /// Returns whether the change concerns the writer's rights.
    fn is_of_writer(self) -> bool {
        !matches!(self, OthersChange | AnotherDocument)
    }

    async fn happen(self, db: &Database) {
        let put = async |write: PrincipalWrite| assert!(db.put_principal(&write).await.is_ok());
        match self {
            ChannelGoes => put(PrincipalWrite { admin_channels: names(&[]), ..anna() }).await,
            ChannelComes => put(PrincipalWrite { admin_channels: names(&["A", "B"]), ..anna() }).await,
            IsDisabled => put(PrincipalWrite { is_disabled: true, ..anna() }).await,
            IsDeleted => drop(db.delete_principal(PrincipalKind::User, "anna").await.unwrap()),
            LeavesRole => put(PrincipalWrite { admin_roles: names(&[]), ..anna() }).await,
            RoleLosesChannel => put(role("staff")).await,
            RoleGoes => drop(db.delete_principal(PrincipalKind::Role, "staff").await.unwrap()),
            DocumentGivesNoMore => {
                let given = db.get("giving", &GetOptions::default()).await.unwrap().rev;
                db.update(&edit("giving", Some(given), "{}")).await.unwrap();
            }
            BecomesUser => {
                let signs_in = Some(SignsIn::Account);
                put(PrincipalWrite { signs_in, is_disabled: true, ..user("carl") }).await;
            }
            IsLetIn => put(PrincipalWrite { is_disabled: true, ..user("") }).await,
            OthersChange => {
                put(PrincipalWrite { admin_channels: names(&["B"]), ..user("bert") }).await;
                put(PrincipalWrite { admin_channels: names(&["B"]), ..role("role") }).await;
            }
            AnotherDocument => drop(db.update(&edit("another", None, r#"{"gives":"bert"}"#)).await.unwrap()),
        }
    }
}

/// Commits a change between the reads and the commit of a write.
async fn interleaved(meanwhile: RightsChange, is_shared: bool) {
    let (layer, authority, _storage) = crate::tests::fenced::layer_judged_by(Some(std::sync::Arc::new(ByBody))).await;
    let server = layer.database("db", authority.for_job("test"));
    give_channels(&server).await;
    let as_user =
        |asker| Layer { inner: layer.inner.clone() }.database("db", crate::tests::fenced::user("x")).asked_by(asker);
    let staff = PrincipalWrite { admin_channels: names(&["S"]), ..role("staff") };
    // The guest is admitted.
    for write in [staff, anna(), user("")] {
        server.put_principal(&write).await.unwrap();
    }
    as_user(ReadPrincipal::All).update(&edit("giving", None, r#"{"gives":"anna"}"#)).await.unwrap();
    let (db, inner) = (as_user(meanwhile.writer()), &*layer.inner);
    let instance = resolved(inner, "db").await.unwrap();
    let edits = [edit("d", None, r#"{"channels":"A"}"#)];
    let mut items = prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches.pop().unwrap();
    let asked = [EditRequest { edit: &edits[0], upon: None }];
    let judged = ask::judge(&db.handle, &instance, &asked, (0, 1), false).await.unwrap().pop().unwrap();
    assert!(judged.judgement.is_ok() && judged.held.is_some(), "{meanwhile:?}: {judged:?}");
    items[0].judge(judged);
    let work = Work::new(inner);
    let preparations = Default::default();
    let (instance, edits) = (&*instance, &edits[..]);
    let mut write =
        WriteBatch { inner, instance, edits, items: &mut items, attempts: 0, work: &work, preparations, is_shared };
    let begin = || Transaction::begin(&inner.db, &inner.metrics).unwrap();
    let trx = begin();
    let outcomes = write.attempt(&trx, Attempt::default()).await.unwrap().unwrap();
    assert!(matches!(outcomes[..], [(0, Ok(_))]), "{meanwhile:?}: {outcomes:?}");
    meanwhile.happen(&as_user(ReadPrincipal::All)).await;
    assert_eq!(trx.commit().await.is_err(), meanwhile.is_of_writer(), "{meanwhile:?}, shared: {is_shared}");
    // The next attempt notices by itself, and leaves the document to be judged again.
    if meanwhile.is_of_writer() {
        let trx = begin();
        let outcomes = write.attempt(&trx, Attempt::default()).await.unwrap().unwrap();
        assert!(outcomes.is_empty(), "{meanwhile:?}: {outcomes:?}");
    }
    assert_eq!(
        db.reader().asked_by(ReadPrincipal::All).get("d", &GetOptions::default()).await.is_err(),
        meanwhile.is_of_writer()
    );
    assert_clean(&server).await;
}

#[tokio::test]
async fn rights_that_change_before_the_commit_are_not_written_by() {
    let all = [
        ChannelGoes,
        ChannelComes,
        IsDisabled,
        IsDeleted,
        LeavesRole,
        RoleLosesChannel,
        RoleGoes,
        DocumentGivesNoMore,
        BecomesUser,
        IsLetIn,
        OthersChange,
        AnotherDocument,
    ];
    for meanwhile in all {
        for is_shared in [false, true] {
            interleaved(meanwhile, is_shared).await;
        }
    }
}
