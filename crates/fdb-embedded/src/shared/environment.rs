//! Engine options from environment variables. They serve tests with the engine.

use std::ffi::OsString;

use crate::shared::buggify::Buggify;
use crate::shared::open_options::OpenOptions;
use crate::shared::simulation::SimulatedCluster;

const BUGGIFY: &str = "FLATBED_FDB_BUGGIFY";
const PENDING_READS: &str = "FLATBED_FDB_PENDING_READS";
const LATENCY: &str = "FLATBED_FDB_LATENCY_US";
const SERVER: &str = "FLATBED_FDB_SERVER";

/// An invalid setting. It is refused, because a test with faults must not continue without them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Invalid faults.
    #[error(
        "{BUGGIFY} is {0:?}: it must be PROBABILITY,SEED or PROBABILITY,SEED,SHORT_PAGES, numbers from 0 to 1 and a whole \
         number for the seed, as in 0.05,7"
    )]
    Buggify(OsString),
    /// An invalid share of reads that are answered from another thread.
    #[error("{PENDING_READS} is {0:?}: it must be a whole number, the interval of pending reads, or 0 for none")]
    PendingReads(OsString),
    /// Invalid latencies of a simulated cluster.
    #[error(
        "{LATENCY} is {0:?}: it must be READ,GRV,COMMIT, three whole numbers of microseconds of at most 1000000, as in \
         1000,500,2000"
    )]
    Latency(OsString),
    /// An invalid setting of a simulated cluster's server.
    #[error("{SERVER} is {0:?}: it must be 1, or 0 for none")]
    Server(OsString),
}

impl OpenOptions {
    /// The defaults with the environment's settings. `FLATBED_FDB_BUGGIFY=PROBABILITY,SEED[,SHORT_PAGES]` injects
    /// faults. `FLATBED_FDB_PENDING_READS=N` answers every Nth read from another thread.
    /// `FLATBED_FDB_LATENCY_US=READ,GRV,COMMIT` simulates a cluster with these latencies, and `FLATBED_FDB_SERVER=1`
    /// also its server. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`EnvironmentError`] for an invalid value.
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
        if let Some(value) = variable(LATENCY) {
            let simulated = value.to_str().and_then(SimulatedCluster::parse);
            options.simulated = Some(simulated.ok_or(EnvironmentError::Latency(value))?);
        }
        if let Some(value) = variable(SERVER) {
            match value.to_str().map(str::trim) {
                Some("1") => options.simulated.get_or_insert_default().has_server = true,
                Some("0") => {}
                _ => return Err(EnvironmentError::Server(value)),
            }
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
        let buggify = Buggify::new(0.05, 7);
        assert_eq!(read(BUGGIFY, "0.05,7").unwrap().buggify, Some(buggify));
        assert_eq!(read(BUGGIFY, "0.05,7,1").unwrap().buggify, Some(buggify.with_short_pages(1.0)));
        assert_eq!(read(BUGGIFY, "").unwrap().buggify, None);
        assert_eq!(read("OTHER", "x").unwrap().buggify, None);
        let error = read(BUGGIFY, "5%").unwrap_err();
        assert!(error.to_string().starts_with("FLATBED_FDB_BUGGIFY is \"5%\": it must be"), "{error}");
        let latencies = |simulated: SimulatedCluster| {
            let SimulatedCluster { read, read_version, commit, has_server, .. } = simulated;
            (read.as_micros(), read_version.as_micros(), commit.as_micros(), has_server)
        };
        let simulated = |name, value| read(name, value).map(|options| options.simulated.map(latencies));
        assert_eq!(simulated(LATENCY, "1000, 500,2000").unwrap(), Some((1000, 500, 2000, false)));
        assert_eq!(simulated(LATENCY, "").unwrap(), None);
        for wrong in ["1000", "1000,500", "1000,500,2000,1", "1000,500,-1", "1,1,1000001", "1ms,1,1", ","] {
            let error = simulated(LATENCY, wrong).unwrap_err();
            assert_eq!(error, EnvironmentError::Latency(wrong.into()));
            assert!(error.to_string().contains("three whole numbers of microseconds"), "{error}");
        }
        assert_eq!(simulated(SERVER, "1").unwrap(), Some((0, 0, 0, true)));
        assert_eq!(simulated(SERVER, "0").unwrap(), None);
        assert_eq!(simulated(SERVER, "yes").unwrap_err(), EnvironmentError::Server("yes".into()));
        assert_eq!(read(PENDING_READS, "0").unwrap().pending_read_every, Some(0));
        assert_eq!(read(PENDING_READS, "").unwrap().pending_read_every, None);
        assert_eq!(read(PENDING_READS, "-1").unwrap_err(), EnvironmentError::PendingReads("-1".into()));
    }
}
