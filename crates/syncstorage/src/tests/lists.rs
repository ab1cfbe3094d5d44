//! Lists.

use crate::tests::support::{Random, Storage, UID, change, id, ids, name};
use crate::{Change, CollectionName, Error, ListQuery, Offset, Precondition, RecordId, Sort, Store, Timestamp};

const NONE: Precondition = Precondition::None;

#[tokio::test]
async fn pages_go_on_where_they_ended_whatever_was_written_since() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    for of in ["a", "b", "c", "d", "e"] {
        storage.advance(100);
        store.put(UID, &history, Change { sortindex: Some(1), ..change(of, "1") }, NONE).await.unwrap();
    }
    let query = ListQuery { limit: Some(2), sort: Sort::Oldest, ..ListQuery::default() };
    let first = store.list(UID, &history, &query, NONE).await.unwrap();
    assert_eq!(first.ids(), [id("a"), id("b")]);
    // The last record of the page is deleted, and one before it is written again.
    store.delete_record(UID, &history, &id("b"), NONE).await.unwrap();
    store.put(UID, &history, change("a", "2"), NONE).await.unwrap();
    let next = ListQuery { offset: first.next_offset().cloned(), ..query.clone() };
    let second = store.list(UID, &history, &next, NONE).await.unwrap();
    assert_eq!(second.ids(), [id("c"), id("d")]);
    let next = ListQuery { offset: second.next_offset().cloned(), ..query };
    let third = store.list(UID, &history, &next, NONE).await.unwrap();
    assert_eq!((third.ids(), third.next_offset()), (&[id("e"), id("a")][..], None));
    let other = ListQuery { sort: Sort::Index, ..next };
    let refused = store.list(UID, &history, &other, NONE).await;
    assert!(matches!(refused, Err(Error::BadOffset)), "{refused:?}");
}

#[tokio::test]
async fn bounds_of_lists() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    assert_eq!(store.list(UID, &tabs, &ListQuery::default(), NONE).await.unwrap().modified(), Timestamp::ZERO);
    store.post(UID, &tabs, vec![change("a", "1"), change("b", "1")], NONE).await.unwrap();
    let of = |sort, limit| ListQuery { sort, limit, ..ListQuery::default() };
    assert_eq!(ids(&store, &tabs, &of(Sort::Newest, Some(0))).await, Vec::<String>::new());
    assert_eq!(ids(&store, &tabs, &of(Sort::Newest, Some(u32::MAX))).await, ["b", "a"]);
    let many = ListQuery { ids: Some((0..101).map(|at| id(&at.to_string())).collect()), ..ListQuery::default() };
    assert!(matches!(store.list(UID, &tabs, &many, NONE).await, Err(Error::OutOfBounds(_))));
    for (newer, older, wanted) in [
        (Some(Timestamp::MAX), None, 0),
        (None, Some(Timestamp::ZERO), 0),
        (Some(Timestamp::MAX), Some(Timestamp::ZERO), 0),
        (Some(Timestamp::ZERO), Some(Timestamp::MAX), 2),
    ] {
        for sort in [Sort::Newest, Sort::Oldest, Sort::Index] {
            let query = ListQuery { newer, older, ..of(sort, None) };
            assert_eq!(ids(&store, &tabs, &query).await.len(), wanted, "{query:?}");
        }
    }
    // A time is neither newer nor older than itself.
    let at = store.list(UID, &tabs, &ListQuery::default(), NONE).await.unwrap().modified();
    for (newer, older, wanted) in [(Some(at), None, 0), (None, Some(at), 0), (None, Some(at.next()), 2)] {
        for sort in [Sort::Newest, Sort::Oldest, Sort::Index] {
            let query = ListQuery { newer, older, ..of(sort, None) };
            assert_eq!(ids(&store, &tabs, &query).await.len(), wanted, "{query:?}");
        }
    }
    for offset in ["100000", "n9007199254740993.61", "n0.61", "n9999999999999999.7e"] {
        let query = ListQuery { offset: Some(Offset::parse(offset).unwrap()), ..ListQuery::default() };
        assert!(ids(&store, &tabs, &query).await.len() <= 2, "{offset}");
    }
    for offset in ["100001", "18446744073709551615"] {
        let query = ListQuery { offset: Some(Offset::parse(offset).unwrap()), ..ListQuery::default() };
        assert!(matches!(store.list(UID, &tabs, &query, NONE).await, Err(Error::BadOffset)), "{offset}");
    }
}

