//! The messages that a service manager gets over the socket in `NOTIFY_SOCKET`.

use std::{os::unix::net::UnixDatagram, time::Duration};

use crate::support::{Server, flatbed, signal};

/// A limit that only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(180);

fn received(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let length = socket.recv(&mut bytes).expect("a message");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn a_service_manager_learns_that_a_server_serves_reloads_and_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let data = directory.path().join("data");
    let mut command = flatbed();
    let server = Server::start_as(command.env("NOTIFY_SOCKET", &path), &["--data-dir", data.to_str().expect("UTF-8")]);
    assert_eq!(received(&socket), "READY=1");

    signal(server.pid(), "HUP");
    let reloading = received(&socket);
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(received(&socket), "READY=1");

    assert!(server.stop());
    assert_eq!(received(&socket), "STOPPING=1");
}
