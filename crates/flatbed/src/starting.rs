//! Connecting to a server that may still be starting.

use std::io::ErrorKind;
use std::time::Duration;

use flatbed_client::{Connection, Error, Url};
use tokio::time::{Instant, sleep};

/// The longest wait for a server that does not accept connections yet.
const START_MAX: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Connects as [`Connection::open`]. If the connection is refused, it says so on stderr and retries for 10 s, since the
/// command before may have started the server.
///
/// # Errors
/// [`Error::Connect`].
pub(crate) async fn connect(url: &Url) -> Result<Connection, Error> {
    let end = Instant::now() + START_MAX;
    let mut is_told = false;
    loop {
        match Connection::open(url).await {
            Err(Error::Connect { source, .. })
                if source.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => {}
            connected => return connected,
        }
        if !is_told {
            eprintln!("no server answers at {url} yet: waiting up to {} s for its start", START_MAX.as_secs());
            is_told = true;
        }
        sleep(PAUSE).await;
    }
}
