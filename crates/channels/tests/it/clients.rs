//! A client that reads its feed in pages of any length, while everything changes, ends up with what the user sees.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{Position, RowKind};
use proptest::prelude::*;

use crate::model::{Database, Event, event, read};

/// An event, or a page of this many rows with events between its reads.
#[derive(Debug, Clone)]
enum ClientEvent {
    Happens(Event),
    Page { limit: usize, meanwhile: Vec<Event> },
}

fn client_event() -> impl Strategy<Value = ClientEvent> {
    let page = (1..5_usize, prop::collection::vec(event(), 0..3));
    prop_oneof![
        4 => event().prop_map(ClientEvent::Happens),
        2 => page.prop_map(|(limit, meanwhile)| ClientEvent::Page { limit, meanwhile }),
    ]
}

#[derive(Default)]
struct Client {
    docs: BTreeMap<String, String>,
    at: Position,
}

impl Client {
    fn page(&mut self, database: &mut Database, limit: usize, flags: [bool; 2], mut meanwhile: Vec<Event>) -> bool {
        let [few, with_lost] = flags;
        meanwhile.reverse();
        let happens = |database: &mut Database| {
            // A change of the user's channels ends the merge, so none happens during the page.
            while let Some(event) = meanwhile.pop() {
                if database.changes_documents_alone(&event) {
                    database.happens(&event);
                    return;
                }
            }
        };
        let scope = database.scope(with_lost);
        let (rows, stands) = read(database, scope, self.at, limit, few, happens);
        assert!(rows.is_sorted_by_key(|row| row.position) && stands >= self.at);
        let is_end = rows.len() < limit;
        for row in rows {
            assert!(row.position > self.at);
            assert!(row.kind == RowKind::User || database.ever_seen.contains(&row.doc), "{row:?} was never seen");
            match row.kind {
                RowKind::Changed if !row.deleted => self.docs.insert(row.doc, row.rev),
                RowKind::Changed | RowKind::Removed | RowKind::Revoked => self.docs.remove(&row.doc),
                RowKind::User => None,
            };
        }
        self.at = stands;
        is_end
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn who_reads_to_the_end_has_what_they_see(moments in prop::collection::vec(client_event(), 0..60), flags in any::<[bool; 2]>()) {
        let (mut database, mut client) = (Database::default(), Client::default());
        let mut purged = BTreeSet::new();
        let mut has_lost = false;
        for moment in moments {
            match moment {
                ClientEvent::Happens(event) => {
                    if let Event::Purge { doc } = &event {
                        purged.insert(doc.to_string());
                    }
                    database.happens(&event);
                    has_lost |= !database.held().lost().is_empty();
                }
                ClientEvent::Page { limit, meanwhile } => {
                    client.page(&mut database, limit, flags, meanwhile);
                }
            }
        }
        while !client.page(&mut database, 3, flags, Vec::new()) {}
        let seen = database.seen();
        // No feed reports purged documents, and only a feed with revocations reports lost channels.
        let [_, with_lost] = flags;
        let is_told = |doc: &String| seen.contains_key(doc) || !purged.contains(doc) && (with_lost || !has_lost);
        client.docs.retain(|doc, _| is_told(doc));
        prop_assert_eq!(client.docs, seen);
    }
}
