//! A server started for the benchmarks, and stopped when it is dropped.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use bytes::Bytes;
use flatbed_client::{Connection, Url, UrlError};
use hyper::Method;
use tokio::process::{Child, Command};

/// The reason why a server is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The program cannot be run.
    #[error("{program}: {source}", program = program.display())]
    Run {
        program: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The program runs but does not answer.
    #[error("{0} does not answer within 30 s")]
    Silent(Url),
    /// No port is free, or the directory cannot be created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An invalid address.
    #[error(transparent)]
    Url(#[from] UrlError),
}

/// A running server with a directory of its own.
pub(crate) struct Server {
    /// Its address.
    pub url: Url,
    pub directory: PathBuf,
    child: Child,
}

impl Server {
    /// Starts Flatbed's binary on the embedded engine in `directory`.
    pub(crate) async fn flatbed(binary: &Path, directory: &Path) -> Result<Server, ServerError> {
        Self::flatbed_with(binary, directory, &[]).await
    }

    /// Starts it with environment variables.
    pub(crate) async fn flatbed_with(
        binary: &Path,
        directory: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Server, ServerError> {
        let port = free_port()?;
        let mut command = Command::new(binary);
        command.envs(variables.iter().copied());
        command.args(["serve", "--log-level", "warn", "--listen"]).arg(format!("127.0.0.1:{port}"));
        command.arg("--data-dir").arg(directory);
        start(command, binary, directory, port).await
    }

    /// Starts it on two ports, with a configuration file that names a certificate. Returns also the address of the
    /// second port, which uses TLS.
    pub(crate) async fn flatbed_with_tls(
        binary: &Path,
        directory: &Path,
        config: &Path,
    ) -> Result<(Server, SocketAddr), ServerError> {
        let (port, secret) = (free_port()?, free_port()?);
        let mut command = Command::new(binary);
        command.args(["serve", "--log-level", "warn", "--config"]).arg(config);
        command.arg("--listen").arg(format!("127.0.0.1:{port},https://127.0.0.1:{secret}"));
        command.arg("--data-dir").arg(directory);
        Ok((start(command, binary, directory, port).await?, SocketAddr::from(([127, 0, 0, 1], secret))))
    }

    /// Starts npm's pouchdb-server with its script `script`, on LevelDB in `directory`.
    pub(crate) async fn pouchdb(script: &Path, directory: &Path) -> Result<Server, ServerError> {
        let port = free_port()?;
        std::fs::create_dir_all(directory)?;
        let config = directory.join("config.json");
        // Otherwise it logs each request to a file.
        std::fs::write(&config, r#"{"log": {"level": "none"}}"#)?;
        let mut command = Command::new("node");
        command.arg(script).args(["--no-stdout-logs", "--no-color", "--port"]).arg(port.to_string());
        command.arg("--dir").arg(directory).arg("--config").arg(config);
        command.current_dir(directory);
        start(command, script, directory, port).await
    }

    pub(crate) fn free_address() -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
    }

    /// Returns the server's process; `None` after its end.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Stops the server, and waits for its end.
    pub(crate) async fn stop(mut self) -> io::Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // SAFETY: the child is ours and has not been waited for, so the id is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        self.child.wait().await.map(drop)
    }
}

async fn start(mut command: Command, program: &Path, directory: &Path, port: u16) -> Result<Server, ServerError> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| ServerError::Run { program: program.to_owned(), source })?;
    let server =
        Server { url: Url::parse(&format!("http://127.0.0.1:{port}"))?, directory: directory.to_owned(), child };
    for _ in 0..300 {
        if let Ok(mut connection) = Connection::open(&server.url).await
            && connection.call(Method::GET, "/", Bytes::new()).await.is_ok_and(|answer| answer.status == 200)
        {
            return Ok(server);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(ServerError::Silent(server.url.clone()))
}

fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
