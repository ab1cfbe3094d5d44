//! Measures how many documents of 1 kB a selector matches per second, by their rows and by their JSON: `cargo run
//! --release -p flatbed-mango --example scan`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::HashMap;
use std::time::Instant;

use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_flatten::{FieldIds, FieldNames, FlattenOptions, flatten, pack, unknown_names, write_members};
use flatbed_mango::Selector;

const DOCUMENTS: usize = 20_000;

#[derive(Default)]
struct Names(Vec<String>, HashMap<String, u64>);

impl FieldIds for Names {
    fn id_of(&self, name: &str) -> Option<u64> {
        self.1.get(name).copied()
    }
}

impl FieldNames for Names {
    fn name_of(&self, id: u64) -> Option<&str> {
        self.0.get(usize::try_from(id.checked_sub(10)?).ok()?).map(String::as_str)
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn slices(pairs: &Pairs) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    pairs.iter().map(|(path, value)| (path.as_slice(), value.as_slice()))
}

fn document(number: usize) -> Value<'static> {
    let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"];
    let word = |at: usize| words.get((number * 7 + at * 3) % words.len()).unwrap();
    let text: Vec<String> = (0..100).map(|at| format!("{} {}", word(at), (number + at) % 97)).collect();
    let text = format!(
        r#"{{"type":"order","number":{number},"price":{}.25,"customer":{{"name":"{} {}","city":"{}"}},"tags":["{}","{}"],"lines":[{{"sku":"s{}","count":{}}},{{"sku":"s{}","count":1}}],"open":{},"text":"{}"}}"#,
        number % 1000,
        word(1),
        word(2),
        word(3),
        word(4),
        word(5),
        number % 50,
        number % 9,
        number % 31,
        number.is_multiple_of(2),
        text.join(" ").get(..750).unwrap()
    );
    parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
}

fn main() {
    let documents: Vec<Value<'static>> = (0..DOCUMENTS).map(document).collect();
    let mut names = Names::default();
    for name in documents.first().map(|first| unknown_names(first, &Names::default())).unwrap() {
        names.1.insert(name.to_owned(), 10 + names.0.len() as u64);
        names.0.push(name.to_owned());
    }
    let packed: Vec<Pairs> =
        documents.iter().map(|body| pack(&flatten(body, &names, &FlattenOptions::default()), 4_000)).collect();
    let json: Vec<String> = documents.iter().map(|body| flatbed_flatten::json_len(body).to_string()).collect();
    println!("{} documents of {} bytes", documents.len(), json.first().unwrap());
    for selector in [
        r#"{"number":{"$gt":19990}}"#,
        r#"{"type":"order","customer.city":"zeta","price":{"$lt":10}}"#,
        r#"{"lines":{"$elemMatch":{"sku":"s7","count":{"$gt":7}}}}"#,
        r#"{"text":{"$regex":"theta 96.*zeta 1"}}"#,
        r#"{"tags":{"$in":["beta","none"]},"open":true}"#,
        r#"{"none":{"$exists":true}}"#,
    ] {
        let compiled = Selector::new(&parse(selector.as_bytes(), &Limits::default()).unwrap()).unwrap();
        let rate = |matches: &dyn Fn(&Pairs) -> bool| {
            let begun = Instant::now();
            let mut found = 0;
            for pairs in &packed {
                found += usize::from(matches(pairs));
            }
            (found, DOCUMENTS as f64 / begun.elapsed().as_secs_f64())
        };
        let rows = compiled.for_rows(&names);
        let special = || Value::Object(Vec::new());
        let by_rows = rate(&|pairs| rows.matches(slices(pairs), &names, special, &|| false).unwrap());
        let by_json = rate(&|pairs| {
            let mut text = br#"{"_id":"x","_rev":"1-x","#.to_vec();
            write_members(slices(pairs), &names, &mut text).unwrap();
            text.push(b'}');
            compiled.matches_unless(&parse(&text, &Limits::default()).unwrap(), &|| false).unwrap()
        });
        assert_eq!(by_rows.0, by_json.0);
        println!("{:9.0} by rows {:9.0} by JSON  {:6} found  {selector}", by_rows.1, by_json.1, by_rows.0);
    }
}
