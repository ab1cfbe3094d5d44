//! Terms beyond the recorded ones. The hashes come from an independent encoder of Erlang's external term format, which
//! was checked against recorded ids.
#![allow(clippy::unwrap_used)]

use flatbed_flatten::etf::body_revision;
use flatbed_flatten::json::{Limits, parse};

/// The hash of a first revision whose body has one member "a" with this value.
fn hash_of(value: &str) -> String {
    let text = format!(r#"{{"a":{value}}}"#);
    let body = parse(text.as_bytes(), &Limits::default()).unwrap();
    body_revision(None, false, &body).map(|byte| format!("{byte:02x}")).concat()
}

#[test]
fn encodings_at_their_limits() {
    let check = |value: &str, expected: &str| assert_eq!(hash_of(value), expected, "{}", &value[..value.len().min(40)]);
    check("-256", "ea90ab5b0781f5152ed9584e28f6a3eb");
    check("2147483648", "b4f640a52110ec1afa2f52256780e40e");
    check("-2147483649", "6d036e2911065ed899639be9adb508c3");
    check("9223372036854775808", "fc8391bb28fd252fac64877575057bed");
    check("-9223372036854775808", "bfe9588fe6abc84c376c342a4dd6c2ef");
    check("-9223372036854775809", "d7430b145a784f813a500d355bd26d42");
    // 255 bytes are a small integer, 256 a large one.
    check(&format!("1{}", "0".repeat(614)), "b5147dd370d46e187137e7cf23fde276");
    check(&format!("-1{}", "0".repeat(615)), "ebf6be9e2fb584e8adc573f6a228e7f8");
    check(&format!("1{}", "0".repeat(3_000)), "5285ceeb3121743bcaa022fa96c84403");
    // Lists of up to 65,535 bytes are strings.
    let list = |items: &[&str]| format!("[{}]", items.join(","));
    check(&list(&["7"; 65_535]), "bf98225f9f08c00f81b52454ba4be93b");
    check(&list(&["7"; 65_536]), "e7d96525b57d2ca82cd923d4c969897f");
    check(&list(&[&["0"; 300][..], &["256"]].concat()), "c182d05f15c9ba143f392b4606d43e61");
    check("[1,-1]", "39b982156285a5a8cc120199a3f402ad");
    check(&format!(r#"["{}"]"#, "é".repeat(50_000)), "96207b0a2a1f8f4037aa8c87db390979");
    check(r#"[[[1],[]],{"b":{}}]"#, "24058ee2c5d106145266bfacb37d6342");
}

#[test]
fn texts_of_equal_terms() {
    let equal = |one: &str, other: &str| assert_eq!(hash_of(one), hash_of(other), "{one} {other}");
    equal("-0", "0");
    equal("[-0,1]", "[0,1]");
    equal("1e3", "1000.0");
    equal("1E+2", "100.0");
    equal("0.10", "0.1");
    equal("5e-324", "0.0");
    equal("\"\\u00e9\\/\"", "\"é/\"");
    let differ = |one: &str, other: &str| assert_ne!(hash_of(one), hash_of(other), "{one} {other}");
    differ("1", "1.0");
    differ("-0.0", "0.0");
    differ("5.0e-324", "0.0");
    differ("[1,2]", "[1,2.0]");
    differ("{}", "[]");
    differ("\"1\"", "1");
}
