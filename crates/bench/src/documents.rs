//! The documents of the load: about 1 KB, 24 leaves on three levels, each a function of its number alone.

use serde_json::json;

/// The mixing function of splitmix64 (Steele, Lea, Flood 2014), a good hash of a counter.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % bound
    }

    fn word(&mut self, letters: usize) -> String {
        (0..letters).map(|_| char::from(b"abcdefghijklmnopqrstuvwxyz"[self.below(26) as usize])).collect()
    }

    fn thousandths(&mut self, bound: u64) -> f64 {
        self.below(bound) as f64 / 1000.0
    }
}

/// Returns the id of document `number`.
pub(crate) fn id(number: u64) -> String {
    format!("doc{number:08}")
}

/// Returns the number of the first document whose id is in `bytes`.
pub(crate) fn number(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find_iter(bytes, b"doc").find_map(|at| {
        let digits = std::str::from_utf8(bytes.get(at + 3..at + 11)?).ok()?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
    })
}

/// Returns the JSON text of document `number`, with or without its `_id`.
pub(crate) fn text(number: u64, with_id: bool) -> String {
    const KINDS: [&str; 8] = ["order", "invoice", "user", "visit", "note", "task", "event", "photo"];
    let mut r = Random(mix(number ^ 0xC0FFEE));
    let mut value = json!({
        "type": KINDS[r.below(8) as usize], "group": r.below(1000), "amount": r.below(10_000),
        "name": r.word(16), "title": r.word(32), "active": r.below(2) == 0,
        "score": r.thousandths(1_000_000), "created_at": 1_700_000_000 + number,
        "tags": [r.word(8), r.word(8), r.word(8)],
        "address": {
            "street": r.word(24), "city": r.word(12), "zip": format!("{:05}", r.below(100_000)),
            "geo": { "lat": r.thousandths(180_000) - 90.0, "lon": r.thousandths(360_000) - 180.0, "src": r.word(6) }
        },
        "profile": {
            "lang": r.word(2), "level": r.below(100), "bio": r.word(160),
            "prefs": {
                "theme": r.word(6), "font": r.word(10), "size": r.below(40), "mail": format!("{}@example.com", r.word(10))
            }
        },
        "audit": {
            "by": r.word(12), "host": r.word(20), "note": r.word(220),
            "ctx": { "req": r.word(32), "ms": r.below(5000) }
        }
    });
    if with_id {
        value["_id"] = json!(id(number));
    }
    value.to_string()
}

/// Returns a `_bulk_docs` request with the documents of `numbers`.
pub(crate) fn bulk(numbers: std::ops::Range<u64>) -> String {
    let documents: Vec<String> = numbers.map(|number| text(number, true)).collect();
    format!("{{\"docs\":[{}]}}", documents.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_kilobyte_and_always_the_same() {
        let sizes: Vec<usize> = (0..1000).map(|number| text(number, true).len()).collect();
        assert!(sizes.iter().all(|size| (900..1200).contains(size)), "{:?}", sizes.iter().max());
        assert_eq!(text(7, true), text(7, true));
        assert_ne!(text(7, false), text(8, false));
    }

    #[test]
    fn numbers_are_found() {
        assert_eq!(number(b"\x15doc\x02doc00000042\x00"), Some(42));
        assert_eq!(number(b"doc0000004"), None);
    }
}
