//! The PROXY protocol, versions 1 and 2 (HAProxy's `proxy-protocol.txt`): the header with the client's address that a
//! proxy sends first on a connection.
//!
//! It is read only where the settings expect it. The server never guesses whether a connection begins with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The shortest length of both versions.
const FIRST_BYTES: usize = 12;

/// The fixed part of version 2: the signature, version and command, family, length.
const HEAD_BYTES: usize = 16;

/// The longest line of version 1, with its end.
const LINE_BYTES_MAX: usize = 107;

/// The longest variable part of version 2: addresses and further fields.
const REST_BYTES_MAX: usize = 4_096;

/// The type of version 2's TLS field, and its bit for a client that used TLS.
const TYPE_SSL: u8 = 0x20;
const CLIENT_SSL: u8 = 0x01;

/// The content of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// The proxy's own connection, such as a health check.
    Local,
    /// A connection of a client.
    Client {
        /// The client's address; `None`: unknown, or of another family.
        address: Option<SocketAddr>,
        /// True if the client used TLS.
        is_secure: bool,
    },
}

/// The progress of reading a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// At least this many bytes are missing; reading them consumes none of the following data.
    Needs(usize),
    /// Complete: all bytes belong to the header.
    Complete(Header),
}

/// The error for bytes that are not a header of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed header of the PROXY protocol")]
pub struct MalformedHeader;

/// Parses the bytes that have arrived, which [`Progress::Needs`] requested before.
///
/// # Errors
/// [`MalformedHeader`], as soon as it is certain.
pub fn read(bytes: &[u8]) -> Result<Progress, MalformedHeader> {
    let needs = |all: usize| Ok(Progress::Needs(all.saturating_sub(bytes.len()).max(1)));
    if bytes.len() < FIRST_BYTES {
        return needs(FIRST_BYTES);
    }
    if bytes.starts_with(b"PROXY ") {
        return match bytes.strip_suffix(b"\r\n") {
            Some(line) if bytes.len() <= LINE_BYTES_MAX => Ok(Progress::Complete(line_of(line)?)),
            _ if bytes.len() >= LINE_BYTES_MAX => Err(MalformedHeader),
            _ => needs(bytes.len() + 1),
        };
    }
    if !bytes.starts_with(&SIGNATURE) {
        return Err(MalformedHeader);
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return needs(HEAD_BYTES) };
    let [.., command, family, high, low] = *head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > REST_BYTES_MAX {
        return Err(MalformedHeader);
    }
    if rest.len() < length {
        return needs(HEAD_BYTES + length);
    }
    if rest.len() > length {
        return Err(MalformedHeader);
    }
    match command {
        0x20 => Ok(Progress::Complete(Header::Local)),
        0x21 => binary(family, rest).map(Progress::Complete),
        _ => Err(MalformedHeader),
    }
}

/// Parses version 1: `PROXY TCP4 192.0.2.1 192.0.2.2 1234 80`.
fn line_of(line: &[u8]) -> Result<Header, MalformedHeader> {
    let line = std::str::from_utf8(line).map_err(|_| MalformedHeader)?;
    let mut words = line.split(' ');
    let _ = words.next();
    let family = words.next();
    if family == Some("UNKNOWN") {
        return Ok(Header::Client { address: None, is_secure: false });
    }
    let (Some(from), Some(to), Some(from_port), Some(to_port), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Err(MalformedHeader);
    };
    let address = |text: &str| {
        let address: IpAddr = text.parse().map_err(|_| MalformedHeader)?;
        let is_of_family = if address.is_ipv4() { family == Some("TCP4") } else { family == Some("TCP6") };
        is_of_family.then_some(address).ok_or(MalformedHeader)
    };
    let port = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u16>().map_err(|_| MalformedHeader),
        false => Err(MalformedHeader),
    };
    let (from, from_port, _, _) = (address(from)?, port(from_port)?, address(to)?, port(to_port)?);
    Ok(Header::Client { address: Some(SocketAddr::new(from, from_port)), is_secure: false })
}

