//! The rules, applied to the repository.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flatbed_tidy::files::{part, root, with_ending};
use flatbed_tidy::sizes::{
    ARCHITECTURE_BYTES_MAX, CRATE_README_LINES_MAX, DESIGN_BYTES_MAX, README_LINES_MAX, above, allowance,
};
use flatbed_tidy::{circles, commits, crates, licences, paths, prose, ratchet, rust, sources};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn assert_none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// Compares counted findings with `list`, a file in this crate's directory, or writes it if the environment has
/// `TIDY=update`.
fn assert_allowed(rule: &str, list: &str, found: &BTreeMap<String, usize>, details: &BTreeMap<String, Vec<String>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(list);
    if std::env::var("TIDY").is_ok_and(|value| value == "update") {
        fs::write(path, ratchet::list(found)).unwrap();
        return;
    }
    let differences = ratchet::differences(&read(&path), found, details);
    let rule = format!("{rule}; `TIDY=update cargo test -p flatbed-tidy` writes crates/tidy/{list}");
    assert_none(&rule, &differences);
}

/// Compares findings with `list` as `assert_allowed` does; each counts as one.
fn assert_allowed_each(rule: &str, list: &str, findings: &BTreeMap<String, Vec<String>>) {
    let counts = findings.iter().map(|(name, findings)| (name.clone(), findings.len())).collect();
    assert_allowed(rule, list, &counts, findings);
}

/// The pages of `docs/` and the documents in the root.
fn pages() -> Vec<PathBuf> {
    let mut pages = with_ending(&root().join("docs"), ".md").unwrap();
    pages.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(|name| root().join(name)));
    pages
}

/// The crates by name, with the paths of their READMEs.
fn crate_readmes() -> BTreeMap<String, PathBuf> {
    let crates = crates::of_workspace(&root()).unwrap().into_iter();
    crates.map(|of| (of.name.clone(), root().join("crates").join(of.name).join("README.md"))).collect()
}

#[test]
fn crates_depend_on_those_in_the_table() {
    let crates = crates::of_workspace(&root()).unwrap();
    assert!(crates.iter().any(|of| of.name == "tidy"), "no crates were found");
    let table = read(&root().join("ARCHITECTURE.md"));
    assert_none("the table of crates in ARCHITECTURE.md", &crates::differences(&crates, &table));
}

#[test]
fn crates_take_part_in_the_lints() {
    let crates = crates::of_workspace(&root()).unwrap();
    let without =
        crates.iter().filter(|of| !of.is_linted).map(|of| format!("{} has no `[lints] workspace = true`", of.name));
    assert_none("manifests", &without.collect::<Vec<_>>());
}

#[test]
fn documents_name_what_is_there() {
    let mut missing = Vec::new();
    for page in pages() {
        let found = paths::missing(&root(), &read(&page)).into_iter();
        missing.extend(found.map(|path| format!("{}:{path}", page.display())));
    }
    for path in with_ending(&root(), ".md").unwrap() {
        let directory = path.parent().unwrap();
        let links = paths::missing_links(directory, &read(&path)).into_iter();
        missing.extend(links.map(|link| format!("{}:{link}", path.display())));
    }
    assert_none("no such file", &missing);
}

#[test]
fn documents_and_comments_name_the_actor() {
    let mut findings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |path: &Path, found: Vec<String>| {
        let path = path.strip_prefix(root()).unwrap();
        let found = found.into_iter().map(|what| format!("{}:{what}", path.display()));
        findings.entry(part(path)).or_default().extend(found);
    };
    for path in with_ending(&root().join("crates"), ".rs").unwrap() {
        let text = read(&path);
        add(&path, prose::in_comments(&rust::parts(&text).comments));
    }
    let mut documents = pages();
    documents.extend(with_ending(&root().join("design"), ".md").unwrap());
    documents.extend(crate_readmes().into_values().filter(|path| path.exists()));
    for path in documents {
        add(&path, prose::in_markdown(&read(&path)));
    }
    assert_allowed_each("words that hide the actor", "prose.txt", &findings);
}

#[test]
fn documents_are_short() {
    let design = with_ending(&root().join("design"), "").unwrap();
    let design: usize = design.iter().map(|path| fs::read(path).unwrap().len()).sum();
    let mut broken = vec![
        above("design/", design, DESIGN_BYTES_MAX, "bytes"),
        above("ARCHITECTURE.md", read(&root().join("ARCHITECTURE.md")).len(), ARCHITECTURE_BYTES_MAX, "bytes"),
        above("README.md", read(&root().join("README.md")).lines().count(), README_LINES_MAX, "lines"),
    ];
    for (name, path) in crate_readmes().iter().filter(|(_, path)| path.exists()) {
        let lines = read(path).lines().count();
        broken.push(above(&format!("crates/{name}/README.md"), lines, CRATE_README_LINES_MAX, "lines"));
    }
    assert_none("sizes", &broken.into_iter().flatten().collect::<Vec<_>>());
}

#[test]
fn crates_have_a_readme() {
    let without = crate_readmes().into_iter().filter(|(_, path)| !path.exists());
    let without = without.map(|(name, path)| (name, vec![format!("{} is missing", path.display())])).collect();
    assert_allowed_each("crates without a README", "readmes.txt", &without);
}

