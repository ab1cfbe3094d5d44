//! Groups of views as design documents define them: their trees of rows, their reductions, and their signature.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::OnceLock;

use flatbed_collate::Collation;
use flatbed_collate::reduce::{NameError, Reducer};
use flatbed_flatten::json::{Value, write};
use flatbed_mango::Index;
use flatbed_revtree::DESIGN;
use sha2::{Digest, Sha256};

use crate::view_functions::GroupSource;

/// The version of the storage and of the computation of rows. An increment rebuilds all groups.
const FORMAT: u32 = 1;

const JAVASCRIPT: &str = "javascript";

/// The language of design documents whose maps are lists of fields.
const QUERY: &str = "query";

/// The member of the views with modules for `require`.
const LIB: &str = "lib";

/// A group of views: those of one design document, or of several with the same definition. Each distinct map makes a
/// tree of rows; views of the same map share it, with a reduction each.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDefinition {
    /// The hash of everything that determines the rows and their storage. Groups with the same signature are one.
    pub signature: Signature,
    /// The design document's language.
    pub language: String,
    /// The options of all its views.
    pub options: GroupOptions,
    /// Modules for `require` in maps: JSON text.
    pub lib: Option<String>,
    /// In the order of the names of their first views.
    pub trees: Vec<TreeDefinition>,
    /// Sorted by name.
    pub views: Vec<ViewDefinition>,
}

/// See [`GroupDefinition::signature`].
pub type Signature = [u8; 16];

/// `options` of a design document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupOptions {
    /// True to map documents with `_local_seq`.
    pub local_seq: bool,
    /// True to map design documents, too.
    pub include_design: bool,
    /// True if rows are local to a partition, and queried by it: the default in a partitioned database.
    pub partitioned: bool,
}

/// The rows of one map.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeDefinition {
    /// The first view with this map, for messages.
    pub view: String,
    /// The map's source; in the language `query` the list of fields, as JSON.
    pub map: String,
    /// True if keys are ordered by their bytes (`"collation": "raw"`).
    pub is_raw: bool,
    /// The distinct reduces, in the order of their views.
    pub reduces: Vec<ReduceFunction>,
}

/// The reduce of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReduceFunction {
    /// A built-in reduce.
    BuiltIn(Reducer),
    /// A JavaScript function.
    Written {
        /// The first view with this reduce, for messages.
        view: String,
        /// The function's source.
        source: String,
        /// Its index in [`GroupSource::reduces`].
        at: usize,
    },
}

/// A view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewDefinition {
    /// Its name.
    pub name: String,
    /// The index of its tree.
    pub tree: usize,
    /// Its index among the tree's reduces; `None`: it has no reduce.
    pub reduce: Option<usize>,
}

/// Why the views of a design document define no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// No runtime supports this language.
    #[error("{0} is not a supported language")]
    Language(String),
    /// A reduce names an unknown built-in reduction.
    #[error(transparent)]
    Reduce(#[from] NameError),
    /// A view of fields has a reduce that is not built in.
    #[error("the view `{0}` of fields must have a built-in reduce")]
    WrittenReduce(String),
}

impl TreeDefinition {
    /// Compares two keys in the order of its rows.
    pub fn compare(&self, a: &Value<'_>, b: &Value<'_>) -> Ordering {
        static UNICODE: OnceLock<Option<Collation>> = OnceLock::new();
        match UNICODE.get_or_init(|| Collation::unicode().ok()) {
            Some(unicode) if !self.is_raw => unicode.compare(a, b),
            _ => Collation::raw().compare(a, b),
        }
    }
}

