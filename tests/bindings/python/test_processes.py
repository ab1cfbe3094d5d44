"""Cluster files, directories, API versions and the end of a process: each in a process of its own."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import API_VERSION, IS_CLUSTER, PATIENCE_SECONDS, python

# The error's code, or the values under a key in each database.
WRITE = "import sys; db = fdb.open(sys.argv[1]); db[sys.argv[2].encode()] = sys.argv[3].encode()"
READ = "import sys; db = fdb.open(sys.argv[1]); print(bytes(db[sys.argv[2].encode()]).decode())"
CODE = """
import sys
try:
    db = fdb.open(sys.argv[1])
    db.options.set_transaction_timeout(5000)
    db[b"a"]
    print(0)
except fdb.FDBError as error:
    print(error.code)
"""

ONCE = unittest.skipIf(API_VERSION != 730, "the API version plays no part")


class Processes(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="flatbed-bindings-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def cluster_file(self, text, name="fdb.cluster"):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_python(self, *arguments, **options):
        """What the program writes; it must end well and say nothing else."""
        status, output, errors = python(*arguments, **options)
        self.assertEqual((status, errors), (0, ""))
        return output


@unittest.skipIf(IS_CLUSTER, "the library of a cluster opens no directories")
@ONCE
class ClusterFiles(Processes):
    def test_a_directory_is_absolute_or_relative_to_the_file(self):
        absolute = self.cluster_file(f"embedded:one@{self.directory}/data\n")
        self.run_python(WRITE, absolute, "key", "value")
        self.assertTrue((self.directory / "data" / "data.mdb").is_file())
        relative = self.cluster_file("# as in FoundationDB's own\n\nembedded:two@../data # here\n", "etc/fdb.cluster")
        self.assertEqual(self.run_python(READ, relative, "key"), "value")
        self.assertEqual(self.run_python(READ, "etc/fdb.cluster", "key", directory=self.directory), "value")

    def test_a_cluster_file_from_the_environment(self):
        path = self.cluster_file("embedded:test@data\n")
        program = f"import fdb; fdb.api_version({API_VERSION}); db = fdb.open(); db[b'a'] = b'1'"
        environment = {**os.environ, "FDB_CLUSTER_FILE": str(path)}
        environment.pop("FLATBED_CLUSTER_FILE", None)
        subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=PATIENCE_SECONDS)
        self.assertTrue((self.directory / "data" / "data.mdb").is_file())

    def test_several_databases_in_one_process(self):
        files = [self.cluster_file(f"embedded:test@data{name}\n", name) for name in "abc"]
        program = """
import sys, threading
files = sys.argv[1:]
databases = [fdb.open(file) for file in files]
def fill(at):
    for index in range(20):
        databases[at][b"%d" % index] = b"%d" % at
