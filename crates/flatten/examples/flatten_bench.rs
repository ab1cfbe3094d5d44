//! Measures each step of a document's write and read in nanoseconds: `cargo run --release -p flatbed-flatten --example
//! flatten_bench`.
#![allow(clippy::expect_used)]

use std::collections::HashMap;
use std::time::Instant;

use flatbed_flatten::etf::body_revision;
use flatbed_flatten::json::{Limits, parse};
use flatbed_flatten::{
    FieldIds, FieldNames, FlattenOptions, PackOptions, flatten, pack_with, unknown_names, write_members,
};

const DOCUMENT: &str = r#"{"type":"order","group":512,"amount":4711,"name":"qwertyuiopasdfgh","title":"zxcvbnmasdfghjklqwertyuiopzxcvbn","active":true,"score":123.456,"created_at":1700000001,"tags":["abcdefgh","ijklmnop","qrstuvwx"],"address":{"street":"abcdefghijklmnopqrstuvwx","city":"abcdefghijkl","zip":"01234","geo":{"lat":12.345,"lon":-120.5,"src":"abcdef"}},"profile":{"lang":"en","level":42,"bio":"Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. Ut enim ad minim veniam, quis","prefs":{"theme":"abcdef","font":"abcdefghij","size":12,"mail":"abcdefghij@example.com"}},"audit":{"by":"abcdefghijkl","host":"abcdefghijklmnopqrst","note":"Duis aute irure dolor in reprehenderit in voluptate velit esse cillum dolore eu fugiat nulla pariatur. Excepteur sint occaecat cupidatat non proident, sunt in culpa qui officia deserunt mollit anim id est laborum abcdefgh","ctx":{"req":"abcdefghijklmnopqrstuvwxyzabcdef","ms":1234}}}"#;

#[derive(Default)]
struct Names(Vec<String>, HashMap<String, u64>);

impl FieldIds for Names {
    fn id_of(&self, name: &str) -> Option<u64> {
        self.1.get(name).copied()
    }
}

impl FieldNames for Names {
    fn name_of(&self, id: u64) -> Option<&str> {
        self.0.get(id.checked_sub(10)? as usize).map(String::as_str)
    }
}

/// The best of several batches, because other load only adds time.
fn measure<T>(what: &str, mut step: impl FnMut() -> T) {
    const BATCHES: usize = 50;
    const ROUNDS: u32 = 4_000;
    let batch = |_| {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            std::hint::black_box(step());
        }
        started.elapsed().as_nanos() / u128::from(ROUNDS)
    };
    let best = (0..BATCHES).map(batch).min().unwrap_or_default();
    println!("{what}: {best} ns");
}

fn main() {
    let limits = Limits::default();
    let body = parse(DOCUMENT.as_bytes(), &limits).expect("JSON");
    let mut names = Names::default();
    let unknown: Vec<String> = unknown_names(&body, &names).into_iter().map(str::to_owned).collect();
    for name in unknown {
        names.1.insert(name.clone(), 10 + names.0.len() as u64);
        names.0.push(name);
    }
    let options = FlattenOptions::default();
    println!("{} bytes of JSON", DOCUMENT.len());
    measure("parse", || parse(DOCUMENT.as_bytes(), &limits));
    measure("revision hash", || body_revision(None, false, &body));
    measure("look for unknown names", || unknown_names(&body, &names).len());
    measure("flatten", || flatten(&body, &names, &options));
    for (run_bytes, compressed_from_bytes) in [(0, None), (1_500, None), (1_500, Some(0))] {
        let how = PackOptions { run_bytes, compressed_from_bytes };
        let pairs = pack_with(&flatten(&body, &names, &options), &how);
        let stored: usize = pairs.iter().map(|(path, value)| path.len() + value.len()).sum();
        let compressed = if compressed_from_bytes.is_some() { ", lz4" } else { "" };
        println!("run_bytes {run_bytes}{compressed}: {} pairs, {stored} bytes", pairs.len());
        measure("  flatten and pack", || pack_with(&flatten(&body, &names, &options), &how));
        let mut out = Vec::new();
        measure("  write members", || {
            out.clear();
            write_members(pairs.iter().map(|(path, value)| (&path[..], &value[..])), &names, &mut out)
        });
    }
}
