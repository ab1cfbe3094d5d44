//! Public keys in PEM, with the part of ASN.1 that they use.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The longest PEM, in bytes: an RSA key of 8192 bits has 1,500.
const PEM_BYTES_MAX: usize = 8_192;

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;

/// The identifiers of key algorithms, with their parameters.
const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
const P256: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const P384: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22";
const ED25519: &[u8] = b"\x06\x03\x2b\x65\x70";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PublicKey {
    /// Modulus and exponent, big-endian without leading zeros.
    Rsa(Vec<u8>, Vec<u8>),
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Parses `PUBLIC KEY` or `RSA PUBLIC KEY`. Line ends may be written `\n`, as in a configuration on one line. `None`
/// for anything else, such as a private key.
pub(super) fn public_key(pem: &str) -> Option<PublicKey> {
    if pem.len() > PEM_BYTES_MAX {
        return None;
    }
    let pem = pem.replace("\\n", "\n");
    let pem = pem.trim();
    for label in ["PUBLIC KEY", "RSA PUBLIC KEY"] {
        let body = pem
            .strip_prefix(&format!("-----BEGIN {label}-----"))
            .and_then(|rest| rest.strip_suffix(&format!("-----END {label}-----")));
        let Some(body) = body else { continue };
        let body: String = body.split_ascii_whitespace().collect();
        let der = STANDARD.decode(body).ok()?;
        return if label == "PUBLIC KEY" { subject(&der) } else { rsa(&der) };
    }
    None
}

fn subject(der: &[u8]) -> Option<PublicKey> {
    let (algorithm, rest) = take(whole(der, SEQUENCE)?, SEQUENCE)?;
    // The number of unused bits in the last byte must be 0.
    let key = whole(rest, BIT_STRING)?.strip_prefix(&[0])?;
    match algorithm {
        RSA => rsa(key),
        P256 => Some(PublicKey::P256(key.to_vec())),
        P384 => Some(PublicKey::P384(key.to_vec())),
        ED25519 => Some(PublicKey::Ed25519(key.to_vec())),
        _ => None,
    }
}

fn rsa(der: &[u8]) -> Option<PublicKey> {
    let (modulus, rest) = take(whole(der, SEQUENCE)?, INTEGER)?;
    let exponent = whole(rest, INTEGER)?;
    let positive = |bytes: &[u8]| {
        let first = bytes.iter().position(|byte| *byte != 0)?;
        // A set first bit would make the number negative.
        bytes
            .get(first..)
            .filter(|bytes| first > 0 || bytes.first().is_some_and(|byte| *byte < 0x80))
            .map(<[u8]>::to_vec)
    };
    Some(PublicKey::Rsa(positive(modulus)?, positive(exponent)?))
}

/// Returns the contents of the only element of `input`.
fn whole(input: &[u8], tag: u8) -> Option<&[u8]> {
    take(input, tag).filter(|(_, rest)| rest.is_empty()).map(|(contents, _)| contents)
}

/// Returns the contents of an element with this tag, and the rest of `input`. Lengths have at most two bytes.
fn take(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (length, rest) = match input {
        [found, ..] if *found != tag => return None,
        [_, length @ 0..=0x7f, rest @ ..] => (usize::from(*length), rest),
        [_, 0x81, length, rest @ ..] => (usize::from(*length), rest),
        [_, 0x82, high, low, rest @ ..] => (usize::from(*high) << 8 | usize::from(*low), rest),
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_are_taken_apart() {
        assert_eq!(take(b"\x02\x01\x05\x06", 2), Some((&b"\x05"[..], &b"\x06"[..])));
        assert_eq!(take(b"\x02\x81\x01\x05", 2), Some((&b"\x05"[..], &b""[..])));
        assert_eq!(take(b"\x02\x82\x00\x01\x05", 2), Some((&b"\x05"[..], &b""[..])));
        let long = [b"\x02\x82\x01\x02".as_slice(), &[7; 258]].concat();
        assert_eq!(take(&long, 2).map(|(contents, _)| contents.len()), Some(258));
        for wrong in [&b""[..], b"\x02", b"\x03\x01\x05", b"\x02\x02\x05", b"\x02\x80", b"\x02\x83\x00\x00\x01\x05"] {
            assert_eq!(take(wrong, 2), None, "{wrong:?}");
        }
        assert_eq!(whole(b"\x02\x01\x05\x06", 2), None);
    }

    #[test]
    fn moduli_are_positive() {
        let key = |modulus: &[u8]| {
            let numbers = [&[INTEGER, modulus.len() as u8], modulus, b"\x02\x01\x03"].concat();
            rsa(&[&[SEQUENCE, numbers.len() as u8], numbers.as_slice()].concat())
        };
        assert_eq!(key(b"\x00\x80"), Some(PublicKey::Rsa(vec![0x80], vec![3])));
        assert_eq!(key(b"\x7f\x80"), Some(PublicKey::Rsa(vec![0x7f, 0x80], vec![3])));
        assert_eq!((key(b"\x80"), key(b"\x00"), key(b"")), (None, None, None));
    }

    #[test]
    fn other_texts_are_no_keys() {
        let body = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
        let with = |begin: &str, end: &str| public_key(&format!("{begin}{body}{end}"));
        let (begin, end) = ("-----BEGIN PUBLIC KEY-----\\n", "\\n-----END PUBLIC KEY-----\n");
        assert!(matches!(with(begin, end), Some(PublicKey::Ed25519(key)) if key.len() == 32));
        assert_eq!(with("", ""), None);
        assert_eq!(with(begin, ""), None);
        assert_eq!(with("-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----"), None);
        assert_eq!(with("-----BEGIN RSA PUBLIC KEY-----\n", "\n-----END RSA PUBLIC KEY-----"), None);
        assert_eq!(with(&format!("{begin}AAAA"), end), None);
        // The longest text, and one byte more.
        let padded =
            |bytes: usize| with(&format!("{begin}{}", " ".repeat(bytes - begin.len() - body.len() - end.len())), end);
        assert_eq!([8_192, 8_193].map(|bytes| padded(bytes).is_some()), [true, false]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(der in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = subject(&der);
            let _ = rsa(&[[0x30, der.len() as u8].as_slice(), &der].concat());
        }
    }
}
