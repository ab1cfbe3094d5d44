//! AWS Signature Version 4 in the header `Authorization`, in S3's variant: paths are encoded once and not normalized,
//! and the body's hash is a separate header.

use std::fmt::Write;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::secret::Secret;
use crate::time::Moment;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A key that signs requests.
#[derive(Debug, Clone)]
pub struct Signer {
    /// The key's id, which is sent.
    pub access_key_id: Secret,
    /// The secret key, which is not sent.
    pub secret_access_key: Secret,
    /// The bucket's region: `us-east-1`.
    pub region: String,
}

/// The signed parts of a request.
#[derive(Debug)]
pub struct CanonicalRequest<'r> {
    /// `PUT`.
    pub method: &'r str,
    /// The path, percent-encoded ([`encode_key`]), with a leading slash.
    pub path: &'r str,
    /// Pairs of percent-encoded names and values, sorted by bytes, joined by `&`.
    pub query: &'r str,
    /// Lower-case names and trimmed values, sorted by name, including `host`, `x-amz-content-sha256` and `x-amz-date`.
    pub headers: &'r [(&'r str, &'r str)],
    /// The body's [`hash`], as in the header.
    pub body_hash: &'r str,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the SHA-256 of a body, in hexadecimal digits.
pub fn hash(body: &[u8]) -> String {
    hex(&Sha256::digest(body))
}

/// Formats Unix time in seconds as `20130524T000000Z`.
pub fn timestamp(seconds: u64) -> String {
    Moment::at(seconds).compact()
}

/// Encodes a key in a path: percent-encoded except for unreserved characters and slashes.
pub fn encode_key(key: &str) -> String {
    key.split('/').map(flatbed_client::encode_segment).collect::<Vec<_>>().join("/")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

impl Signer {
    /// Returns the value of `Authorization` for a request at a [`timestamp`], which is its `x-amz-date`.
    pub fn sign(&self, request: &CanonicalRequest<'_>, timestamp: &str) -> String {
        let CanonicalRequest { method, path, query, headers, body_hash } = request;
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let mut canonical = format!("{method}\n{path}\n{query}\n");
        for (name, value) in *headers {
            canonical.push_str(name);
            canonical.push(':');
            canonical.push_str(value);
            canonical.push('\n');
        }
        canonical.push_str(&format!("\n{names}\n{body_hash}"));
        let day = timestamp.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("{ALGORITHM}\n{timestamp}\n{scope}\n{}", hash(canonical.as_bytes()));
        let first = format!("AWS4{}", self.secret_access_key.expose());
        let key = [day, self.region.as_str(), "s3", "aws4_request"]
            .iter()
            .fold(first.into_bytes(), |key, part| mac(&key, part));
        let signature = hex(&mac(&key, &text));
        format!(
            "{ALGORITHM} Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            self.access_key_id.expose()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::SecretRef;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
    const DATE: (&str, &str) = ("x-amz-date", "20130524T000000Z");

    fn signer() -> Signer {
        let secret = |text: &str| Secret::of(&SecretRef::File("x".to_owned()), text.as_bytes()).unwrap();
        Signer {
            access_key_id: secret("AKIAIOSFODNN7EXAMPLE"),
            secret_access_key: secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            region: "us-east-1".to_owned(),
        }
    }

    /// The examples of Amazon's "Signature Calculations for the Authorization Header: Transferring Payload in a Single
    /// Chunk".
    #[test]
    fn amazons_examples() {
        let body = b"Welcome to Amazon S3.";
        let body_hash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        assert_eq!(hash(body), body_hash);
        assert_eq!(hash(b""), EMPTY);
        let empty = ("x-amz-content-sha256", EMPTY);
        let get = |path, query, headers| CanonicalRequest { method: "GET", path, query, headers, body_hash: EMPTY };
        let path = format!("/{}", encode_key("test$file.text"));
        let put = CanonicalRequest {
            method: "PUT",
            path: &path,
            query: "",
            headers: &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                HOST,
                ("x-amz-content-sha256", body_hash),
                DATE,
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            body_hash,
        };
        for (request, signature) in [
            (
                get("/test.txt", "", &[HOST, ("range", "bytes=0-9"), empty, DATE]),
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (put, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            (
                get("/", "lifecycle=", &[HOST, empty, DATE]),
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                get("/", "max-keys=2&prefix=J", &[HOST, empty, DATE]),
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let names: Vec<_> = request.headers.iter().map(|(name, _)| *name).collect();
            assert_eq!(
                signer().sign(&request, DATE.1),
                format!(
                    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders={},Signature={signature}",
                    names.join(";")
                ),
                "{request:?}"
            );
        }
        assert_eq!(timestamp(1_369_353_600), DATE.1);
        assert_eq!(encode_key("a b/ä+:%/c"), "a%20b/%C3%A4%2B%3A%25/c");
        assert!(!format!("{:?}", signer()).contains("wJalr"));
    }
}
