//! Writes `crates/layer/src/store/proto.rs` from `flatbed.proto`, without protoc: `make proto`.
//!
//! The first line names the SHA-256 of the source and of the code, by which the test `generated_proto` finds a change of either.

use std::error::Error;
use std::path::Path;

use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = std::env::temp_dir().join(format!("flatbed-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let files = protox::compile(["flatbed.proto"], [&proto])?;
    prost_build::Config::new().out_dir(&out).compile_fds(files)?;
    let code = std::fs::read_to_string(out.join("flatbed.rs"))?;
    std::fs::remove_dir_all(&out)?;
    let source = std::fs::read(proto.join("flatbed.proto"))?;
    let stamp = format!("// flatbed.proto {:x}, code {:x}\n", Sha256::digest(source), Sha256::digest(&code));
    std::fs::write(proto.join("../src/store/proto.rs"), stamp + &code)?;
    Ok(())
}
