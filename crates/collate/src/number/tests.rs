use proptest::prelude::*;

use super::*;

/// Texts of all kinds of numbers that a parser accepts.
pub(crate) fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (-20..20_i64).prop_map(|integer| integer.to_string()),
        2 => any::<i64>().prop_map(|integer| integer.to_string()),
        2 => (1..=i64::MAX, 0..20_usize).prop_map(|(integer, zeros)| format!("{integer}{}", "0".repeat(zeros))),
        1 => "-?[1-9][0-9]{15,60}",
        3 => any::<f64>().prop_filter_map("not finite", |float| {
            float.is_finite().then(|| format!("{float:e}"))
        }),
        2 => (-100..100_i32, 0..10_u32).prop_map(|(units, shift)| (f64::from(units) / f64::from(1 << shift)).to_string()),
        1 => prop::sample::select(vec![
            "0", "-0", "0.0", "-0.0", "1.0", "1e0", "9007199254740993", "9007199254740992.0", "9007199254740991",
            "18446744073709551615", "18446744073709551616", "9223372036854775807", "9223372036854775808",
            "-9223372036854775808", "-9223372036854775809", "1.7976931348623157e308", "5.0e-324", "2.2250738585072014e-308",
        ])
        .prop_map(str::to_owned),
    ]
}

fn number(text: &str) -> Number {
    Number::of_text(text)
}

fn text(number: &Number) -> String {
    number.to_text().unwrap()
}

/// A model: the decimal digits of a number that uses at most about 60 bits on either side of the point.
fn scaled(text: &str) -> i128 {
    let float: f64 = text.parse().unwrap();
    (float * f64::from(1_u32 << 20)) as i128
}

proptest! {
    #[test]
    fn integers_of_128_bits_are_added_and_compared(a in any::<i64>(), b in any::<i64>(), shift in 0..60_u32) {
        let (a, b) = (i128::from(a) << shift, i128::from(b));
        let (first, second) = (number(&a.to_string()), number(&b.to_string()));
        prop_assert_eq!(text(&first), a.to_string());
        prop_assert_eq!(text(&first.plus(&second)), (a + b).to_string());
        prop_assert_eq!(first.value.cmp(&second.value), a.cmp(&b));
        prop_assert_eq!(first.value.cmp(&first.value), Ordering::Equal);
        prop_assert_eq!(text(&second.squared()), (b * b).to_string());
    }

    #[test]
    fn fractions_are_added_without_loss(texts in prop::collection::vec((-1000..1000_i32, 0..20_u32), 0..50)) {
        let mut sum = Number { is_float: true, ..Number::default() };
        let mut expected = 0;
        for (units, shift) in texts {
            let text = (f64::from(units) / f64::from(1_u32 << shift)).to_string();
            sum = sum.plus(&number(&text));
            expected += scaled(&text);
        }
        prop_assert_eq!(sum.value.to_f64(), expected as f64 / f64::from(1_u32 << 20));
    }

    #[test]
    fn floats_come_back(float in any::<f64>().prop_filter("not finite", |float| float.is_finite())) {
        let exact = Exact::of_f64(float);
        prop_assert_eq!(exact.to_f64(), float);
        let read: f64 = float_text(float).unwrap().parse().unwrap();
        prop_assert_eq!(read, float);
    }

    #[test]
    fn the_sum_of_two_floats_is_the_processors(
        a in any::<f64>().prop_filter("not finite", |float| float.is_finite()),
        b in any::<f64>().prop_filter("not finite", |float| float.is_finite()),
    ) {
        let sum = Exact::of_f64(a).add(&Exact::of_f64(b)).to_f64();
        prop_assert_eq!(sum, a + b);
    }

    #[test]
    fn sums_have_no_order(texts in prop::collection::vec(texts(), 0..12), rotated in any::<prop::sample::Index>()) {
        let numbers: Vec<Number> = texts.iter().map(|text| number(text)).collect();
        let add = |numbers: &[Number]| numbers.iter().fold(Number::default(), |sum, number| sum.plus(number));
        let mut other = numbers.clone();
        let at = rotated.index(other.len() + 1) % other.len().max(1);
        other.rotate_left(at);
        prop_assert_eq!(add(&numbers), add(&other));
        let (left, right) = numbers.split_at(at);
        prop_assert_eq!(add(&numbers), add(left).plus(&add(right)));
    }

    #[test]
    fn what_is_encoded_is_decoded(text in texts()) {
        let number = number(&text);
        let mut bytes = Vec::new();
        number.encode(&mut bytes);
        let mut rest = bytes.as_slice();
        prop_assert_eq!(Number::decode(&mut rest), Some(number));
        prop_assert!(rest.is_empty());
        for len in 0..bytes.len() {
            prop_assert_eq!(Number::decode(&mut &bytes[..len]), None);
        }
    }

    #[test]
    fn foreign_bytes_are_no_trouble(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Some(number) = Number::decode(&mut bytes.as_slice()) {
            let sum = number.plus(&Number::of_text("0.1"));
            let _ = (sum.to_text(), sum.value.cmp(&number.value), sum.squared());
        }
    }
}