impl GroupDefinition {
    /// Returns the group in a design document's body, for a database that is `partitioned` or not; `None`: it has no
    /// views. A view without a map is skipped, as in CouchDB.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub fn of_design(body: &Value<'_>, partitioned: bool) -> Result<Option<GroupDefinition>, DefinitionError> {
        let Some(Value::Object(members)) = body.get("views") else { return Ok(None) };
        let language = body.get("language").and_then(Value::as_str).unwrap_or(JAVASCRIPT);
        let is_of_fields = language == QUERY;
        let source = |view| if is_of_fields { Source::of_fields(view) } else { Source::of(view) };
        let mut sources: Vec<Source<'_>> = members.iter().filter_map(source).collect();
        if sources.is_empty() {
            return Ok(None);
        }
        if !language.eq_ignore_ascii_case(JAVASCRIPT) && !is_of_fields {
            return Err(DefinitionError::Language(language.to_owned()));
        }
        // The last of several members with the same name counts.
        sources.reverse();
        sources.sort_by_key(|source| source.name);
        sources.dedup_by_key(|source| source.name);
        let is_lib = |name: &str, value: &Value<'_>| name == LIB && matches!(value, Value::Object(_)) && !is_of_fields;
        let lib = members.iter().rev().find(|(name, value)| is_lib(name, value));
        let mut group = GroupDefinition {
            signature: Signature::default(),
            language: language.to_owned(),
            options: GroupOptions::of(body.get("options"), partitioned),
            lib: lib.map(|(_, value)| text_of(value)),
            trees: Vec::new(),
            views: Vec::with_capacity(sources.len()),
        };
        let mut written = 0;
        for source in &sources {
            group.add(source, &mut written)?;
        }
        group.signature = group.sign(FORMAT);
        Ok(Some(group))
    }

    fn add(&mut self, source: &Source<'_>, written: &mut usize) -> Result<(), DefinitionError> {
        let is_same = |tree: &TreeDefinition| tree.map == *source.map && tree.is_raw == source.is_raw;
        let at = self.trees.iter().position(is_same).unwrap_or(self.trees.len());
        if at == self.trees.len() {
            let (view, map) = (source.name.to_owned(), source.map.to_string());
            self.trees.push(TreeDefinition { view, map, is_raw: source.is_raw, reduces: Vec::new() });
        }
        let mut reduce = None;
        if let (Some(source_text), Some(tree)) = (source.reduce, self.trees.get_mut(at)) {
            let built_in = Reducer::from_name(source_text)?;
            if built_in.is_none() && self.language == QUERY {
                return Err(DefinitionError::WrittenReduce(source.name.to_owned()));
            }
            let is_same = |known: &ReduceFunction| match (known, built_in) {
                (ReduceFunction::BuiltIn(known), Some(new)) => *known == new,
                (ReduceFunction::Written { source, .. }, None) => source == source_text,
                _ => false,
            };
            let place = tree.reduces.iter().position(is_same).unwrap_or(tree.reduces.len());
            if place == tree.reduces.len() {
                tree.reduces.push(match built_in {
                    Some(reducer) => ReduceFunction::BuiltIn(reducer),
                    None => {
                        *written += 1;
                        let (view, source) = (source.name.to_owned(), source_text.to_owned());
                        ReduceFunction::Written { view, source, at: *written - 1 }
                    }
                });
            }
            reduce = Some(place);
        }
        self.views.push(ViewDefinition { name: source.name.to_owned(), tree: at, reduce });
        Ok(())
    }

    /// Returns the signature of the group in the previous format.
    #[cfg(feature = "test-kinds")]
    pub fn signature_before(&self) -> Signature {
        self.sign(FORMAT - 1)
    }

    fn sign(&self, format: u32) -> Signature {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(&format.to_be_bytes());
        part(self.language.as_bytes());
        let GroupOptions { local_seq, include_design, partitioned } = self.options;
        part(&[u8::from(local_seq), u8::from(include_design), if partitioned { 1 } else { 2 }]);
        part(self.lib.as_deref().unwrap_or_default().as_bytes());
        // Functions compare strings by it (`localeCompare`), whatever the order of their rows.
        part(order_of(false).as_bytes());
        for tree in &self.trees {
            part(order_of(tree.is_raw).as_bytes());
            part(tree.map.as_bytes());
            for reduce in &tree.reduces {
                match reduce {
                    ReduceFunction::BuiltIn(reducer) => part(format!("_{reducer:?}").as_bytes()),
                    ReduceFunction::Written { source, .. } => part(source.as_bytes()),
                }
            }
        }
        for view in &self.views {
            part(view.name.as_bytes());
            part(format!("{} {:?}", view.tree, view.reduce).as_bytes());
        }
        let mut signature = Signature::default();
        signature.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
        signature
    }

    /// Returns the sources of its functions; those of maps are in the order of the trees.
    pub fn source(&self) -> GroupSource {
        let maps = self.trees.iter().map(|tree| (tree.view.clone(), tree.map.clone())).collect();
        let written = self.trees.iter().flat_map(|tree| &tree.reduces).filter_map(|reduce| match reduce {
            ReduceFunction::BuiltIn(_) => None,
            ReduceFunction::Written { view, source, at } => Some((*at, (view.clone(), source.clone()))),
        });
        let mut written: Vec<_> = written.collect();
        written.sort_by_key(|(at, _)| *at);
        GroupSource { lib: self.lib.clone(), maps, reduces: written.into_iter().map(|(_, reduce)| reduce).collect() }
    }

    /// Returns whether its maps are lists of fields: documents by the values of these, as in json indexes.
    pub fn is_of_fields(&self) -> bool {
        self.language == QUERY
    }

    /// Returns a view by name.
    pub fn view(&self, name: &str) -> Option<&ViewDefinition> {
        self.views.iter().find(|view| view.name == name)
    }
}

