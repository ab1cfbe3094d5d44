//! `flatbed worker --url`: jobs of the changes worker in a process without a storage. A running server keeps the jobs,
//! leases and the queue, and the process reaches them over HTTP.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flatbed_client::{Url, UrlError};
use flatbed_dispatcher::{Dispatcher, Server, StoreError};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_outward::Tls;
use flatbed_worker::secret::{SECRET_BYTES_MAX, Secret, SecretError, SecretRef};

use crate::notify::{ServiceState, notify};
use crate::serve::{ServeError, Signals, trusted};
use crate::settings::Settings;

/// The server, and the account at it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    /// The server, if not `FLATBED_URL`.
    pub url: Option<String>,
    /// An administrator's name, if not `FLATBED_USER`.
    pub user: Option<String>,
    /// The password's file; `None`: `FLATBED_PASSWORD_FILE`, or the password itself in `FLATBED_PASSWORD`.
    pub password_file: Option<PathBuf>,
}

/// The reason why the process cannot run. No message contains the password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// No server is named.
    #[error("flatbed worker needs --url URL or FLATBED_URL: the server that has the jobs (flatbed worker --help)")]
    NoUrl,
    /// The URL has a password, which other users of the machine could read.
    #[error("the URL must have no name and password in it: give --user and --password-file, or FLATBED_PASSWORD")]
    Credentials,
    /// The URL cannot be read.
    #[error("--url: {0}")]
    Url(#[from] UrlError),
    /// A name without a password, or a password without a name.
    #[error("{0}")]
    Account(&'static str),
    /// The password's file cannot be read.
    #[error("the password's file {path}: {error}", path = .0.display(), error = .1)]
    File(PathBuf, io::Error),
    #[error("the password: {0}")]
    Password(#[from] SecretError),
    /// Certificates or the operating system failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Signals are not available.
    #[error("the operating system refuses: {0}")]
    System(#[from] io::Error),
    /// The parts cannot be assembled.
    #[error("the changes worker: {0}")]
    Worker(#[from] StoreError),
}

impl Home {
    /// Fills in missing values from the environment.
    ///
    /// # Errors
    /// [`ProcessError`].
    pub(crate) fn server(self, variables: &HashMap<String, String>) -> Result<Server, ProcessError> {
        let named = |name: &str| variables.get(name).filter(|text| !text.is_empty());
        let url = self.url.or(named("FLATBED_URL").cloned()).ok_or(ProcessError::NoUrl)?;
        let url = Url::parse_either(&url)?.of_server()?;
        if url.authorization().is_some() {
            return Err(ProcessError::Credentials);
        }
        let user = self.user.or(named("FLATBED_USER").cloned());
        let file = self.password_file.or(named("FLATBED_PASSWORD_FILE").map(PathBuf::from));
        let password = match (&file, named("FLATBED_PASSWORD")) {
            (Some(file), _) => Some(read(file)?),
            (None, Some(password)) => {
                Some(Secret::of(&SecretRef::Env("FLATBED_PASSWORD".to_owned()), password.as_bytes())?)
            }
            (None, None) => None,
        };
        let account = match (user, password) {
            (Some(user), Some(_)) if user.contains(':') => {
                return Err(ProcessError::Account("--user has a colon in it"));
            }
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(ProcessError::Account("--user needs --password-file FILE or FLATBED_PASSWORD"));
            }
            (None, Some(_)) => return Err(ProcessError::Account("there is a password without --user or FLATBED_USER")),
        };
        Ok(Server { url, account })
    }
}

fn read(path: &Path) -> Result<Secret, ProcessError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| ProcessError::File(path.to_owned(), error))?;
    Ok(Secret::of(&SecretRef::File(path.display().to_string()), &bytes)?)
}

/// Runs jobs until a signal, and then until the current batches end. Waits for a server that does not answer.
///
/// # Errors
/// [`ProcessError`], all of them before the first job runs.
pub(crate) async fn run(
    settings: &Settings,
    home: Home,
    variables: &HashMap<String, String>,
) -> Result<(), ProcessError> {
    let server = home.server(variables)?;
    let tls = settings.replication_ca.as_deref().map(trusted).transpose()?.unwrap_or_else(Tls::default);
    let is_near = matches!(server.url.host(), "localhost" | "127.0.0.1" | "[::1]");
    if server.account.is_some() && !server.url.is_secure() && !is_near {
        tracing::warn!(server = %server.url, "the password goes over the network as it is: use https");
    }
    let mut signals = Signals::new()?;
    let functions = Runner::new(RunnerOptions::default()).map_err(ServeError::Threads)?;
    functions.prepare();
    let options = settings.worker.for_remote_server(variables, tls, &server).with_functions(functions);
    let dispatcher = Dispatcher::for_remote_server(options)?;
    let jobs = dispatcher.start();
    let node = dispatcher.node();
    // The reader of the first line may have closed the pipe.
    let _ = writeln!(io::stdout(), "Flatbed {} works for {} as {node}", env!("CARGO_PKG_VERSION"), server.url);
    tracing::info!(server = %server.url, node, "working");
    notify(ServiceState::Ready);
    signals.next().await;
    notify(ServiceState::Stopping);
    tracing::info!("stopping: batches that are under way may end; a second signal stops at once");
    tokio::select! {
        () = dispatcher.stop(jobs) => {}
        () = signals.next() => {}
    }
    tracing::info!("stopped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(home: Home, variables: &[(&str, &str)]) -> Result<Server, String> {
        let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        home.server(&variables).map_err(|error| error.to_string())
    }

    #[test]
    fn the_password_is_in_no_command_line_and_no_message() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let home = |url: &str, user: Option<&str>, file: Option<&Path>| Home {
            url: Some(url.to_owned()),
            user: user.map(str::to_owned),
            password_file: file.map(Path::to_owned),
        };
        let known = server(home("https://h/p", Some("root"), Some(&file)), &[]).unwrap();
        assert_eq!(
            known.account.as_ref().map(|(user, password)| (user.as_str(), password.expose())),
            Some(("root", "hunter2"))
        );
        assert!(!format!("{known:?}").contains("hunter2"));
        let variables = [("FLATBED_URL", "http://h"), ("FLATBED_USER", "anna"), ("FLATBED_PASSWORD", "hunter3")];
        let (user, password) = server(Home::default(), &variables).unwrap().account.unwrap();
        assert_eq!((user.as_str(), password.expose()), ("anna", "hunter3"));
        assert!(server(home("http://h", None, None), &[]).unwrap().account.is_none());
        for (home, variables, part) in [
            (Home::default(), &[][..], "needs --url"),
            (home("http://root:hunter2@h", None, None), &[], "no name and password"),
            (home("ftp://h", None, None), &[], "must start with"),
            (home("http://h", Some("root"), None), &[], "needs --password-file"),
            (home("http://h", None, Some(&file)), &[], "without --user"),
            (home("http://h", Some("a:b"), Some(&file)), &[], "colon"),
            (home("http://h", Some("root"), Some(Path::new("/nowhere/x"))), &[], "/nowhere/x"),
            (home("http://h", Some("root"), None), &[("FLATBED_PASSWORD", " ")], "is empty"),
        ] {
            let error = server(home, variables).unwrap_err();
            assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
        }
    }
}
