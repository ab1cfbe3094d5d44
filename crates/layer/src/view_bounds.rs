//! What settings say of documents in views.

/// What a document may have in a group of views. One that has more is in none of its views: that is logged, and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewBounds {
    /// Rows of all views together. Each transaction of a document that is entered in several compares all of them: at most
    /// 200,000.
    pub rows: usize,
    /// What these take in storage, about, in bytes: at most 64 MB.
    pub bytes: u64,
    /// Key and value of one row as JSON, in bytes; whoever reads it has it in memory: at most 16 MB.
    pub row_bytes: usize,
}

impl Default for ViewBounds {
    fn default() -> Self {
        ViewBounds { rows: 50_000, bytes: 64_000_000, row_bytes: 8_500_000 }
    }
}