#[test]
fn numbers_beyond_what_is_stored_are_refused() {
    let mut bytes = Vec::new();
    crate::codec::put(&mut bytes, 2 * (ENCODED_BYTES_MAX as u64 + 1));
    bytes.resize(bytes.len() + ENCODED_BYTES_MAX + 1, 1);
    bytes.push(0);
    assert_eq!(Exact::decode(&mut bytes.as_slice()), None);
    let with_exponent = |exponent| {
        let mut bytes = vec![2, 1];
        crate::codec::put(&mut bytes, zigzag(exponent));
        Exact::decode(&mut bytes.as_slice())
    };
    assert_eq!(with_exponent(3), Some(Exact::of_i64(8)));
    assert_eq!(with_exponent(-3), Some(Exact::of_f64(0.125)));
    assert!(with_exponent(200_000).is_some());
    assert!(with_exponent(200_001).is_none());
    assert!(with_exponent(-4_000).is_some());
    assert!(with_exponent(-4_001).is_none());
}

#[test]
fn texts_of_floats() {
    let check = |float: f64, expected: &str| assert_eq!(float_text(float).as_deref(), Some(expected));
    check(0.0, "0.0");
    check(-0.0, "0.0");
    check(4.0, "4.0");
    check(-4.5, "-4.5");
    check(0.1, "0.1");
    check(1e20, "100000000000000000000.0");
    check(1e21, "1e+21");
    check(1e300, "1e+300");
    check(-1.25e300, "-1.25e+300");
    check(0.000001, "0.000001");
    check(1.5e-7, "1.5e-7");
    check(5e-324, "5e-324");
    check(123456.75, "123456.75");
    assert_eq!(float_text(f64::INFINITY), None);
    assert_eq!(float_text(f64::NAN), None);
}

#[test]
fn what_a_text_is_worth() {
    let check = |text: &str, expected: &str, is_float: bool| {
        let number = number(text);
        assert_eq!((super::tests::text(&number).as_str(), number.is_float), (expected, is_float), "{text}");
    };
    check("7", "7", false);
    check("-0", "0", false);
    check("-12345678901234567890123", "-12345678901234567890123", false);
    check("10000000000000000000", "10000000000000000000", false);
    check("100000000000000000000000000000000000000", "100000000000000000000000000000000000000", false);
    check("1.0", "1.0", true);
    check("1e2", "100.0", true);
    check("9007199254740993.0", "9007199254740992.0", true);
    check("1e400", "1.7976931348623157e+308", true);
    check("none", "0.0", true);
    check("-", "0.0", true);
}

#[test]
fn rounding_is_to_the_nearest_and_even() {
    let rounded = |text: &str| number(text).value.to_f64();
    assert_eq!(rounded("9007199254740993"), 9007199254740992.0);
    assert_eq!(rounded("9007199254740995"), 9007199254740996.0);
    assert_eq!(rounded("9007199254740994"), 9007199254740994.0);
    assert_eq!(rounded("-36028797018963971"), -36028797018963972.0);
    assert_eq!(rounded("36028797018963970"), 36028797018963968.0);
    let greatest = Number { is_float: true, ..number(&format!("{}", f64::MAX)) };
    assert_eq!(greatest.value.to_f64(), f64::MAX);
    assert_eq!(greatest.plus(&greatest).to_text(), None);
    assert_eq!(greatest.squared().to_text(), None);
}

#[test]
fn squares_of_floats_are_the_processors() {
    assert_eq!(text(&number("0.1").squared()), "0.010000000000000002");
    assert_eq!(text(&number("0.1").squared().plus(&number("0.1").squared())), "0.020000000000000004");
    assert_eq!(text(&number("1000000000000000000000").squared()), format!("1{}", "0".repeat(42)));
}
