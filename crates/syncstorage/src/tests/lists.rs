//! Lists.

use crate::tests::support::{Storage, UID, change, id, ids, name};
use crate::{Change, Error, ListQuery, Offset, Precondition, Sort, Timestamp};

const NONE: Precondition = Precondition::None;

#[tokio::test]
async fn pages_go_on_where_they_ended_whatever_was_written_since() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    for of in ["a", "b", "c", "d", "e"] {
        storage.clock.advance(100);
        store.put(UID, &history, Change { sortindex: Some(1), ..change(of, "1") }, NONE).await.unwrap();
    }
    let query = ListQuery { limit: Some(2), sort: Sort::Oldest, ..ListQuery::default() };
    let first = store.list(UID, &history, &query, NONE).await.unwrap();
    assert_eq!(first.ids(), [id("a"), id("b")]);
    // The last one of the page goes, and one before it is written again.
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
    storage.clock.advance(100);
    let second = store.put(UID, &tabs, change("b", "1"), NONE).await.unwrap().modified;
    let since = Precondition::ModifiedSince;
    let get = |of: &'static str, condition| {
        let (store, tabs) = (store.clone(), tabs.clone());
        async move { store.get(UID, &tabs, &id(of), condition).await }
    };
    assert!(matches!(get("a", since(first)).await, Err(Error::NotModified { modified, .. }) if modified == first));
    assert!(get("b", since(first)).await.is_ok());
    // What is not there has the time 0.
    assert!(matches!(get("z", since(Timestamp::ZERO)).await, Err(Error::NotModified { .. })));
    assert!(matches!(get("z", Precondition::UnmodifiedSince(first)).await, Err(Error::NotFound { .. })));
    let list = |collection| {
        let store = store.clone();
        async move { store.list(UID, collection, &ListQuery::default(), since(Timestamp::ZERO)).await }
    };
    assert!(list(&tabs).await.is_ok());
    assert!(matches!(list(&none).await, Err(Error::NotModified { .. })));
    let info = store.info_collections(UID, Precondition::UnmodifiedSince(first)).await;
    assert!(matches!(info, Err(Error::Modified { modified, .. }) if modified == second));
}
