//! The committed `src/store/proto.rs` is what prost-build makes of `proto/flatbed.proto`: no build needs protoc, and none
//! can drift. `FLATBED_GENERATE=1 cargo test -p flatbed-layer --test it generated_proto` writes it anew.

use std::path::Path;

#[test]
fn generated_code_is_that_of_the_proto_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["flatbed.proto"], [root.join("proto")]).expect("proto/flatbed.proto compiles");
    let out = std::env::temp_dir().join(format!("flatbed-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("a temporary directory");
    prost_build::Config::new().out_dir(&out).compile_fds(files).expect("prost-build");
    let generated = std::fs::read_to_string(out.join("flatbed.rs")).expect("generated file");
    std::fs::remove_dir_all(&out).expect("removed");
    let committed = root.join("src/store/proto.rs");
    if std::env::var_os("FLATBED_GENERATE").is_some() {
        std::fs::write(&committed, &generated).expect("written");
    }
    let found = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(
        found == generated,
        "src/store/proto.rs is not what proto/flatbed.proto gives: run with FLATBED_GENERATE=1"
    );
}
