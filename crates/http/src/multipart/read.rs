//! Parses a multipart body piece by piece. It keeps only the headers of a part or a piece of its data.
//!
//! The rules are those of RFC 2046, 5.1.1. A boundary counts at the beginning of a line if only blanks or two hyphens
//! follow it; similar text elsewhere is data. Text before the first part and after the last boundary is ignored.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem::Finder;

use crate::multipart::parameter;

const HEADERS_BYTES_MAX: usize = 16 * 1024;

const PREAMBLE_BYTES_MAX: usize = 16 * 1024;

const PADDING_BYTES_MAX: usize = 128;

/// The error of a malformed body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MultipartError {
    /// The body does not begin with a boundary.
    #[error("The multipart body has no boundary where one must be")]
    NoBoundary,
    /// The headers of a part are malformed or too long.
    #[error("The headers of a part of the multipart body are too long or cannot be read")]
    Headers,
    /// The body has no last boundary.
    #[error("The multipart body ends before its last boundary")]
    BrokenOff,
}

/// An event in a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A part begins.
    Part(PartHeaders),
    /// More data of the part; never empty.
    Data(Bytes),
    /// The part is complete.
    PartEnd,
    /// The body is complete.
    End,
}

/// The headers of a part, with names in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartHeaders(Vec<(String, String)>);

impl PartHeaders {
    /// Returns a header's value, by its name in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns a parameter of `Content-Disposition`, such as `filename`.
    pub fn disposition(&self, name: &str) -> Option<&str> {
        let (_, parameters) = self.get("content-disposition")?.split_once(';')?;
        parameter(parameters, name)
    }

