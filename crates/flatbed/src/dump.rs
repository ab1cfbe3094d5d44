//! `flatbed dump`: a running server's documents to stdout, one a line.

use std::io::{self, BufWriter, Write};

use bytes::Bytes;
use flatbed_client::{
    Connection, Url, encode_segment,
    split::{SplitError, Splitter, member, without},
};
use http_body_util::BodyExt;
use hyper::Method;

use crate::{
    cli::Dump,
    progress::{self, Progress, Unit},
};

const ROW_BYTES_MAX: usize = 64 << 20;
/// `{"total_rows":N,"offset":N,"rows":[` is far shorter.
const HEAD_BYTES_MAX: usize = 4096;

/// Why a dump is not complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    /// The connection or the request failed.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// The connection broke in the middle of the answer.
    #[error("the server's answer broke off: {0}")]
    Body(#[from] hyper::Error),
    /// The server does not give the documents.
    #[error("the server refuses: {status} {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The answer's text.
        text: String,
    },
    /// Not the answer that CouchDB's API gives.
    #[error("the server's answer is no list of documents")]
    Answer,
    /// A row that is no row, or an answer without its end.
    #[error("the server's answer is malformed: {0}")]
    Row(#[from] SplitError),
    /// Stdout is closed or full.
    #[error("stdout: {0}")]
    Write(#[from] io::Error),
}

/// Writes all documents of the database, ordered by `_id`, with a summary on stderr.
///
/// # Errors
/// [`DumpError`]; what was written before it is not the whole database.
pub(crate) async fn dump(options: &Dump, url: &Url) -> Result<(), DumpError> {
    let path = format!("/{}/_all_docs?include_docs=true", encode_segment(&options.database));
    let mut connection = Connection::open(url).await?;
    let response = connection.send(Method::GET, &path, Bytes::new()).await?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    if status != 200 {
        let body = body.frame().await.transpose()?.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
        return Err(DumpError::Refused { status, text: flatbed_client::Answer { status, body }.text() });
    }

    let mut progress = Progress::new(format!("dump {}", options.database), Unit::Documents, None);
    let mut output = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    let mut head = Vec::new();
    let mut rows: Option<Splitter> = None;
    let mut written = 0_u64;
    while let Some(frame) = body.frame().await.transpose()? {
        let Ok(data) = frame.into_data() else { continue };
        let splitter = match &mut rows {
            Some(splitter) => {
                splitter.push(&data);
                splitter
            }
            None => {
                head.extend_from_slice(&data);
                let Some(at) = rows_start(&head) else {
                    if head.len() > HEAD_BYTES_MAX {
                        return Err(DumpError::Answer);
                    }
                    continue;
                };
                if let Some(total) = total_rows(&head[..at]) {
                    progress.set_total(total);
                }
                let splitter = rows.insert(Splitter::inside_array(ROW_BYTES_MAX));
                splitter.push(&head[at..]);
                splitter
            }
        };
        while let Some(row) = splitter.next_object()? {
            if let Some(document) = document(row.text) {
                write_line(&mut output, document, options.no_rev)?;
                written += 1;
            }
        }
        progress.draw(written, written);
    }
    rows.ok_or(DumpError::Answer)?.finish()?;
    output.flush()?;
    progress.clear();
    let seconds = progress.elapsed().as_secs_f64();
    eprintln!("{written} documents dumped in {seconds:.1} s ({}/s)", progress::rate(written, progress.elapsed()));
    Ok(())
}

fn rows_start(head: &[u8]) -> Option<usize> {
    const MARK: &[u8] = b"\"rows\":[";
    head.windows(MARK.len()).take(HEAD_BYTES_MAX).position(|window| window == MARK).map(|at| at + MARK.len())
}

fn total_rows(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?;
    let (_, rest) = text.split_once("\"total_rows\":")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The document of a row; `None` if it was deleted since the row was written.
fn document(row: &[u8]) -> Option<&[u8]> {
    let value = &row[member(row, "doc")?.value];
    value.starts_with(b"{").then_some(value)
}

fn write_line(output: &mut impl Write, document: &[u8], no_rev: bool) -> io::Result<()> {
    let document = if no_rev { without(document, "_rev") } else { document.into() };
    // A line end in JSON text is white space between tokens: strings have theirs escaped.
    for part in document.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
        match part {
            [text @ .., b'\n' | b'\r'] => {
                output.write_all(text)?;
                output.write_all(b" ")?;
            }
            text => output.write_all(text)?,
        }
    }
    output.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let head = b"{\"total_rows\":12,\"offset\":0,\"rows\":[\r\n{";
        let at = rows_start(head).unwrap();
        assert_eq!((total_rows(&head[..at]), &head[at..]), (Some(12), &b"\r\n{"[..]));
        assert_eq!(rows_start(b"{\"error\":\"x\"}"), None);
    }

    #[test]
    fn lines() {
        let written = |text: &[u8], no_rev| {
            let mut output = Vec::new();
            write_line(&mut output, text, no_rev).unwrap();
            String::from_utf8(output).unwrap()
        };
        assert_eq!(written(b"{\"_id\":\"a\",\"_rev\":\"1-b\"}", false), "{\"_id\":\"a\",\"_rev\":\"1-b\"}\n");
        assert_eq!(written(b"{\"_id\":\"a\",\"_rev\":\"1-b\"}", true), "{\"_id\":\"a\"}\n");
        assert_eq!(written(b"{\r\n\"a\":1}", false), "{  \"a\":1}\n");
        assert_eq!(document(br#"{"id":"a","value":{"rev":"1-b","deleted":true},"doc":null}"#), None);
    }
}