#[tokio::test]
async fn conditions_are_judged_on_what_is_asked_for() {
    let storage = Storage::new();
    let (store, tabs, none) = (storage.store().await, name("tabs"), name("nothing"));
    let first = store.put(UID, &tabs, change("a", "1"), NONE).await.unwrap().modified;
    storage.advance(100);
    let second = store.put(UID, &tabs, change("b", "1"), NONE).await.unwrap().modified;
    let since = Precondition::ModifiedSince;
    let get = |of: &'static str, condition| {
        let (store, tabs) = (store.clone(), tabs.clone());
        async move { store.get(UID, &tabs, &id(of), condition).await }
    };
    assert!(matches!(get("a", since(first)).await, Err(Error::NotModified { modified, .. }) if modified == first));
    assert!(get("b", since(first)).await.is_ok());
    // A missing record has the time 0.
    assert!(matches!(get("z", since(Timestamp::ZERO)).await, Err(Error::NotModified { .. })));
    assert!(matches!(get("z", Precondition::UnmodifiedSince(first)).await, Err(Error::NotFound { .. })));
    let list = |collection| {
        let store = store.clone();
        async move { store.list(UID, collection, &ListQuery::default(), since(Timestamp::ZERO)).await }
    };
    assert!(list(&tabs).await.is_ok());
    assert!(matches!(list(&none).await, Err(Error::NotModified { .. })));
    assert!(store.info_collections(UID, Precondition::UnmodifiedSince(second)).await.is_ok());
    let info = store.info_collections(UID, Precondition::UnmodifiedSince(first)).await;
    assert!(matches!(info, Err(Error::Modified { modified, .. }) if modified == second));
}

#[tokio::test]
async fn what_lies_near_is_read_as_one_by_one() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    let mut random = Random(11);
    let mut sized = |from: usize, to: usize, step: usize| -> Vec<Change> {
        let bytes = |random: &mut Random| "x".repeat(random.below(8_000) as usize);
        (from..to).step_by(step).map(|at| change(&format!("r{at:04}"), &bytes(&mut random))).collect()
    };
    store.post(UID, &history, sized(0, 200, 3), NONE).await.unwrap();
    let batch = store.begin_batch(UID, &history, sized(0, 100, 1), NONE).await.unwrap().batch;
    store.append_batch(UID, &history, batch, sized(100, 200, 1), NONE).await.unwrap();
    store.commit_batch(UID, &history, batch, sized(500, 501, 1), NONE).await.unwrap();
    let user = &store.inner.keys.user(UID);
    let (collection, batch) = (&user.collection(&history), &user.batch(batch));
    for step in [1, 2, 5, 7] {
        let up: Vec<_> = (0..250).step_by(step).map(|at| id(&format!("r{at:04}"))).collect();
        let down = up.iter().rev().cloned().collect();
        let mixed = up.iter().skip(9).chain(up.iter().take(9)).cloned().collect();
        for ids in [up, down, mixed] {
            let ids = &ids;
            let keys = |of: &dyn Fn(&RecordId) -> Vec<u8>| ids.iter().map(of).collect::<Vec<_>>();
            for keys in [
                &keys(&|id| collection.record(id)),
                &keys(&|id| batch.staged_record(id)),
                &keys(&|id| batch.payload(id)),
            ] {
                let read = store.inner.runner.read(move |trx| async move {
                    Ok((trx.get_near(keys.clone()).await?, trx.get_all(keys.iter().cloned()).await?))
                });
                let (near, one_by_one) = read.await.unwrap();
                assert_eq!(near, one_by_one, "{step}");
                assert!(near.iter().flatten().count() > 5, "{step}");
            }
        }
    }
}

