//! The files of the console in `assets/`, compiled into the binary. The console is a web page that uses only the
//! server's public API, so this crate does not depend on the server. `design/console.md` describes its pages and the
//! cost of their requests. Pure.
#![warn(clippy::indexing_slicing)]

use std::sync::LazyLock;

/// The content security policy of the console's page: scripts, styles, pictures and requests of its own origin only; no
/// inline code, no markup from text, no framing.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
     connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The largest total size of all files, in bytes.
pub const BYTES_MAX: usize = 300_000;

/// A file of the console.
#[derive(Debug)]
pub struct File {
    /// The path beneath `/_utils/`; empty for the page itself.
    pub path: &'static str,
    /// The media type.
    pub content_type: &'static str,
    /// The content.
    pub bytes: &'static [u8],
    /// A strong entity tag with its quotes, derived from the content.
    pub etag: String,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal $content_type:ident $file:literal,)+) => {
        [$(($path, $content_type, include_bytes!(concat!("../assets/", $file)) as &'static [u8])),+]
    };
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let files = files![
        "" HTML "index.html",
        "icon.svg" PICTURE "icon.svg",
        "style.css" STYLE "style.css",
        "main.js" SCRIPT "main.js",
        "api.js" SCRIPT "api.js",
        "chart.js" SCRIPT "chart.js",
        "compare.js" SCRIPT "compare.js",
        "dom.js" SCRIPT "dom.js",
        "editor.js" SCRIPT "editor.js",
        "flow.js" SCRIPT "flow.js",
        "json.js" SCRIPT "json.js",
        "parts.js" SCRIPT "parts.js",
        "samples.js" SCRIPT "samples.js",
        "tree.js" SCRIPT "tree.js",
        "pages/access.js" SCRIPT "pages/access.js",
        "pages/attachments.js" SCRIPT "pages/attachments.js",
        "pages/changes.js" SCRIPT "pages/changes.js",
        "pages/database.js" SCRIPT "pages/database.js",
        "pages/databases.js" SCRIPT "pages/databases.js",
        "pages/document.js" SCRIPT "pages/document.js",
        "pages/documents.js" SCRIPT "pages/documents.js",
        "pages/entry.js" SCRIPT "pages/entry.js",
        "pages/indexes.js" SCRIPT "pages/indexes.js",
        "pages/job.js" SCRIPT "pages/job.js",
        "pages/jobs.js" SCRIPT "pages/jobs.js",
        "pages/keys.js" SCRIPT "pages/keys.js",
        "pages/metrics.js" SCRIPT "pages/metrics.js",
        "pages/query.js" SCRIPT "pages/query.js",
        "pages/queue.js" SCRIPT "pages/queue.js",
        "pages/replications.js" SCRIPT "pages/replications.js",
        "pages/revisions.js" SCRIPT "pages/revisions.js",
        "pages/storage.js" SCRIPT "pages/storage.js",
        "pages/users.js" SCRIPT "pages/users.js",
    ];
    let file =
        |(path, content_type, bytes)| File { path, content_type, bytes, etag: format!("\"{:016x}\"", fnv1a(bytes)) };
    files.into_iter().map(file).collect()
});

/// Hashes a file's content with 64-bit FNV-1a. It tells versions apart and is no protection.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns all files.
pub fn files() -> &'static [File] {
    &FILES
}

/// Returns the file with a path beneath `/_utils/`, as in the URL.
pub fn file(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn text(file: &File) -> &str {
        std::str::from_utf8(file.bytes).unwrap()
    }

    fn scripts() -> impl Iterator<Item = &'static File> {
        files().iter().filter(|file| file.content_type == SCRIPT)
    }

    #[test]
    fn every_file_is_there_and_no_other_path() {
        assert_eq!(file("").map(|file| file.content_type), Some(HTML));
        assert_eq!(file("pages/queue.js").map(|file| file.content_type), Some(SCRIPT));
        for path in ["pages", "pages/", "/", "main.js/", "../Cargo.toml", "MAIN.JS", "index.html"] {
            assert!(file(path).is_none(), "{path}");
        }
        let tags: BTreeSet<&str> = files().iter().map(|file| file.etag.as_str()).collect();
        assert_eq!(tags.len(), files().len());
    }

    #[test]
    fn no_file_of_the_folder_is_left_out() {
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
        let mut found = BTreeSet::new();
        for folder in ["", "pages"] {
            for entry in std::fs::read_dir(assets.join(folder)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    let name = entry.file_name().into_string().unwrap();
                    found.insert(if folder.is_empty() { name } else { format!("{folder}/{name}") });
                }
            }
        }
        let served = files().iter().map(|file| if file.path.is_empty() { "index.html" } else { file.path }.to_owned());
        assert_eq!(found, served.collect());
    }

    #[test]
    fn it_is_small() {
        let bytes: usize = files().iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes}");
        for file in files() {
            assert!(text(file).lines().count() <= 700, "{}: one module, one idea", file.path);
        }
    }

    #[test]
    fn values_have_no_way_into_markup() {
        let ways = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "srcdoc",
            "createContextualFragment",
            "localStorage",
            "sessionStorage",
            "indexedDB",
            "document.cookie",
        ];
        // `dom.js` names these to refuse them.
        let named = |path: &str, way: &str| path == "dom.js" && ["innerHTML", "outerHTML", "srcdoc"].contains(&way);
        for file in scripts() {
            for way in ways {
                let found = text(file).contains(way);
                assert!(!found || named(file.path, way), "{}: {way}", file.path);
            }
        }
        let page = text(file("").unwrap());
        for inline in ["style=", "onclick", "<style", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
    }

    #[test]
    fn addresses_are_relative_so_that_it_works_behind_a_prefix() {
        for file in files() {
            for absolute in ["from '/", "import('/", "href=\"/", "src=\"/", "url(/", "fetch('/"] {
                assert!(!text(file).contains(absolute), "{}: {absolute}", file.path);
            }
        }
    }

    #[test]
    fn what_is_imported_is_there() {
        let mut met = 0;
        for script in scripts() {
            for line in text(script).lines() {
                let Some((_, from)) = line.split_once(" from '").filter(|_| line.starts_with("import ")) else {
                    continue;
                };
                let name = from.split('\'').next().unwrap();
                let path = match (name.strip_prefix("../"), name.strip_prefix("./")) {
                    (Some(path), _) => path.to_owned(),
                    (None, Some(path)) if script.path.starts_with("pages/") => format!("pages/{path}"),
                    (None, path) => path.unwrap().to_owned(),
                };
                assert!(file(&path).is_some(), "{}: {name}", script.path);
                met += 1;
            }
        }
        assert!(met > 30, "{met}");
    }

    #[test]
    fn the_policy_lets_nothing_in() {
        assert!(CONTENT_SECURITY_POLICY.starts_with("default-src 'none'; "));
        for hole in ["unsafe", "*", "http", "  "] {
            assert!(!CONTENT_SECURITY_POLICY.contains(hole), "{hole}");
        }
    }
}
