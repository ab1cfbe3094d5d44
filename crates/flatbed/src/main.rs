//! The program: command line, configuration, storage, signals and log, around the HTTP server and the document layer.

mod account;
mod account_over_http;
mod allocator;
mod backup;
mod bus_error;
mod check;
mod cli;
mod config_file;
mod data_directory;
mod dump;
mod dump_format;
mod environment;
#[cfg_attr(not(feature = "gateway"), path = "without/gateway.rs")]
mod gateway;
mod import;
#[cfg(feature = "firefox")]
mod jwks;
mod limits;
mod listening;
mod load;
mod load_large;
mod log_lines;
mod log_sink;
mod logging;
mod notify;
#[cfg_attr(not(feature = "otel"), path = "without/otel.rs")]
mod otel;
mod output;
mod part;
mod process;
mod progress;
mod redact;
mod reload;
mod renew;
mod restore;
mod secret;
mod serve;
mod settings;
mod starting;
mod storage;
#[cfg_attr(not(feature = "firefox"), path = "without/syncstorage.rs")]
mod syncstorage;
#[cfg_attr(not(feature = "worker"), path = "without/worker.rs")]
mod worker;
#[cfg(feature = "worker")]
mod worker_command;
#[cfg(feature = "worker")]
mod worker_import;
#[cfg(feature = "worker")]
mod worker_process;

use std::{collections::HashMap, error::Error, path::PathBuf, process::ExitCode, sync::Arc};

use cli::{Command, CommandSettings};
use config_file::ConfigFile;
use flatbed_client::{Url, UrlError};
use settings::Settings;

const DEFAULT_URL: &str = "http://127.0.0.1:5984";
/// The exit status if the command failed or was invalid.
const NOT_DONE: u8 = 2;

fn main() -> ExitCode {
    // A write past the limit on file sizes (ulimit -f) must fail instead of ending the process.
    // SAFETY: the signal is ignored; no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    bus_error::name_it();
    match run() {
        Ok(_) if output::is_lost() => ExitCode::from(NOT_DONE),
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flatbed: {}", error.to_string().replace('\n', " "));
            ExitCode::from(NOT_DONE)
        }
    }
}

/// Runs the command; false if it ran and found problems.
fn run() -> Result<bool, Box<dyn Error>> {
    let command = cli::parse(std::env::args_os().skip(1))?;
    if let Command::Print(text) = &command {
        output::write(format_args!("{text}"));
        return Ok(true);
    }
    // A variable that is not UTF-8 cannot be one of Flatbed's.
    let variables: HashMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_park(allocator::give_back).build()?;
    match command {
        Command::Print(_) => Ok(true),
        Command::Serve(given) => {
            environment::check(&variables)?;
            let ignores_stored = given.ignore_stored_config;
            let (again, of_environment) = (given.clone(), variables.clone());
            let read: serve::ReadSettings =
                Arc::new(move || settle(again.clone(), &of_environment).map_err(|error| error.to_string()));
            let (settings, config) = settle(given, &variables)?;
            let log = logging::start_server(&settings, runtime.handle())?;
            log_file(config.as_ref());
            let open_files = limits::raise_open_files();
            limits::use_small_pages();
            tracing::debug!(open_files, "limits");
            let given =
                serve::ServeInputs { config, variables: &variables, ignores_stored, read, sink: log.sink.clone() };
            runtime.block_on(serve::serve(&settings, given, log.set_level.clone()))?;
            Ok(true)
        }
        Command::Check { database, given } => {
            let (settings, _) = settle(given, &variables)?;
            let _log = logging::start(&settings, runtime.handle())?;
            runtime.block_on(check::check(&database, &settings))
        }
        Command::CheckAll { scratch, given } => {
            let (settings, _) = settle(given, &variables)?;
            let _log = logging::start(&settings, runtime.handle())?;
            runtime.block_on(check::check_all(scratch.as_deref(), &settings))
        }
        Command::CheckSyncstorage(given) => {
            let (settings, _) = settle(given, &variables)?;
            let _log = logging::start(&settings, runtime.handle())?;
            runtime.block_on(syncstorage::check(&settings))
        }
        Command::Backup { out, given } => {
            backup::backup(&out, &settle(given, &variables)?.0)?;
            Ok(true)
        }
        Command::Restore { backup, given } => {
            runtime.block_on(restore::restore(&backup, &settle(given, &variables)?.0))?;
            Ok(true)
        }
        Command::Renew(given) => {
            let (settings, _) = settle(given, &variables)?;
            let _log = logging::start(&settings, runtime.handle())?;
            runtime.block_on(renew::renew(&settings))?;
            Ok(true)
        }
        Command::Account { what, url, given } => {
            let (settings, config) = settle(given, &variables)?;
            let _log = logging::start(&settings, runtime.handle())?;
            let url = url.as_deref().map(server).transpose()?;
            // It is of use only if it names the storage's server, so another form of it is no defect here.
            let of_environment = variables.get("FLATBED_URL").and_then(|url| server(url).ok());
            let servers = account::NamedServers { url, of_environment };
            runtime.block_on(account::account(what, servers, &settings, config.as_ref()))?;
            Ok(true)
        }
        Command::RotateSecret(given) => {
            let (settings, _) = settle(given, &variables)?;
            let _log = logging::start(&settings, runtime.handle())?;
            runtime.block_on(secret::rotate(&settings))?;
            Ok(true)
        }
        Command::Load(options) => {
            let url = url(options.url.as_deref(), &variables)?;
            Ok(runtime.block_on(load::load(options, &url))?)
        }
        #[cfg(feature = "worker")]
        Command::Worker(command) => {
            command.run(&variables, &runtime)?;
            Ok(true)
        }
        Command::Dump(options) => {
            let url = url(options.url.as_deref(), &variables)?;
            Ok(runtime.block_on(dump::dump(&options, &url))?)
        }
        Command::Import(options) => {
            let to = options.to.clone().unwrap_or_else(|| url_text(None, &variables).to_owned());
            Ok(runtime.block_on(import::import(&options, &to))?)
        }
    }
}

fn settle(
    given: CommandSettings,
    variables: &HashMap<String, String>,
) -> Result<(Settings, Option<ConfigFile>), Box<dyn Error>> {
    part::check_variables(variables)?;
    let named = variables.get("FLATBED_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = match given.config.or(named) {
        Some(path) => Some(ConfigFile::read(&path)?),
        None => ConfigFile::find()?,
    };
    let of_file = config.as_ref().map(|config| config.settings.clone()).unwrap_or_default();
    let settings = Settings::resolve(&[given.settings, settings::from_environment(variables), of_file])?;
    Ok((settings, config))
}

/// Logs which configuration file the server has read.
fn log_file(config: Option<&ConfigFile>) {
    match config {
        Some(config) => tracing::info!(file = %config.absolute_path().display(), "read the configuration file"),
        None => {
            let [here, system] = config_file::DEFAULT_PATHS;
            tracing::debug!("no configuration file is named, and neither {here} nor {system} exists");
        }
    }
}

fn url(given: Option<&str>, variables: &HashMap<String, String>) -> Result<Url, Box<dyn Error>> {
    Ok(server(url_text(given, variables))?)
}

fn server(text: &str) -> Result<Url, UrlError> {
    Url::parse(text)?.of_server()
}

fn url_text<'t>(given: Option<&'t str>, variables: &'t HashMap<String, String>) -> &'t str {
    let named = variables.get("FLATBED_URL").map(String::as_str).filter(|url| !url.is_empty());
    given.or(named).unwrap_or(DEFAULT_URL)
}
