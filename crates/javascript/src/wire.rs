//! Frames between the server and an engine process: a length of four bytes, then the content.
//!
//! Numbers are little-endian; texts and lists are preceded by their length. A process may send anything: readers
//! allocate no more than was received, and return `None` for malformed content.

use std::io::{self, Read, Write};

const HEAD: usize = 4;

/// The size of a reader's buffer without a large frame.
const BUFFER_BYTES: usize = 64 << 10;

/// A buffer that has grown beyond this is freed after its frame.
const KEPT_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameError {
    Late,
    Malformed,
    /// The other side closed the socket.
    Gone,
}

pub(crate) struct Frame(Vec<u8>);

impl Frame {
    pub(crate) fn begin(mut buffer: Vec<u8>) -> Frame {
        buffer.clear();
        buffer.extend_from_slice(&[0; HEAD]);
        Frame(buffer)
    }

    pub(crate) fn byte(&mut self, byte: u8) -> &mut Frame {
        self.0.push(byte);
        self
    }

    pub(crate) fn flag(&mut self, is: bool) -> &mut Frame {
        self.byte(u8::from(is))
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Frame {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// Writes a count, an index or a length. A value beyond 32 bits makes the frame invalid.
    pub(crate) fn count(&mut self, count: usize) -> &mut Frame {
        self.0.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Frame {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Frame {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Frame, T),
    ) -> &mut Frame {
        self.count(items.len());
        for item in items {
            write(self, item);
        }
        self
    }

    pub(crate) fn texts<'t>(&mut self, texts: impl ExactSizeIterator<Item = &'t String>) -> &mut Frame {
        self.list(texts, |frame, text| {
            frame.text(text);
        })
    }

    pub(crate) fn maybe_text(&mut self, text: Option<&str>) -> &mut Frame {
        self.flag(text.is_some());
        if let Some(text) = text {
            self.text(text);
        }
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len() - HEAD
    }

    /// Returns the whole frame with its length, or `None` if it is too long.
    pub(crate) fn end(&mut self) -> Option<&[u8]> {
        let length = u32::try_from(self.len()).ok()?;
        self.0.first_chunk_mut::<HEAD>()?.copy_from_slice(&length.to_le_bytes());
        Some(&self.0)
    }

    /// Sends the frame. Checks `is_late` while the receiver does not take all of it.
    pub(crate) fn send(&mut self, to: &mut impl Write, is_late: &mut dyn FnMut() -> bool) -> Result<(), FrameError> {
        let mut rest = self.end().ok_or(FrameError::Malformed)?;
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(0) => return Err(FrameError::Gone),
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_pause(&error) => {}
                Err(_) => return Err(FrameError::Gone),
            }
            if !rest.is_empty() && is_late() {
                return Err(FrameError::Late);
            }
        }
        Ok(())
    }

    pub(crate) fn into_buffer(self) -> Vec<u8> {
        if self.0.capacity() > KEPT_BYTES_MAX { Vec::new() } else { self.0 }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    have: usize,
    /// The end of the last frame. Later bytes belong to the next one.
    end: usize,
}

impl Buffer {
    pub(crate) fn trim(&mut self) {
        if self.bytes.len() > KEPT_BYTES_MAX {
            self.bytes = self.bytes.get(self.end..self.have).unwrap_or_default().to_vec();
            (self.have, self.end) = (self.bytes.len(), 0);
        }
    }

    /// Receives a frame of at most `max` bytes and keeps bytes of the next one. Checks `is_late` after each read that
    /// did not complete the frame.
    pub(crate) fn receive(
        &mut self,
        from: &mut impl Read,
        max: usize,
        is_late: &mut dyn FnMut() -> bool,
    ) -> Result<&[u8], FrameError> {
        self.bytes.copy_within(self.end..self.have, 0);
        (self.have, self.end) = (self.have - self.end, 0);
        if self.bytes.len() < BUFFER_BYTES {
            self.bytes.resize(BUFFER_BYTES, 0);
        }
        let mut was_read = false;
        loop {
            let need = self.need(max)?;
            if need.is_some_and(|need| self.have >= need) {
                break;
            }
            if std::mem::replace(&mut was_read, true) && is_late() {
                return Err(FrameError::Late);
            }
            if self.have == self.bytes.len() {
                self.bytes.resize(need.unwrap_or(HEAD).min(2 * self.have), 0);
            }
            match from.read(self.bytes.get_mut(self.have..).unwrap_or_default()) {
                Ok(0) => return Err(FrameError::Gone),
                Ok(more) => self.have += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_pause(&error) => {}
                Err(_) => return Err(FrameError::Gone),
            }
        }
        self.end = self.need(max)?.unwrap_or(HEAD);
        self.bytes.get(HEAD..self.end).ok_or(FrameError::Malformed)
    }

    pub(crate) fn has_more(&self) -> bool {
        self.have > self.end
    }

