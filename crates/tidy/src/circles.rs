//! Modules of one folder that use each other in a circle.
//!
//! The modules are those that the folder's own module declares (`lib.rs` or `main.rs` for a crate), each with the files
//! below it. A module uses another if its code has a path that begins with `crate::` and the folder or, from the file's
//! place, with as many `super::` as lead there, and goes on with the other's name. Re-exports of the folder's own module
//! are not followed, and code of tests alone is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::rust::{is_of_word, parts, without_tests};
use crate::sources::is_test;

/// The modules of a folder, each with the others that it uses.
pub type Uses = BTreeMap<String, BTreeSet<String>>;

/// Reads a crate's files, given by their paths below `src`. Returns the folders, by their paths there; `""` is the crate's
/// own.
pub fn uses(files: &BTreeMap<String, String>) -> BTreeMap<String, Uses> {
    let mut codes: BTreeMap<&str, String> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| !is_test(Path::new(path))) {
        let code = parts(text).code;
        if !code.trim_start().starts_with("#![cfg(test)]") {
            codes.insert(path, without_tests(&code));
        }
    }
    let folders: BTreeSet<&str> =
        codes.keys().flat_map(|path| path.match_indices('/').filter_map(|(at, _)| path.get(..at))).collect();
    [""].into_iter().chain(folders).map(|folder| (folder.to_owned(), uses_in(&codes, folder))).collect()
}

fn uses_in(codes: &BTreeMap<&str, String>, folder: &str) -> Uses {
    let (below, from_root, roots) = match folder {
        "" => (String::new(), "crate::".to_owned(), ["lib.rs".to_owned(), "main.rs".to_owned()]),
        _ => {
            let from_root = format!("crate::{}::", folder.replace('/', "::"));
            (format!("{folder}/"), from_root, [format!("{folder}.rs"), format!("{folder}/mod.rs")])
        }
    };
    let mut uses = Uses::new();
    for code in roots.iter().filter_map(|root| codes.get(root.as_str())) {
        uses.extend(declared(code).map(|name| (name.to_owned(), BTreeSet::new())));
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (path, code) in codes {
        let Some(path) = path.strip_prefix(&below) else { continue };
        let mut place: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
        if place.last() == Some(&"mod") {
            place.pop();
        }
        let Some(own) = place.first().copied() else { continue };
        let Some(used) = uses.get_mut(own) else { continue };
        for prefix in [from_root.clone(), "super::".repeat(place.len())] {
            let others = named(code, &prefix).into_iter().filter(|name| *name != own && modules.contains(*name));
            used.extend(others.map(str::to_owned));
        }
    }
    uses
}

/// The modules of the largest circle, each as a line with those of the circle that it uses. Each of them reaches all others.
pub fn largest(uses: &Uses) -> Vec<String> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|module| (module.as_str(), reached(uses, module))).collect();
    let mut circle: Vec<&str> = Vec::new();
    for (module, others) in &reach {
        let returns = |other: &&str| reach.get(*other).is_some_and(|back| back.contains(*module));
        let found: Vec<&str> = others.iter().copied().filter(returns).collect();
        if found.len() > circle.len() {
            circle = found;
        }
    }
    let line = |module: &&str| {
        let used = uses.get(*module).into_iter().flatten().map(String::as_str);
        let used: Vec<&str> = used.filter(|other| circle.contains(other)).collect();
        format!("{module} uses {}", used.join(", "))
    };
    circle.iter().map(line).collect()
}

/// All modules that `module` uses, directly or through others; itself only in a circle.
fn reached<'u>(uses: &'u Uses, module: &str) -> BTreeSet<&'u str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![module];
    while let Some(module) = left.pop() {
        for used in uses.get(module).into_iter().flatten() {
            if reached.insert(used.as_str()) {
                left.push(used);
            }
        }
    }
    reached
}

/// The names in `mod name;`.
fn declared(code: &str) -> impl Iterator<Item = &str> {
    code.split(';').filter_map(|item| {
        let (before, name) = item.rsplit_once("mod ")?;
        (!before.ends_with(is_of_word) && !name.is_empty() && name.chars().all(is_of_word)).then_some(name)
    })
}