/// Returns the ids of all pages of a list, and the length of each page.
async fn all_pages(store: &Store, collection: &CollectionName, query: &ListQuery) -> (Vec<String>, Vec<usize>) {
    let (mut ids, mut pages, mut query) = (Vec::new(), Vec::new(), query.clone());
    loop {
        let list = store.list(UID, collection, &query, NONE).await.unwrap();
        assert!(list.ids().len() <= query.limit.unwrap() as usize);
        ids.extend(list.ids().iter().map(|id| id.as_str().to_owned()));
        pages.push(list.ids().len());
        query.offset = list.next_offset().cloned();
        if query.offset.is_none() {
            return (ids, pages);
        }
        assert!(pages.len() < 100, "{pages:?}");
    }
}

/// In tests a list reads at most 2,500 entries of the collection itself.
#[tokio::test]
async fn a_list_that_would_look_through_everything_ends_before_it_is_full() {
    const RECORDS: usize = 6_000;
    let mut storage = Storage::new();
    storage.limits.max_post_records = 400;
    let (store, history) = (storage.store().await, name("history"));
    let mut random = Random(3);
    // For each record: its sortindex, and whether it is new, old, or gone.
    let mut model: Vec<(i32, bool, bool)> = Vec::new();
    for first in (0..RECORDS).step_by(400) {
        let changes = (first..first + 400).map(|at| {
            let (sortindex, is_gone) = (random.below(50) as i32, random.one_in(9));
            model.push((sortindex, false, is_gone));
            let ttl = is_gone.then_some(1);
            Change { sortindex: Some(sortindex), ttl, ..change(&format!("r{at:04}"), "1") }
        });
        store.post(UID, &history, changes.collect(), NONE).await.unwrap();
        storage.advance(10);
    }
    storage.advance(1_000);
    let before = store.info_collections(UID, NONE).await.unwrap().modified;
    // Some are written again with their sortindex, and others by an unfolded batch: more than a reader sorts itself.
    let again: Vec<usize> = (0..RECORDS).filter(|_| random.one_in(10)).collect();
    for some in again.chunks(400) {
        let changes = some.iter().map(|at| change(&format!("r{at:04}"), "2")).collect();
        store.post(UID, &history, changes, NONE).await.unwrap();
    }
    let batched: Vec<usize> = (0..RECORDS).filter(|_| random.one_in(20)).collect();
    let changes = batched.iter().map(|at| change(&format!("r{at:04}"), "3")).collect();
    let batch = store.begin_batch(UID, &history, changes, NONE).await.unwrap().batch;
    store.commit_batch(UID, &history, batch, Vec::new(), NONE).await.unwrap();
    for at in again.iter().chain(&batched) {
        // A gone record is written anew, without its former values.
        let (sortindex, _, is_gone) = model[*at];
        model[*at] = (if is_gone { -1 } else { sortindex }, true, false);
    }
    let expected = |is_new: bool| {
        let wanted = model.iter().enumerate().filter(|(_, (_, new, gone))| *new == is_new && !gone);
        let mut wanted: Vec<_> = wanted.map(|(at, (sortindex, _, _))| (*sortindex, format!("r{at:04}"))).collect();
        wanted.sort();
        wanted.into_iter().rev().map(|(_, id)| id).collect::<Vec<_>>()
    };
    let of = |newer, older, limit| ListQuery { newer, older, limit, sort: Sort::Index, ..ListQuery::default() };
    for limit in [1_000, 400] {
        let (listed, pages) = all_pages(&store, &history, &of(Some(before), None, Some(limit))).await;
        assert_eq!(listed, expected(true));
        // A thousand matches do not lie among some 2,500 entries, although there are more.
        assert!(limit < 1_000 || pages.len() > 1 && pages.iter().all(|found| *found < limit as usize), "{pages:?}");
        let (listed, _) = all_pages(&store, &history, &of(None, Some(before.next()), Some(limit))).await;
        assert_eq!(listed, expected(false));
    }
    // No matches at all.
    let (listed, pages) = all_pages(&store, &history, &of(None, Some(Timestamp::from_hundredths(1)), Some(10))).await;
    assert!(listed.is_empty() && pages.len() > 1, "{pages:?}");
    // A numeric offset cannot skip beyond the limit.
    let skip = ListQuery { offset: Offset::parse("900"), ..of(Some(before), None, Some(10)) };
    assert!(matches!(store.list(UID, &history, &skip, NONE).await, Err(Error::BadOffset)));
    let skip = ListQuery { offset: Offset::parse("9"), ..of(Some(before), None, Some(1)) };
    assert_eq!(ids(&store, &history, &skip).await, expected(true)[9..10]);
}

