//! Projects documents to the fields of a request.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use flatbed_flatten::json::Value;

use crate::field::{Field, place};

/// The most names that are searched for one by one in an object. More are looked up for each of its members.
const SEARCHED_MAX: usize = 8;

/// The fields of a request, prepared for the projection of documents.
///
/// A projection costs at most the members and items of the document and the fields, not their product: a request has
/// tens of thousands of fields, and a document a million members.
#[derive(Debug)]
pub struct Projector {
    /// A tree of the parts of names. The first node is its root.
    nodes: Vec<Node>,
    fields: usize,
    /// True if two parts mean the same array index, as `0` and `+0` do.
    has_aliases: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// The place of the first field that ends here among the fields.
    ends: Option<usize>,
    children: HashMap<Box<str>, usize>,
    /// The children whose part is an array index.
    places: HashMap<usize, Vec<usize>>,
}

/// A member or item of a document that fields lead to: its name in the answer, its value and the nodes there.
type Step<'s, 'v, 't> = (Cow<'v, str>, &'v Value<'t>, Vec<&'s Node>);

impl Projector {
    /// Prepares the fields.
    pub fn new(fields: &[Field]) -> Projector {
        let mut made = Projector { nodes: vec![Node::default()], fields: fields.len(), has_aliases: false };
        for (order, field) in fields.iter().enumerate() {
            let at = field.parts().fold(0, |at, part| made.child(at, part));
            if let Some(node) = made.nodes.get_mut(at) {
                node.ends.get_or_insert(order);
            }
        }
        made
    }

    /// Returns the child of a node, and makes it if it is missing.
    fn child(&mut self, at: usize, part: &str) -> usize {
        let next = self.nodes.len();
        let Some(node) = self.nodes.get_mut(at) else { return at };
        if let Some(known) = node.children.get(part) {
            return *known;
        }
        node.children.insert(part.into(), next);
        if let Some(place) = place(part) {
            let same = node.places.entry(place).or_default();
            self.has_aliases |= !same.is_empty();
            same.push(next);
        }
        self.nodes.push(Node::default());
        next
    }

    /// Returns the approximate work for a byte of a document, at least 1.
    pub fn weight(&self) -> usize {
        let most = if self.has_aliases { usize::MAX } else { SEARCHED_MAX };
        self.fields.clamp(1, most)
    }

    /// Returns the fields of a document, each at the path of its name, in the order of the fields. Items of an array
    /// become members named by their indexes. Each value has one path, so the answer is at most about as large as the
    /// document, however many fields name a value.
    pub fn project(&self, document: &Value<'_>) -> Value<'static> {
        let root: Vec<&Node> = self.nodes.first().into_iter().collect();
        let shown = self.shown(document, &root, false);
        shown.map_or_else(|| Value::Object(Vec::new()), |(_, value)| value)
    }

    /// Returns the fields below `nodes`, which all lead to `value`, and the place of the first field that is found.
    /// `None`: no field is found. `is_copied`: a value around this one is answered as a whole, so that only the place
    /// is of use.
    fn shown(&self, value: &Value<'_>, nodes: &[&Node], is_copied: bool) -> Option<(usize, Value<'static>)> {
        let ends = nodes.iter().filter_map(|node| node.ends).min();
        let steps = match value {
            Value::Object(members) => self.in_object(members, nodes),
            Value::Array(items) => self.in_array(items, nodes),
            _ => Vec::new(),
        };
        let mut members = Vec::with_capacity(steps.len());
        for (name, value, nodes) in steps {
            if let Some((first, value)) = self.shown(value, &nodes, is_copied || ends.is_some()) {
                members.push((first, name, value));
            }
        }
        let first = members.iter().map(|(first, ..)| *first).chain(ends).min()?;
        let shown = if is_copied {
            Value::Null
        } else if ends.is_some() {
            value.clone().into_owned()
        } else {
            members.sort_unstable_by_key(|(first, ..)| *first);
            let member = |(_, name, value): (usize, Cow<'_, str>, _)| (Cow::Owned(name.into_owned()), value);
            Value::Object(members.into_iter().map(member).collect())
        };
        Some((first, shown))
    }

    fn in_object<'s, 'v, 't>(
        &'s self,
        members: &'v [(Cow<'t, str>, Value<'t>)],
        nodes: &[&'s Node],
    ) -> Vec<Step<'s, 'v, 't>> {
        match nodes {
            [node] if node.children.len() <= SEARCHED_MAX => {
                let steps = node.children.iter().filter_map(|(part, at)| {
                    let (name, value) = members.iter().find(|(name, _)| **name == **part)?;
                    Some((Cow::Borrowed(&**name), value, vec![self.nodes.get(*at)?]))
                });
                steps.collect()
            }
            [node] => {
                let find = |(name, value): &'v (Cow<'t, str>, Value<'t>)| {
                    let at = node.children.get(&**name)?;
                    Some((Cow::Borrowed(&**name), value, vec![self.nodes.get(*at)?]))
                };
                members.iter().filter_map(find).collect()
            }
            several => {
                let mut by_name: HashMap<&str, Vec<&'s Node>> = HashMap::new();
                for (part, at) in several.iter().flat_map(|node| &node.children) {
                    by_name.entry(part).or_default().extend(self.nodes.get(*at));
                }
                let mut steps: Vec<Step<'s, 'v, 't>> = Vec::with_capacity(by_name.len());
                for (name, value) in members {
                    if by_name.is_empty() {
                        break;
                    }
                    steps.extend(by_name.remove(&**name).map(|nodes| (Cow::Borrowed(&**name), value, nodes)));
                }
                steps
            }
        }
    }

