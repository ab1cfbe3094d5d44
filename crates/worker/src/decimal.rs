//! Exact decimal numbers.

use std::cmp::Ordering;

/// The most digits of a number once its exponent is expanded.
const DIGITS_MAX: usize = 1_000;

/// A decimal number: `digits * 10^-scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// Without leading zeros; empty for zero.
    digits: Vec<u8>,
    scale: usize,
}

impl Decimal {
    /// Parses a JSON number; also accepts a plus sign and missing digits before or after the point. `None`: not a
    /// number, or more than 1,000 digits.
    pub fn parse(text: &str) -> Option<Decimal> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        if whole.len() + fraction.len() > DIGITS_MAX || exponent.unsigned_abs() as usize > DIGITS_MAX {
            return None;
        }
        let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
        let mut scale = i64::try_from(fraction.len()).ok()? - i64::from(exponent);
        while scale < 0 {
            digits.push(0);
            scale += 1;
        }
        let mut decimal = Decimal { is_negative, digits, scale: usize::try_from(scale).ok()? };
        decimal.trim();
        (decimal.digits.len() <= DIGITS_MAX).then_some(decimal)
    }

    fn trim(&mut self) {
        let zeros = self.digits.iter().take_while(|digit| **digit == 0).count();
        self.digits.drain(..zeros);
        if self.digits.is_empty() {
            self.is_negative = false;
        }
    }

    /// Returns the number of digits before the point; 0 for numbers below 1.
    pub fn whole_digits(&self) -> usize {
        self.digits.len().saturating_sub(self.scale)
    }

    /// Rounds to `places` fractional digits, halves to even, and pads with zeros to exactly that many.
    #[must_use]
    pub fn rounded(&self, places: usize) -> Decimal {
        let mut rounded = self.clone();
        if places >= self.scale {
            if !rounded.digits.is_empty() {
                rounded.digits.extend(std::iter::repeat_n(0, places - self.scale));
            }
            rounded.scale = places;
            return rounded;
        }
        let cut = self.scale - places;
        let keep = self.digits.len().saturating_sub(cut);
        let dropped = self.digits.get(keep..).unwrap_or_default();
        // A dropped part shorter than the cut had leading zeros, which were trimmed.
        let half = match (dropped.len().cmp(&cut), dropped.split_first()) {
            (Ordering::Less, _) | (_, None) => Ordering::Less,
            (_, Some((first, rest))) => first.cmp(&5).then(if rest.iter().any(|digit| *digit > 0) {
                Ordering::Greater
            } else {
                Ordering::Equal
            }),
        };
        rounded.digits.truncate(keep);
        rounded.scale = places;
        let is_odd = rounded.digits.last().is_some_and(|digit| digit % 2 == 1);
        if half == Ordering::Greater || (half == Ordering::Equal && is_odd) {
            rounded.increment();
        }
        rounded.trim();
        rounded
    }

    fn increment(&mut self) {
        for digit in self.digits.iter_mut().rev() {
            if *digit < 9 {
                *digit += 1;
                return;
            }
            *digit = 0;
        }
        self.digits.insert(0, 1);
    }

    /// Rounds towards zero to an integer.
    #[must_use]
    pub fn truncated(&self) -> Decimal {
        let keep = self.digits.len().saturating_sub(self.scale);
        let mut whole = Decimal { digits: self.digits.iter().take(keep).copied().collect(), scale: 0, ..*self };
        whole.trim();
        whole
    }

    /// Returns whether the fraction is zero.
    pub fn is_whole(&self) -> bool {
        let whole = self.digits.len().saturating_sub(self.scale);
        self.digits.get(whole..).unwrap_or_default().iter().all(|digit| *digit == 0)
    }

    /// Returns the absolute value.
    #[must_use]
    pub fn absolute(&self) -> Decimal {
        Decimal { is_negative: false, ..self.clone() }
    }

    /// Rounds to an integer, up or down.
    #[must_use]
    pub fn to_whole(&self, up: bool) -> Decimal {
        let mut whole = self.truncated();
        if !self.is_whole() && up != self.is_negative {
            if whole.digits.is_empty() {
                whole.is_negative = self.is_negative;
            }
            whole.increment();
        }
        whole
    }

    /// Returns an integer as `i64`. `None`: it has a fraction or is too large.
    pub fn as_i64(&self) -> Option<i64> {
        if !self.is_whole() {
            return None;
        }
        self.truncated().to_string().parse().ok()
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::with_capacity(self.digits.len() + 3);
        if self.is_negative {
            text.push('-');
        }
        let whole = self.digits.len().saturating_sub(self.scale);
        if whole == 0 {
            text.push('0');
        }
        let zeros = self.scale.saturating_sub(self.digits.len());
        for (at, digit) in std::iter::repeat_n(0, zeros).chain(self.digits.iter().copied()).enumerate() {
            if at == whole {
                text.push('.');
            }
            text.push(char::from(b'0' + digit));
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn numbers_are_written_out() {
        for (text, written) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0", "0.0"),
            ("007", "7"),
            ("1.50", "1.50"),
            ("-1.5e3", "-1500"),
            ("1.5E-3", "0.0015"),
            ("12e0", "12"),
            (".5", "0.5"),
            ("+3.", "3"),
            ("123456789012345678901234567890.1", "123456789012345678901234567890.1"),
        ] {
            assert_eq!(read(text).to_string(), written, "{text}");
        }
        for text in ["", "-", ".", "e1", "1e", "1.2.3", "1e1001", "0x1", " 1", "1 ", "NaN", "1e99999999999"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(Decimal::parse(&"1".repeat(1_001)), None);
        assert_eq!(Decimal::parse(&format!("{}e1000", "1".repeat(2))), None);
    }

    #[test]
    fn halves_go_to_the_even_neighbour() {
        for (text, places, written) in [
            ("0.5", 0, "0"),
            ("1.5", 0, "2"),
            ("2.5", 0, "2"),
            ("-2.51", 0, "-3"),
            ("0.05", 0, "0"),
            ("0.95", 1, "1.0"),
            ("9.99", 1, "10.0"),
            ("1", 2, "1.00"),
            ("0", 2, "0.00"),
            ("1.005", 2, "1.00"),
            ("1.0050000001", 2, "1.01"),
            ("-0.001", 2, "0.00"),
        ] {
            assert_eq!(read(text).rounded(places).to_string(), written, "{text} {places}");
        }
    }

    #[test]
    fn whole_numbers() {
        let wholes = |text: &str| {
            let number = read(text);
            [number.truncated(), number.to_whole(false), number.to_whole(true)].map(|whole| whole.to_string())
        };
        assert_eq!(wholes("1.2"), ["1", "1", "2"]);
        assert_eq!(wholes("-1.2"), ["-1", "-2", "-1"]);
        assert_eq!(wholes("-0.2"), ["0", "-1", "0"]);
        assert_eq!(wholes("0.2"), ["0", "0", "1"]);
        assert_eq!(wholes("7.00"), ["7", "7", "7"]);
        assert_eq!(read("1.0").as_i64(), Some(1));
        assert_eq!(read("9223372036854775807").as_i64(), Some(i64::MAX));
        assert_eq!(read("-9223372036854775808").as_i64(), Some(i64::MIN));
        assert_eq!([read("9223372036854775808").as_i64(), read("0.5").as_i64()], [None, None]);
        assert_eq!([read("0.5").whole_digits(), read("120.5").whole_digits()], [0, 3]);
    }

    proptest! {
        #[test]
        fn integers_come_back(number in any::<i64>(), places in 0_usize..20) {
            let decimal = read(&number.to_string());
            prop_assert_eq!(decimal.as_i64(), Some(number));
            prop_assert_eq!(decimal.rounded(places).as_i64(), Some(number));
        }

        #[test]
        fn rounding_moves_by_half_a_place_at_most(number in -1_000_000_i64..1_000_000, places in 0_usize..4) {
            let text = format!("{}e-4", number);
            let unit = 10_i64.pow(4 - u32::try_from(places).unwrap());
            let rounded = read(&text).rounded(places);
            let back = read(&format!("{rounded}e4")).as_i64().unwrap();
            prop_assert!((back - number).abs() * 2 <= unit, "{} {}", text, rounded);
            prop_assert_eq!(back % unit, 0);
        }

        #[test]
        fn any_text_is_a_number_or_none(text in "[-+0-9.eE]{0,12}") {
            if let Some(number) = Decimal::parse(&text) {
                prop_assert_eq!(Decimal::parse(&number.to_string()).map(|again| again.to_string()), Some(number.to_string()));
            }
        }
    }
}
