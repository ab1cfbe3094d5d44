//! The offsets of lists.

use crate::keys::SortKey;
use crate::model::Sort;
use crate::names::RecordId;
use crate::timestamp::Timestamp;

/// The start of a list: behind a record, even if that has moved, or after a number of records. Opaque to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offset(pub(crate) OffsetPosition);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OffsetPosition {
    /// Skip this many records.
    Skip(u64),
    /// Behind this record, in a list of this order.
    Behind { sort: Sort, position: u64, id: RecordId },
}

impl Offset {
    /// Parses an offset: digits, or the text of an answer. `None` for any other text.
    pub fn parse(text: &str) -> Option<Offset> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok().map(|skip| Offset(OffsetPosition::Skip(skip)));
        }
        let (order, rest) = text.split_at_checked(1)?;
        let sort = match order {
            "n" => Sort::Newest,
            "o" => Sort::Oldest,
            "i" => Sort::Index,
            _ => return None,
        };
        let (position, id) = rest.split_once('.')?;
        let is_number = (1..=16).contains(&position.len()) && position.bytes().all(|byte| byte.is_ascii_digit());
        let position = position.parse().ok().filter(|_| is_number)?;
        let id = decode_hex(id)?;
        let id = std::str::from_utf8(&id).ok().and_then(RecordId::new)?;
        Some(Offset(OffsetPosition::Behind { sort, position, id }))
    }

    pub(crate) fn behind_time(sort: Sort, modified: Timestamp, id: &RecordId) -> Offset {
        Offset(OffsetPosition::Behind { sort, position: modified.hundredths() as u64, id: id.clone() })
    }

    pub(crate) fn behind_sortindex(key: SortKey, id: &RecordId) -> Offset {
        Offset(OffsetPosition::Behind { sort: Sort::Index, position: key.0, id: id.clone() })
    }
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            OffsetPosition::Skip(skip) => skip.fmt(f),
            OffsetPosition::Behind { sort, position, id } => {
                let order = match sort {
                    Sort::Newest => 'n',
                    Sort::Oldest => 'o',
                    Sort::Index => 'i',
                };
                write!(f, "{order}{position}.")?;
                id.as_str().bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || text.len() > 2 * RecordId::BYTES_MAX {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts() {
        assert_eq!(Offset::parse("5"), Some(Offset(OffsetPosition::Skip(5))));
        for bad in [
            "",
            "abc",
            "-1",
            "1.5",
            "n",
            "n1",
            "n.41",
            "n1.",
            "n1.4",
            "n1.4é",
            "x1.41",
            "n+1.41",
            "n1.0a",
            "n00000000000000001.41",
        ] {
            assert_eq!(Offset::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(position in 0..u64::from(u32::MAX) * 1000, id in "[ -~]{1,64}", order in 0..3) {
            let sort = [Sort::Newest, Sort::Oldest, Sort::Index][order as usize];
            let offset = Offset(OffsetPosition::Behind { sort, position, id: RecordId::new(&id).unwrap() });
            prop_assert_eq!(Offset::parse(&offset.to_string()), Some(offset));
        }

        #[test]
        fn nothing_panics(text in "[noi]?.{0,40}") {
            let _ = Offset::parse(&text);
        }
    }
}
