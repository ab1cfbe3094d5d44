//! Reads WebSocket frames without reading ahead.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const READ_BYTES: usize = 1_024;

/// The longest head of a frame (RFC 6455, 5.2): two bytes, up to eight of length, four of mask.
const HEAD_BYTES_MAX: usize = 14;

/// A stream whose reads never pass the end of a frame. After one message has been read, another reader can continue
/// with the rest of the stream.
#[derive(Debug)]
pub(crate) struct FrameStream<S> {
    stream: S,
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// The unread payload of the current frame, in bytes.
    left: u64,
}

impl<S> FrameStream<S> {
    pub(crate) fn new(stream: S) -> FrameStream<S> {
        FrameStream { stream, head: [0; HEAD_BYTES_MAX], head_bytes: 0, left: 0 }
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    fn parts(&self) -> (usize, usize) {
        let [_, second, ..] = self.head;
        let length = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        (length, if second & 0x80 == 0 { 0 } else { 4 })
    }

    fn missing(&self) -> u64 {
        match self.head_bytes {
            _ if self.left > 0 => self.left,
            begun @ (0 | 1) => 2 - begun as u64,
            begun => {
                let (length, mask) = self.parts();
                (2 + length + mask - begun) as u64
            }
        }
    }

    fn took(&mut self, bytes: &[u8]) {
        if self.left > 0 {
            self.left -= bytes.len() as u64;
            return;
        }
        for byte in bytes {
            if let Some(place) = self.head.get_mut(self.head_bytes) {
                *place = *byte;
            }
            self.head_bytes += 1;
        }
        if self.head_bytes < 2 {
            return;
        }
        let (length, mask) = self.parts();
        if self.head_bytes == 2 + length + mask {
            let [_, second, length_bytes @ ..] = self.head;
            self.left = match length {
                0 => u64::from(second & 0x7f),
                _ => length_bytes.iter().take(length).fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            };
            self.head_bytes = 0;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut room = [0; READ_BYTES];
        let most = into.remaining().min(READ_BYTES).min(usize::try_from(self.missing()).unwrap_or(READ_BYTES));
        let mut read = ReadBuf::new(room.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        self.took(read.filled());
        into.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(payload: &[u8], is_masked: bool, length_bytes: usize) -> Vec<u8> {
        let mask = if is_masked { 0x80 } else { 0 };
        let length = payload.len() as u64;
        let mut bytes = vec![0x81];
        match length_bytes {
            0 => bytes.push(mask | length as u8),
            2 => {
                bytes.push(mask | 126);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend_from_slice(&length.to_be_bytes());
            }
        }
        bytes.extend_from_slice(if is_masked { &[1, 2, 3, 4] } else { &[] });
        bytes.extend_from_slice(payload);
        bytes
    }

    proptest! {
        #[test]
        fn what_is_behind_a_frame_stays(
            payloads in proptest::collection::vec((0..2_000_usize, any::<bool>(), 0..3_usize), 1..5), room in 1..3_000_usize
        ) {
            let frames: Vec<Vec<u8>> = payloads
                .iter()
                .map(|(length, is_masked, form)| {
                    let length_bytes = if *length > 125 { [2, 8, 8][*form] } else { [0, 2, 8][*form] };
                    frame(&vec![7; *length], *is_masked, length_bytes)
                })
                .collect();
            let all = frames.concat();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut rest = all.as_slice();
                for frame in &frames {
                    let mut stream = FrameStream::new(rest);
                    let (mut found, mut buffer) = (Vec::new(), vec![0; room]);
                    while found.len() < frame.len() {
                        let read = stream.read(&mut buffer).await.unwrap();
                        assert!(read > 0);
                        found.extend_from_slice(&buffer[..read]);
                    }
                    assert_eq!(&found, frame);
                    rest = stream.into_inner();
                }
                assert!(rest.is_empty());
            });
        }
    }
}
