use super::*;

fn layer(origin: &str, values: &[(&'static str, &str)]) -> Layer {
    values
        .iter()
        .map(|(key, text)| {
            (*key, SettingValue { text: (*text).to_owned(), origin: format!("{key} in {origin}"), base: None })
        })
        .collect()
}

#[test]
fn defaults() {
    let settings = Settings::resolve(&[]).unwrap();
    assert_eq!(settings.storage, StorageChoice::DataDirectory("flatbed-data".into()));
    assert_eq!((settings.log_format, settings.log_level.as_str()), (LogFormat::Text, "info"));
    assert_eq!(settings.has_console, cfg!(feature = "console"));
    assert!(!Settings::resolve(&[layer("x", &[("console", "false")])]).unwrap().has_console);
}

#[test]
fn the_documentation_has_a_row_for_every_setting() {
    let page = include_str!("../../../../docs/configuration.md");
    for setting in SETTINGS {
        let begins = [' ', '`'].map(|end| format!("| `--{}{end}", setting.flag()));
        let row = page.lines().find(|line| begins.iter().any(|begin| line.starts_with(begin.as_str())));
        let variable = format!("| `{}` |", setting.variable());
        assert!(row.is_some_and(|row| row.contains(&variable)), "{}: {row:?}", setting.key);
    }
}

#[test]
fn the_first_source_wins() {
    let command_line = layer("a", &[("listen", "[::1]:1,unix:/a"), ("data_dir", "d")]);
    let environment = layer("b", &[("listen", "b:2"), ("cluster_file", "c"), ("root", "r")]);
    let settings = Settings::resolve(&[command_line, environment]).unwrap();
    assert_eq!(settings.listening.places.len(), 2);
    assert_eq!(settings.root.as_deref(), Some("r"));
    assert_eq!(settings.storage, StorageChoice::DataDirectory("d".into()));
}

#[test]
fn the_bound_of_a_database() {
    let bound = |values: &[(&'static str, &str)]| {
        Settings::resolve(&[layer("x", values)]).map(|settings| settings.layer_options().database_bytes_max)
    };
    assert_eq!(bound(&[]).unwrap(), 0);
    assert_eq!(bound(&[("database_bytes_max", "5000000000")]).unwrap(), 5_000_000_000);
    assert!(bound(&[("database_bytes_max", "5GB")]).is_err());
}

#[test]
fn bounds_of_views() {
    let bounds = |values: &[(&'static str, &str)]| {
        Settings::resolve(&[layer("x", values)]).map(|settings| settings.layer_options().view_bounds)
    };
    assert_eq!(bounds(&[]).unwrap(), ViewBounds::default());
    let set = [("view_rows_max", "7"), ("view_bytes_max", "8"), ("view_row_bytes_max", "9")];
    assert_eq!(bounds(&set).unwrap(), ViewBounds { rows: 7, bytes: 8, row_bytes: 9 });
    assert!(bounds(&[("view_rows_max", "200001")]).is_err());
}

#[test]
fn paths_of_a_file_are_relative_to_it() {
    let found = SettingValue { text: "x".into(), origin: "data_dir".into(), base: Some("etc".into()) };
    let settings = Settings::resolve(&[Layer::from([("data_dir", found)])]).unwrap();
    assert_eq!(settings.storage, StorageChoice::DataDirectory("etc/x".into()));
}

#[test]
fn the_environment() {
    let variables = [("FLATBED_LISTEN", "a:1"), ("FLATBED_ROOT", ""), ("FLATBED_OTHER", "x")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let layer = from_environment(&variables);
    assert_eq!(layer.len(), 1);
    assert_eq!(layer["listen"].origin, "FLATBED_LISTEN");
}

#[test]
fn changed_settings() {
    let with = |file: &[(&'static str, &str)]| {
        let command_line = layer("a", &[("listen", "a:1"), ("limits", "head_seconds=1")]);
        Settings::resolve(&[command_line, Layer::new(), layer("c", file)]).unwrap()
    };
    let before = with(&[("listen", "b:2"), ("log_level", "warn"), ("run_bytes", "1")]);
    assert_eq!(before.changed_keys(&before.texts), Vec::<&str>::new());
    // The command line hides the file's `listen`, and not its limits.
    let after = with(&[("listen", "c:3"), ("run_bytes", "2"), ("limits", "body_seconds=2")]);
    assert_eq!(after.changed_keys(&before.texts), ["limits", "run_bytes", "log_level"]);
}

#[test]
fn the_log_file() {
    let of = |values: &[(&'static str, &str)]| Settings::resolve(&[layer("x", values)]).map(|found| found.log_file);
    assert_eq!(of(&[]).unwrap(), None);
    let options = |bytes_max, files_max| LogFileOptions { path: "log".into(), bytes_max, files_max };
    assert_eq!(of(&[("log_file", "log")]).unwrap(), Some(options(100_000_000, 5)));
    let all = [("log_file", "log"), ("log_file_bytes", "0"), ("log_files", "1")];
    assert_eq!(of(&all).unwrap(), Some(options(0, 1)));
    for values in [&[("log_files", "2")][..], &[("log_file", "log"), ("log_files", "0")], &[("log_file", "")]] {
        assert!(of(values).is_err(), "{values:?}");
    }
}

#[test]
fn refused() {
    for (values, message) in [
        (&[("run_bytes", "60001")][..], "run_bytes in x: \"60001\" is not a number from 0 to 60000"),
        (
            &[("replication_allow", "10.0.0.1/8")],
            "replication_allow in x: \"10.0.0.1/8\" is not a list of addresses, networks such as 10.0.0.0/8 and names of hosts, with commas between",
        ),
        #[cfg(feature = "console")]
        (&[("console", "no")], "console in x: \"no\" is not true or false"),
        (&[("run_bytes", "many")], "run_bytes in x: \"many\" is not a number from 0 to 60000"),
        (&[("log_format", "xml")], "log_format in x: \"xml\" is not text or json"),
        (&[("redact", "true")], "redact in x: \"true\" is not none, mark or hide"),
        (&[("root", "a b")], "root in x: \"a b\" is not a name of 1 to 64 printable ASCII characters"),
        (
            &[("cluster_file", "a"), ("data_dir", "b")],
            "cluster_file in x and data_dir in x exclude each other: give one of them",
        ),
    ] {
        assert_eq!(Settings::resolve(&[layer("x", values)]).unwrap_err().to_string(), message);
    }
}
