//! Parts of the program that cargo features leave out. A setting, an environment variable or a command that needs a
//! missing part is refused.

use std::collections::HashMap;

use crate::settings::Layer;

/// A part of the program that a cargo feature builds.
#[derive(Debug)]
pub(crate) struct Part {
    name: &'static str,
    feature: &'static str,
    is_built: bool,
    /// The keys of its settings, or their prefixes before an underscore.
    keys: &'static [&'static str],
}

const CONSOLE: Part =
    Part { name: "the console", feature: "console", is_built: cfg!(feature = "console"), keys: &["console"] };
pub(crate) const FIREFOX: Part =
    Part { name: "Firefox Sync", feature: "firefox", is_built: cfg!(feature = "firefox"), keys: &["syncstorage"] };
/// Sync Gateway's API.
const GATEWAY: Part = Part {
    name: "Sync Gateway's API",
    feature: "gateway",
    is_built: cfg!(feature = "gateway"),
    keys: &["gateway_listen", "admin_listen"],
};
/// Traces over OTLP. The environment variables that request them are OpenTelemetry's.
pub(crate) const TRACES: Part =
    Part { name: "traces over OTLP", feature: "otel", is_built: cfg!(feature = "otel"), keys: &[] };
pub(crate) const WORKER: Part =
    Part { name: "the changes worker", feature: "worker", is_built: cfg!(feature = "worker"), keys: &["worker"] };

const PARTS: [Part; 5] = [CONSOLE, FIREFOX, GATEWAY, TRACES, WORKER];

/// Settings that have no effect if `false`.
const SWITCHES: [&str; 3] = ["console", "worker", "admin_listen_anywhere"];

/// The refusal of a setting, variable or command whose part is not built.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: this flatbed was built without {name} (cargo feature {feature:?})")]
pub(crate) struct MissingPart {
    origin: String,
    name: &'static str,
    feature: &'static str,
}

impl Part {
    /// Returns the refusal of something found at `origin`.
    pub(crate) fn not_built(&self, origin: &str) -> MissingPart {
        MissingPart { origin: origin.to_owned(), name: self.name, feature: self.feature }
    }

    fn has(&self, key: &str) -> bool {
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with('_');
        self.keys.iter().any(|begin| key.strip_prefix(begin).is_some_and(is_below))
    }
}

/// Returns whether the part of a setting is built.
pub(crate) fn is_built(key: &str) -> bool {
    PARTS.iter().all(|part| part.is_built || !part.has(key))
}

/// Refuses settings of parts that are not built, except switches that are off.
///
/// # Errors
/// [`MissingPart`].
pub(crate) fn check_settings(layers: &[Layer]) -> Result<(), MissingPart> {
    let mut found = layers.iter().flatten();
    found.try_for_each(|(key, found)| check(key, &found.text, &found.origin))
}

/// Refuses environment variables of parts that are not built: settings and secrets.
///
/// # Errors
/// [`MissingPart`].
pub(crate) fn check_variables(variables: &HashMap<String, String>) -> Result<(), MissingPart> {
    let mut names: Vec<_> = variables.iter().filter(|(_, text)| !text.is_empty()).collect();
    names.sort();
    names.into_iter().try_for_each(|(name, text)| match name.strip_prefix("FLATBED_") {
        Some(rest) => check(&rest.to_lowercase(), text, name),
        None => Ok(()),
    })
}

fn check(key: &str, text: &str, origin: &str) -> Result<(), MissingPart> {
    let is_off = SWITCHES.contains(&key) && text == "false";
    match PARTS.iter().find(|part| !part.is_built && part.has(key)) {
        Some(part) if !is_off => Err(part.not_built(origin)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{SETTINGS, SettingValue, Settings};

    /// Returns the message with which a setting of a missing part is refused.
    fn refused(key: &'static str, text: &str) -> Option<String> {
        let found = SettingValue { text: text.to_owned(), origin: key.to_owned(), base: None };
        let error = Settings::resolve(&[Layer::from([(key, found)])]).err()?.to_string();
        error.contains("was built without").then_some(error)
    }

    #[test]
    fn settings_of_missing_parts_are_refused() {
        for (part, key, text) in [
            (CONSOLE, "console", "true"),
            (FIREFOX, "syncstorage_listen", "127.0.0.1:8000"),
            (GATEWAY, "gateway_listen", "127.0.0.1:4984"),
            (GATEWAY, "admin_listen_anywhere", "true"),
            (WORKER, "worker", "true"),
            (WORKER, "worker_files", "false"),
        ] {
            let Part { name, feature, is_built, .. } = part;
            let message = format!("{key}: this flatbed was built without {name} (cargo feature \"{feature}\")");
            assert_eq!(refused(key, text), (!is_built).then_some(message));
        }
        for key in SWITCHES {
            assert_eq!(refused(key, "false"), None);
        }
    }

    #[test]
    fn secrets_of_missing_parts_are_refused() {
        for (part, name) in [(FIREFOX, "FLATBED_SYNCSTORAGE_MASTER_SECRET"), (WORKER, "FLATBED_WORKER_TOKEN")] {
            let variables = |text: &str| HashMap::from([(name.to_owned(), text.to_owned())]);
            assert_eq!(check_variables(&variables("x")).is_ok(), part.is_built, "{name}");
            assert!(check_variables(&variables("")).is_ok());
        }
        assert!(check_variables(&HashMap::from([("FLATBED_ADMIN".to_owned(), "a:b".to_owned())])).is_ok());
    }

    #[test]
    fn keys_of_parts_are_settings() {
        for begin in PARTS.iter().flat_map(|part| part.keys) {
            assert!(SETTINGS.iter().any(|setting| setting.key.starts_with(begin)), "{begin}");
        }
    }
}
