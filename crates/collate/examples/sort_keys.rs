//! Measures sort keys a second: `cargo run --release -p flatbed-collate --example sort_keys`.
#![allow(clippy::expect_used)]

use std::hint::black_box;
use std::time::Instant;

use flatbed_collate::Collation;
use flatbed_flatten::json::{Limits, Value, parse};

const KEYS: usize = 10_000;
const ROUNDS: usize = 20;

fn main() {
    let unicode = Collation::unicode().expect("the collator's data");
    let letters = |at: usize, alphabet: &[char]| -> String {
        let mut state = at as u64 + 1;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            alphabet.get((state >> 33) as usize % alphabet.len()).copied().unwrap_or('a')
        };
        std::iter::repeat_with(next).take(20).collect()
    };
    let latin: Vec<char> = ('a'..='z').collect();
    let accents: Vec<char> = "aábcçdeéèfghiíjklłmnñoöpqrsštuüvwxyzž".chars().collect();
    let han: Vec<char> = ('\u{4e00}'..='\u{9fa5}').collect();
    let kinds: [(&str, &dyn Fn(usize) -> String); 8] = [
        ("an integer", &|at| (at * 7919).to_string()),
        ("a float", &|at| (at as f64 / 7.0).to_string()),
        ("20 letters", &|at| format!("\"{}\"", letters(at, &latin))),
        ("20 letters with accents", &|at| format!("\"{}\"", letters(at, &accents))),
        ("20 Han characters", &|at| format!("\"{}\"", letters(at, &han))),
        ("[20 letters, integer]", &|at| format!("[\"{}\",{at}]", letters(at, &latin))),
        ("[year, month, day, type]", &|at| format!("[{},{},{},\"visit\"]", 2000 + at % 26, at % 12 + 1, at % 31 + 1)),
        ("{name: integer}", &|at| format!("{{\"count\":{at}}}")),
    ];
    println!("| key | sort keys/s | bytes | raw/s | raw bytes | compared/s |\n|---|---|---|---|---|---|");
    for (name, make) in kinds {
        let texts: Vec<String> = (0..KEYS).map(make).collect();
        let keys: Vec<Value<'_>> =
            texts.iter().map(|text| parse(text.as_bytes(), &Limits::default()).expect("JSON")).collect();
        let rate = |collation: &Collation| {
            let start = Instant::now();
            let bytes: usize = (0..ROUNDS)
                .map(|_| keys.iter().map(|key| black_box(collation.sort_key(key)).bytes().len()).sum::<usize>())
                .sum();
            ((KEYS * ROUNDS) as f64 / start.elapsed().as_secs_f64(), bytes / KEYS / ROUNDS)
        };
        let ((per_second, bytes), (raw_per_second, raw_bytes)) = (rate(&unicode), rate(&Collation::raw()));
        let start = Instant::now();
        for _ in 0..ROUNDS {
            for pair in keys.windows(2) {
                if let [a, b] = pair {
                    black_box(unicode.compare(a, b));
                }
            }
        }
        let compared = (KEYS * ROUNDS) as f64 / start.elapsed().as_secs_f64();
        println!("| {name} | {per_second:.0} | {bytes} | {raw_per_second:.0} | {raw_bytes} | {compared:.0} |");
    }
}
