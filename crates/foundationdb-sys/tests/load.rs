//! The choice of a backend: a library that cannot be loaded gives a message of one line, and leaves the choice open.

use std::path::PathBuf;

use foundationdb_sys::backend::{Backend, LoadError, embedded, select};

#[test]
fn a_failed_choice_leaves_the_choice_open() {
    let missing = PathBuf::from("/nonexistent/libfdb_c.so");
    let error = select(Backend::Library(Some(missing))).expect_err("there is no such file");
    let text = error.to_string();
    assert!(matches!(error, LoadError::Missing { .. }), "{text}");
    assert!(text.contains("/nonexistent/libfdb_c.so") && text.contains("--fdb-library"), "{text}");
    assert!(!text.contains('\n'), "{text}");

    // A file that is not a library.
    let text_file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let error = select(Backend::Library(Some(text_file))).expect_err("a text is no library");
    assert!(matches!(error, LoadError::Missing { .. }), "{error}");

    // A foreign library: C's own.
    let name = if cfg!(target_os = "macos") { "libSystem.dylib" } else { "libc.so.6" };
    let error = select(Backend::Library(Some(name.into()))).expect_err("C's library is no libfdb_c");
    let text = error.to_string();
    assert!(matches!(error, LoadError::Foreign { function: "fdb_get_max_api_version", .. }), "{text}");
    assert!(text.contains(name) && !text.contains('\n'), "{text}");

    select(Backend::Embedded).expect("nothing was chosen yet");
    select(Backend::Embedded).expect("the same again");
    assert!(embedded().is_some(), "the engine answers");
    let error = select(Backend::Library(None)).expect_err("the engine answers already");
    assert!(matches!(error, LoadError::Chosen), "{error}");
}
