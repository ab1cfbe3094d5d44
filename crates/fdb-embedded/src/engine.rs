//! Skeleton of the engine's API; filled in by the commits that follow.
use crate::{Result, Transaction};
use std::path::Path;

#[derive(Clone, Debug, Default)]
pub struct Buggify {
    pub probability: f64,
    pub seed: u64,
}
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub buggify: Option<Buggify>,
}
impl OpenOptions {
    pub fn from_env() -> Self {
        Self::default()
    }
}
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
}
impl OpenError {
    pub fn code(&self) -> i32 {
        1510
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WatchId(pub u64);
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {}
#[derive(Clone)]
pub struct Engine(());
impl Engine {
    pub fn open(_dir: &Path, _options: OpenOptions) -> std::result::Result<Engine, OpenError> {
        Ok(Engine(()))
    }
    pub fn transaction(&self) -> Transaction {
        Transaction {}
    }
    pub fn set_default_option(&self, _code: u32, _value: Option<&[u8]>) -> Result<()> {
        Ok(())
    }
    pub fn status_json(&self) -> String {
        "{}".into()
    }
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
    pub fn cancel_watch(&self, _id: WatchId) {}
}
