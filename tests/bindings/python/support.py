"""What the tests through the official Python binding share.

The API version is chosen once a process: FLATBED_TEST_API_VERSION, else 730. The database is the one of the cluster
file in FLATBED_CLUSTER_FILE, else an embedded one in a new directory. Each test has a key space of its own in it.
"""

import atexit
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid

import fdb

API_VERSION = int(os.environ.get("FLATBED_TEST_API_VERSION", "730"))
fdb.api_version(API_VERSION)

# No test waits longer for anything; a test that meets it has failed.
PATIENCE_SECONDS = 180


def cluster_file():
    """The path of the cluster file, and whether it is a real cluster's."""
    given = os.environ.get("FLATBED_CLUSTER_FILE")
    if given:
        lines = pathlib.Path(given).read_text().splitlines()
        lines = [line.split("#")[0].strip() for line in lines]
        return given, not any(line.startswith("embedded:") for line in lines)
    directory = tempfile.mkdtemp(prefix="flatbed-bindings-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = pathlib.Path(directory, "fdb.cluster")
    path.write_text("embedded:test@data\n")
    return str(path), False


CLUSTER_FILE, IS_CLUSTER = cluster_file()
_database = None


def database():
    """The database, opened once. The binding stops the network when the process ends."""
    global _database
    if _database is None:
        _database = fdb.open(CLUSTER_FILE)
        _database.options.set_transaction_timeout(PATIENCE_SECONDS * 1000)
    return _database


class DatabaseTest(unittest.TestCase):
    """A test with a database and a key space (`self.space`) that nobody else uses and that is emptied afterwards."""

    def setUp(self):
        self.db = database()
        self.space = fdb.Subspace(rawPrefix=b"test-bindings-" + uuid.uuid4().hex.encode() + b"/")
        self.addCleanup(self.clear)

    def clear(self):
        del self.db[self.space.range()]
        del self.db[self.space.key()]

    def assert_error(self, code, call, *arguments):
        """The call fails with this error of FoundationDB. A future that it answers is waited for."""
        with self.assertRaises(fdb.FDBError) as caught:
            result = call(*arguments)
            if isinstance(result, fdb.Future):
                result.wait()
        self.assertEqual(caught.exception.code, code)


def in_threads(*functions):
    """Runs the functions at the same time, and answers what they answer; raises what one of them raised."""
    results = [None] * len(functions)
    failures = []

    def run(at, function):
        try:
            results[at] = function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        if thread.is_alive():
            raise TimeoutError("a thread did not end")
    if failures:
        raise failures[0]
    return results


def python(program, *arguments, directory=None, api_version=API_VERSION):
    """Runs a program in a process of its own, after the API version was chosen. Answers (status, output, errors)."""
    program = f"import fdb\nfdb.api_version({api_version})\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=2 * PATIENCE_SECONDS,
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def ready(future):
    """Waits until a future is ready, and answers its error's code: 0 for none."""
    future.block_until_ready()
    try:
        future.wait()
    except fdb.FDBError as error:
        return error.code
    return 0