/// The names behind `prefix` where a path begins with it.
fn named<'c>(code: &'c str, prefix: &str) -> Vec<&'c str> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let (before, path) = code.split_at(at);
        // The end of a longer path or name, or a visibility.
        if before.ends_with(|sign: char| is_of_word(sign) || matches!(sign, '$' | ':')) || before.ends_with("(in ") {
            continue;
        }
        let path = path.get(prefix.len()..).unwrap_or_default();
        match path.strip_prefix('{') {
            Some(group) => names.extend(first_of_each(group)),
            None => names.push(first(path)),
        }
    }
    names
}

/// The first names of the paths in a group of a `use`, up to the brace that closes it.
fn first_of_each(group: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut depth = 1_u32;
    let mut is_begin = true;
    for (at, sign) in group.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => is_begin = true,
            _ if is_begin && is_of_word(sign) => {
                names.push(first(group.get(at..).unwrap_or_default()));
                is_begin = false;
            }
            _ => {}
        }
    }
    names
}

fn first(path: &str) -> &str {
    path.split(|sign: char| !is_of_word(sign)).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses_of(files: &[(&str, &str)]) -> String {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let of = |(module, used): (String, BTreeSet<String>)| {
            format!("{module}: {}", used.into_iter().collect::<Vec<_>>().join(" "))
        };
        uses(&files).remove("").unwrap().into_iter().map(of).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn paths_in_code_name_modules() {
        let root = ("lib.rs", "mod a;\npub(crate) mod b;\nmod c;\n#[cfg(test)]\nmod d;\npub use a::A;");
        for (path, text, expected) in [
            ("a.rs", "use crate::b::B;", "a: b; b: ; c: "),
            ("a/x.rs", "use crate::{a::A, b::{self, c}, c::C as D};", "a: b c; b: ; c: "),
            ("b.rs", "fn f(c: &'static crate::c::C) { crate::a() }", "a: ; b: a c; c: "),
            ("c.rs", "use super::a::A;", "a: ; b: ; c: a"),
            ("c/mod.rs", "use super::a::A;", "a: ; b: ; c: a"),
            ("c/x.rs", "use super::super::a::A;\nuse super::b;", "a: ; b: ; c: a"),
            ("c.rs", "// crate::a\nlet x = \"crate::a\"; mycrate::a(); pub(in crate::a) fn f() {}", "a: ; b: ; c: "),
            ("c.rs", "#[cfg(test)]\nmod tests { use crate::a; }\nuse crate::{Other, d::D};", "a: ; b: ; c: "),
            ("c/tests.rs", "use crate::a;", "a: ; b: ; c: "),
            ("c/x.rs", "//! For tests.\n#![cfg(test)]\nuse crate::a;", "a: ; b: ; c: "),
            ("d.rs", "use crate::a;", "a: ; b: ; c: "),
        ] {
            assert_eq!(uses_of(&[root, (path, text)]), expected, "{path}: {text}");
        }
    }

    #[test]
    fn paths_in_a_folder_name_its_modules() {
        for (path, text, expected) in [
            ("a/b/c.rs", "use crate::a::b::d::D;", ["d", ""]),
            ("a/b/c.rs", "use super::d::D;", ["d", ""]),
            ("a/b/c/x.rs", "use super::super::d;", ["d", ""]),
            ("a/b/d.rs", "use crate::a::b::{E, c::C};", ["", "c"]),
            ("a/b/d.rs", "use crate::a::c; use crate::b::c; use super::super::c;", ["", ""]),
        ] {
            for own in ["a/b.rs", "a/b/mod.rs"] {
                let files = [("lib.rs", "mod a;"), (own, "mod c;\npub mod d;"), (path, text)];
                let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
                let uses = uses(&files).remove("a/b").unwrap();
                let used = ["c", "d"].map(|module| uses[module].iter().cloned().collect::<Vec<_>>().join(" "));
                assert_eq!(used, expected, "{path}: {text}");
            }
        }
    }

    #[test]
    fn the_largest_circle_is_found() {
        let graph = |edges: &str| {
            let mut uses = Uses::new();
            for (from, to) in edges.split(' ').map(|edge| edge.split_at(1)) {
                uses.entry(from.to_owned()).or_default().insert(to.to_owned());
                uses.entry(to.to_owned()).or_default();
            }
            largest(&uses).join("; ")
        };
        assert_eq!(graph("ab bc ac dc"), "");
        assert_eq!(graph("ab ba cd dc ce ed fa"), "c uses d, e; d uses c; e uses d");
        assert_eq!(graph("ab bc ca cd"), "a uses b; b uses c; c uses a");
    }
}