/// Parses version 2 after its fixed part.
fn binary(family: u8, rest: &[u8]) -> Result<Header, MalformedHeader> {
    let (address, fields) = match family {
        0x11 | 0x12 => {
            let (addresses, fields) = rest.split_first_chunk::<12>().ok_or(MalformedHeader)?;
            let [a, b, c, d, _, _, _, _, high, low, ..] = *addresses;
            let address = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
            (Some(SocketAddr::new(address, u16::from_be_bytes([high, low]))), fields)
        }
        0x21 | 0x22 => {
            let (from, after) = rest.split_first_chunk::<16>().ok_or(MalformedHeader)?;
            let (_, after) = after.split_first_chunk::<16>().ok_or(MalformedHeader)?;
            let (ports, fields) = after.split_first_chunk::<4>().ok_or(MalformedHeader)?;
            let [high, low, ..] = *ports;
            let address = IpAddr::V6(Ipv6Addr::from(*from));
            (Some(SocketAddr::new(address, u16::from_be_bytes([high, low]))), fields)
        }
        // Unix sockets.
        0x31 | 0x32 => (None, rest.get(216..).ok_or(MalformedHeader)?),
        // The fields of other families begin at an unknown offset.
        _ => (None, [].as_slice()),
    };
    Ok(Header::Client { address, is_secure: is_secure(fields)? })
}

