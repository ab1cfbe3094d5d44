//! Serves one connection: the steps before HTTP, and HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use crate::answer;
use crate::in_flight::InFlight;
use crate::limits::{Limits, who};
use crate::listen::Listener;
use crate::metrics::HandshakeResult;
use crate::mount::AnswerFuture;
use crate::outlet::ANSWERS_MAX;
use crate::peer::Peer;
use crate::preface::{self, Preface};
use crate::proxied;
use crate::request_line::HeadsRead;
use crate::server::{ServedSurface, Shell};
use crate::stall::{ConnectionPlace, StallGuard};
use crate::stream::{Stream, Transport};
use crate::surface::Surface;

/// The most reset HTTP/2 streams that the server has not accepted yet. Beyond it the connection ends.
const RESETS_MAX: usize = 20;

/// The most HTTP/2 streams reset for protocol errors. Beyond it the connection ends.
const BROKEN_MAX: usize = 100;

/// The send buffer of an HTTP/2 stream, in bytes.
const STREAM_BUFFER_BYTES: usize = 64 * 1024;

/// The receive window of an HTTP/2 connection for request bodies, in bytes.
const RECEIVED_BYTES_MAX: u32 = 256 * 1024;

const HEADERS_MAX: usize = 100;

const HEAD_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct AcceptedConnection {
    pub transport: Transport,
    pub address: Option<SocketAddr>,
    pub listener: Arc<Listener>,
    pub permit: OwnedSemaphorePermit,
}

/// Serves a connection to its end. It accepts no further request once `accepting` is false.
pub(crate) async fn serve<S: Surface>(
    served: Arc<ServedSurface<S>>,
    accepted: AcceptedConnection,
    watcher: Watcher,
    mut accepting: watch::Receiver<bool>,
) {
    let AcceptedConnection { transport, address, listener, permit } = accepted;
    let shell = served.shell.clone();
    let answers = shell.outlets.connect(served.surface.is_open());
    let peer = address.map_or(Peer { address: None, is_secure: false }, |address| Peer::new(address, false));
    // A proxy that forwards many clients needs many connections.
    let is_bounded = shell.bounds(&peer);
    let limits = shell.admission.limits();
    let Some(entered) = shell.doorway.enter(who(&peer), is_bounded, &limits, &answers) else { return };
    let entered = Arc::new(entered);
    let traffic = &shell.traffic;
    traffic.connections_accepted.add(1);
    let open = [traffic.connections.hold(), traffic.listener_connections.of(listener.kind()).hold()];
    let place = ConnectionPlace { _permit: permit, entered, _open: open };
    // Boxed and dropped afterwards, to keep the connection small.
    let begun = Box::pin(begin(&shell, transport, &listener, peer, &place));
    let begun = tokio::select! {
        begun = begun => begun,
        () = answers.cut() => return,
        _ = accepting.wait_for(|accepting| !*accepting) => return,
    };
    let (stream, beginning, peer) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            tracing::debug!(%error, %peer, "a connection ended before its first request");
            return;
        }
    };
    let heads = Arc::new(HeadsRead::new());
    let in_flight = Arc::<InFlight>::default();
    let is_http2 = beginning.is_http2;
    let (connection, heads_read, entered) = (answers.clone(), heads.clone(), place.entered.clone());
    let answered = in_flight.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        heads_read.saw(&request);
        entered.asks();
        // Only HTTP/1 has one answer at a time.
        let guard = (!is_http2).then(|| answered.begin());
        let outlet = connection.begin();
        // Boxed, and only while it runs. Otherwise each connection would reserve the state of the handlers, which is
        // much larger than that of a waiting feed.
        let answer = outlet.map(|outlet| -> AnswerFuture {
            match served.mounted.as_ref().filter(|mounted| mounted.has(request.uri().path())) {
                Some(mounted) => mounted.answer(request, peer, outlet),
                None => Box::pin(answer::answer(served.clone(), request, Some(peer), outlet)),
            }
        });
        async move {
            match answer {
                Some(answer) => {
                    let mut response = answer.await;
                    response.body_mut().hold(guard);
                    Ok(response)
                }
                // The request was not processed, so the client may retry. Only HTTP/2 has concurrent requests.
                None => Err(h2::Error::from(h2::Reason::REFUSED_STREAM)),
            }
        }
    });
    let times = (shell.stall_max, shell.half_closed_max);
    let (traffic, admission) = (shell.traffic.clone(), shell.admission.clone());
    let stream =
        StallGuard::new(stream, beginning, (heads, in_flight), times, traffic, answers.clone(), (place, admission));
    let stream = TokioIo::new(stream);
    drop((shell, listener));
    let serve = async {
        if is_http2 {
            return watcher.watch(http2().serve_connection(stream, service)).await;
        }
        let connection = http1(&limits).serve_connection(stream, service).with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            _ = accepting.wait_for(|accepting| !*accepting) => None,
        };
        match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
        // The watcher is dropped here, and the server's shutdown waits for it.
    };
    let ended = tokio::select! {
        ended = serve => ended,
        () = answers.cut() => return,
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended with an error");
    }
}