    fn in_array<'s, 'v, 't>(&'s self, items: &'v [Value<'t>], nodes: &[&'s Node]) -> Vec<Step<'s, 'v, 't>> {
        let mut by_place: BTreeMap<usize, Vec<&'s Node>> = BTreeMap::new();
        let mut add = |place: usize, children: &[usize]| {
            by_place.entry(place).or_default().extend(children.iter().filter_map(|at| self.nodes.get(*at)));
        };
        for node in nodes {
            if items.len() < node.places.len() {
                let places = (0..items.len()).filter_map(|place| Some((place, node.places.get(&place)?)));
                places.for_each(|(place, children)| add(place, children));
            } else {
                let places = node.places.iter().filter(|(place, _)| **place < items.len());
                places.for_each(|(place, children)| add(*place, children));
            }
        }
        let step = |(place, nodes): (usize, _)| Some((Cow::Owned(place.to_string()), items.get(place)?, nodes));
        by_place.into_iter().filter_map(step).collect()
    }
}

/// Puts a value at a path, and makes missing objects. A value on the way that is no object stays.
pub(crate) fn put(into: &mut Value<'static>, path: &[&str], value: Value<'static>) {
    let Some((first, rest)) = path.split_first() else {
        *into = value;
        return;
    };
    match into {
        Value::Object(members) => match members.iter_mut().find(|(name, _)| name == first) {
            Some((_, found)) => put(found, rest, value),
            None => {
                let mut nested = value;
                for name in rest.iter().rev() {
                    nested = Value::Object(vec![((*name).to_owned().into(), nested)]);
                }
                members.push(((*first).to_owned().into(), nested));
            }
        },
        Value::Array(items) => {
            if let Some(found) = first.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                put(found, rest, value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use flatbed_flatten::json::{self, Limits};
    use proptest::prelude::*;

    use super::*;

    fn fields(names: &[&str]) -> Vec<Field> {
        names.iter().map(|name| Field::new(name).unwrap()).collect()
    }

    fn projected(document: &str, names: &[&str]) -> String {
        let document = json::parse(document.as_bytes(), &Limits::default()).unwrap();
        json::to_string(&Projector::new(&fields(names)).project(&document))
    }

    /// The same, field by field.
    fn project_each(document: &Value<'_>, fields: &[Field]) -> Value<'static> {
        fn find<'v, 't>(document: &'v Value<'t>, field: &Field) -> Option<(Vec<String>, &'v Value<'t>)> {
            let (mut at, mut path) = (document, Vec::new());
            for part in field.parts() {
                match at {
                    Value::Object(_) => {
                        at = at.get(part)?;
                        path.push(part.to_owned());
                    }
                    Value::Array(items) => {
                        at = items.get(place(part)?)?;
                        path.push(place(part)?.to_string());
                    }
                    _ => return None,
                }
            }
            Some((path, at))
        }
        let (mut answer, mut shown) = (Value::Object(Vec::new()), HashSet::new());
        for field in fields {
            if let Some((path, value)) = find(document, field)
                && shown.insert(std::ptr::from_ref(value))
            {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                put(&mut answer, &path, value.clone().into_owned());
            }
        }
        answer
    }

    #[test]
    fn fields_are_where_their_names_say() {
        let document = r#"{"a":[{"b":1,"c":2},3],"0":{"00":4},"d":5}"#;
        for (names, expected) in [
            (&["d", "x", "d.e"][..], r#"{"d":5}"#),
            (&["a.0.b", "a.1"], r#"{"a":{"0":{"b":1},"1":3}}"#),
            (&["a.2", "a.-1", "a.x"], "{}"),
            (&["0.00", "00.00", "0.0"], r#"{"0":{"00":4}}"#),
            (&["a.0", "a", "a.0", "a.1"], r#"{"a":[{"b":1,"c":2},3]}"#),
            (&["a", "a.0"], r#"{"a":[{"b":1,"c":2},3]}"#),
            (&["d", "a.1", "a.+0.c", "a.0.b"], r#"{"d":5,"a":{"1":3,"0":{"c":2,"b":1}}}"#),
            (&["a.1", "d", "a"], r#"{"a":[{"b":1,"c":2},3],"d":5}"#),
        ] {
            assert_eq!(projected(document, names), expected, "{names:?}");
        }
    }

    #[test]
    fn an_item_is_shown_once_however_its_place_is_written() {
        let names: Vec<String> =
            (1..100).flat_map(|zeros| ["a.", "a.+", "a.-"].map(|a| a.to_owned() + &"0".repeat(zeros))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(projected(r#"{"a":["large"]}"#, &names), r#"{"a":{"0":"large"}}"#);
        assert_eq!(Projector::new(&fields(&names)).weight(), names.len());
    }

    /// Field by field these are 50 billion comparisons of names.
    #[test]
    fn many_fields_of_many_members_are_found_by_lookups() {
        let name = |n: usize| format!("m{n}");
        let member = |n: usize| (Cow::Owned(name(n)), Value::Number(n.to_string().into()));
        let document = Value::Object((0..1_000_000).map(member).collect());
        let names: Vec<String> = (950_000..1_000_000).map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let projector = Projector::new(&fields(&names));
        let Value::Object(shown) = projector.project(&document) else { panic!("no object") };
        assert_eq!(
            (shown.len(), shown.first(), shown.last()),
            (50_000, Some(&member(950_000)), Some(&member(999_999)))
        );
        assert_eq!(projector.weight(), SEARCHED_MAX);
    }

    fn documents() -> impl Strategy<Value = Value<'static>> {
        let leaf = (0..9_u8).prop_map(|n| Value::Number(n.to_string().into()));
        leaf.prop_recursive(4, 60, 12, |inner| {
            let name = prop::sample::select((0..12).map(|n| n.to_string()).collect::<Vec<_>>());
            let members = prop::collection::btree_map(name, inner.clone(), 0..12);
            let object = |members: BTreeMap<String, _>| {
                Value::Object(members.into_iter().map(|(name, value)| (Cow::Owned(name), value)).collect())
            };
            prop_oneof![members.prop_map(object), prop::collection::vec(inner, 0..12).prop_map(Value::Array)]
        })
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        let part = prop_oneof![
            6 => (0..12_u8).prop_map(|n| n.to_string()),
            1 => (0..4_u8).prop_map(|n| format!("+{n}")),
            1 => (0..4_u8).prop_map(|n| format!("0{n}")),
            1 => Just("x".to_owned()),
        ];
        let name = prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("."));
        prop::collection::vec(name, 0..40)
    }

    proptest! {
        #[test]
        fn a_projection_is_that_of_each_field(document in documents(), names in names()) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let fields = fields(&names);
            let expected = json::to_string(&project_each(&document, &fields));
            prop_assert_eq!(json::to_string(&Projector::new(&fields).project(&document)), expected);
        }
    }
}
