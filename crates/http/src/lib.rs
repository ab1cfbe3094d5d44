//! The shell of an HTTP server: listeners, limits, bodies, answers, multipart, WebSocket, CORS, traces and metrics. It
//! serves a [`Surface`], the API.
//!
//! The shell reads requests within limits of time, number and memory, passes them to the surface, and sends the answers
//! at the pace of their clients. It knows neither the API nor the storage. A [`Server`] holds all of its state, so
//! several may run in one process.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod answer;
mod arriving;
mod awaited;
mod body_memory;
mod budget;
mod chunk_sizes;
mod connection;
mod cors;
mod doorway;
mod following;
mod frame_stream;
mod gate;
mod host;
mod in_flight;
mod inside;
mod limits;
mod listen;
mod metrics;
mod mount;
pub mod multipart;
mod outlet;
mod pace;
mod peer;
mod places;
mod preface;
mod proxied;
mod rejection;
mod reply;
mod request;
mod request_line;
mod server;
mod shares;
mod stall;
mod stream;
mod surface;
mod tenant_headers;
mod tenant_reply;
mod tls;
mod tracked;
mod turns;
mod websocket;

pub use arriving::RequestBody;
pub use body_memory::{Body, BodyMemory, Client, FREE_BYTES, Memory, UploadRoom};
pub use cors::Cors;
pub use flatbed_network::{Blocks, InvalidBlock, Rate};
pub use following::AnonymousFeed;
pub use gate::{AccessDecision, Gate, Mark, Recheck};
pub use inside::{InsideListener, InsidePrincipal, inside};
pub use limits::{LimitError, Limits};
pub use listen::Listen;
pub use metrics::{AnswerCounter, Usage};
pub use mount::Mount;
pub use outlet::{AnswerMemory, LITTLE_MAX, OutgoingText};
pub use proxied::Proxies;
pub use rejection::{Rejection, Result};
pub use reply::{
    AbortedBody, CHUNK_BYTES, ClientGone, PagePermit, Pages, Piece, Reply, ReplyBody, RevocableBody, RevocableStream,
    Sender, Watch, WholeBody, first_room, shrink,
};
pub use request::Request;
pub use server::{BindError, Server, Shell, ShellOptions};
pub use surface::{Answer, Origin, Surface};
pub use tenant_reply::TenantReply;
pub use tls::{Tls, TlsError};
pub use tracked::{ContinueTrace, REQUEST_TARGET, TRACE_TARGET, spawn};
pub use websocket::{Handshake, Heartbeat, PendingWebSocket, WebSocket, message_room};
