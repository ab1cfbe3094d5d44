//! Every value: fixed-width big-endian numbers behind a byte that says the format. See `design/syncstorage.md`.

mod bytes_of;
mod collection;
mod head;
mod lease;
mod record;
mod staged;

pub(crate) use collection::{Collection, Hold, Overlay};
pub(crate) use head::{Done, Head};
pub(crate) use lease::LeaseValue;
pub(crate) use record::{Payload, Row};
pub(crate) use staged::{Batch, Beneath, GivenPayload, StagedRow};

/// The format of all values.
pub(crate) const FORMAT: u8 = 1;
