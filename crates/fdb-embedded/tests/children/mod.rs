//! Helpers of the test programs that start themselves as child processes.

use flatbed_testkit::Random;

pub fn bytes(random: &mut Random, count: u64) -> Vec<u8> {
    let words = (0..count.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
    words.take(count as usize).collect()
}

/// Runs this test program again, with only its test `child`, and `variables` in its environment.
pub fn child(variables: &[(&str, &std::ffi::OsStr)]) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
    command
}