    fn parse(bytes: &[u8]) -> Result<PartHeaders, MultipartError> {
        let text = std::str::from_utf8(bytes).map_err(|_| MultipartError::Headers)?;
        let mut headers: Vec<(String, String)> = Vec::new();
        for line in text.split("\r\n").filter(|line| !line.is_empty()) {
            match (line.strip_prefix([' ', '\t']), headers.last_mut(), line.split_once(':')) {
                // A continuation line.
                (Some(rest), Some((_, value)), _) => {
                    value.push(' ');
                    value.push_str(rest.trim());
                }
                (None, _, Some((name, value))) => {
                    headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
                }
                _ => return Err(MultipartError::Headers),
            }
        }
        Ok(PartHeaders(headers))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    Preamble,
    Headers,
    Data,
    Ending,
    End,
}

enum Step {
    Data(Bytes),
    Boundary,
    /// More bytes are needed.
    Wait,
}

/// The text behind a boundary.
enum BoundaryEnd {
    /// Another part, after this many bytes.
    Part(usize),
    /// The end of the body.
    End,
    /// Text that makes the boundary data.
    Data,
    /// More bytes are needed.
    Wait,
}

/// Parses a body that arrives in any pieces: the caller calls [`Parser::next`] until it returns `None`, then
/// [`Parser::push`]. The parser keeps the pushed bytes that were not returned, and at most the headers of a part
/// beyond that.
#[derive(Debug)]
pub(crate) struct Parser {
    delimiter: Finder<'static>,
    buffer: BytesMut,
    state: ParserState,
    passed: usize,
}

impl Parser {
    pub(crate) fn new(boundary: &str) -> Parser {
        // The first boundary is then also preceded by a line break.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        let delimiter = Finder::new(&format!("\r\n--{boundary}")).into_owned();
        Parser { delimiter, buffer, state: ParserState::Preamble, passed: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, ParserState::Ending | ParserState::End) {
            self.buffer.extend_from_slice(bytes);
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Event>, MultipartError> {
        loop {
            match self.state {
                ParserState::Preamble => match self.step() {
                    Step::Wait => return Ok(None),
                    Step::Boundary => {}
                    Step::Data(bytes) => {
                        self.passed += bytes.len();
                        if self.passed > PREAMBLE_BYTES_MAX {
                            return Err(MultipartError::NoBoundary);
                        }
                    }
                },
                ParserState::Headers => return Ok(self.headers()?.map(Event::Part)),
                ParserState::Data => {
                    return Ok(match self.step() {
                        Step::Wait => None,
                        Step::Boundary => Some(Event::PartEnd),
                        Step::Data(bytes) => Some(Event::Data(bytes)),
                    });
                }
                ParserState::Ending => {
                    self.state = ParserState::End;
                    return Ok(Some(Event::End));
                }
                ParserState::End => return Ok(None),
            }
        }
    }

    fn step(&mut self) -> Step {
        let delimiter_bytes = self.delimiter.needle().len();
        let data_bytes = match self.delimiter.find(&self.buffer) {
            Some(0) => match self.behind(delimiter_bytes) {
                BoundaryEnd::Wait => 0,
                // Two delimiters cannot overlap, because a boundary contains no line break.
                BoundaryEnd::Data => delimiter_bytes,
                BoundaryEnd::Part(behind) => {
                    self.buffer.advance(delimiter_bytes + behind);
                    self.state = ParserState::Headers;
                    return Step::Boundary;
                }
                BoundaryEnd::End => {
                    self.buffer.clear();
                    self.state = ParserState::Ending;
                    return Step::Boundary;
                }
            },
            Some(at) => at,
            // The rest may be the beginning of a delimiter.
            None => (self.buffer.len() + 1).saturating_sub(delimiter_bytes),
        };
        match data_bytes {
            0 => Step::Wait,
            bytes => Step::Data(self.buffer.split_to(bytes).freeze()),
        }
    }

    fn behind(&self, delimiter_bytes: usize) -> BoundaryEnd {
        let behind = self.buffer.get(delimiter_bytes..).unwrap_or_default();
        let blanks = behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let rest = behind.get(blanks..).unwrap_or_default();
        match rest {
            _ if blanks > PADDING_BYTES_MAX => BoundaryEnd::Data,
            [b'\r', b'\n', ..] => BoundaryEnd::Part(blanks + 2),
            [b'-', b'-', ..] if blanks == 0 => BoundaryEnd::End,
            [] | [b'\r'] => BoundaryEnd::Wait,
            [b'-'] if blanks == 0 => BoundaryEnd::Wait,
            _ => BoundaryEnd::Data,
        }
    }

    fn headers(&mut self) -> Result<Option<PartHeaders>, MultipartError> {
        const END: &[u8] = b"\r\n\r\n";
        let (headers, bytes) = if self.buffer.starts_with(b"\r\n") {
            (PartHeaders::default(), 2)
        } else {
            match memchr::memmem::find(&self.buffer, END) {
                Some(at) if at <= HEADERS_BYTES_MAX => {
                    (PartHeaders::parse(self.buffer.get(..at).unwrap_or_default())?, at + END.len())
                }
                None if self.buffer.len() < HEADERS_BYTES_MAX + END.len() => return Ok(None),
                _ => return Err(MultipartError::Headers),
            }
        };
        // The line break before the data is part of the delimiter if a boundary follows at once.
        self.buffer.advance(bytes);
        self.state = ParserState::Data;
        Ok(Some(headers))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the parts of a body that arrives in pieces which end at `cuts`, or its error.
    fn parts(boundary: &str, body: &[u8], cuts: &[usize]) -> Result<Vec<(PartHeaders, Vec<u8>)>, MultipartError> {
        let mut parser = Parser::new(boundary);
        let mut parts = Vec::new();
        let (mut from, mut is_ended) = (0, false);
        for to in cuts.iter().copied().chain([body.len()]) {
            let to = to.clamp(from, body.len());
            parser.push(&body[from..to]);
            let pushed = to - from;
            from = to;
            while let Some(event) = parser.next()? {
                match event {
                    Event::Part(headers) => parts.push((headers, Vec::new())),
                    Event::Data(bytes) => {
                        assert!(!bytes.is_empty());
                        parts.last_mut().expect("data is in a part").1.extend_from_slice(&bytes);
                    }
                    Event::PartEnd => {}
                    Event::End => is_ended = true,
                }
            }
            let kept_max = pushed.max(HEADERS_BYTES_MAX + PADDING_BYTES_MAX + 100);
            assert!(parser.buffer.len() <= kept_max, "{} bytes are kept", parser.buffer.len());
        }
        if is_ended { Ok(parts) } else { Err(MultipartError::BrokenOff) }
    }

    fn headers(list: &[(&str, &str)]) -> PartHeaders {
        PartHeaders(list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn what_counts_as_a_boundary() {
        let body = b"before\r\n--b \t\r\nContent-Type: x;\r\n y\r\nA:1\r\n\r\none\r\n--bb\r\n--b-\r\n --b\r\n--b\r\n\r\n\r\n--b--behind";
        let expected = vec![
            (headers(&[("content-type", "x; y"), ("a", "1")]), b"one\r\n--bb\r\n--b-\r\n --b".to_vec()),
            (headers(&[]), Vec::new()),
        ];
        assert_eq!(parts("b", body, &[]), Ok(expected.clone()));
        assert_eq!(parts("b", body, &(0..body.len()).collect::<Vec<_>>()), Ok(expected));
        assert_eq!(parts("b", b"--b--", &[]), Ok(Vec::new()));
    }

    #[test]
    fn hostile_bodies() {
        use MultipartError::{BrokenOff, Headers, NoBoundary};
        let long = |begin: &str, middle: &str, end: &str| format!("{begin}{}{end}", middle.repeat(20_000)).into_bytes();
        for (body, error) in [
            (b"".to_vec(), BrokenOff),
            (b"{}".to_vec(), BrokenOff),
            (b"--b\r\n\r\ndata\r\n--b-".to_vec(), BrokenOff),
            (b"--b\r\nno colon\r\n\r\n\r\n--b--".to_vec(), Headers),
            (b"--b\r\n goes on: x\r\n\r\n\r\n--b--".to_vec(), Headers),
            (b"--b\r\nx: \xff\r\n\r\n\r\n--b--".to_vec(), Headers),
            (long("--b\r\nx: ", "y", "\r\n\r\n\r\n--b--"), Headers),
            (long("--b\r\n", "x: y\r\n", "\r\n\r\n--b--"), Headers),
            (long("", "x", "\r\n--b--"), NoBoundary),
            (long("--b", " ", "\r\n\r\n\r\n--b--"), NoBoundary),
        ] {
            for cut in [1, 7, 5_000, usize::MAX] {
                let cuts: Vec<usize> =
                    (1..).map(|n: usize| n.saturating_mul(cut)).take_while(|at| *at < body.len()).collect();
                assert_eq!(
                    parts("b", &body, &cuts),
                    Err(error),
                    "{}",
                    String::from_utf8_lossy(&body[..body.len().min(40)])
                );
            }
        }
    }

    fn soup() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "\r",
            "\n",
            "\r\n",
            "-",
            "--",
            "b",
            "bb",
            " ",
            ":",
            "\r\n--bb",
            "\r\n--bb\r\n",
            "\0",
            "é",
        ]);
        prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn any_cuts_give_the_same(body in soup(), mut cuts in prop::collection::vec(0..200usize, 0..20)) {
            cuts.sort_unstable();
            let body = [b"--bb\r\n\r\n", body.as_slice(), b"\r\n--bb--"].concat();
            let whole = parts("bb", &body, &[]);
            prop_assert_eq!(parts("bb", &body, &cuts), whole.clone());
            prop_assert_eq!(parts("bb", &body, &(0..body.len()).collect::<Vec<_>>()), whole);
        }

        #[test]
        fn what_was_written_is_read(
            datas in prop::collection::vec(soup().prop_filter("has no boundary", |data| {
                !memchr::memmem::find_iter(&[b"\r\n", data.as_slice()].concat(), "\r\n--a").any(|_| true)
            }), 1..5),
            mut cuts in prop::collection::vec(0..500usize, 0..20),
        ) {
            cuts.sort_unstable();
            let mut body = Vec::new();
            for data in &datas {
                body.extend_from_slice(b"--a\r\nContent-Type: text/plain\r\n\r\n");
                body.extend_from_slice(data);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"--a--");
            let expected = datas.into_iter().map(|data| (headers(&[("content-type", "text/plain")]), data)).collect();
            prop_assert_eq!(parts("a", &body, &cuts), Ok(expected));
        }
    }
}