    /// Returns the size of the frame, or `None` until its length has arrived.
    fn need(&self, max: usize) -> Result<Option<usize>, FrameError> {
        let Some(head) = self.bytes.first_chunk::<HEAD>().filter(|_| self.have >= HEAD) else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if length > max { Err(FrameError::Malformed) } else { Ok(Some(HEAD.saturating_add(length))) }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameReader<'f>(&'f [u8]);

impl<'f> FrameReader<'f> {
    pub(crate) fn of(frame: &'f [u8]) -> FrameReader<'f> {
        FrameReader(frame)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    pub(crate) fn count(&mut self) -> Option<usize> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        usize::try_from(u32::from_le_bytes(*first)).ok()
    }

    pub(crate) fn bytes(&mut self) -> Option<&'f [u8]> {
        let length = self.count()?;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn text(&mut self) -> Option<&'f str> {
        str::from_utf8(self.bytes()?).ok()
    }

    pub(crate) fn owned(&mut self) -> Option<String> {
        self.text().map(str::to_owned)
    }

    pub(crate) fn maybe<T>(&mut self, one: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { one(self).map(Some) } else { Some(None) }
    }

    /// Reads a list. Each item takes at least a byte, so the count is bounded by the received bytes. A value may take
    /// 100 times its bytes, so content from a process is read by [`FrameReader::list_of`].
    pub(crate) fn list<T, C: Default + Extend<T>>(&mut self, one: impl FnMut(&mut Self) -> Option<T>) -> Option<C> {
        self.list_of(usize::MAX, one)
    }

    pub(crate) fn list_of<T, C: Default + Extend<T>>(
        &mut self,
        max: usize,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<C> {
        let count = self.count()?;
        if count > self.0.len().min(max) {
            return None;
        }
        let mut all = C::default();
        for _ in 0..count {
            all.extend([one(self)?]);
        }
        Some(all)
    }

    pub(crate) fn is_end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pieces<'p>(&'p [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Pieces(rest, size) = self;
            if rest.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = rest.len().min(*size).min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            *rest = &rest[count..];
            Ok(count)
        }
    }

    #[test]
    fn frames_come_as_they_were_sent_however_they_are_cut() {
        for size in [0, 1, BUFFER_BYTES - HEAD - 4, BUFFER_BYTES, 5 * KEPT_BYTES_MAX] {
            let mut frame = Frame::begin(vec![1, 2, 3]);
            frame.bytes(&vec![7; size]);
            let sent = frame.end().unwrap().to_vec();
            for pieces in [3, 1 << 16, usize::MAX] {
                if pieces == 3 && size > BUFFER_BYTES {
                    continue;
                }
                let mut buffer = Buffer::default();
                let frame = buffer.receive(&mut Pieces(&sent, pieces), size + 4, &mut || false).unwrap();
                let mut rest = FrameReader::of(frame);
                assert!(rest.bytes() == Some(&vec![7; size]) && rest.is_end(), "{size} in {pieces}");
            }
        }
    }

    #[test]
    fn what_comes_behind_a_frame_is_the_next_one() {
        let mut sent = Vec::new();
        for size in [1, 0, 5 * KEPT_BYTES_MAX, 7, 9] {
            let mut frame = Frame::begin(Vec::new());
            frame.bytes(&vec![7; size]);
            sent.extend_from_slice(frame.end().unwrap());
        }
        let (mut buffer, mut from) = (Buffer::default(), Pieces(&sent, usize::MAX));
        for size in [1, 0, 5 * KEPT_BYTES_MAX, 7, 9] {
            let frame = buffer.receive(&mut from, usize::MAX, &mut || false).unwrap();
            let mut rest = FrameReader::of(frame);
            assert!(rest.bytes() == Some(&vec![7; size]) && rest.is_end(), "{size}");
            assert_eq!(buffer.has_more(), size != 9 && size != 5 * KEPT_BYTES_MAX, "{size}");
            buffer.trim();
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_and_takes_no_memory() {
        let broken = |bytes: &[u8]| {
            let mut buffer = Buffer::default();
            let broken = buffer.receive(&mut Pieces(bytes, 100), 1 << 20, &mut || true).unwrap_err();
            assert!(buffer.bytes.len() <= BUFFER_BYTES);
            broken
        };
        assert_eq!(broken(&[255; 8]), FrameError::Malformed);
        assert_eq!(broken(&[1, 0]), FrameError::Late);
        assert_eq!(broken(&[0, 0, 15, 0, 7]), FrameError::Late);
        assert_eq!(Buffer::default().receive(&mut &[1, 0, 0, 0][..], 9, &mut || false), Err(FrameError::Gone));
        assert_eq!(FrameReader::of(&[255; 4]).list::<u8, Vec<u8>>(FrameReader::byte), None);
        let two = [2, 0, 0, 0, 7, 8];
        assert_eq!(FrameReader::of(&two).list_of::<u8, Vec<u8>>(2, FrameReader::byte), Some(vec![7, 8]));
        assert_eq!(FrameReader::of(&two).list_of::<u8, Vec<u8>>(1, FrameReader::byte), None);
    }
}
