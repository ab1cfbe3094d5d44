//! The channels of documents as recorded with a Sync Gateway without a function.

use flatbed_channels::Routing;
use flatbed_flatten::json::{Limits, Value, parse};

#[test]
fn channels_without_a_function_are_as_recorded() {
    let mut count = 0;
    for line in include_str!("../../../../tests/sync-gateway/functions.jsonl").lines() {
        let scenario = parse(line.as_bytes(), &Limits::default()).unwrap();
        let (Some(Value::Null), Some(Value::Array(writes))) = (scenario.get("sync"), scenario.get("writes")) else {
            continue;
        };
        for write in writes {
            let text = write.get("doc").and_then(Value::as_str).unwrap();
            let said = Routing::without_function(&parse(text.as_bytes(), &Limits::default()).unwrap());
            match (write.get("channels"), said) {
                (Some(Value::Array(channels)), Ok(said)) => {
                    let said: Vec<_> = said.channels.iter().map(String::as_str).collect();
                    let channels: Vec<_> = channels.iter().filter_map(Value::as_str).collect();
                    assert_eq!(said, channels, "{text}");
                }
                (None, Err(illegal)) => {
                    assert_eq!(write.get("status"), Some(&Value::Number("400".into())), "{text}");
                    assert_eq!(write.get("reason").and_then(Value::as_str), Some(&*illegal.to_string()), "{text}");
                }
                (recorded, said) => panic!("{text}: {recorded:?}, {said:?}"),
            }
            count += 1;
        }
    }
    assert_eq!(count, 19);
}
