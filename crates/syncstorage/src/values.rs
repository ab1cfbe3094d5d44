//! The encodings of all values: fixed-width big-endian numbers behind a byte for the format. See
//! `design/syncstorage.md`.

mod bytes_of;
mod collection;
mod head;
mod lease;
mod record;
mod staged;

pub(crate) use collection::{Collection, Hold, Overlay};
pub(crate) use head::{Head, WriteOutcome};
pub(crate) use lease::LeaseValue;
pub(crate) use record::{Payload, Row};
pub(crate) use staged::{APPEND_NUMBERS, BaseRecord, Batch, StagedPayload, StagedPayloads, StagedRow};

pub(crate) const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::keys::BlobId;
    use crate::names::{BatchId, CollectionName};
    use crate::timestamp::Timestamp;
    use bytes::Bytes;
    use proptest::option;
    use proptest::prelude::*;

    fn time() -> impl Strategy<Value = Timestamp> {
        (0..900_000_000_000_i64).prop_map(Timestamp::from_hundredths)
    }

    fn payload() -> impl Strategy<Value = Payload> {
        let blob = |(writer, number, len)| Payload::Blob { id: BlobId { writer, number }, len };
        prop_oneof![
            ".{0,40}".prop_map(|text| Payload::Inline(Bytes::from(text))),
            (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(blob),
        ]
    }

    prop_compose! {
        fn row()(modified in time(), sortindex in option::of(any::<i32>()), expires in option::of(time()),
            payload in payload()) -> Row {
            Row { modified, sortindex, expires, payload }
        }
    }

    prop_compose! {
        fn staged()(payload in option::of(payload()), sortindex in option::of(any::<i32>()), ttl in option::of(0..1_000_000_000_u32),
            exists in any::<bool>(), is_live in any::<bool>(), len in any::<u32>(), had in option::of(any::<i32>()),
            expires in option::of(time())) -> StagedRow {
            let payload = payload.map(|payload| match payload {
                Payload::Inline(bytes) => StagedPayload::Beside { len: bytes.len() as u32 },
                Payload::Blob { id, len } => StagedPayload::Blob { id, len },
            });
            StagedRow { payload, sortindex, ttl, beneath: BaseRecord { exists, is_live, len, sortindex: had, expires } }
        }
    }

    prop_compose! {
        fn collection()(modified in time(), numbers in any::<[u64; 3]>(), earliest in time(), hold in option::of((any::<u64>(), time())),
            overlays in proptest::collection::vec((any::<u64>(), time(), time()), 0..5)) -> Collection {
            let [count, bytes, state] = numbers;
            let hold = hold.map(|(batch, until)| Hold { batch: BatchId(batch), until });
            let overlay = |(batch, modified, earliest)| Overlay { batch: BatchId(batch), modified, earliest };
            let overlays = overlays.into_iter().map(overlay).collect();
            Collection { modified, count, bytes, state, earliest, hold, overlays }
        }
    }

    prop_compose! {
        fn batch()(name in "[a-z]{1,32}", times in (time(), time()), small in any::<[u32; 2]>(), bytes in any::<u64>(),
            seen in option::of(any::<u64>()), deltas in any::<[i64; 2]>(), ttl_min in option::of(any::<u32>()),
            ahead in proptest::collection::vec(any::<(u64, u32)>(), 0..3)) -> Batch {
            let collection = CollectionName::new(&name).unwrap();
            let ([records, appends], [count_delta, bytes_delta]) = (small, deltas);
            let (deadline, kept_earliest) = times;
            let ahead = ahead.into_iter().map(|(next, bytes)| StagedPayloads { next, bytes }).collect();
            Batch { collection, deadline, records, bytes, seen, appends, count_delta, bytes_delta, ttl_min, kept_earliest, ahead }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(row in row(), staged in staged(), collection in collection(), batch in batch(), at in time()) {
            prop_assert_eq!(Row::decode(&Bytes::from(row.encode())).unwrap(), row);
            prop_assert_eq!(StagedRow::decode(&staged.encode()).unwrap(), staged.clone());
            prop_assert_eq!(Collection::decode(&collection.encode()).unwrap(), collection);
            prop_assert_eq!(Batch::decode(&batch.encode()).unwrap(), batch);
            prop_assert_eq!(
                StagedRow::decode_expires(&staged.encode_expires(), at).unwrap(), staged.final_expires(at)
            );
        }

        #[test]
        fn foreign_values_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..90), is_known in any::<bool>()) {
            if let (true, Some(first)) = (is_known, bytes.first_mut()) {
                *first = FORMAT;
            }
            let _ = (Row::decode(&Bytes::from(bytes.clone())), StagedRow::decode(&bytes), Collection::decode(&bytes));
            let _ = (Batch::decode(&bytes), Head::decode(&bytes), LeaseValue::decode(&bytes));
            let _ = StagedRow::decode_expires(&bytes, Timestamp::ZERO);
            if bytes.first().is_some_and(|first| *first != FORMAT) {
                prop_assert!(matches!(Head::decode(&bytes), Err(Error::Format(_))));
            }
        }
    }
}
