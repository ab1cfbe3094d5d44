//! The limits of clients' requests.

/// The values of `info/configuration`, and the limits that the store itself enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The records of a POST. At most [`Limits::POST_RECORDS_MAX`].
    pub max_post_records: u32,
    /// The bytes of a POST's payloads.
    pub max_post_bytes: u32,
    /// The bytes of a payload.
    pub max_record_payload_bytes: u32,
    /// The bytes of a request.
    pub max_request_bytes: u32,
    /// The records of a batch. The store enforces it.
    pub max_total_records: u32,
    /// The bytes of a batch's payloads. The store enforces it.
    pub max_total_bytes: u32,
    /// The announced quota limit.
    pub max_quota_limit: u32,
    /// The bytes of a user's payloads, if limited.
    pub quota_bytes: Option<u64>,
}

impl Limits {
    /// The most records of a POST: as many as fit one transaction beside their payloads, with ids of 64 characters and
    /// a ttl each.
    pub const POST_RECORDS_MAX: u32 = 400;

    /// The open batches of a user.
    pub const OPEN_BATCHES_MAX: usize = 100;

    /// The collections of a user.
    pub const COLLECTIONS_MAX: u32 = 1_000;

    /// Returns the limit of the payload bytes in a user's open batches and uploads: twice the largest batch, or twice
    /// the quota if that is less. A device whose largest upload broke off can then repeat it at once.
    #[must_use]
    pub fn staged_bytes_max(&self) -> u64 {
        let largest = u64::from(self.max_total_bytes.max(self.max_post_bytes).max(self.max_record_payload_bytes));
        largest.min(self.quota_bytes.unwrap_or(u64::MAX)).saturating_mul(2)
    }

    /// Returns the limits, reduced to the store's bounds.
    #[must_use]
    pub fn bounded(self) -> Limits {
        Limits { max_post_records: self.max_post_records.min(Limits::POST_RECORDS_MAX), ..self }
    }
}

impl Default for Limits {
    /// Returns Mozilla's limits.
    fn default() -> Limits {
        Limits {
            max_post_records: 100,
            max_post_bytes: 2_621_440,
            max_record_payload_bytes: 2_621_440,
            max_request_bytes: 2_625_536,
            max_total_records: 10_000,
            max_total_bytes: 262_144_000,
            max_quota_limit: 2_097_152_000,
            quota_bytes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_whatever_is_set() {
        let limits = Limits { max_post_records: 1_000, ..Limits::default() };
        assert_eq!(limits.bounded().max_post_records, Limits::POST_RECORDS_MAX);
        assert_eq!(Limits::default().bounded(), Limits::default());
        assert_eq!(limits.staged_bytes_max(), 524_288_000);
        assert_eq!(Limits { quota_bytes: Some(1_000), ..limits }.staged_bytes_max(), 2_000);
        assert_eq!(Limits { quota_bytes: Some(u64::MAX), ..limits }.staged_bytes_max(), 524_288_000);
        let large = Limits { max_record_payload_bytes: 300_000_000, ..limits };
        assert_eq!(large.staged_bytes_max(), 600_000_000);
    }
}