/// Returns whether a field reports that the client used TLS.
fn is_secure(mut fields: &[u8]) -> Result<bool, MalformedHeader> {
    let mut is_secure = false;
    while let Some((&[kind, high, low], rest)) = fields.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (value, after) = rest.split_at_checked(length).ok_or(MalformedHeader)?;
        if kind == TYPE_SSL {
            is_secure = value.first().is_some_and(|client| client & CLIENT_SSL != 0);
        }
        fields = after;
    }
    if fields.is_empty() { Ok(is_secure) } else { Err(MalformedHeader) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a header from these bytes and returns it with the remaining bytes.
    fn read_all(bytes: &[u8]) -> Result<(Header, &[u8]), Option<MalformedHeader>> {
        let mut count = 0;
        loop {
            match read(&bytes[..count]).map_err(Some)? {
                Progress::Needs(more) => {
                    assert!(more > 0);
                    count += more;
                    if count > bytes.len() {
                        return Err(None);
                    }
                }
                Progress::Complete(header) => return Ok((header, &bytes[count..])),
            }
        }
    }

    fn client(address: &str) -> Header {
        Header::Client { address: Some(address.parse().unwrap()), is_secure: false }
    }

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn lines() {
        let told = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\nGET / HTTP/1.1\r\n";
        assert_eq!(read_all(told), Ok((client("192.0.2.1:56324"), &b"GET / HTTP/1.1\r\n"[..])));
        let told = b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n";
        assert_eq!(read_all(told), Ok((client("[2001:db8::1]:1"), &b""[..])));
        let unknown = Header::Client { address: None, is_secure: false };
        for told in [&b"PROXY UNKNOWN\r\n"[..], b"PROXY UNKNOWN ffff::1 whatever stands here\r\n"] {
            assert_eq!(read_all(told), Ok((unknown, &b""[..])));
        }
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(LINE_BYTES_MAX - 16));
        assert_eq!((longest.len(), read_all(longest.as_bytes())), (LINE_BYTES_MAX, Ok((unknown, &b""[..]))));
    }

    #[test]
    fn lines_that_are_none() {
        for told in [
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            "PROXY TCP4 ::1 ::1 1 2\r\n".to_owned(),
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n".to_owned(),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n".to_owned(),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n".to_owned(),
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n".to_owned(),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n".to_owned(),
            "PROXY TCP4 192.0.2.1  192.0.2.2 1 2\r\n".to_owned(),
            "PROXY TCP9 192.0.2.1 192.0.2.2 1 2\r\n".to_owned(),
            "PROXY  \r\n\r\n\r\n".to_owned(),
            format!("PROXY UNKNOWN {}\r\n", "f".repeat(LINE_BYTES_MAX - 15)),
            format!("PROXY {}", "f".repeat(10_000)),
        ] {
            assert_eq!(read_all(told.as_bytes()), Err(Some(MalformedHeader)), "{told}");
        }
        assert_eq!(read_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r"), Err(None));
    }

    #[test]
    fn binary_headers() {
        let v4 = [192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x34, 0, 80];
        let mut told = v2(0x21, 0x11, &v4);
        told.extend(b"GET");
        assert_eq!(read_all(&told), Ok((client("192.0.2.1:4660"), &b"GET"[..])));
        let mut v6 = [0; 36];
        v6[15] = 1;
        v6[33] = 9;
        assert_eq!(read_all(&v2(0x21, 0x21, &v6)), Ok((client("[::1]:9"), &b""[..])));
        assert_eq!(read_all(&v2(0x20, 0, &[])), Ok((Header::Local, &b""[..])));
        assert_eq!(read_all(&v2(0x20, 0x11, &v4)), Ok((Header::Local, &b""[..])));
        let none = Header::Client { address: None, is_secure: false };
        assert_eq!(read_all(&v2(0x21, 0, &[1, 2, 3])), Ok((none, &b""[..])));
        assert_eq!(read_all(&v2(0x21, 0x31, &[0; 216])), Ok((none, &b""[..])));
    }

    #[test]
    fn what_a_proxy_says_of_tls() {
        let of = |fields: &[u8]| {
            let told = v2(0x21, 0x11, &[&[192, 0, 2, 1, 0, 0, 0, 0, 0, 1, 0, 2], fields].concat());
            read_all(&told).map(|(header, _)| matches!(header, Header::Client { is_secure: true, .. }))
        };
        assert_eq!(of(&[0x20, 0, 5, 1, 0, 0, 0, 0]), Ok(true));
        assert_eq!(of(&[0x04, 0, 1, 9, 0x20, 0, 5, 7, 0, 0, 0, 0, 0x04, 0, 0]), Ok(true));
        assert_eq!(of(&[0x20, 0, 5, 2, 0, 0, 0, 0]), Ok(false));
        assert_eq!(of(&[0x04, 0, 1, 1]), Ok(false));
        for cut in [&[0x20][..], &[0x20, 0], &[0x20, 0, 2, 1], &[0x04, 0, 1, 9, 1]] {
            assert_eq!(of(cut), Err(Some(MalformedHeader)), "{cut:?}");
        }
    }

    #[test]
    fn binary_headers_that_are_none() {
        for told in [
            v2(0x11, 0x11, &[0; 12]),
            v2(0x22, 0x11, &[0; 12]),
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x31, &[0; 215]),
            v2(0x21, 0x11, &[0; REST_BYTES_MAX + 1]),
        ] {
            assert_eq!(read_all(&told), Err(Some(MalformedHeader)), "{told:?}");
        }
        assert!(read_all(&v2(0x20, 0, &[0; REST_BYTES_MAX])).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), how in 0..3_u8) {
            let bytes = match how {
                0 => bytes,
                1 => [&SIGNATURE[..], &bytes].concat(),
                _ => [b"PROXY TCP4 ", &bytes[..]].concat(),
            };
            let _ = read_all(&bytes);
        }

        /// Reading consumes nothing of the following data and returns the original content.
        #[test]
        fn what_is_told_is_read(from: IpAddr, port: u16, is_line: bool, follows in prop::collection::vec(any::<u8>(), 0..20)) {
            let told = match (is_line, from) {
                (true, IpAddr::V4(_)) => format!("PROXY TCP4 {from} 192.0.2.1 {port} 1\r\n").into_bytes(),
                (true, IpAddr::V6(_)) => format!("PROXY TCP6 {from} ::1 {port} 1\r\n").into_bytes(),
                (false, IpAddr::V4(from)) => {
                    let [high, low] = port.to_be_bytes();
                    v2(0x21, 0x11, &[&from.octets()[..], &[0; 4], &[high, low, 0, 1]].concat())
                }
                (false, IpAddr::V6(from)) => {
                    let [high, low] = port.to_be_bytes();
                    v2(0x21, 0x21, &[&from.octets()[..], &[0; 16], &[high, low, 0, 1]].concat())
                }
            };
            let all = [&told[..], &follows].concat();
            let meant = Header::Client { address: Some(SocketAddr::new(from, port)), is_secure: false };
            prop_assert_eq!(read_all(&all), Ok((meant, &follows[..])));
        }
    }
}
