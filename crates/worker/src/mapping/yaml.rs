//! Converts YAML to JSON values: the core schema of YAML 1.2, without anchors, aliases, tags and multiple documents.
//! Without aliases, the memory of the values is proportional to the text.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

const DEPTH_MAX: usize = 64;

/// The reason why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// Not YAML, with the position.
    #[error("the text is not YAML: {0}")]
    Syntax(String),
    /// A feature of YAML that mappings do not support.
    #[error("mappings do not support {0}")]
    Unused(&'static str),
    /// Nested too deeply.
    #[error("the text is nested deeper than 64")]
    Depth,
    /// A key that is not a text, or a duplicate key.
    #[error("a key is not a text, or occurs twice: {0:?}")]
    Key(String),
}

enum OpenNode {
    Sequence(Vec<Value>),
    /// With the key whose value follows.
    Mapping(Map<String, Value>, Option<String>),
}

pub(super) fn parse(text: &str) -> Result<Value, YamlError> {
    let mut open: Vec<OpenNode> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| YamlError::Syntax(error.to_string()))?;
        let value = match event {
            Event::Alias(_) => return Err(YamlError::Unused("an alias")),
            Event::Scalar(_, _, anchor, _) | Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _)
                if anchor != 0 =>
            {
                return Err(YamlError::Unused("an anchor"));
            }
            Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
                return Err(YamlError::Unused("a tag"));
            }
            Event::Scalar(text, style, ..) => scalar(&text, style),
            Event::SequenceStart(..) => {
                open.push(OpenNode::Sequence(Vec::new()));
                if open.len() > DEPTH_MAX {
                    return Err(YamlError::Depth);
                }
                continue;
            }
            Event::MappingStart(..) => {
                open.push(OpenNode::Mapping(Map::new(), None));
                if open.len() > DEPTH_MAX {
                    return Err(YamlError::Depth);
                }
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(OpenNode::Sequence(items)) => Value::Array(items),
                Some(OpenNode::Mapping(members, _)) => Value::Object(members),
                None => continue,
            },
            Event::DocumentStart(_) if root.is_some() => return Err(YamlError::Unused("a second document")),
            _ => continue,
        };
        match open.last_mut() {
            None => root = Some(value),
            Some(OpenNode::Sequence(items)) => items.push(value),
            Some(OpenNode::Mapping(members, key)) => match (key.take(), value) {
                (Some(key), value) => {
                    members.insert(key, value);
                }
                (None, Value::String(name)) if !members.contains_key(&name) => *key = Some(name),
                (None, other) => return Err(YamlError::Key(other.to_string().chars().take(100).collect())),
            },
        }
    }
    Ok(root.unwrap_or(Value::Null))
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        // A number as in JSON. `0x1f`, `.inf` and the like are texts.
        _ => match serde_json::from_str::<serde_json::Number>(text) {
            Ok(number) => Value::Number(number),
            Err(_) => Value::String(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_the_core_schema() {
        let text = "# a comment\na: 1\nb: [x, 'y', \"z\\n\", -2.5, ~, true]\nc:\n  d: |\n    two\n    lines\n  'e f': \"1\"\n  g: $._id\nh: 1.2.3\n";
        let value = json!({"a": 1, "b": ["x", "y", "z\n", -2.5, null, true], "c": {"d": "two\nlines\n", "e f": "1", "g": "$._id"}, "h": "1.2.3"});
        assert_eq!(parse(text), Ok(value));
        assert_eq!(parse(""), Ok(Value::Null));
        assert_eq!(parse("{\"json\": [1]}"), Ok(json!({"json": [1]})));
    }

    #[test]
    fn what_mappings_do_without() {
        for (text, what) in [
            ("a: &x 1\nb: *x", "an anchor"),
            ("&x [1]", "an anchor"),
            ("a: !!str 1", "a tag"),
            ("--- 1\n--- 2", "a second document"),
        ] {
            assert_eq!(parse(text), Err(YamlError::Unused(what)), "{text}");
        }
        assert_eq!(parse(&"[".repeat(70)), Err(YamlError::Depth));
        assert!(matches!(parse("a: 1\na: 2"), Err(YamlError::Key(_))));
        assert!(matches!(parse("[a]: 2"), Err(YamlError::Key(_))));
        assert!(matches!(parse("1: 2"), Err(YamlError::Key(_))));
        assert!(matches!(parse("a: [1"), Err(YamlError::Syntax(_))));
        assert!(matches!(parse("b: *x"), Err(YamlError::Syntax(_) | YamlError::Unused(_))));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-\\[\\]{}:,#&*!|>'\"%@`a-c0-9 \n]{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn json_is_yaml(text in "[ -~]{0,20}", number in any::<i32>()) {
            let value = json!({"a": [text, number, {"b": null}]});
            prop_assert_eq!(parse(&value.to_string()), Ok(value));
        }
    }
}
