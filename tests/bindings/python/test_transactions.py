"""Transactions: reads, writes, retries, conflicts, options."""

import json
import threading
import time
import unittest

import fdb

from support import IS_CLUSTER, PATIENCE_SECONDS, DatabaseTest, in_threads


class Reads(DatabaseTest):
    def setUp(self):
        super().setUp()

        @fdb.transactional
        def fill(tr):
            for index in range(100):
                tr[self.space[index]] = b"%d" % index

        fill(self.db)

    def keys(self, *indexes):
        return [self.space.pack((index,)) for index in indexes]

    def test_values(self):
        self.assertEqual(self.db[self.space[7]], b"7")
        self.assertIsNone(self.db[self.space[100]])
        self.assertFalse(self.db.create_transaction()[self.space[100]].present())

    def test_ranges(self):
        tr = self.db.create_transaction()
        whole = list(tr[self.space.range()])
        self.assertEqual([pair.key for pair in whole], self.keys(*range(100)))
        self.assertEqual([pair.value for pair in whole], [b"%d" % index for index in range(100)])
        begin, end = self.keys(10, 20)
        self.assertEqual([pair.key for pair in tr[begin:end]], self.keys(*range(10, 20)))
        last = tr.get_range(begin, end, limit=3, reverse=True)
        self.assertEqual([pair.key for pair in last], self.keys(19, 18, 17))
        for mode in ("want_all", "iterator", "small", "medium", "large", "serial"):
            pairs = tr.get_range(begin, end, streaming_mode=getattr(fdb.StreamingMode, mode))
            self.assertEqual(len(list(pairs)), 10, mode)
        exact = tr.get_range(begin, end, limit=4, streaming_mode=fdb.StreamingMode.exact)
        self.assertEqual(len(exact.to_list()), 4)
        self.assert_error(2210, tr.get_range(begin, end, streaming_mode=fdb.StreamingMode.exact).to_list)

    def test_a_range_of_many_pages(self):
        @fdb.transactional
        def fill(tr, part):
            for index in range(50):
                tr[self.space["many"][part][index]] = b"v" * 2_000

        for part in range(10):
            fill(self.db, part)
        for mode in (fdb.StreamingMode.iterator, fdb.StreamingMode.small):
            tr = self.db.create_transaction()
            pairs = tr.get_range_startswith(self.space["many"].key(), streaming_mode=mode)
            keys = [pair.key for pair in pairs]
            self.assertEqual((len(keys), keys), (500, sorted(set(keys))))

    def test_selectors(self):
        tr = self.db.create_transaction()
        key = self.space.pack((50,))
        selectors = {
            "last_less_than": 49,
            "last_less_or_equal": 50,
            "first_greater_than": 51,
            "first_greater_or_equal": 50,
        }
        for name, found in selectors.items():
            self.assertEqual(tr.get_key(getattr(fdb.KeySelector, name)(key)), self.keys(found)[0], name)
        self.assertEqual(tr.get_key(fdb.KeySelector.first_greater_than(key) + 9), self.keys(60)[0])
        self.assertEqual(tr.get_key(fdb.KeySelector.last_less_than(key) - 9), self.keys(40)[0])

    def test_a_size_is_estimated_and_a_range_split(self):
        @fdb.transactional
        def fill(tr, part):
            for index in range(10):
                tr[self.space["big"][part][index]] = b"v" * 10_000

        for part in range(5):
            fill(self.db, part)
        tr = self.db.create_transaction()
        inside = self.space["big"].range()
        size = tr.get_estimated_range_size_bytes(inside.start, inside.stop).wait()
        self.assertGreaterEqual(size, 0)
        points = tr.get_range_split_points(inside.start, inside.stop, 100_000).wait()
        self.assertEqual((points[0], points[-1]), (inside.start, inside.stop))
        self.assertEqual(list(points), sorted(set(points)))
        if not IS_CLUSTER:
            # A cluster answers from a sample of its keys.
            self.assertGreater(size, 500_000)
            self.assertGreater(len(points), 3)

    def test_where_keys_are(self):
        begin, end = self.space.range().start, self.space.range().stop
        boundaries = list(fdb.locality.get_boundary_keys(self.db, begin, end))
        self.assertEqual(boundaries, sorted(boundaries))
        addresses = fdb.locality.get_addresses_for_key(self.db.create_transaction(), self.keys(1)[0]).wait()
        self.assertTrue(addresses)
        for address in addresses:
            self.assertRegex(address, rb"^[0-9a-fA-F.:\[\]]+(:tls)?$")


