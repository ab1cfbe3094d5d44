//! A gate between the worker and a server. Connections pass, are refused, are cut, or stall.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Passes,
    /// Existing connections are cut, and new ones end at once.
    Refuses,
    /// Data stalls, and arrives when the gate opens again, even if its sender has gone.
    Hangs,
}

pub(super) struct Gate {
    pub(super) port: u16,
    mode: watch::Sender<Mode>,
}

impl Gate {
    pub(super) async fn to(port: u16) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = Gate { port: listener.local_addr().unwrap().port(), mode: watch::Sender::new(Mode::Passes) };
        let mode = gate.mode.subscribe();
        tokio::spawn(async move {
            while let Ok((inside, _)) = listener.accept().await {
                if *mode.borrow() != Mode::Refuses {
                    tokio::spawn(pass(inside, port, mode.clone()));
                }
            }
        });
        gate
    }

    pub(super) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn pass(inside: TcpStream, port: u16, mut mode: watch::Receiver<Mode>) {
    if mode.wait_for(|mode| *mode != Mode::Hangs).await.is_err() {
        return;
    }
    let Ok(outside) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (inside.set_nodelay(true), outside.set_nodelay(true));
    let ((from_inside, to_inside), (from_outside, to_outside)) = (inside.into_split(), outside.into_split());
    tokio::join!(one_way(from_inside, to_outside, mode.clone()), one_way(from_outside, to_inside, mode));
}

async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut mode: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut cut = mode.clone();
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = cut.wait_for(|mode| *mode == Mode::Refuses) => 0,
        };
        let Ok(now) = mode.wait_for(|mode| *mode != Mode::Hangs).await.map(|mode| *mode) else { return };
        if read == 0 || now == Mode::Refuses || to.write_all(&buffer[..read]).await.is_err() {
            let _ = to.shutdown().await;
            return;
        }
    }
}
