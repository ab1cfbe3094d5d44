//! Disk faults on demand: `faults.c`, compiled here and loaded into a child process.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fdb-embedded/tests/faults.c");

/// The library, compiled once for each process. The tests need a C compiler, as the build does.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (path, new) = (dir.join("faults.so"), dir.join(format!("faults-{}.so", std::process::id())));
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&new).arg(SOURCE).arg("-ldl");
        assert!(compiler.status().expect("a C compiler").success(), "faults.c does not compile");
        // Several test processes may compile it concurrently.
        std::fs::rename(new, &path).expect("a place");
        path
    })
}

/// Faults on the files below a directory.
pub struct Faults {
    dir: PathBuf,
    /// Beside the directory, so that the faults do not affect it.
    switch: PathBuf,
    log: PathBuf,
}

impl Faults {
    /// `dir` may be missing; its parent must exist.
    pub fn on(dir: &Path) -> Faults {
        let (parent, name) = (dir.parent().expect("a parent"), dir.file_name().expect("a name"));
        // The library compares with the canonical path.
        let dir = parent.canonicalize().expect("it is there").join(name);
        Faults { switch: dir.with_extension("switch"), log: dir.with_extension("log"), dir }
    }

    /// Loads the library into a child process.
    pub fn load<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let variables: [(&str, &OsStr); 4] = [
            ("LD_PRELOAD", library().as_os_str()),
            ("FAULTS_DIR", self.dir.as_os_str()),
            ("FAULTS_SWITCH", self.switch.as_os_str()),
            ("FAULTS_LOG", self.log.as_os_str()),
        ];
        command.envs(variables)
    }

    /// Sets the fault of call number `at`.
    pub fn arm(&self, at: u64, mode: &str, errno: i32) {
        let _ = std::fs::remove_file(&self.log);
        let new = self.switch.with_extension("new");
        std::fs::write(&new, format!("{at} {mode} {errno}\n")).expect("a file");
        std::fs::rename(new, &self.switch).expect("a switch");
    }

    /// The calls counted since `arm`, one per line: number, name, file, result.
    pub fn calls(&self) -> Vec<String> {
        std::fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}