threads = [threading.Thread(target=fill, args=(at,)) for at in range(len(files))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
for at, db in enumerate(databases):
    assert [bytes(pair.value) for pair in db[b"":b"\\xff"]] == [b"%d" % at] * 20
watches = []
for db in databases:
    tr = db.create_transaction()
    watches.append(tr.watch(b"0"))
    tr.commit().wait()
databases[1][b"0"] = b"x"
assert fdb.Future.wait_for_any(*watches) == 1
assert not watches[0].is_ready() and not watches[2].is_ready()
"""
        self.run_python(program, *files)

    def test_two_cluster_files_of_one_directory_are_one_database(self):
        files = [self.cluster_file("embedded:test@data\n", name) for name in "ab"]
        program = """
import sys
one, two = map(fdb.open, sys.argv[1:])
tr = one.create_transaction()
tr[b"a"].present()
two[b"a"] = b"1"
tr[b"b"] = b"1"
try:
    tr.commit().wait()
except fdb.FDBError as error:
    print(error.code, bytes(one[b"a"]).decode())
"""
        self.assertEqual(self.run_python(program, *files), "1020 1")

    def test_a_second_process_is_refused(self):
        path = self.cluster_file("embedded:test@data\n")
        program = f"""
import subprocess, sys
db = fdb.open(sys.argv[1])
db[b"a"] = b"1"
second = "import fdb; fdb.api_version({API_VERSION})" + sys.argv[2]
second = subprocess.run([sys.executable, "-c", second, sys.argv[1]], capture_output=True, text=True, timeout=60)
print(second.stdout, second.stderr, sep="")
db[b"a"] = b"2"
"""
        output = self.run_python(program, path, CODE)
        # The lock of a file is held by someone else.
        self.assertEqual(output.splitlines()[0], "1529")
        self.assertIn(f"{self.directory}/data is in use by another process", output)
        self.assertEqual(self.run_python(READ, path, "a"), "2")

    def test_what_cannot_be_opened(self):
        foreign = self.directory / "foreign"
        foreign.mkdir()
        (foreign / "data.mdb").write_bytes(b"not a database\n" * 1_000)
        (self.directory / "file").write_text("no directory")
        expected = {
            "embedded:test@foreign\n": (1522, "foreign"),
            "embedded:test@file\n": (1511, "file"),
            "embedded:test@/dev/null/data\n": (1511, "/dev/null"),
            "embedded:te st@data\n": (2104, "the name must be letters"),
            "embedded:test\n": (2104, "lacks an @"),
            "": (2104, "empty"),
            "description:id@127.0.0.1:4500\n": (2104, "FoundationDB's own library"),
        }
        for text, (code, reason) in expected.items():
            self.refused(self.cluster_file(text), code, reason)
        self.assertEqual((foreign / "data.mdb").read_bytes(), b"not a database\n" * 1_000)
        self.refused(self.directory / "none", 1515, f"no cluster file {self.directory}/none")
        self.refused(self.directory, 1513, "cannot read the cluster file")

    def refused(self, cluster_file, code, reason):
        """The cluster file's database cannot be opened: the error's code, and one line on stderr that says why."""
        status, output, errors = python(CODE, cluster_file)
        self.assertEqual((status, output, len(errors.splitlines())), (0, str(code), 1), errors)
        self.assertIn(reason, errors)

    def test_a_directory_that_is_missing_is_made(self):
        path = self.cluster_file("embedded:test@new/inner\n")
        self.run_python(WRITE, path, "a", "1")
        self.assertTrue((self.directory / "new" / "inner" / "data.mdb").is_file())

    def test_what_was_committed_is_there_after_the_process_was_killed(self):
        path = self.cluster_file("embedded:test@data\n")
        program = WRITE + "; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        self.assertEqual(python(program, path, "a", "1")[0], -9)
        self.assertEqual(self.run_python(READ, path, "a"), "1")


@ONCE
class Ends(Processes):
    """A process ends by itself, with status 0 and silent, whatever is still going on."""

    def database(self):
        if IS_CLUSTER:
            return os.environ["FLATBED_CLUSTER_FILE"]
        return self.cluster_file("embedded:test@data\n")

    def test_with_watches_and_commits_under_way(self):
        program = """
import sys, threading
db = fdb.open(sys.argv[1])
kept = []
for index in range(50):
    tr = db.create_transaction()
    watch = tr.watch(b"test-bindings-end")
    watch.on_ready(lambda _: None)
    kept.append((tr, watch, tr.commit()))
for index in range(50):
    tr = db.create_transaction()
    tr[b"test-bindings-end/%d" % index] = b"x"
    commit = tr.commit()
    commit.on_ready(lambda _: None)
    kept.append((tr, commit))
"""
        for _ in range(10):
            self.run_python(program, self.database())

    def test_with_threads_in_the_middle_of_transactions(self):
        program = """
import sys, threading, time
db = fdb.open(sys.argv[1])
def work(name):
    index = 0
    while True:
        index += 1
        db[b"test-bindings-end/%s/%d" % (name, index % 100)] = b"x"
for name in (b"a", b"b"):
    threading.Thread(target=work, args=(name,), daemon=True).start()
time.sleep(0.3)
"""
        # A daemon thread may die with an error on its way out, as the network has ended. The process must not.
        for _ in range(3):
            status, output, _ = python(program, self.database())
            self.assertEqual((status, output), (0, ""))

    def test_after_the_network_was_stopped_by_the_program(self):
        program = """
import sys
db = fdb.open(sys.argv[1])
db[b"test-bindings-end"] = b"1"
fdb.impl._capi.fdb_stop_network()
fdb.impl._network_thread.join(30)
assert not fdb.impl._network_thread.is_alive()
"""
        self.run_python(program, self.database())

    def test_without_a_database(self):
        self.run_python("fdb.impl.init()")
        self.run_python("pass")


class ApiVersions(Processes):
    def test_versions_that_work(self):
        for version in (710, 720, 730):
            self.assertEqual(self.run_python("print(fdb.get_api_version())", api_version=version), str(version))

    def test_versions_that_do_not(self):
        for version in (731, 800) if IS_CLUSTER else (700, 731, 800):
            status, output, errors = python("pass", api_version=version)
            self.assertEqual((status, output), (1, ""))
            self.assertIn("version", errors.splitlines()[-1])

    def test_a_version_is_chosen_once(self):
        status, _, errors = python("fdb.api_version(710)", api_version=730)
        self.assertEqual(status, 1)
        self.assertIn("already", errors)


if __name__ == "__main__":
    unittest.main()
