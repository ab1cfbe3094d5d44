//! Request lines as people type them: `GET /db/_all_docs?key="a"`.
//!
//! Some characters must be encoded in a URL, and the library that reads requests refuses them. CouchDB takes them, curl sends
//! them as they are, so they are encoded here before the library sees them. Only a request's first line is touched. Where the
//! next one begins is not guessed: a connection's bytes are handed over up to the end of a head and no further, and what
//! follows is a body of as many bytes as the library says, once it has read that head, or the next head. Wherever that is
//! not clear (a body in chunks, another protocol, a head that the library sees end elsewhere) nothing more is touched.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::{Body, Incoming};
use hyper::{Method, header};
use tokio::io::ReadBuf;

/// The library has not read the head yet.
const NOT_READ: u64 = u64::MAX;

/// It has, and nobody knows where the next one begins.
const UNKNOWN: u64 = u64::MAX - 1;

/// What a connection's library says of the head that it has read last.
#[derive(Debug)]
pub(crate) struct HeadsRead(AtomicU64);

impl HeadsRead {
    pub(crate) fn new() -> HeadsRead {
        HeadsRead(AtomicU64::new(NOT_READ))
    }

    /// It has read this request's head.
    pub(crate) fn saw(&self, request: &hyper::Request<Incoming>) {
        let speaks_on = request.headers().contains_key(header::UPGRADE) || request.method() == Method::CONNECT;
        let body_bytes = request.body().size_hint().exact().filter(|bytes| !speaks_on && *bytes < UNKNOWN);
        self.0.store(body_bytes.unwrap_or(UNKNOWN), Ordering::Release);
    }

    fn take(&self) -> Option<BodyBytes> {
        match self.0.swap(NOT_READ, Ordering::AcqRel) {
            NOT_READ => None,
            UNKNOWN => Some(BodyBytes::Unknown),
            bytes => Some(BodyBytes::Known(bytes)),
        }
    }
}

enum BodyBytes {
    Known(u64),
    Unknown,
}

/// What comes next on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A head: [`RequestLines::copy_head`].
    Head,
    /// So many bytes of a body, at least one.
    Body(u64),
    /// Anything, to its end.
    Rest,
}

/// Where the bytes that were handed over end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before a request line, or empty lines before it.
    Beginning,
    RequestLine,
    /// In the lines of headers; `is_empty`: nothing of the line has come.
    Headers {
        is_empty: bool,
    },
    /// Behind a head.
    HeadEnd,
    Body(u64),
    Rest,
}

/// A connection's bytes, as far as they were handed over.
#[derive(Debug)]
pub(crate) struct RequestLines {
    at: At,
    /// What is left of an encoded character.
    encoded: &'static [u8],
}

impl RequestLines {
    /// At the beginning of a connection; `is_http1`: else nothing is ever touched.
    pub(crate) fn new(is_http1: bool) -> RequestLines {
        RequestLines { at: if is_http1 { At::Beginning } else { At::Rest }, encoded: b"" }
    }

    /// What is to be handed over next.
    pub(crate) fn next(&mut self, read: &HeadsRead) -> Next {
        if self.at != At::Rest
            && let Some(body) = read.take()
        {
            self.at = match (self.at, body) {
                (At::HeadEnd, BodyBytes::Known(0)) => At::Beginning,
                (At::HeadEnd, BodyBytes::Known(bytes)) => At::Body(bytes),
                // It has seen a head end where none does.
                _ => At::Rest,
            };
        }
        match self.at {
            At::Body(bytes) => Next::Body(bytes),
            // It wants more of a head that has ended.
            At::Rest | At::HeadEnd => {
                self.at = At::Rest;
                Next::Rest
            }
            At::Beginning | At::RequestLine | At::Headers { .. } => Next::Head,
        }
    }

    /// Whether some of a head was handed over, and not all of it.
    pub(crate) fn is_within_head(&self) -> bool {
        matches!(self.at, At::RequestLine | At::Headers { .. })
    }

    /// Hands over what was left of the last character; whether there was anything.
    pub(crate) fn copy_encoded(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let (now, later) = self.encoded.split_at(self.encoded.len().min(into.remaining()));
        into.put_slice(now);
        self.encoded = later;
        !now.is_empty()
    }

    /// Hands bytes over to the end of a head, or of the room; how many. At least one where there is one and room.
    pub(crate) fn copy_head(&mut self, from: &[u8], into: &mut ReadBuf<'_>) -> usize {
        for (at, &byte) in from.iter().enumerate() {
            if into.remaining() == 0 || self.at == At::HeadEnd {
                return at;
            }
            self.at = match (self.at, byte) {
                (At::Beginning, b'\r' | b'\n') => At::Beginning,
                (At::RequestLine, b'\n') => At::Headers { is_empty: true },
                (At::Beginning | At::RequestLine, _) => {
                    if let Some(encoded) = encoded(byte) {
                        self.at = At::RequestLine;
                        self.encoded = encoded;
                        self.copy_encoded(into);
                        continue;
                    }
                    At::RequestLine
                }
                (At::Headers { is_empty: true }, b'\n') => At::HeadEnd,
                (At::Headers { .. }, b'\n') => At::Headers { is_empty: true },
                (At::Headers { is_empty }, b'\r') => At::Headers { is_empty },
                (At::Headers { .. }, _) => At::Headers { is_empty: false },
                (other, _) => other,
            };
            into.put_slice(&[byte]);
        }
        from.len()
    }

