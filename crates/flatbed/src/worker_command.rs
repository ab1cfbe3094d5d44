//! `flatbed worker`: its command line, and its two commands.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;

use lexopt::prelude::*;
use tokio::runtime::Runtime;

use crate::cli::{AcceptedSettings, Command, CommandSettings, UsageError, setting_lines};
use crate::worker_import::{self, Import};
use crate::worker_process::{self, Home};
use crate::{logging, settle, url};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerCommand {
    /// Create jobs from the files of the Python worker.
    Import(Import),
    /// Run the jobs of another server.
    Run {
        /// The server and the account.
        home: Home,
        given: CommandSettings,
    },
}

impl WorkerCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// The reason why it failed.
    pub(crate) fn run(self, variables: &HashMap<String, String>, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
        match self {
            WorkerCommand::Import(mut options) => {
                let named = variables.get("FLATBED_WORKER_SECRETS").filter(|path| !path.is_empty()).map(PathBuf::from);
                options.secrets = options.secrets.or(named);
                let url = url(options.url.as_deref(), variables)?;
                runtime.block_on(worker_import::import(&options, &url))?;
            }
            WorkerCommand::Run { home, given } => {
                let (settings, _) = settle(given, variables)?;
                let _log = logging::start(&settings, runtime.handle())?;
                runtime.block_on(worker_process::run(&settings, home, variables))?;
            }
        }
        Ok(())
    }
}

/// Parses the arguments after `worker`.
///
/// # Errors
/// [`UsageError`].
pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Command, UsageError> {
    let (mut import, mut words) = (Import::default(), Vec::new());
    let (mut home, mut given) = (Home::default(), CommandSettings::default());
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(help())),
            Long("url") => import.url = Some(parser.value()?.string()?),
            Long("job") => import.job = parser.value()?.string()?,
            Long("secrets") => import.secrets = Some(parser.value()?.into()),
            Long("user") if words.is_empty() => home.user = Some(parser.value()?.string()?),
            Long("password-file") if words.is_empty() => home.password_file = Some(parser.value()?.into()),
            Long(flag) if words.is_empty() => {
                let flag = flag.to_owned();
                given.take(&flag, AcceptedSettings::Worker, parser)?;
            }
            Value(value) if words.len() < 2 => words.push(value),
            other => return Err(other.unexpected().into()),
        }
    }
    let mut words = words.into_iter();
    match (words.next(), words.next()) {
        (Some(what), Some(directory)) if what == "import" => {
            let job = if import.job.is_empty() { "imported".to_owned() } else { import.job };
            Ok(Command::Worker(WorkerCommand::Import(Import { directory: directory.into(), job, ..import })))
        }
        (Some(what), None) if what == "import" => {
            Err(UsageError::Missing { command: "worker", missing: "the directory that has config.json" })
        }
        (None, _) if import.job.is_empty() && import.secrets.is_none() => {
            Ok(Command::Worker(WorkerCommand::Run { home: Home { url: import.url, ..home }, given }))
        }
        _ => Err(UsageError::Missing { command: "worker", missing: "what to do: import DIR, or --url URL" }),
    }
}

fn help() -> String {
    format!(
        "flatbed worker --url URL [OPTIONS]\n\n\
         Runs jobs of a server's changes worker in a separate process, which shares them with other processes. The server\n\
         keeps jobs, leases and the queue; the process accesses it as an administrator. Files and secrets are local.\n\
         Exit status: 0 ended by a signal, 2 failed.\n\n  \
         --url URL              the server, http:// or https://, without a password in it [FLATBED_URL]\n  \
         --user NAME            an administrator of the server [FLATBED_USER]\n  \
         --password-file FILE   a file with the password [FLATBED_PASSWORD_FILE, or FLATBED_PASSWORD with the password];\n                         \
         it must be outside of worker_secrets, whose files jobs may name\n{}\n{IMPORT_HELP}",
        setting_lines(AcceptedSettings::Worker)
    )
}

const IMPORT_HELP: &str = "\
flatbed worker import DIR [OPTIONS]: create jobs of a running server's changes worker from the files of the Python worker
change_stream_db: config.json, mappings/, checkpoint.json, failed_docs.jsonl. The jobs are disabled: review them first.
Exit status: 0 done, 2 failed.

  --job ID               the id of the new job [imported]
  --secrets DIR          the server's worker_secrets: passwords are written there, as files of mode 600 [FLATBED_WORKER_SECRETS]
  --url URL              the server, with name:password@ if it needs them [FLATBED_URL, else http://127.0.0.1:5984]
";

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli;

    fn parsed(line: &str) -> Result<Command, String> {
        cli::parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn refused() {
        for (line, message) in [
            ("worker export", "flatbed worker needs what to do: import DIR, or --url URL (flatbed worker --help)"),
            ("worker --job j", "flatbed worker needs what to do: import DIR, or --url URL (flatbed worker --help)"),
            ("worker --worker", "invalid option '--worker' (flatbed --help lists what there is)"),
            ("worker --cluster-file c", "invalid option '--cluster-file' (flatbed --help lists what there is)"),
            ("worker import d --user u", "invalid option '--user' (flatbed --help lists what there is)"),
        ] {
            assert_eq!(parsed(line), Err(message.to_owned()), "{line}");
        }
    }
}
