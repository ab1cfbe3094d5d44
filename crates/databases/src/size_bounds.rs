//! The bounds of documents, attachments and partitions, which may change while the layer is open.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds in bytes. Those in force are at most those of the layer's opening.
#[derive(Debug)]
pub struct SizeBounds {
    document_max: u64,
    attachment_max: u64,
    document: AtomicU64,
    attachment: AtomicU64,
    /// 0: no bound.
    partition: AtomicU64,
}

impl SizeBounds {
    pub fn new(document_max: u64, attachment_max: u64) -> SizeBounds {
        let (document, attachment) = (AtomicU64::new(document_max), AtomicU64::new(attachment_max));
        SizeBounds { document_max, attachment_max, document, attachment, partition: AtomicU64::new(0) }
    }

    /// Replaces the bounds in force.
    pub fn set(&self, document: u64, attachment: u64, partition: u64) {
        self.partition.store(partition, Ordering::Relaxed);
        self.document.store(document.min(self.document_max), Ordering::Relaxed);
        self.attachment.store(attachment.min(self.attachment_max), Ordering::Relaxed);
    }

    pub fn document(&self) -> u64 {
        self.document.load(Ordering::Relaxed)
    }

    pub fn partition(&self) -> u64 {
        self.partition.load(Ordering::Relaxed)
    }

    pub fn attachment(&self) -> u64 {
        self.attachment.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_never_exceed_those_of_the_opening() {
        let bounds = SizeBounds::new(8_000, 9_000);
        bounds.set(10, 20, 0);
        assert_eq!((bounds.document(), bounds.attachment()), (10, 20));
        bounds.set(u64::MAX, 9_001, 30);
        assert_eq!((bounds.document(), bounds.attachment(), bounds.partition()), (8_000, 9_000, 30));
    }
}
