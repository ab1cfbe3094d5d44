//! The committed `src/store/proto.rs` is what prost-build made of `proto/flatbed.proto`: no build needs protoc, and neither
//! file changes without the other.

use sha2::{Digest, Sha256};

#[test]
fn generated_code_is_that_of_the_proto_file() {
    let source = include_bytes!("../../proto/flatbed.proto");
    let (stamp, code) = include_str!("../../src/store/proto.rs").split_once('\n').expect("a first line");
    let expected = format!("// flatbed.proto {:x}, code {:x}", Sha256::digest(source), Sha256::digest(code));
    assert_eq!(stamp, expected, "src/store/proto.rs is not what proto/flatbed.proto gives: run `make proto`");
}