/// A list may end where an overlay's record stands at the last position read.
#[tokio::test]
async fn what_lies_over_the_last_entry_is_listed() {
    const RECORDS: usize = 4_000;
    let mut storage = Storage::new();
    storage.limits.max_post_records = 400;
    let (store, history) = (storage.store().await, name("history"));
    let some = |first: usize, text: &'static str| {
        (first..first + 400).map(move |at| Change { sortindex: Some(at as i32), ..change(&format!("r{at:04}"), text) })
    };
    for first in (0..RECORDS).step_by(400) {
        store.post(UID, &history, some(first, "1").collect(), NONE).await.unwrap();
    }
    storage.advance(1_000);
    let before = store.info_collections(UID, NONE).await.unwrap().modified;
    let batch = store.begin_batch(UID, &history, some(0, "2").collect(), NONE).await.unwrap().batch;
    for first in (400..RECORDS).step_by(400) {
        store.append_batch(UID, &history, batch, some(first, "2").collect(), NONE).await.unwrap();
    }
    store.commit_batch(UID, &history, batch, Vec::new(), NONE).await.unwrap();
    let query = ListQuery { newer: Some(before), limit: Some(10_000), sort: Sort::Index, ..ListQuery::default() };
    let (listed, pages) = all_pages(&store, &history, &query).await;
    let wanted: Vec<String> = (0..RECORDS).rev().map(|at| format!("r{at:04}")).collect();
    assert!(listed == wanted, "{} {pages:?}", listed.len());
    assert!(pages.len() > 1, "{pages:?}");
}

/// A list by time also reads any number of expired, unswept records.
#[tokio::test]
async fn what_has_expired_is_passed_over_in_pages() {
    let mut storage = Storage::new();
    storage.limits.max_post_records = 400;
    let (store, tabs) = (storage.store().await, name("tabs"));
    store.put(UID, &tabs, change("first", "1"), NONE).await.unwrap();
    for first in (0..5_600).step_by(400) {
        let gone = |at| Change { ttl: Some(1), ..change(&format!("r{at:04}"), "1") };
        store.post(UID, &tabs, (first..first + 400).map(gone).collect(), NONE).await.unwrap();
    }
    store.put(UID, &tabs, change("last", "1"), NONE).await.unwrap();
    storage.advance(1_000);
    for (sort, wanted) in [(Sort::Newest, ["last", "first"]), (Sort::Oldest, ["first", "last"])] {
        let query = ListQuery { sort, limit: Some(100), ..ListQuery::default() };
        let (listed, pages) = all_pages(&store, &tabs, &query).await;
        assert_eq!(listed, wanted);
        assert!(pages.len() > 1, "{pages:?}");
    }
}