class Writes(DatabaseTest):
    def test_a_transaction_reads_its_own_writes(self):
        @fdb.transactional
        def work(tr):
            tr[self.space["a"]] = b"1"
            tr[self.space["b"]] = b""
            del tr[self.space["a"]]
            return tr[self.space["a"]].present(), bytes(tr[self.space["b"]])

        self.assertEqual(work(self.db), (False, b""))
        self.assertEqual(self.db[self.space["b"]], b"")

    def test_an_exception_leaves_nothing(self):
        @fdb.transactional
        def fails(tr):
            tr[self.space["a"]] = b"1"
            raise ValueError("no")

        self.assertRaises(ValueError, fails, self.db)
        self.assertIsNone(self.db[self.space["a"]])

    def test_clearing(self):
        for name in "abcd":
            self.db[self.space[name]] = b"1"
        self.db.clear_range(self.space["b"], self.space["d"])
        self.assertEqual(len(list(self.db[self.space.range()])), 2)
        self.db.clear_range_startswith(self.space.key())
        self.assertEqual(list(self.db[self.space.range()]), [])

    def test_atomic_operations(self):
        key = self.space["n"]
        eight = lambda number: number.to_bytes(8, "little")
        self.db.add(key, eight(5))
        self.db.add(key, eight(2**64 - 3))
        self.assertEqual(self.db[key], eight(2))
        self.db.bit_or(key, eight(5))
        self.db.bit_xor(key, eight(1))
        self.db.bit_and(key, eight(0xFE))
        self.assertEqual(self.db[key], eight(6))
        self.db.max(key, eight(9))
        self.db.min(key, eight(8))
        self.assertEqual(self.db[key], eight(8))
        self.db.byte_max(self.space["bytes"], b"abc")
        self.db.byte_max(self.space["bytes"], b"abd")
        self.db.byte_min(self.space["bytes"], b"abcd")
        self.assertEqual(self.db[self.space["bytes"]], b"abcd")
        tr = self.db.create_transaction()
        tr.append_if_fits(key, b"!")
        tr.compare_and_clear(self.space["bytes"], b"abcd")
        tr.commit().wait()
        self.assertEqual(self.db[key], eight(8) + b"!")
        self.assertIsNone(self.db[self.space["bytes"]])

    def test_versionstamps(self):
        pairs = []
        for number in (1, 2):
            tr = self.db.create_transaction()
            tr.set_versionstamped_key(
                self.space.pack_with_versionstamp(("log", fdb.tuple.Versionstamp(user_version=number))), b"%d" % number
            )
            tr.set_versionstamped_value(
                self.space["last"], fdb.tuple.pack_with_versionstamp((fdb.tuple.Versionstamp(), "x"))
            )
            stamp = tr.get_versionstamp()
            tr.commit().wait()
            version = tr.get_committed_version()
            self.assertEqual(bytes(stamp.wait())[:8], version.to_bytes(8, "big"))
            pairs.append((fdb.tuple.Versionstamp(bytes(stamp.wait()), number), b"%d" % number))
        log = [(self.space.unpack(pair.key)[1], pair.value) for pair in self.db[self.space["log"].range()]]
        self.assertEqual(log, pairs)
        last = fdb.tuple.unpack(self.db[self.space["last"]])
        self.assertEqual(last, (fdb.tuple.Versionstamp(bytes(stamp.wait())), "x"))

    def test_versions(self):
        tr = self.db.create_transaction()
        read_version = tr.get_read_version().wait()
        tr[self.space["a"]] = b"1"
        self.assertEqual(tr.get_committed_version(), -1)
        self.assertGreater(tr.get_approximate_size().wait(), 0)
        tr.commit().wait()
        self.assertGreater(tr.get_committed_version(), read_version)
        older = self.db.create_transaction()
        older.set_read_version(read_version)
        self.assertFalse(older[self.space["a"]].present())


class Conflicts(DatabaseTest):
    def test_two_threads_that_conflict_are_both_counted(self):
        both_have_read = threading.Barrier(2)
        tries = []

        @fdb.transactional
        def increment(tr):
            tries.append(1)
            value = tr[self.space["n"]]
            count = int(value) if value.present() else 0
            if len(tries) <= 2:
                both_have_read.wait(PATIENCE_SECONDS)
            tr[self.space["n"]] = b"%d" % (count + 1)

        in_threads(lambda: increment(self.db), lambda: increment(self.db))
        self.assertEqual((int(self.db[self.space["n"]]), len(tries)), (2, 3))

    def test_many_increments(self):
        @fdb.transactional
        def increment(tr):
            value = tr[self.space["n"]]
            tr[self.space["n"]] = b"%d" % (int(value) + 1 if value.present() else 1)

        def run():
            for _ in range(25):
                increment(self.db)

        in_threads(run, run, run, run)
        self.assertEqual(int(self.db[self.space["n"]]), 100)

    def conflict(self, prepare):
        """Whether a transaction that did `prepare` conflicts with a write of `a`."""
        tr = self.db.create_transaction()
        prepare(tr)
        self.db[self.space["a"]] = b"1"
        tr[self.space["b"]] = b"1"
        try:
            tr.commit().wait()
            return False
        except fdb.FDBError as error:
            self.assertEqual(error.code, 1020)
            self.assertTrue(fdb.predicates.is_retryable_not_committed(error))
            self.assertFalse(fdb.predicates.is_maybe_committed(error))
            tr.on_error(error).wait()
            return True

    def test_what_conflicts(self):
        key = self.space["a"].key()

        def read_version(tr):
            tr.get_read_version().wait()

        def read_conflict(tr):
            read_version(tr)
            tr.add_read_conflict_key(key)

        self.assertTrue(self.conflict(lambda tr: tr[key].present()))
        self.assertTrue(self.conflict(lambda tr: list(tr[self.space.range()])))
        self.assertTrue(self.conflict(read_conflict))
        self.assertFalse(self.conflict(read_version))
        self.assertFalse(self.conflict(lambda tr: tr.snapshot[key].present()))
        self.assertFalse(self.conflict(lambda tr: list(tr.snapshot[self.space.range()])))

    def test_a_write_conflict_range_conflicts_with_readers(self):
        reader, writer = self.db.create_transaction(), self.db.create_transaction()
        reader[self.space["a"]].present()
        writer.add_write_conflict_range(self.space["a"].key(), self.space["b"].key())
        writer.commit().wait()
        reader[self.space["c"]] = b"1"
        self.assert_error(1020, reader.commit)

    def test_conflicting_keys_are_reported(self):
        tr = self.db.create_transaction()
        tr.options.set_report_conflicting_keys()
        tr[self.space["a"]].present()
        self.db[self.space["a"]] = b"1"
        tr[self.space["b"]] = b"1"
        self.assert_error(1020, tr.commit)
        prefix = b"\xff\xff/transaction/conflicting_keys/"
        found = [(pair.key[len(prefix) :], pair.value) for pair in tr.get_range_startswith(prefix)]
        key = self.space["a"].key()
        self.assertIn((key, b"1"), found)
        self.assertIn((key + b"\0", b"0"), found)


