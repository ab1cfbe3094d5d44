//! Sets of keys as sorted ranges that do not touch.

pub type Range = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range>);

pub fn key_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Ranges {
    pub fn insert(&mut self, begin: &[u8], end: &[u8]) {
        if begin >= end {
            return;
        }
        let (mut from, mut to) = (begin.to_vec(), end.to_vec());
        self.0.retain(|(other_begin, other_end)| {
            let touches = *other_begin <= to && *other_end >= from;
            if touches {
                from = from.clone().min(other_begin.clone());
                to = to.clone().max(other_end.clone());
            }
            !touches
        });
        self.0.push((from, to));
        self.0.sort();
    }

    pub fn insert_all(&mut self, others: &Ranges) {
        others.0.iter().for_each(|(begin, end)| self.insert(begin, end));
    }

    /// Returns `[begin, end)` without the keys in the set.
    pub fn missing(&self, begin: &[u8], end: &[u8]) -> Ranges {
        let (mut rest, mut from) = (Ranges::default(), begin.to_vec());
        for (other_begin, other_end) in &self.0 {
            rest.insert(&from, other_begin.as_slice().min(end));
            from = from.max(other_end.clone());
        }
        rest.insert(&from, end);
        rest
    }

    pub fn overlap(&self, others: &Ranges) -> bool {
        let overlaps = |(a, b): &Range| others.0.iter().any(|(c, d)| a.max(c) < b.min(d));
        self.0.iter().any(overlaps)
    }

    pub fn is_within(&self, others: &Ranges) -> bool {
        self.0.iter().all(|(begin, end)| others.missing(begin, end).0.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Range> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range>>(ranges: I) -> Self {
        let mut set = Ranges::default();
        ranges.into_iter().for_each(|(begin, end)| set.insert(&begin, &end));
        set
    }
}