#[test]
fn crates_are_small() {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for path in with_ending(&root().join("crates"), ".rs").unwrap() {
        let name = part(path.strip_prefix(root()).unwrap());
        *lines.entry(name).or_default() += read(&path).lines().count();
    }
    let details = lines.iter().map(|(name, lines)| (name.clone(), vec![format!("{lines} lines")])).collect();
    let allowances = lines.iter().map(|(name, lines)| (name.clone(), allowance(*lines))).collect();
    assert_allowed("lines of a crate, in steps of 1,000", "lines.txt", &allowances, &details);
}

#[test]
fn modules_do_not_use_each_other_in_circles() {
    let mut modules = 0;
    let mut largest = BTreeMap::new();
    for of in crates::of_workspace(&root()).unwrap() {
        let sources = root().join("crates").join(&of.name).join("src");
        let mut files = BTreeMap::new();
        for path in with_ending(&sources, ".rs").unwrap() {
            files.insert(path.strip_prefix(&sources).unwrap().to_string_lossy().into_owned(), read(&path));
        }
        for (folder, uses) in circles::uses(&files) {
            modules += uses.len();
            let name = if folder.is_empty() { of.name.clone() } else { format!("{}/{folder}", of.name) };
            largest.insert(name, circles::largest(&uses));
        }
    }
    assert!(modules > 1_000, "no modules were found");
    assert_allowed_each("modules in the largest circle of a folder", "circles.txt", &largest);
}

#[test]
fn sources_are_short_and_finished() {
    let files = with_ending(&root(), ".rs").unwrap();
    assert!(files.len() > 100, "no sources were found");
    let broken = files.iter().flat_map(|path| {
        let broken = sources::broken(&read(path)).into_iter();
        broken.map(|what| format!("{}:{what}", path.display()))
    });
    assert_none("sources", &broken.collect::<Vec<_>>());
}

#[test]
fn tests_do_not_depend_on_how_fast_the_machine_is() {
    let files = with_ending(&root().join("crates"), ".rs").unwrap();
    let broken = files.iter().flat_map(|path| {
        let broken = sources::waits_by_time(path.strip_prefix(root()).unwrap(), &read(path)).into_iter();
        broken.map(|what| format!("{}:{what}", path.display()))
    });
    assert_none("tests", &broken.collect::<Vec<_>>());
}

#[test]
fn properties_draw_the_same_cases_in_each_run() {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    assert!(seed.is_some(), "proptest has no seed: `.cargo/config.toml` has one for runs from within the repository");
}

#[test]
fn examples_in_documentation_are_tested() {
    let mut broken = Vec::new();
    for of in crates::of_workspace(&root()).unwrap() {
        let directory = root().join("crates").join(&of.name);
        let is_tested = !read(&directory.join("Cargo.toml")).lines().any(|line| line == "doctest = false");
        let has_library = directory.join("src/lib.rs").exists();
        let sources = with_ending(&directory.join("src"), ".rs").unwrap();
        let has_example = sources.iter().any(|path| sources::has_example(&read(path)));
        if has_library && is_tested != has_example {
            let says = if is_tested { "has none, and not `doctest = false`" } else { "says `doctest = false`" };
            broken.push(format!("{} {says}", of.name));
        }
    }
    assert_none("examples in doc comments", &broken);
}

#[test]
fn subjects_of_commits_are_short() {
    let Some(subjects) = commits::subjects(&root()) else {
        eprintln!("skipped: no git, or no repository");
        return;
    };
    assert_none("commits", &subjects.iter().filter_map(|commit| commits::broken(commit)).collect::<Vec<_>>());
}

#[test]
fn dependencies_are_what_deny_toml_allows() {
    let deny = read(&root().join("deny.toml"));
    let lock = read(&root().join("Cargo.lock"));
    let packages = licences::locked(&lock);
    let mut broken = Vec::new();
    for name in licences::list(&deny, "bans", "deny") {
        if packages.contains_key(name.as_str()) {
            broken.push(format!("{name} is banned"));
        }
    }
    let registry = licences::list(&deny, "sources", "allow-registry");
    for (name, versions) in &packages {
        for (_, source) in versions.iter().filter(|(_, source)| !source.is_empty()) {
            if !registry.iter().any(|registry| source.strip_prefix("registry+") == Some(registry)) {
                broken.push(format!("{name} comes from {source}"));
            }
        }
    }
    let allowed = licences::list(&deny, "licenses", "allow");
    let mut trees = 0;
    // The crates built for this machine are present, or the test would not run; those of other systems may be missing.
    let tree = ["tree", "--offline", "--locked", "--workspace", "--all-features", "--edges=normal,build,dev"];
    let format = ["--prefix=none", "--format={p};{l};"];
    let output = Command::new(env!("CARGO")).current_dir(root()).args(tree).args(format).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()) {
        let mut parts = line.split(';');
        let (package, licence) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        trees += 1;
        if !licences::is_allowed(licence, &allowed) {
            broken.push(format!("{package} has the licence {licence:?}"));
        }
    }
    assert!(trees > 100, "no dependencies were found");
    broken.sort();
    broken.dedup();
    assert_none("deny.toml", &broken);
}
