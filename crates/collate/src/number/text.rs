//! Floats in CouchDB's notation.

/// The decimal exponents that are written without an exponent.
const PLAIN: std::ops::Range<i32> = -6..21;

/// Returns the shortest digits that are read as the same float, always with a fraction or an exponent: `4.0`, `0.1`,
/// `1.5e-7`, `1.0e+300` as `1e+300`. A negative zero is `0.0`; `None` if the float is not finite.
pub(crate) fn float_text(value: f64) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    if value == 0.0 {
        return Some("0.0".to_owned());
    }
    let shortest = format!("{value:e}");
    let (mantissa, exponent) = shortest.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    if PLAIN.contains(&exponent) {
        let plain = value.to_string();
        return Some(if plain.contains('.') { plain } else { plain + ".0" });
    }
    let sign = if exponent < 0 { "" } else { "+" };
    Some(format!("{mantissa}e{sign}{exponent}"))
}
