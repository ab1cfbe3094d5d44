//! The limits of requests: the answer of `info/configuration`, and the check of the sizes that a POST announces.

use flatbed_flatten::json::Object;
use flatbed_syncstorage::Limits;
use hyper::HeaderMap;

use crate::error::{Failure, Result};

/// Returns the answer of `info/configuration`.
pub(crate) fn text(limits: &Limits) -> Vec<u8> {
    Object::text(|text| {
        text.number("max_post_bytes", limits.max_post_bytes.into())
            .number("max_post_records", limits.max_post_records.into())
            .number("max_record_payload_bytes", limits.max_record_payload_bytes.into())
            .number("max_request_bytes", limits.max_request_bytes.into())
            .number("max_total_bytes", limits.max_total_bytes.into())
            .number("max_total_records", limits.max_total_records.into())
            .number("max_quota_limit", limits.max_quota_limit.into());
    })
}

/// Compares the sizes that a POST announces with the limits. They are not compared with the actual sizes.
///
/// # Errors
/// 400 `17` for a size above its limit, 400 `0` for a text that is no number of 32 bits.
pub(crate) fn judge(limits: &Limits, headers: &HeaderMap) -> Result<()> {
    for (name, max) in [
        ("x-weave-records", limits.max_post_records),
        ("x-weave-bytes", limits.max_post_bytes),
        ("x-weave-total-records", limits.max_total_records),
        ("x-weave-total-bytes", limits.max_total_bytes),
    ] {
        let Some(value) = headers.get(name) else { continue };
        let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let announced: Option<u32> = text.and_then(|text| text.parse().ok());
        if announced.ok_or_else(|| Failure::bad_request(format!("{name} is no number")))? > max {
            return Err(Failure::over_limit(format!("{name} is over the limit")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    #[test]
    fn what_a_post_announces() {
        let judge = |name: &'static str, value: &str| {
            let headers = [(HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect();
            super::judge(&Limits::default(), &headers).map_err(|failure| failure.code.map_or(0, |code| code as u8))
        };
        assert_eq!(judge("x-weave-records", "100"), Ok(()));
        assert_eq!(judge("x-weave-records", "101"), Err(17));
        assert_eq!(judge("x-weave-total-bytes", "262144001"), Err(17));
        for text in ["", "abc", "-1", "+1", "1.5", "4294967296"] {
            assert_eq!(judge("x-weave-bytes", text), Err(0), "{text}");
        }
    }
}
