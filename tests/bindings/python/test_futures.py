"""Futures and watches: who waits, who cancels, who gives them up, and which thread calls back."""

import asyncio
import gc
import threading
import time
import unittest

import fdb

from support import IS_CLUSTER, PATIENCE_SECONDS, DatabaseTest, in_threads, ready

# The name that the binding gives to the thread that runs the network.
NETWORK_THREAD = "fdb-network-thread"


class Watches(DatabaseTest):
    def watch(self, name="w"):
        """A watch whose transaction has committed."""
        tr = self.db.create_transaction()
        watch = tr.watch(self.space[name].key())
        tr.commit().wait()
        return watch

    def test_a_watch_fires_for_another_threads_write(self):
        watch = self.watch()
        self.assertFalse(watch.is_ready())
        writer = threading.Timer(0.05, lambda: self.db.set(self.space["w"].key(), b"1"))
        writer.start()
        watch.wait()
        writer.join()
        self.assertEqual(self.db[self.space["w"]], b"1")

    def test_a_watch_does_not_fire_for_the_same_value(self):
        self.db[self.space["w"]] = b"1"
        watch = self.watch()
        self.db[self.space["w"]] = b"1"
        self.db[self.space["x"]] = b"1"
        time.sleep(0.1)
        self.assertFalse(watch.is_ready())
        self.db[self.space["w"]] = b"2"
        self.assertEqual(ready(watch), 0)

    def test_shorthands_for_watches(self):
        value, watch = self.db.get_and_watch(self.space["w"].key())
        self.assertFalse(value.present())
        cleared = self.db.set_and_watch(self.space["w"].key(), b"1")
        self.assertEqual(ready(watch), 0)
        again = self.db.clear_and_watch(self.space["w"].key())
        self.assertEqual(ready(cleared), 0)
        again.cancel()
        self.assertEqual(ready(again), 1101)

    def test_a_watch_of_an_abandoned_transaction_is_cancelled(self):
        tr = self.db.create_transaction()
        watch = tr.watch(self.space["w"].key())
        tr.reset()
        self.assertEqual(ready(watch), 1025)

    def test_a_watch_of_a_cancelled_transaction_is_cancelled(self):
        tr = self.db.create_transaction()
        watch = tr.watch(self.space["w"].key())
        tr.cancel()
        self.assertEqual(ready(watch), 1025)

    def test_many_threads_wait_for_one_watch(self):
        watch = self.watch()
        waiters = [lambda: ready(watch)] * 5
        write = lambda: self.db.set(self.space["w"].key(), b"1")
        self.assertEqual(in_threads(*waiters, write)[:5], [0] * 5)

    def test_a_watch_is_cancelled_by_one_thread_while_others_wait(self):
        for _ in range(20):
            watch = self.watch()
            codes = in_threads(lambda: ready(watch), lambda: ready(watch), watch.cancel)[:2]
            self.assertEqual(codes, [1101, 1101])

    def test_a_watch_is_given_up_by_another_thread(self):
        watches = [self.watch() for _ in range(50)]
        give_up = lambda: [watches.pop() for _ in range(25)] and gc.collect()
        in_threads(give_up, give_up)
        self.assertEqual(watches, [])
        self.db[self.space["w"]] = b"1"

    def test_the_first_of_several(self):
        first, second = self.watch("a"), self.watch("b")
        threading.Timer(0.05, lambda: self.db.set(self.space["b"].key(), b"1")).start()
        self.assertEqual(fdb.Future.wait_for_any(first, second), 1)
        self.assertFalse(first.is_ready())


