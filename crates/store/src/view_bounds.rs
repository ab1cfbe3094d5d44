//! The settings that bound documents in views.

/// The bounds of a document in a group of views. A document beyond them is in none of its views, which is logged and
/// counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewBounds {
    /// The most rows in all views together: at most 200,000. Each transaction that changes a part of a document
    /// compares all of them.
    pub rows: usize,
    /// The approximate storage of the rows, in bytes: at most 64 MB.
    pub bytes: u64,
    /// Key and value of one row as JSON, in bytes: at most 16 MB, which each reader of it holds in memory.
    pub row_bytes: usize,
}

impl Default for ViewBounds {
    fn default() -> Self {
        ViewBounds { rows: 50_000, bytes: 64_000_000, row_bytes: 8_500_000 }
    }
}

/// The largest part (documents that are mapped together), in bytes of rows.
pub const PART_BYTES_MAX: usize = 32 << 20;

/// Returns the default budget of emitted rows, in bytes: a database may hold a part for each range that a first build
/// maps in parallel, and all databases twice as much. 256 MB with two processors.
pub fn bytes_by_default() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    2 * PART_BYTES_MAX * (processors.clamp(2, 64) + 2)
}