class Options(DatabaseTest):
    def test_a_cancelled_transaction(self):
        tr = self.db.create_transaction()
        tr.cancel()
        self.assert_error(1025, tr.get, self.space["a"])
        tr.reset()
        self.assertFalse(tr[self.space["a"]].present())

    def test_sizes_are_limited(self):
        tr = self.db.create_transaction()
        tr[self.space["a"]] = b"v" * 100_001
        self.assert_error(2103, tr.commit)
        tr.reset()
        tr[self.space.key() + b"k" * 10_001] = b""
        self.assert_error(2102, tr.commit)
        tr.reset()
        tr.options.set_size_limit(1_000)
        tr[self.space["a"]] = b"v" * 2_000
        self.assert_error(2101, tr.commit)

    def test_a_timeout(self):
        tr = self.db.create_transaction()
        tr.options.set_timeout(1)
        time.sleep(0.1)
        # One that ran out cannot be taken back.
        tr.options.set_timeout(0)
        self.assert_error(1031, tr.get, self.space["a"])
        self.assert_error(1031, tr.commit)
        self.assert_error(1031, tr.on_error, 1020)

    def test_retries_are_limited(self):
        tries = []

        @fdb.transactional
        def never(tr):
            tr.options.set_retry_limit(3)
            tries.append(1)
            raise fdb.FDBError(1020)

        self.assert_error(1020, never, self.db)
        self.assertEqual(len(tries), 4)

    def test_an_error_that_no_retry_mends_comes_back(self):
        tr = self.db.create_transaction()
        self.assert_error(2101, tr.on_error, 2101)
        self.assert_error(4100, self.db.create_transaction().on_error, 4100)

    def test_system_keys_need_an_option(self):
        tr = self.db.create_transaction()
        self.assert_error(2004, tr.get, b"\xff/conf")
        tr.reset()
        tr.options.set_read_system_keys()
        self.assertFalse(tr[b"\xff/none"].present())

    def test_options_are_checked(self):
        tr = self.db.create_transaction()
        tr.options.set_priority_batch()
        tr.options.set_read_your_writes_disable()
        tr.options.set_next_write_no_write_conflict_range()
        tr.options.set_timeout(-1)
        self.assert_error(2006, tr.get, self.space["a"])
        error = fdb.FDBError(2007)
        self.assertEqual(error.description, b"Option not valid in this context")
        self.db.options.set_location_cache_size(1_000)
        self.db.options.set_max_watches(10_000)

    def test_the_status_is_a_document(self):
        tr = self.db.create_transaction()
        status = json.loads(bytes(tr[b"\xff\xff/status/json"]))
        self.assertTrue(status["client"]["database_status"]["available"])
        self.assertIn("cluster", status)

    def test_the_metadata_version_grows_with_its_commit(self):
        key = b"\xff/metadataVersion"

        def now():
            tr = self.db.create_transaction()
            return bytes(tr[key]) if tr[key].present() else b""

        before = now()
        tr = self.db.create_transaction()
        tr.set_versionstamped_value(key, b"\0" * 14)
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        self.assertEqual(now(), bytes(stamp.wait()))
        self.assertGreater(now(), before)

    def test_database_defaults_hold_for_transactions(self):
        self.db.options.set_transaction_retry_limit(1)
        try:
            tr = self.db.create_transaction()
            tr.on_error(1020).wait()
            self.assert_error(1020, tr.on_error, 1020)
        finally:
            self.db.options.set_transaction_retry_limit(-1)


if __name__ == "__main__":
    unittest.main()
