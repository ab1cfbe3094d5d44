//! Splits the streamed text of a view's answer, `{"total_rows":2,"offset":0,"rows":[...]}`, into rows.

use std::pin::Pin;

use flatbed_http::ReplyBody;
use hyper::body::{Body, Buf};

/// The approximate size of a page in bytes; a page has at least one row.
const PAGE_BYTES: usize = 64 * 1024;

/// The largest head of an answer in bytes; a longer one is an error.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// The text ended early, or is not a view's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TruncatedRows;

pub(crate) struct RowsText {
    body: ReplyBody,
    text: RowScanner,
}

/// The received text that is not yet consumed.
#[derive(Default)]
struct RowScanner {
    bytes: Vec<u8>,
    /// The start of the unconsumed rows, and the end of the scanned bytes.
    begin: usize,
    at: usize,
    /// The end of the last complete row.
    end: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    is_over: bool,
}

impl RowsText {
    pub(crate) fn new(body: ReplyBody) -> RowsText {
        RowsText { body, text: RowScanner::default() }
    }

    /// Returns the members before the rows as a JSON object.
    pub(crate) async fn head(&mut self) -> Result<String, TruncatedRows> {
        loop {
            if let Some(head) = self.text.head() {
                return Ok(head);
            }
            if self.text.bytes.len() > HEAD_BYTES_MAX || !self.read_more().await? {
                return Err(TruncatedRows);
            }
        }
    }

    /// Returns more rows as a JSON array, or `None` at the end. Call [`RowsText::head`] first.
    pub(crate) async fn next_page(&mut self) -> Result<Option<String>, TruncatedRows> {
        loop {
            self.text.scan();
            if let Some(page) = self.text.page() {
                return String::from_utf8(page).map(Some).map_err(|_| TruncatedRows);
            }
            if self.text.is_over {
                return Ok(None);
            }
            if !self.read_more().await? {
                return Err(TruncatedRows);
            }
        }
    }

    /// Waits for more text; false at the end.
    async fn read_more(&mut self) -> Result<bool, TruncatedRows> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
        let Some(frame) = frame else { return Ok(false) };
        if let Ok(mut data) = frame.map_err(|_| TruncatedRows)?.into_data() {
            while data.has_remaining() {
                let chunk = data.chunk();
                self.text.bytes.extend_from_slice(chunk);
                let count = chunk.len();
                data.advance(count);
            }
        }
        Ok(true)
    }
}

impl RowScanner {
    fn head(&mut self) -> Option<String> {
        const ROWS: &[u8] = b"\"rows\":[";
        let at = self.bytes.windows(ROWS.len()).position(|found| found == ROWS)?;
        let head = String::from_utf8_lossy(self.bytes.get(..at)?);
        let head = format!("{}}}", head.trim_end_matches(','));
        self.begin = at + ROWS.len();
        (self.at, self.end) = (self.begin, self.begin);
        Some(head)
    }

    /// Scans for the ends of rows until a page is full.
    fn scan(&mut self) {
        while !self.is_over && self.end - self.begin < PAGE_BYTES {
            let Some(byte) = self.bytes.get(self.at) else { return };
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b']' if self.depth == 0 => self.is_over = true,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.end = self.at;
                    }
                }
                _ => {}
            }
        }
    }

    fn page(&mut self) -> Option<Vec<u8>> {
        let rows = self.bytes.get(self.begin..self.end)?.trim_ascii_start();
        let rows = rows.strip_prefix(b",").unwrap_or(rows).trim_ascii();
        if rows.is_empty() {
            return None;
        }
        let page = [b"[", rows, b"]"].concat();
        // The rest is shorter than one row or one piece of the stream.
        self.bytes.drain(..self.end);
        self.at -= self.end;
        (self.begin, self.end) = (0, 0);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [&str; 4] =
        [r#"{"id":"a\"]}","key":[1,{"x":"\\"}]}"#, r#"{"key":null,"value":{}}"#, "{}", "{\"k\":\"é\"}"];

    /// The result does not depend on how the stream is split.
    #[test]
    fn rows_are_found_in_pieces() {
        let text = format!("{{\"total_rows\":4,\"offset\":0,\"rows\":[\r\n{}\r\n]}}\n", ROWS.join(",\r\n"));
        for size in [1, 2, 3, 7, 1_000] {
            let (mut taken, mut head, mut found) = (RowScanner::default(), None, String::new());
            for piece in text.as_bytes().chunks(size) {
                taken.bytes.extend_from_slice(piece);
                if head.is_none() {
                    head = taken.head();
                }
                if head.is_some() {
                    taken.scan();
                    while let Some(page) = taken.page() {
                        let page = String::from_utf8(page).unwrap();
                        assert!(serde_json::from_str::<serde_json::Value>(&page).is_ok(), "{page}");
                        found.push_str(page.trim_start_matches('[').trim_end_matches(']'));
                        found.push(';');
                        taken.scan();
                    }
                }
            }
            assert_eq!(head.as_deref(), Some(r#"{"total_rows":4,"offset":0}"#));
            assert!(taken.is_over, "{size}");
            assert_eq!(found.replace(";", ",\r\n").trim_end_matches(",\r\n"), ROWS.join(",\r\n"), "{size}");
        }
    }

    #[test]
    fn heads_without_members() {
        let mut taken = RowScanner { bytes: b"{\"rows\":[\r\n\r\n]}\n".to_vec(), ..RowScanner::default() };
        assert_eq!(taken.head().as_deref(), Some("{}"));
        taken.scan();
        assert!(taken.is_over && taken.page().is_none());
    }

    #[test]
    fn pages_are_bounded() {
        let row = format!("{{\"v\":\"{}\"}}", "x".repeat(1_000));
        let text = format!("{{\"rows\":[{}]}}", vec![row.as_str(); 1_000].join(","));
        let mut taken = RowScanner { bytes: text.into_bytes(), ..RowScanner::default() };
        taken.head().unwrap();
        let mut pages = 0;
        loop {
            taken.scan();
            let Some(page) = taken.page() else { break };
            assert!(page.len() < PAGE_BYTES + 2_000);
            pages += 1;
        }
        assert!(taken.is_over && pages > 10, "{pages}");
    }
}