    /// So many bytes of a body were handed over.
    pub(crate) fn passed(&mut self, bytes: usize) {
        if let At::Body(left) = self.at {
            let left = left.saturating_sub(bytes as u64);
            self.at = if left == 0 { At::Beginning } else { At::Body(left) };
        }
    }
}

/// What the library refuses in a path or in a query, and nothing else is lost with.
fn encoded(byte: u8) -> Option<&'static [u8]> {
    match byte {
        b'"' => Some(b"%22"),
        b'<' => Some(b"%3C"),
        b'>' => Some(b"%3E"),
        b'`' => Some(b"%60"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the library is handed: it reads pieces of `room` bytes, and says of each head what `bodies` has.
    fn handed(connection: &[u8], pieces: usize, room: usize, bodies: &[u64]) -> Vec<u8> {
        let (mut lines, read, mut bodies) = (RequestLines::new(true), HeadsRead::new(), bodies.iter());
        let (mut out, mut before, mut rest) = (Vec::new(), Vec::<u8>::new(), connection);
        loop {
            let mut buffer = vec![0; room];
            let mut into = ReadBuf::new(&mut buffer);
            let next = lines.next(&read);
            if !lines.copy_encoded(&mut into) {
                if before.is_empty() {
                    let (now, later) = rest.split_at(rest.len().min(pieces));
                    (before, rest) = (now.to_vec(), later);
                }
                if before.is_empty() {
                    return out;
                }
                let used = match next {
                    Next::Head => lines.copy_head(&before, &mut into),
                    Next::Body(most) => {
                        let used = before.len().min(into.remaining()).min(most as usize);
                        into.put_slice(&before[..used]);
                        lines.passed(used);
                        used
                    }
                    Next::Rest => {
                        let used = before.len().min(into.remaining());
                        into.put_slice(&before[..used]);
                        used
                    }
                };
                assert!(used > 0);
                before.drain(..used);
            }
            assert!(!into.filled().is_empty(), "an empty read is an end");
            out.extend_from_slice(into.filled());
            if lines.at == At::HeadEnd && lines.encoded.is_empty() {
                read.0.store(bodies.next().copied().unwrap_or(UNKNOWN), Ordering::Release);
            }
        }
    }

    #[test]
    fn only_request_lines_are_touched() {
        let raw = "GET /d`b?key=\"a<b>\" HTTP/1.1\r\nx: \"y\"\r\n\r\n";
        let encoded = "GET /d%60b?key=%22a%3Cb%3E%22 HTTP/1.1\r\nx: \"y\"\r\n\r\n";
        let body = "GET /\"\r\n\r\n\"";
        for (room, pieces) in [(1, 1), (2, 3), (7, 100), (100, 7), (1_000, 1_000)] {
            let text = |connection: &str, bodies: &[u64]| {
                String::from_utf8(handed(connection.as_bytes(), pieces, room, bodies)).unwrap()
            };
            assert_eq!(text(&raw.repeat(3), &[0, 0, 0]), encoded.repeat(3));
            let of_body = body.len() as u64;
            let with_body = [raw, body, raw, body, "\r\n\n", raw].concat();
            assert_eq!(
                text(&with_body, &[of_body, of_body, 0]),
                [encoded, body, encoded, body, "\r\n\n", encoded].concat()
            );
            // Of a body whose length nobody knows, and behind it, nothing is touched.
            assert_eq!(text(&[raw, body, raw].concat(), &[UNKNOWN]), [encoded, body, raw].concat());
            // Nor where the library reads on behind a head, or sees another end.
            assert_eq!(text(&[raw, raw].concat(), &[NOT_READ]), [encoded, raw].concat());
        }
        let mut lines = RequestLines::new(true);
        let read = HeadsRead::new();
        let (mut buffer, head) = ([0; 100], b"GET / HTTP/1.1\r\nx");
        assert_eq!(lines.copy_head(head, &mut ReadBuf::new(&mut buffer)), head.len());
        read.0.store(0, Ordering::Release);
        assert_eq!(lines.next(&read), Next::Rest);
        assert_eq!(RequestLines::new(false).next(&HeadsRead::new()), Next::Rest);
    }

    proptest! {
        /// However the bytes come, requests with bodies of any bytes come out with their first lines encoded alone.
        #[test]
        fn bodies_come_as_they_are(
            requests in proptest::collection::vec((r#"[a-z"<>`?=]{1,12}"#, r#"[a"\r\n ]{0,20}"#, r#"["\r\nGET/ ]{0,40}"#), 1..6),
            room in 1_usize..40,
            pieces in 1_usize..80,
        ) {
            let (mut raw, mut expected, mut bodies) = (String::new(), String::new(), Vec::new());
            for (target, value, body) in &requests {
                // A line's end in a value would be another line.
                let value = value.replace(['\r', '\n'], "-");
                let escaped: String = target
                    .bytes()
                    .map(|byte| encoded(byte).map_or(char::from(byte).to_string(), |text| String::from_utf8_lossy(text).into_owned()))
                    .collect();
                raw += &format!("GET /{target} HTTP/1.1\r\nx: {value}\n\r\n{body}");
                expected += &format!("GET /{escaped} HTTP/1.1\r\nx: {value}\n\r\n{body}");
                bodies.push(body.len() as u64);
            }
            prop_assert_eq!(handed(raw.as_bytes(), pieces, room, &bodies), expected.into_bytes());
        }
    }
}