class Callbacks(DatabaseTest):
    def called(self, future):
        """The thread that calls back for a future, and how often."""
        calls, done = [], threading.Event()

        def call(_):
            calls.append(threading.current_thread())
            done.set()

        future.on_ready(call)
        self.assertTrue(done.wait(PATIENCE_SECONDS))
        return calls


    def test_a_ready_future_calls_back_on_the_callers_thread(self):
        future = self.db.create_transaction().get(self.space["a"].key())
        future.block_until_ready()
        calls = self.called(future)
        self.assertEqual(calls, [threading.current_thread()])

    def test_a_future_that_waits_calls_back_on_the_network_thread(self):
        tr = self.db.create_transaction()
        watch = tr.watch(self.space["w"].key())
        tr.commit().wait()
        calls, done = [], threading.Event()
        watch.on_ready(lambda _: (calls.append(threading.current_thread()), done.set()))
        self.db[self.space["w"]] = b"1"
        self.assertTrue(done.wait(PATIENCE_SECONDS))
        self.assertEqual(calls[0].name, NETWORK_THREAD)

        tr = self.db.create_transaction()
        watch = tr.watch(self.space["w"].key())
        tr.commit().wait()
        calls.clear()
        done.clear()
        watch.on_ready(lambda _: (calls.append(threading.current_thread()), done.set()))
        watch.cancel()
        self.assertTrue(done.wait(PATIENCE_SECONDS))
        self.assertEqual(calls[0].name, NETWORK_THREAD)
        time.sleep(0.05)
        self.assertEqual(len(calls), 1)

    def test_a_callback_may_start_more_work(self):
        # Nine commits, each started by the callback of the one before.
        done = threading.Event()

        def commit(number):
            tr = self.db.create_transaction()
            tr[self.space[number]] = b""
            future = tr.commit()
            future.on_ready(lambda _: commit(number + 1) if number < 8 else done.set())

        commit(0)
        self.assertTrue(done.wait(PATIENCE_SECONDS))
        self.assertEqual(len(list(self.db[self.space.range()])), 9)

    @unittest.skipIf(IS_CLUSTER, "a cluster's client answers from the network thread")
    def test_a_callback_that_takes_long_holds_no_commit_up(self):
        begun, release = threading.Event(), threading.Event()
        tr = self.db.create_transaction()
        watch = tr.watch(self.space["w"].key())
        tr.commit().wait()
        watch.on_ready(lambda _: (begun.set(), release.wait(PATIENCE_SECONDS)))
        watch.cancel()
        self.assertTrue(begun.wait(PATIENCE_SECONDS))
        try:
            tr = self.db.create_transaction()
            tr[self.space["a"]] = b"1"
            future = tr.commit()
            end = time.monotonic() + PATIENCE_SECONDS
            while not future.is_ready() and time.monotonic() < end:
                time.sleep(0.001)
            self.assertTrue(future.is_ready())
        finally:
            release.set()

    def test_waiting_on_the_network_thread_is_refused(self):
        tr = self.db.create_transaction()
        fires, waits = tr.watch(self.space["a"].key()), tr.watch(self.space["b"].key())
        tr.commit().wait()
        codes, done = [], threading.Event()

        def call(_):
            codes.append(fdb.impl._capi.fdb_future_block_until_ready(waits.fpointer))
            done.set()

        fdb.impl._capi.fdb_future_block_until_ready.errcheck = lambda result, *_: result
        try:
            fires.on_ready(call)
            self.db[self.space["a"]] = b"1"
            self.assertTrue(done.wait(PATIENCE_SECONDS))
        finally:
            fdb.impl._capi.fdb_future_block_until_ready.errcheck = fdb.impl.check_error_code
        self.assertEqual(codes, [2026])

    def test_futures_are_given_up_while_they_become_ready(self):
        def commits():
            for index in range(50):
                tr = self.db.create_transaction()
                tr[self.space[threading.get_ident()][index]] = b""
                tr.commit()  # given up at once
                del tr

        in_threads(commits, commits, commits)
        self.db[self.space["last"]] = b""
        self.assertIsNotNone(self.db[self.space["last"]])

    def test_asyncio(self):
        loop = asyncio.new_event_loop()
        try:
            tr = self.db.create_transaction()
            tr[self.space["a"]] = b"1"

            async def wait(future):
                done = loop.create_future()
                future.on_ready(lambda _: loop.call_soon_threadsafe(done.set_result, None))
                await asyncio.wait_for(done, PATIENCE_SECONDS)
                return future.wait()

            self.assertIsNone(loop.run_until_complete(wait(tr.commit())))
        finally:
            loop.close()
        self.assertEqual(self.db[self.space["a"]], b"1")


if __name__ == "__main__":
    unittest.main()
