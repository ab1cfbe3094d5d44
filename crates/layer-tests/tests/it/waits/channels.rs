//! The cost of channels for writers, and for a user of ten channels who reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{DOCUMENTS, Table, bulk_from};
use crate::support::{Layer, Open, put};
use flatbed_layer::channels::{PrincipalKind, PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_layer::{ChangesQuery, ChannelsOptions, CreateOptions, Extras, User};

fn body(number: usize, channels: &str) -> String {
    format!(r#"{{"number":{number},"text":"{}","channels":[{channels}]}}"#, "x".repeat(200))
}

pub(super) async fn measure(layer: &Layer, table: &mut Table) {
    let channels = Some(ChannelsOptions::default());
    layer.create_database("channels", &CreateOptions { channels, ..CreateOptions::default() }).await.unwrap();
    let root = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    let db = (**layer).database("channels", root.through(Arc::new(Open))).asked_by(ReadPrincipal::All);
    let ann = db.reader().asked_by(ReadPrincipal::Principal("ann".into()));
    let write = PrincipalWrite {
        kind: PrincipalKind::User,
        name: "ann".to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: (0..10).map(|number| format!("c{number}")).collect(),
        admin_roles: BTreeSet::new(),
        signs_in: Some(SignsIn::Password(b"{}".to_vec())),
        is_new: true,
    };
    table.row("a user of ten channels is made", db.put_principal(&write)).await.unwrap();
    put(&db, "names", None, &body(0, "")).await.unwrap();
    let row = "a new document in two channels";
    let rev = table.row(row, put(&db, "d", None, &body(1, r#""a","b""#))).await.unwrap();
    let row = "an edit of it that keeps them";
    let rev = table.row(row, put(&db, "d", Some(&rev), &body(2, r#""a","b""#))).await.unwrap();
    let row = "an edit with which it leaves one and enters another";
    table.row(row, put(&db, "d", Some(&rev), &body(3, r#""b","c""#))).await.unwrap();
    let seen: Vec<String> = (0..DOCUMENTS).map(|number| body(number, &format!(r#""c{}""#, number % 10))).collect();
    let hidden: Vec<String> = (0..DOCUMENTS).map(|number| body(number, r#""other""#)).collect();
    table.row("a bulk of 1,000 new documents in a channel each", bulk_from(&db, 0, &seen, None)).await;
    bulk_from(&db, DOCUMENTS, &hidden, None).await;
    // The first of all pages reads the rights of the user.
    for name in [
        "`_changes` of 1,000 in ten channels, by a user of whom nothing is known",
        "`_changes` of 1,000 in ten channels",
    ] {
        table.row(name, ann.changes(ChangesQuery::default()).next_page()).await.unwrap();
    }
    let mut changes = ann.changes(ChangesQuery { extras: Extras::DOCUMENTS, ..ChangesQuery::default() });
    let mut at_end = false;
    table
        .walk("`_changes` with documents of 1,000 in ten channels", async || {
            if at_end {
                return None;
            }
            let page = changes.next_page().await.unwrap();
            at_end = page.at_end;
            Some(page)
        })
        .await;
}
