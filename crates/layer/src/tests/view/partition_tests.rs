//! Compares reads of one partition with a model, and checks that they read no rows of others.
#![cfg(test)]

use flatbed_store::waits;
use flatbed_views::view::read::{Select, ViewRange};
use flatbed_views::view::reduced::{Grouping, ReduceQuery};
use flatbed_views::view::rows::ViewQuery;
use proptest::prelude::*;

use crate::tests::fenced::database;
use crate::tests::view::read_tests::{asked, compare, read, reduced, view_of};
use crate::tests::view::{Model, assert_is, batch_of, begin, build, follow, group_in, value};

/// Some are prefixes of others; two are equal in the order of strings; ids of some sort among those of others.
const PARTITIONS: [&str; 9] = ["a", "a!", "aa", "a\0", "A", "\u{e9}", "e\u{301}", "\u{10ffff}", "\u{10ffff}\u{10ffff}"];

fn partitions() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(&PARTITIONS[..])
}

fn ids() -> impl Strategy<Value = String> + Clone {
    (partitions(), 0..9_u32).prop_map(|(partition, n)| format!("{partition}:d{n}"))
}

fn bounds() -> impl Strategy<Value = String> + Clone {
    prop_oneof![3 => ids(), 1 => partitions().prop_map(str::to_owned), 1 => partitions().prop_map(|one| format!("{one};"))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_of_a_partition_is_what_the_model_has(
        first in batch_of(ids()), second in batch_of(ids()),
        asked in prop::collection::vec((partitions(), asked(bounds())), 60..61), is_built: bool
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (db, _storage) = database().await;
            let group = group_in(true);
            if is_built {
                build(&db, &group, &first).await;
            } else {
                begin(&db, &group).await;
                follow(&db, &group, &first).await;
            }
            let mut model = first;
            assert_is(&db, &group, &model).await;
            follow(&db, &group, &second).await;
            model.extend(second);
            assert_is(&db, &group, &model).await;
            for (partition, asked) in asked {
                compare(&db, &group, &model, Some((partition, &format!("{partition}:"))), asked).await;
            }
            let gone: Model = model.keys().map(|id| (id.clone(), vec![Vec::new(); 3])).collect();
            follow(&db, &group, &gone).await;
            assert_is(&db, &group, &Model::new()).await;
        });
    }
}

#[tokio::test]
async fn rows_of_one_partition_are_read() {
    let (db, _storage) = database().await;
    let document = |n: u32| {
        let row = || vec![(format!("[{},{n}]", n % 10), n.to_string())];
        (format!("p{:02}:{n:07}", n % 100), vec![row(), row(), row()])
    };
    let (group, model): (_, Model) = (group_in(true), (0..8_000).map(document).collect());
    build(&db, &group, &model).await;
    let view = view_of(&db, group.clone(), 0).of_partition("p37");
    db.exists().await.unwrap();
    let ((rows, total, before), waits) = waits::count(read(&view, ViewQuery::default())).await;
    assert_eq!((rows.len(), total, before), (80, 8_000, 37 * 80));
    assert!(rows.iter().all(|row| row.1.starts_with("p37:")));
    println!("all rows: {} keys, depth {}", waits.keys_read, waits.path.depth());
    // Rows, and nodes and rows beside the first one for the offset.
    assert!(waits.keys_read < 500, "{waits:?}");
    let select = || Select::Range(ViewRange { start: Some(value("[7]")), ..ViewRange::default() });
    let query = ReduceQuery { select: select(), grouping: Grouping::Level(1), ..ReduceQuery::default() };
    let (groups, waits) = waits::count(reduced(&view, query)).await;
    let sum = |n: u32| (n..8_000).step_by(100).sum::<u32>().to_string();
    assert_eq!(groups, [(Some("[7]".to_owned()), sum(37))]);
    println!("a group: {} keys, depth {}", waits.keys_read, waits.path.depth());
    assert!(waits.keys_read < 700, "{waits:?}");
}

#[tokio::test]
async fn design_documents_are_in_no_partition() {
    let (db, _storage) = database().await;
    let group = group_in(true);
    begin(&db, &group).await;
    let rows = || vec![vec![("1".to_owned(), "1".to_owned())]; 3];
    follow(&db, &group, &Model::from([("_design/a:b".to_owned(), rows()), ("a:b".to_owned(), rows())])).await;
    assert_is(&db, &group, &Model::from([("a:b".to_owned(), rows())])).await;
}
