//! The variables `FLATBED_...` that may be set where a server starts. `flatbed serve` refuses any other name, as an
//! unknown key of the configuration file is refused.

use std::collections::HashMap;

use crate::settings::SETTINGS;

const PREFIX: &str = "FLATBED_";

/// Variables that are no settings: the configuration file, secrets, and those of commands that are clients.
const OTHERS: [&str; 7] = ["ADMIN", "CONFIG", "PASSWORD", "PASSWORD_FILE", "SYNCSTORAGE_MASTER_SECRET", "URL", "USER"];

/// Variables of the tests and of the embedded engine's simulations, which a test's server inherits.
const OF_TESTS: [&str; 13] = [
    "ANSWERS",
    "BEFORE",
    "BIN",
    "FDB_BUGGIFY",
    "FDB_LATENCY_US",
    "FDB_PENDING_READS",
    "FDB_SERVER",
    "FUNCTIONS_PROCESS",
    "GENERATE",
    "MOTO_SERVER",
    "REQUIRE_SERVERS",
    "TESTS_FDB_H",
    "WAITS",
];

/// The beginnings of names that are chosen freely: secrets of the worker's mappings, and parameters of tests.
const BEGINNINGS: [&str; 5] = ["WORKER_", "TEST_", "BENCH_", "CRASH_", "HISTORY_"];

/// A variable that no part of Flatbed reads.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no variable of Flatbed: flatbed serve --help lists the settings")]
pub(crate) struct UnknownVariable(String);

/// Refuses variables that no part of Flatbed reads, so that a misspelt setting does not silently have its default. An
/// empty variable counts as not set.
///
/// # Errors
/// [`UnknownVariable`], the first one in the order of their names.
pub(crate) fn check(variables: &HashMap<String, String>) -> Result<(), UnknownVariable> {
    let mut unknown: Vec<&String> = variables
        .iter()
        .filter(|(name, text)| !text.is_empty() && name.strip_prefix(PREFIX).is_some_and(|rest| !is_known(name, rest)))
        .map(|(name, _)| name)
        .collect();
    unknown.sort();
    match unknown.first() {
        Some(name) => Err(UnknownVariable((*name).clone())),
        None => Ok(()),
    }
}

fn is_known(name: &str, rest: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.variable() == name)
        || OTHERS.contains(&rest)
        || OF_TESTS.contains(&rest)
        || BEGINNINGS.iter().any(|begin| rest.starts_with(begin))
        || is_of_kubernetes(rest)
}

/// Returns whether Kubernetes sets the variable in each container beside a service whose name begins with `flatbed`,
/// such as `FLATBED_SERVICE_HOST` and `FLATBED_PORT_5984_TCP_ADDR`.
fn is_of_kubernetes(rest: &str) -> bool {
    let begins_with_digit = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    // The name of the service may itself be longer, so what follows it is searched for.
    let rest = format!("_{rest}");
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT")
        || rest.split("_PORT_").skip(1).any(begins_with_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(names: &[&str]) -> Result<(), UnknownVariable> {
        check(&names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect())
    }

    #[test]
    fn variables_that_are_known_or_of_other_programs() {
        for name in [
            "FLATBED_LISTEN",
            "FLATBED_FDB_LIBRARY",
            "FLATBED_CONFIG",
            "FLATBED_ADMIN",
            "FLATBED_SYNCSTORAGE_MASTER_SECRET",
            "FLATBED_WORKER_PG",
            "FLATBED_FDB_BUGGIFY",
            "FLATBED_TEST_SEED",
            "FLATBED_PORT",
            "FLATBED_PORT_5984_TCP_ADDR",
            "FLATBED_SERVICE_HOST",
            "FLATBED_COUCH_SERVICE_PORT_HTTP",
            "FLATBEDS",
            "HOME",
        ] {
            assert_eq!(checked(&[name]), Ok(()), "{name}");
        }
    }

    #[test]
    fn misspelt_variables() {
        for name in ["FLATBED_LITSEN", "FLATBED_FDB_LIBRAY", "FLATBED_", "FLATBED_listen", "FLATBED_PORT_X"] {
            assert_eq!(checked(&["FLATBED_LISTEN", name]), Err(UnknownVariable(name.to_owned())));
        }
        assert_eq!(checked(&["FLATBED_B", "FLATBED_A"]), Err(UnknownVariable("FLATBED_A".to_owned())));
        assert_eq!(check(&HashMap::from([("FLATBED_LITSEN".to_owned(), String::new())])), Ok(()));
    }
}