struct Source<'b> {
    name: &'b str,
    map: Cow<'b, str>,
    reduce: Option<&'b str>,
    is_raw: bool,
}

impl<'b> Source<'b> {
    fn of((name, view): &'b (Cow<'_, str>, Value<'_>)) -> Option<Source<'b>> {
        if name == LIB {
            return None;
        }
        let map = Cow::Borrowed(view.get("map").and_then(Value::as_str)?);
        let (reduce, is_raw) = (reduce_of(view), is_raw(view));
        Some(Source { name, map, reduce, is_raw })
    }

    /// In the language `query`, a view that defines no index is skipped.
    fn of_fields((name, view): &'b (Cow<'_, str>, Value<'_>)) -> Option<Source<'b>> {
        let map = view.get("map")?;
        Index::of_map(DESIGN, name, map)?;
        Some(Source { name, map: Cow::Owned(text_of(map)), reduce: reduce_of(view), is_raw: is_raw(view) })
    }
}

fn reduce_of<'b>(view: &'b Value<'_>) -> Option<&'b str> {
    view.get("reduce").and_then(Value::as_str).filter(|source| !source.is_empty())
}

fn is_raw(view: &Value<'_>) -> bool {
    let collation = view.get("options").and_then(|options| options.get("collation"));
    collation.and_then(Value::as_str) == Some("raw")
}

impl GroupOptions {
    fn of(options: Option<&Value<'_>>, partitioned: bool) -> GroupOptions {
        let flag = |name: &str| match options.and_then(|options| options.get(name)) {
            Some(Value::Bool(flag)) => Some(*flag),
            _ => None,
        };
        let is = |name: &str| flag(name) == Some(true);
        let (local_seq, include_design) = (is("local_seq"), is("include_design"));
        GroupOptions { local_seq, include_design, partitioned: partitioned && flag("partitioned") != Some(false) }
    }
}

/// Returns the version of the string order that `_info` of a design document shows.
pub fn collator_version() -> String {
    Collation::version()
}

fn text_of(value: &Value<'_>) -> String {
    let mut text = Vec::new();
    write(value, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the version of the order of a tree's rows.
fn order_of(is_raw: bool) -> &'static str {
    static RAW: OnceLock<String> = OnceLock::new();
    static UNICODE: OnceLock<String> = OnceLock::new();
    match is_raw {
        true => RAW.get_or_init(|| Collation::raw().signature()),
        // If the data is missing, every sort fails with its own error.
        false => UNICODE.get_or_init(|| Collation::unicode().map(|unicode| unicode.signature()).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_flatten::json::{Limits, parse};

    fn group(body: &str) -> Option<GroupDefinition> {
        group_in(body, false)
    }

    fn group_in(body: &str, partitioned: bool) -> Option<GroupDefinition> {
        GroupDefinition::of_design(&parse(body.as_bytes(), &Limits::default()).unwrap(), partitioned).unwrap()
    }

    fn signature(body: &str) -> Signature {
        group(body).expect("a group").signature
    }

    #[test]
    fn views_of_one_map_share_a_tree() {
        let body = r#"{"views":{
            "c":{"map":"m2","options":{"collation":"raw"}},
            "lib":{"x":"exports.y = 1"},
            "b":{"map":"m1","reduce":"_summer"},
            "a":{"map":"m1","reduce":"r1"},
            "d":{"map":"m2"},
            "e":{"map":"m1","reduce":"_sum"},
            "f":{"map":"m1","reduce":"r1"},
            "g":{"map":"m2","reduce":"r2"},
            "h":{"map":"m1","reduce":""},
            "none":{"reduce":"_sum"}}}"#;
        let group = group(body).expect("a group");
        let views: Vec<_> = group.views.iter().map(|view| (&*view.name, view.tree, view.reduce)).collect();
        let none = None;
        assert_eq!(
            views,
            [
                ("a", 0, Some(0)),
                ("b", 0, Some(1)),
                ("c", 1, none),
                ("d", 2, none),
                ("e", 0, Some(1)),
                ("f", 0, Some(0)),
                ("g", 2, Some(0)),
                ("h", 0, none)
            ]
        );
        let trees: Vec<_> = group.trees.iter().map(|tree| (&*tree.view, &*tree.map, tree.is_raw)).collect();
        assert_eq!(trees, [("a", "m1", false), ("c", "m2", true), ("d", "m2", false)]);
        let source = group.source();
        assert_eq!(source.lib.as_deref(), Some(r#"{"x":"exports.y = 1"}"#));
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(source.maps, [pair("a", "m1"), pair("c", "m2"), pair("d", "m2")]);
        assert_eq!(source.reduces, [pair("a", "r1"), pair("g", "r2")]);
        assert_eq!(group.view("e").map(|view| view.tree), Some(0));
    }

    #[test]
    fn equal_definitions_have_one_signature_and_others_another() {
        let plain = signature(r#"{"views":{"a":{"map":"m"},"b":{"map":"n","reduce":"_sum"}}}"#);
        for same in [
            r#"{"language":"javascript","views":{"b":{"reduce":"_sum","map":"n"},"a":{"map":"m"}},"filters":{"x":"y"}}"#,
            r#"{"views":{"a":{"map":"old"},"b":{"map":"n","reduce":"_sum"},"a":{"map":"m"}},"options":{"local_seq":false}}"#,
        ] {
            assert_eq!(signature(same), plain, "{same}");
        }
        let mut all = vec![plain];
        for other in [
            r#"{"views":{"a":{"map":"m"},"c":{"map":"n","reduce":"_sum"}}}"#,
            r#"{"views":{"a":{"map":"m"},"b":{"map":"n","reduce":"_count"}}}"#,
            r#"{"views":{"a":{"map":"m"},"b":{"map":"n"}}}"#,
            r#"{"views":{"a":{"map":"m "},"b":{"map":"n","reduce":"_sum"}}}"#,
            r#"{"views":{"lib":{"l":"1"},"a":{"map":"m"},"b":{"map":"n","reduce":"_sum"}}}"#,
            r#"{"views":{"a":{"map":"m","options":{"collation":"raw"}},"b":{"map":"n","reduce":"_sum"}}}"#,
            r#"{"views":{"a":{"map":"m"},"b":{"map":"n","reduce":"_sum"}},"options":{"local_seq":true}}"#,
            r#"{"views":{"a":{"map":"m"},"b":{"map":"n","reduce":"_sum"}},"options":{"include_design":true}}"#,
        ] {
            let signature = signature(other);
            assert!(!all.contains(&signature), "{other}");
            all.push(signature);
        }
        let body = |options| {
            format!(r#"{{"views":{{"a":{{"map":"m"}},"b":{{"map":"n","reduce":"_sum"}}}},"options":{options}}}"#)
        };
        for (options, partitioned, is_local) in [
            ("{}", true, true),
            (r#"{"partitioned":true}"#, true, true),
            (r#"{"partitioned":false}"#, true, false),
            (r#"{"partitioned":false}"#, false, false),
        ] {
            let group = group_in(&body(options), partitioned).expect("a group");
            assert_eq!((group.options.partitioned, group.signature != plain), (is_local, is_local), "{options}");
        }
    }

    #[test]
    fn lists_of_fields_are_maps() {
        let body = r#"{"language":"query","views":{
            "a":{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{}}},
            "b":{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}}},
            "c":{"map":{"fields":{"t":"asc","n":"asc"}}},
            "lib":{"map":{"fields":{"x":"asc"}}}}}"#;
        let group = group(body).expect("a group");
        assert!(group.is_of_fields());
        let views: Vec<_> = group.views.iter().map(|view| (&*view.name, view.tree, view.reduce)).collect();
        assert_eq!(views, [("a", 0, Some(0)), ("b", 0, None), ("c", 1, None), ("lib", 2, None)]);
        assert_eq!(group.trees[1].map, r#"{"fields":{"t":"asc","n":"asc"}}"#);
        assert_eq!(group.lib, None);
        let other = r#"{"language":"query","views":{"c":{"map":{"fields":{"n":"asc","t":"asc"}}}}}"#;
        assert_ne!(
            signature(other),
            signature(r#"{"language":"query","views":{"c":{"map":{"fields":{"t":"asc","n":"asc"}}}}}"#)
        );
    }

    #[test]
    fn what_makes_no_group() {
        for body in [
            r#"{}"#,
            r#"{"views":[]}"#,
            r#"{"views":{"lib":{"map":"m"}}}"#,
            r#"{"views":{"a":{"map":1},"b":"m","c":null}}"#,
            r#"{"language":"query","views":{"a":{"map":{}},"b":{"map":{"fields":["n"]}},"c":{"map":"m"}}}"#,
        ] {
            assert_eq!(group(body), None, "{body}");
        }
        let refused = |body: &str| {
            let body = parse(body.as_bytes(), &Limits::default()).unwrap();
            GroupDefinition::of_design(&body, false).unwrap_err().to_string()
        };
        assert_eq!(refused(r#"{"language":"erlang","views":{"a":{"map":"m"}}}"#), "erlang is not a supported language");
        let reason = "the view `a` of fields must have a built-in reduce";
        assert_eq!(
            refused(r#"{"language":"query","views":{"a":{"map":{"fields":{"n":"asc"}},"reduce":"function"}}}"#),
            reason
        );
        let reason = "`_average` is not a supported reduce function.";
        assert_eq!(refused(r#"{"views":{"a":{"map":"m","reduce":"_average"}}}"#), reason);
    }
}
