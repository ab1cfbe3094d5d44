//! What the environment says of how an engine is opened. Both settings are for those who test with the engine.

use std::ffi::OsString;

use crate::buggify::Buggify;
use crate::engine::OpenOptions;

const BUGGIFY: &str = "FLATBED_FDB_BUGGIFY";
const PENDING_READS: &str = "FLATBED_FDB_PENDING_READS";

/// A setting that means nothing. It is refused: who tests with faults must not go on without them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Of the faults.
    #[error("{BUGGIFY} is {0:?}: it must be PROBABILITY,SEED, a number from 0 to 1 and a whole number, as in 0.05,7")]
    Buggify(OsString),
    /// Of the share of reads that is answered from another thread.
    #[error("{PENDING_READS} is {0:?}: it must be a whole number, every how many reads one is pending, or 0 for none")]
    PendingReads(OsString),
}

impl OpenOptions {
    /// The defaults, with faults as `FLATBED_FDB_BUGGIFY=PROBABILITY,SEED` says, and every Nth read answered from
    /// another thread as `FLATBED_FDB_PENDING_READS=N` says. A variable that is empty counts as one that is not set.
    ///
    /// # Errors
    /// [`EnvironmentError`] for a value that means nothing.
    pub fn from_env() -> Result<OpenOptions, EnvironmentError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<OpenOptions, EnvironmentError> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let mut options = OpenOptions::default();
        if let Some(value) = variable(BUGGIFY) {
            let buggify = value.to_str().and_then(Buggify::parse);
            options.buggify = Some(buggify.ok_or(EnvironmentError::Buggify(value))?);
        }
        if let Some(value) = variable(PENDING_READS) {
            let every = value.to_str().and_then(|text| text.trim().parse().ok());
            options.pending_read_every = Some(every.ok_or(EnvironmentError::PendingReads(value))?);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_nothing_is_refused() {
        let read = |name: &'static str, value: &str| {
            let value = OsString::from(value);
            OpenOptions::from_variables(|asked| (asked == name).then(|| value.clone()))
        };
        let buggify = Buggify { probability: 0.05, seed: 7 };
        assert_eq!(read(BUGGIFY, "0.05,7").unwrap().buggify, Some(buggify));
        assert_eq!(read(BUGGIFY, "").unwrap().buggify, None);
        assert_eq!(read("OTHER", "x").unwrap().buggify, None);
        let error = read(BUGGIFY, "5%").unwrap_err();
        assert!(error.to_string().starts_with("FLATBED_FDB_BUGGIFY is \"5%\": it must be"), "{error}");
        assert_eq!(read(PENDING_READS, "0").unwrap().pending_read_every, Some(0));
        assert_eq!(read(PENDING_READS, "").unwrap().pending_read_every, None);
        assert_eq!(read(PENDING_READS, "-1").unwrap_err(), EnvironmentError::PendingReads("-1".into()));
    }
}
