//! Keys, records and transactions: the layer's use of FoundationDB.

pub(crate) mod buckets;
pub(crate) mod by_seq;
pub(crate) mod database_name;
pub(crate) mod due;
pub(crate) mod features;
pub(crate) mod instruments;
pub(crate) mod keys;
pub(crate) mod merge;
pub(crate) mod namespaces;
pub(crate) mod once;
#[rustfmt::skip]
#[allow(unreachable_pub, reason = "generated")]
pub(crate) mod proto;
pub(crate) mod records;
pub(crate) mod root;
pub(crate) mod secrets;
pub(crate) mod seq;
pub(crate) mod since;
pub(crate) mod sync_function;
pub(crate) mod transaction;
pub(crate) mod updated;
pub mod waits;
