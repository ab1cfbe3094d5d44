//! Skeleton of the transaction's API; filled in by the commits that follow.
use crate::{Error, Result, WatchId};

pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send + 'static>;
#[derive(Clone, Copy, Debug)]
pub struct KeySelector<'a> {
    pub key: &'a [u8],
    pub or_equal: bool,
    pub offset: i32,
}
#[derive(Clone, Debug, Default)]
pub struct RangeOptions {
    pub limit: i32,
    pub target_bytes: i32,
    pub mode: i32,
    pub iteration: i32,
    pub snapshot: bool,
    pub reverse: bool,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairAt {
    pub key_start: u32,
    pub key_len: u32,
    pub value_start: u32,
    pub value_len: u32,
}
#[derive(Clone, Debug, Default)]
pub struct RangeResult {
    pub arena: Vec<u8>,
    pub pairs: Vec<PairAt>,
    pub more: bool,
}
pub struct Transaction {}
const N: Error = Error::UNSUPPORTED_OPERATION;
impl Transaction {
    pub fn set_option(&self, _code: u32, _value: Option<&[u8]>) -> Result<()> {
        Err(N)
    }
    pub fn get(&self, _key: &[u8], _snapshot: bool) -> Result<Option<Vec<u8>>> {
        Err(N)
    }
    pub fn get_key(&self, _selector: KeySelector<'_>, _snapshot: bool) -> Result<Vec<u8>> {
        Err(N)
    }
    pub fn get_range(
        &self,
        _begin: KeySelector<'_>,
        _end: KeySelector<'_>,
        _options: &RangeOptions,
    ) -> Result<RangeResult> {
        Err(N)
    }
    pub fn get_read_version(&self) -> Result<i64> {
        Err(N)
    }
    pub fn set_read_version(&self, _version: i64) {}
    pub fn set(&self, _key: &[u8], _value: &[u8]) {}
    pub fn clear(&self, _key: &[u8]) {}
    pub fn clear_range(&self, _begin: &[u8], _end: &[u8]) {}
    pub fn atomic_op(&self, _key: &[u8], _operand: &[u8], _code: i32) {}
    pub fn add_conflict_range(&self, _begin: &[u8], _end: &[u8], _write: bool) -> Result<()> {
        Err(N)
    }
    pub fn commit(&self, done: Done<()>) {
        done(Err(N))
    }
    pub fn committed_version(&self) -> Result<i64> {
        Err(N)
    }
    pub fn get_versionstamp(&self, done: Done<[u8; 10]>) {
        done(Err(N))
    }
    pub fn watch(&self, _key: &[u8], done: Done<()>) -> Option<WatchId> {
        done(Err(N));
        None
    }
    pub fn cancel_watch(&self, _id: WatchId) {}
    pub fn on_error(&self, _code: i32, done: Done<()>) {
        done(Err(N))
    }
    pub fn get_approximate_size(&self) -> Result<i64> {
        Err(N)
    }
    pub fn get_estimated_range_size_bytes(&self, _begin: &[u8], _end: &[u8]) -> Result<i64> {
        Err(N)
    }
    pub fn get_range_split_points(&self, _begin: &[u8], _end: &[u8], _chunk_size_bytes: i64) -> Result<Vec<Vec<u8>>> {
        Err(N)
    }
    pub fn get_addresses_for_key(&self, _key: &[u8]) -> Result<Vec<String>> {
        Err(N)
    }
    pub fn reset(&self) {}
    pub fn cancel(&self) {}
}
