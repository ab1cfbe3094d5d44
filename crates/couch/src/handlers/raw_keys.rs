//! `/{db}/_raw_keys`: the storage keys of a document, for inspection. Flatbed's extension.

use flatbed_http::Reply;
use flatbed_service::Purge;
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::request::Request;

/// The longest `after` in hexadecimal digits: FoundationDB's longest key.
const DIGITS_MAX: usize = 20_000;

pub(crate) async fn raw_keys(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let id = request.query.get("id").ok_or_else(|| Failure::bad_request("`id` must name a document."))?;
    let after = request.query.get("after").map(|digits| {
        bytes_of(digits).ok_or_else(|| Failure::bad_request("`after` must be the `next` of an earlier page."))
    });
    let after = after.transpose()?;
    // The right to purge, which server administrators have.
    let page = request.context.database(name, Purge).await?.stored_keys(id, after.as_deref()).await?;
    Ok(Reply::object(StatusCode::OK, |object| {
        let mut keys = object.array("keys");
        for stored in &page.keys {
            let mut row = keys.object();
            row.string("key", &digits_of(&stored.key)).string("form", &stored.form).string("what", stored.what);
            row.number("value_bytes", stored.value_bytes as u64);
            row.end();
        }
        keys.end();
        match &page.next {
            Some(next) => object.string("next", &digits_of(next)),
            None => object.null("next"),
        };
    }))
}

fn digits_of(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    if digits.len() > DIGITS_MAX || !digits.is_ascii() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let half = |digit: &u8| char::from(*digit).to_digit(16).map(|half| half as u8);
    digits.as_bytes().chunks(2).map(|pair| Some(half(pair.first()?)? << 4 | half(pair.last()?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_there_and_back() {
        for bytes in [&[][..], &[0], &[0xff, 0x0a, 0x10]] {
            assert_eq!(bytes_of(&digits_of(bytes)).as_deref(), Some(bytes));
        }
        for wrong in ["0", "0g", "é", "+1", &"0".repeat(DIGITS_MAX + 2)] {
            assert_eq!(bytes_of(wrong), None, "{wrong:.9}");
        }
    }
}
