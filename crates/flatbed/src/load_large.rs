//! Loads a document whose attachments follow it in a dump: streams them to the server in `multipart/related`.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use flatbed_client::{Answer, Connection, Error, pieces};
use hyper::Method;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::dump_format::{FollowingAttachment, document_path};

/// The pieces of attachments that wait for the server.
const PIECES_WAITING_MAX: usize = 4;

/// A document with the pieces of its attachments as they are read from the dump.
pub(crate) struct LargeDocument {
    id: String,
    /// The message before each attachment's data, and its end.
    heads: Vec<Vec<u8>>,
    tail: Vec<u8>,
    boundary: String,
    length: u64,
    data: mpsc::Receiver<io::Result<Bytes>>,
    is_void: Arc<AtomicBool>,
    following: Vec<FollowingAttachment>,
}

/// The side of the reader.
pub(crate) struct LargeInput {
    following: std::vec::IntoIter<FollowingAttachment>,
    /// The bytes of the current attachment that are still to be read.
    left: u64,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    is_void: Arc<AtomicBool>,
}

/// Returns both sides of a document with its attachments. `None`: it has no id, or the system no random numbers.
pub(crate) fn large(document: &[u8], following: Vec<FollowingAttachment>) -> Option<(LargeDocument, LargeInput)> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).ok()?;
    let boundary: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let id = flatbed_client::split::member(document, "_id").and_then(|id| document.get(id.value))?;
    let Ok(Value::String(id)) = serde_json::from_slice(id) else { return None };
    let mut heads: Vec<Vec<u8>> = Vec::with_capacity(following.len());
    let mut before = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").into_bytes();
    before.extend_from_slice(document);
    for FollowingAttachment { name, content_type, length } in &following {
        // Without a file name the order decides, so a name that a header cannot hold is left out.
        let is_plain = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte));
        let file_name = if is_plain(name) { format!("; filename=\"{name}\"") } else { String::new() };
        let content_type = if is_plain(content_type) { content_type.as_str() } else { "application/octet-stream" };
        let head = format!(
            "\r\n--{boundary}\r\nContent-Disposition: attachment{file_name}\r\nContent-Type: {content_type}\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        before.extend_from_slice(head.as_bytes());
        heads.push(std::mem::take(&mut before));
    }
    before.extend_from_slice(format!("\r\n--{boundary}--").as_bytes());
    let lengths = heads.iter().chain([&before]).map(|text| text.len() as u64);
    let length = lengths.chain(following.iter().map(|part| part.length)).fold(0, u64::saturating_add);
    let (pieces, data) = mpsc::channel(PIECES_WAITING_MAX);
    let is_void = Arc::<AtomicBool>::default();
    let input = LargeInput { left: 0, following: following.clone().into_iter(), pieces, is_void: is_void.clone() };
    let document = LargeDocument { id, heads, tail: before, boundary, length, data, is_void, following };
    Some((document, input))
}

impl LargeInput {
    /// Begins with the first attachment that has data. Returns false if none is left.
    pub(crate) fn begin(&mut self) -> bool {
        self.advance()
    }

    fn advance(&mut self) -> bool {
        while self.left == 0 {
            match self.following.next() {
                Some(part) => self.left = part.length,
                None => return false,
            }
        }
        true
    }

    /// Takes the next piece. Returns true if more must follow; `None` if the piece is too long.
    pub(crate) fn push(&mut self, data: Vec<u8>) -> Option<bool> {
        self.left = self.left.checked_sub(data.len() as u64)?;
        // It fails if the server has answered already.
        let _ = self.pieces.blocking_send(Ok(data.into()));
        Some(self.advance())
    }

    /// Gives the document up: the dump has not all of it.
    pub(crate) fn give_up(self) {
        self.is_void.store(true, Ordering::Relaxed);
        let _ = self.pieces.blocking_send(Err(io::Error::other("the document is not complete")));
    }
}

/// An input that ends early gives its document up, so that its own error is reported.
impl Drop for LargeInput {
    fn drop(&mut self) {
        if self.left > 0 {
            self.is_void.store(true, Ordering::Relaxed);
        }
    }
}

impl LargeDocument {
    /// Returns the length of the request.
    pub(crate) fn bytes(&self) -> u64 {
        self.length
    }

    /// Sends the document into a database, whose path ends with a slash. Returns `None` if the reader gave it up.
    pub(crate) async fn send(self, connection: &mut Connection, database: &str) -> Result<Option<Answer>, Error> {
        let LargeDocument { id, heads, tail, boundary, length, mut data, is_void, following } = self;
        let (body, channel) = mpsc::channel(PIECES_WAITING_MAX);
        let feeder = tokio::spawn(async move {
            for (head, part) in heads.into_iter().zip(following) {
                let mut left = part.length;
                if body.send(Ok(head.into())).await.is_err() {
                    return;
                }
                while left > 0 {
                    let piece = match data.recv().await {
                        Some(piece) => piece,
                        None => Err(io::Error::other("the dump ends in an attachment")),
                    };
                    left = left.saturating_sub(piece.as_ref().map_or(left, |piece| piece.len() as u64));
                    let failed = piece.is_err();
                    if body.send(piece).await.is_err() || failed {
                        return;
                    }
                }
            }
            let _ = body.send(Ok(tail.into())).await;
        });
        let path = format!("{database}{}?new_edits=false", document_path(&id));
        let kind = format!("multipart/related; boundary=\"{boundary}\"");
        let answer = match connection.send_streamed(Method::PUT, &path, &kind, (length, pieces(channel))).await {
            Ok(response) => Answer::read(response).await,
            Err(error) => Err(error),
        };
        feeder.abort();
        match answer {
            Err(_) if is_void.load(Ordering::Relaxed) => Ok(None),
            answer => answer.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, length: u64) -> FollowingAttachment {
        FollowingAttachment { name: name.to_owned(), content_type: "a/b".to_owned(), length }
    }

    #[test]
    fn attachments_without_data_are_skipped() {
        let following = vec![part("a", 0), part("b", 3), part("c", 0), part("d", 1)];
        let (document, mut input) = large(br#"{"_id":"x"}"#, following).unwrap();
        assert_eq!((document.id.as_str(), document.heads.len()), ("x", 4));
        let texts = document.heads.iter().map(Vec::len).sum::<usize>() + document.tail.len();
        assert_eq!(document.length, texts as u64 + 4);
        assert!(input.begin());
        assert_eq!(input.push(vec![1, 2]), Some(true));
        assert_eq!(input.push(vec![3]), Some(true));
        assert_eq!(input.push(vec![4, 5]), None, "longer than its attachment");
        drop(input);
        assert!(document.is_void.load(Ordering::Relaxed));
        let (empty, mut input) = large(br#"{"_id":"x"}"#, vec![part("a", 0)]).unwrap();
        assert!(!input.begin());
        drop(input);
        assert!(!empty.is_void.load(Ordering::Relaxed));
        assert!(large(b"{}", Vec::new()).is_none());
    }
}
