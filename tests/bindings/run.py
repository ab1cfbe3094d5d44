#!/usr/bin/env python3
"""Runs the tests that use libfdb_c as other people's programs do: through its C API and the official bindings.

    run.py --library DIR [--sanitizer NAME] PART...

DIR holds libfdb_c.so. The parts:

    oracle        replay a part of what a real cluster answered (oracle/), and its pages of ranges (pages/)
    oracle-all    replay all of it
    python        the tests in python/ with each API version, a process each
    node          the tests in node/, where the Node binding brings its compiled part
    c             build and run c/threads.c; with --sanitizer `address` or `thread`, as the library was built
    memcheck      the same under valgrind

With FLATBED_CLUSTER_FILE set the tests run on the database that it names; otherwise each part has an embedded one in a
new directory. For a real cluster's file the library is not DIR's, but the one that the system's loader finds.
Ends with status 1 if a part failed, 2 if one could not run.
"""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
API_VERSIONS = (710, 720, 730)
# Of each trace: what takes some ten seconds.
ORACLE_FIRST = 1000


class CannotRun(Exception):
    pass


def is_embedded(cluster_file):
    lines = (line.split("#")[0].strip() for line in pathlib.Path(cluster_file).read_text().splitlines())
    return any(line.startswith("embedded:") for line in lines)


class Runner:
    def __init__(self, library, scratch, sanitizer):
        self.library, self.scratch, self.sanitizer = library, scratch, sanitizer
        self.given = os.environ.get("FLATBED_CLUSTER_FILE") or None
        self.environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if self.given is None or is_embedded(self.given):
            if not (library / "libfdb_c.so").exists():
                raise CannotRun(f"there is no libfdb_c.so in {library}")
            self.environment["LD_LIBRARY_PATH"] = str(library)

    def cluster_file(self, name):
        """The given cluster file, or one of an embedded database in a new directory."""
        if self.given:
            return self.given
        path = self.scratch / f"{name}.cluster"
        path.write_text(f"embedded:test@{self.scratch / name}\n")
        shutil.rmtree(self.scratch / name, ignore_errors=True)
        return str(path)

    def run(self, command, **environment):
        print("+", " ".join(str(word) for word in command), flush=True)
        command = [str(word) for word in command]
        return subprocess.run(command, env={**self.environment, **environment}).returncode == 0

    def is_empty(self):
        """Whether the given database holds nothing but what a replay left: ranges of the traces reach beyond its keys."""
        program = """
import sys, fdb
fdb.api_version(730)
tr = fdb.open(sys.argv[1]).create_transaction()
sys.exit(any(list(tr.get_range(*ends, limit=1)) for ends in ((b"", b"oracle/"), (b"oracle0", b"\\xff"))))
"""
        return subprocess.run([sys.executable, "-c", program, self.given], env=self.environment).returncode == 0

    def replay(self, *options):
        if self.given and not self.is_empty():
            raise CannotRun(f"the traces can be replayed on an empty database alone, and that of {self.given} is not")
        command = [sys.executable, HERE / "oracle" / "oracle.py", "check", *sorted((HERE / "oracle").glob("*.jsonl"))]
        return self.run([*command, "--cluster-file", self.cluster_file("oracle"), *options])

    def pages(self):
        """Page by page on the engine; a cluster may have cut the ranges elsewhere when they were recorded."""
        script, recorded = HERE / "pages" / "pages.py", HERE / "pages" / "pages.jsonl"
        options = [] if "LD_LIBRARY_PATH" not in self.environment else ["--strict"]
        command = [sys.executable, script, "check", recorded, "--cluster-file", self.cluster_file("pages")]
        return self.run([*command, *options])

    def oracle(self):
        try:
            is_equal = self.replay("--first", ORACLE_FIRST)
        except CannotRun as reason:
            print(f"{reason}: left out")
            is_equal = True
        return self.pages() and is_equal

    def oracle_all(self):
        is_equal = self.replay()
        return self.pages() and is_equal

    def python(self):
        command = [sys.executable, "-W", "error", "-m", "unittest", "discover", "--start-directory", HERE / "python"]
        # Not `all`: each version is tried, whatever became of the one before.
        return False not in [self.run(command, FLATBED_TEST_API_VERSION=str(version)) for version in API_VERSIONS]

    def node(self):
        if not (HERE / "node" / "node_modules").is_dir():
            raise CannotRun("the Node binding is not installed: make bindings-tests does it")
        if platform.machine() != "x86_64" or sys.platform != "linux":
            # Elsewhere it must be compiled, with FoundationDB's headers.
            print("the Node binding brings no compiled part for this machine: its tests are left out")
            return True
        command = ["node", "--test", "--test-timeout=600000", HERE / "node" / "binding.mjs"]
        return self.run(command, FLATBED_TEST_CLUSTER_FILE=self.cluster_file("node"))

    def build_c(self):
        source, program = HERE / "c" / "threads.c", self.scratch / "threads"
        compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]
        libraries = [f"-L{self.library}"] if "LD_LIBRARY_PATH" in self.environment else []
        libraries.append("-lfdb_c")
        if self.sanitizer == "address":
            compiler.append("-fsanitize=address")
        if self.sanitizer == "thread":
            # The C compiler's own runtime may lack what Rust's code calls: Rust's runtime serves both.
            object_file = self.scratch / "threads.o"
            if not self.run([*compiler, "-fsanitize=thread", "-c", "-o", object_file, source]):
                raise CannotRun("c/threads.c cannot be compiled")
            source = object_file
            libraries += ["-Wl,--whole-archive", rust_runtime("tsan"), "-Wl,--no-whole-archive", "-Wl,--export-dynamic"]
            libraries += ["-lstdc++", "-lm", "-lrt", "-ldl"]
        if not self.run([*compiler, "-o", program, source, *libraries]):
            raise CannotRun("c/threads.c cannot be compiled")
        return program

    def run_c(self, *wrapper):
        program = self.build_c()
        files = [self.cluster_file("c-one"), self.cluster_file("c-two")]
        # The second time both databases are one.
        return self.run([*wrapper, program, "--rounds", 30, *files]) and self.run(
            [*wrapper, program, "--rounds", 10, files[0]]
        )

    def c(self):
        return self.run_c()

    def memcheck(self):
        if shutil.which("valgrind") is None:
            raise CannotRun("valgrind is missing (Debian: apt install valgrind)")
        return self.run_c(HERE / "c" / "valgrind")


def rust_runtime(name):
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    for path in pathlib.Path(sysroot, "lib", "rustlib").glob(f"*/lib/librustc*_rt.{name}.a"):
        return path
    raise CannotRun(f"this Rust toolchain brings no runtime for {name}")


PARTS = {
    "oracle": Runner.oracle,
    "oracle-all": Runner.oracle_all,
    "python": Runner.python,
    "node": Runner.node,
    "c": Runner.c,
    "memcheck": Runner.memcheck,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--sanitizer", choices=("address", "thread"))
    parser.add_argument("parts", choices=PARTS, nargs="+", metavar="PART")
    arguments = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory(prefix="flatbed-bindings-") as scratch:
        try:
            runner = Runner(arguments.library.resolve(), pathlib.Path(scratch), arguments.sanitizer)
            for part in arguments.parts:
                if not PARTS[part](runner):
                    failed.append(part)
        except CannotRun as reason:
            print(reason, file=sys.stderr)
            return 2
    if failed:
        print("failed:", ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