/// Runs the steps before HTTP: the PROXY protocol, TLS, and the choice of the HTTP version.
async fn begin<L: flatbed_metrics::Label>(
    shell: &Shell<L>,
    mut transport: Transport,
    listener: &Listener,
    mut peer: Peer,
    place: &ConnectionPlace,
) -> io::Result<(Stream, Preface, Peer)> {
    let limits = shell.admission.limits();
    if shell.proxies.begins(&peer) {
        peer = timeout(limits.handshake_max, proxied::read_header(&mut transport, peer)).await??;
        let is_bounded = shell.admission.bounds(&peer) && !shell.proxies.forwards(&peer);
        if !place.entered.comes_from(who(&peer), is_bounded, &limits) {
            return Err(io::Error::other("too many connections from this address"));
        }
    }
    let mut stream = match listener.tls() {
        None => Stream::Plain(transport),
        Some(tls) => {
            let greeted = timeout(limits.handshake_max, tls.greet(transport, who(&peer), &shell.greetings)).await;
            let result = match &greeted {
                Ok(Ok(_)) => HandshakeResult::Completed,
                Ok(Err(_)) => HandshakeResult::Failed,
                Err(_) => HandshakeResult::TimedOut,
            };
            shell.traffic.tls_handshakes.of(result).add(1);
            peer.is_secure = true;
            greeted??
        }
    };
    place.entered.may_ask_within(limits.head_max);
    let beginning = timeout(limits.head_max, preface::beginning(&mut stream)).await??;
    Ok((stream, beginning, peer))
}

fn http1(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Hyper's timer runs from the end of the previous answer to the end of the next head. The doorway bounds the
        // head itself.
        .header_read_timeout(limits.idle_max.max(limits.head_max))
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(ANSWERS_MAX as u32)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(BROKEN_MAX)
        .max_send_buf_size(STREAM_BUFFER_BYTES)
        .initial_connection_window_size(RECEIVED_BYTES_MAX)
        .initial_stream_window_size(RECEIVED_BYTES_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::Response;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::reply::ReplyBody;

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_kept_for_two_minutes() {
        let (mut client, server) = tokio::io::duplex(4_096);
        let answer = |_: hyper::Request<Incoming>| async { Ok::<_, Infallible>(Response::new(ReplyBody::Full(None))) };
        let served = tokio::spawn(http1(&Limits::default()).serve_connection(TokioIo::new(server), service_fn(answer)));
        for _ in 0..3 {
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(client.read_buf(&mut head).await.unwrap() > 0, "it was closed");
            }
            assert!(head.starts_with(b"HTTP/1.1 200"));
            tokio::time::advance(Duration::from_secs(115)).await;
        }
        assert!(!served.is_finished());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(served.await.unwrap().is_err());
    }
}
