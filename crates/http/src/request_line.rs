//! Encodes characters in request lines that users type: `GET /db/_all_docs?key="a"`.
//!
//! Some characters must be encoded in a URL, and hyper refuses them raw. CouchDB accepts them and curl sends them, so
//! they are encoded before hyper reads them. Only request lines are changed. The start of the next request is not
//! guessed: bytes are passed on up to the end of a head. Once hyper has read the head, it reports the length of the
//! body, behind which the next head begins. If that is unknown (a chunked body, another protocol, or a head that
//! hyper ends elsewhere), nothing further is changed.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::{Body, Incoming};
use hyper::{Method, header};
use tokio::io::ReadBuf;

/// Hyper has not read the head yet.
const NOT_READ: u64 = u64::MAX;

/// Hyper has read the head, and the length of the body is unknown.
const UNKNOWN: u64 = u64::MAX - 1;

/// The result of the last head that hyper has read.
#[derive(Debug)]
pub(crate) struct HeadsRead(AtomicU64);

impl HeadsRead {
    pub(crate) fn new() -> HeadsRead {
        HeadsRead(AtomicU64::new(NOT_READ))
    }

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextBytes {
    Head,
    /// This many bytes of a body, at least one.
    Body(u64),
    /// Any bytes, up to the end of the connection.
    Rest,
}

/// The position after the passed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinePosition {
    Beginning,
    RequestLine,
    /// In the header lines. `is_empty`: at the beginning of a line.
    Headers {
        is_empty: bool,
    },
    HeadEnd,
    Body(u64),
    Rest,
}

/// The state of the bytes passed on from a connection.
#[derive(Debug)]
pub(crate) struct RequestLines {
    at: LinePosition,
    /// The rest of an encoded character.
    encoded: &'static [u8],
}

impl RequestLines {
    pub(crate) fn new(is_http1: bool) -> RequestLines {
        RequestLines { at: if is_http1 { LinePosition::Beginning } else { LinePosition::Rest }, encoded: b"" }
    }

    pub(crate) fn next(&mut self, read: &HeadsRead) -> NextBytes {
        if self.at != LinePosition::Rest
            && let Some(body) = read.take()
        {
            self.at = match (self.at, body) {
                (LinePosition::HeadEnd, BodyBytes::Known(0)) => LinePosition::Beginning,
                (LinePosition::HeadEnd, BodyBytes::Known(bytes)) => LinePosition::Body(bytes),
                // Hyper saw the end of a head elsewhere.
                _ => LinePosition::Rest,
            };
        }
        match self.at {
            LinePosition::Body(bytes) => NextBytes::Body(bytes),
            // Hyper wants more of a head that has ended here.
            LinePosition::Rest | LinePosition::HeadEnd => {
                self.at = LinePosition::Rest;
                NextBytes::Rest
            }
            LinePosition::Beginning | LinePosition::RequestLine | LinePosition::Headers { .. } => NextBytes::Head,
        }
    }

    /// Returns true if all further bytes pass unseen.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.at == LinePosition::Rest
    }

    pub(crate) fn is_within_head(&self) -> bool {
        matches!(self.at, LinePosition::RequestLine | LinePosition::Headers { .. })
    }

    /// Copies the rest of the last encoded character. Returns false if there was none.
    pub(crate) fn copy_encoded(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let (now, later) = self.encoded.split_at(self.encoded.len().min(into.remaining()));
        into.put_slice(now);
        self.encoded = later;
        !now.is_empty()
    }

    /// Copies bytes up to the end of a head or of the buffer and returns their number, at least one if both are
    /// non-empty.
    pub(crate) fn copy_head(&mut self, from: &[u8], into: &mut ReadBuf<'_>) -> usize {
        for (at, &byte) in from.iter().enumerate() {
            if into.remaining() == 0 || self.at == LinePosition::HeadEnd {
                return at;
            }
            self.at = match (self.at, byte) {
                (LinePosition::Beginning, b'\r' | b'\n') => LinePosition::Beginning,
                (LinePosition::RequestLine, b'\n') => LinePosition::Headers { is_empty: true },
                (LinePosition::Beginning | LinePosition::RequestLine, _) => {
                    if let Some(encoded) = encoded(byte) {
                        self.at = LinePosition::RequestLine;
                        self.encoded = encoded;
                        self.copy_encoded(into);
                        continue;
                    }
                    LinePosition::RequestLine
                }
                (LinePosition::Headers { is_empty: true }, b'\n') => LinePosition::HeadEnd,
                (LinePosition::Headers { .. }, b'\n') => LinePosition::Headers { is_empty: true },
                (LinePosition::Headers { is_empty }, b'\r') => LinePosition::Headers { is_empty },
                (LinePosition::Headers { .. }, _) => LinePosition::Headers { is_empty: false },
                (other, _) => other,
            };
            into.put_slice(&[byte]);
        }
        from.len()
    }

    pub(crate) fn passed(&mut self, bytes: usize) {
        if let LinePosition::Body(left) = self.at {
            let left = left.saturating_sub(bytes as u64);
            self.at = if left == 0 { LinePosition::Beginning } else { LinePosition::Body(left) };
        }
    }
}

/// Returns the encoding of a byte that hyper refuses in a path or query but that is otherwise unambiguous.
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

    /// Returns the bytes that hyper reads in pieces of `room` bytes, with the lengths in `bodies` for each head.
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
                    NextBytes::Head => lines.copy_head(&before, &mut into),
                    NextBytes::Body(most) => {
                        let used = before.len().min(into.remaining()).min(most as usize);
                        into.put_slice(&before[..used]);
                        lines.passed(used);
                        used
                    }
                    NextBytes::Rest => {
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
            if lines.at == LinePosition::HeadEnd && lines.encoded.is_empty() {
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
            assert_eq!(text(&[raw, body, raw].concat(), &[UNKNOWN]), [encoded, body, raw].concat());
            // Nothing changes if hyper reads on behind a head or sees another end.
            assert_eq!(text(&[raw, raw].concat(), &[NOT_READ]), [encoded, raw].concat());
        }
        let mut lines = RequestLines::new(true);
        let read = HeadsRead::new();
        let (mut buffer, head) = ([0; 100], b"GET / HTTP/1.1\r\nx");
        assert_eq!(lines.copy_head(head, &mut ReadBuf::new(&mut buffer)), head.len());
        read.0.store(0, Ordering::Release);
        assert_eq!(lines.next(&read), NextBytes::Rest);
        assert_eq!(RequestLines::new(false).next(&HeadsRead::new()), NextBytes::Rest);
    }

    proptest! {
        /// Requests with any bodies in any pieces change only in their first lines.
        #[test]
        fn bodies_come_as_they_are(
            requests in proptest::collection::vec((r#"[a-z"<>`?=]{1,12}"#, r#"[a"\r\n ]{0,20}"#, r#"["\r\nGET/ ]{0,40}"#), 1..6),
            room in 1_usize..40,
            pieces in 1_usize..80,
        ) {
            let (mut raw, mut expected, mut bodies) = (String::new(), String::new(), Vec::new());
            for (target, value, body) in &requests {
                // A line break in a value would begin another line.
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
