//! Keys of work in the background that all processes of a root have in common.

use crate::store::keys::RootKeys;
use crate::store::keys::tuple::{TUPLE_STRING, put_text, with_int};

// Under the root.
const ROOT_LEASES: u64 = 16;

impl RootKeys {
    /// Says which process does some work.
    pub(crate) fn lease(&self, id: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, ROOT_LEASES);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }
}
