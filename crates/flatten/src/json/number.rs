//! The value of a number's text.

/// Texts of at least this length are not parsed by the C library in CouchDB.
const LIBRARY_BYTES_MAX: usize = 31;

/// Returns the float that CouchDB reads from a text with a fraction or an exponent; `None` if CouchDB refuses it.
///
/// It is the nearest float, as from `strtod`. But CouchDB computes a text without a fraction as integer times power of
/// ten if `strtod` reports it out of range or if it is long. That is less exact, and can lose everything (`5e-324` is
/// 0.0).
pub(crate) fn float_of(text: &str) -> Option<f64> {
    let nearest: f64 = text.parse().ok()?;
    let split = text.split_once(['e', 'E']).filter(|(mantissa, _)| !mantissa.contains('.'));
    let Some((mantissa, exponent)) = split else { return Some(nearest).filter(|float| float.is_finite()) };
    let is_zero = mantissa.bytes().all(|byte| matches!(byte, b'-' | b'0'));
    if text.len() <= LIBRARY_BYTES_MAX && (nearest.is_normal() || is_zero) {
        return Some(nearest);
    }
    let power = 10_f64.powf(exponent.parse().ok()?);
    let integer: f64 = mantissa.parse().ok()?;
    Some(integer * power).filter(|float| float.is_finite() && power.is_finite() && integer.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_couchdb_takes_them() {
        let check = |text: &str, expected: Option<f64>| {
            assert_eq!(float_of(text).map(f64::to_bits), expected.map(f64::to_bits), "{text}");
        };
        check("0.1", Some(0.1));
        check("-0.0", Some(-0.0));
        check("1e3", Some(1000.0));
        check("1E-2", Some(0.01));
        check("0e400", Some(0.0));
        check("1E400", None);
        check("1.0E400", None);
        check("10e308", None);
        check("1.7976931348623157e308", Some(f64::MAX));
        check("1.7976931348623159e308", None);
        // Out of `strtod`'s range: nearest with a fraction, computed without one.
        check("5.0e-324", Some(5e-324));
        check("5e-324", Some(0.0));
        check("-5e-324", Some(-0.0));
        check("1.2e-309", Some(1.2e-309));
        check("100e-312", Some(100.0 * 1e-312));
        check("1.0e-400", Some(0.0));
        check(&format!("1{}e-290", "0".repeat(300)), Some(1e300 * 1e-290));
        check(&format!("1{}e-390", "0".repeat(400)), None);
        check(&format!("1{}.0e-390", "0".repeat(400)), Some(1e10));
    }
}
