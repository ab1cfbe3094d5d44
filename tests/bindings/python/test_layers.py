"""The binding's own layers: tuples, subspaces and directories."""

import unittest
import uuid

import fdb

from support import DatabaseTest, in_threads


class Tuples(DatabaseTest):
    VALUES = [
        (),
        (None,),
        (b"",),
        (b"a\0b",),
        ("",),
        ("\u00fc\0\U0001f600",),
        (0,),
        (-1, 1, 255, -256, 2**63, -(2**63), 2**200, -(2**200)),
        (1.5, -0.0, float("inf")),
        (fdb.tuple.SingleFloat(2.5),),
        (True, False),
        (uuid.UUID(int=5),),
        (fdb.tuple.Versionstamp(b"0123456789", 7),),
        (("nested", (None, b"x"), ()), [1, 2]),
    ]

    def test_values_come_back_from_the_database(self):
        for index, value in enumerate(self.VALUES):
            self.db[self.space.pack((index,))] = fdb.tuple.pack(value)
        for index, value in enumerate(self.VALUES):
            back = fdb.tuple.unpack(self.db[self.space.pack((index,))])
            self.assertEqual(fdb.tuple.pack(back), fdb.tuple.pack(value))
            if value != self.VALUES[-1]:
                self.assertEqual(back, value)

    def test_keys_are_in_the_order_of_their_tuples(self):
        keys = [(kind, value) for kind in (1, 2) for value in (-300, -1, 0, 1, 255, 256, 70_000)]
        keys += [("a",), ("a", 1), ("a", "b"), ("b",)]

        @fdb.transactional
        def fill(tr):
            for key in reversed(keys):
                tr[self.space.pack(key)] = b""

        fill(self.db)
        found = [self.space.unpack(pair.key) for pair in self.db[self.space.range()]]
        self.assertEqual(found, sorted(keys, key=fdb.tuple.pack))

    def test_subspaces(self):
        inner = self.space["a"][1]
        self.db[inner["x"]] = b"1"
        self.assertEqual(inner.unpack(inner["x"].key()), ("x",))
        self.assertTrue(inner.contains(inner["x"].key()))
        self.assertFalse(self.space["b"].contains(inner["x"].key()))
        self.assertEqual([inner.unpack(pair.key) for pair in self.db[inner.range()]], [("x",)])


class Directories(DatabaseTest):
    def setUp(self):
        super().setUp()
        self.layer = fdb.DirectoryLayer(node_subspace=self.space["nodes"], content_subspace=self.space["content"])

    def test_a_directory_is_created_opened_moved_and_removed(self):
        made = self.layer.create(self.db, ("a", "b"), layer=b"test")
        self.assertEqual((made.get_path(), made.get_layer()), (("a", "b"), b"test"))
        self.db[made[1]] = b"kept"
        opened = self.layer.open(self.db, ("a", "b"), layer=b"test")
        self.assertEqual(opened.key(), made.key())
        self.assertEqual(self.layer.create_or_open(self.db, ("a", "b")).key(), made.key())
        self.assertRaises(ValueError, self.layer.open, self.db, ("a", "b"), b"other")
        self.assertRaises(ValueError, self.layer.create, self.db, ("a", "b"))
        self.assertRaises(ValueError, self.layer.open, self.db, ("none",))
        self.assertEqual(self.layer.list(self.db), ["a"])
        self.assertEqual(self.layer.list(self.db, ("a",)), ["b"])

        self.assertRaises(ValueError, self.layer.move, self.db, ("a", "b"), ("c", "d"))
        moved = self.layer.move(self.db, ("a", "b"), ("c",))
        self.assertEqual((moved.key(), self.db[moved[1]]), (made.key(), b"kept"))
        self.assertEqual(sorted(self.layer.list(self.db)), ["a", "c"])
        self.assertFalse(self.layer.exists(self.db, ("a", "b")))

        self.assertTrue(self.layer.remove(self.db, ("c",)))
        self.assertIsNone(self.db[moved[1]])
        self.assertFalse(self.layer.remove_if_exists(self.db, ("c",)))
        self.assertRaises(ValueError, self.layer.remove, self.db, ("c",))
        self.assertEqual(self.layer.list(self.db), ["a"])

    def test_partitions(self):
        partition = self.layer.create(self.db, ("p",), layer=b"partition")
        inside = partition.create_or_open(self.db, ("a",))
        self.assertEqual(inside.get_path(), ("p", "a"))
        self.assertTrue(self.layer.exists(self.db, ("p", "a")))
        self.assertRaises(Exception, partition.key)
        self.layer.create(self.db, ("outside",))
        self.assertRaises(ValueError, self.layer.move, self.db, ("outside",), ("p", "b"))
        self.assertEqual(inside.move_to(self.db, ("p", "c")).key(), inside.key())
        self.assertTrue(self.layer.remove(self.db, ("p",)))
        self.assertEqual(self.layer.list(self.db), ["outside"])

    def test_directories_made_at_the_same_time_have_prefixes_of_their_own(self):
        def make(name):
            return lambda: [self.layer.create(self.db, (name, str(index))).key() for index in range(10)]

        keys = sum(in_threads(*(make(name) for name in "abcd")), [])
        self.assertEqual(len(set(keys)), 40)
        for key in keys:
            self.assertFalse(any(other != key and other.startswith(key) for other in keys))

    def test_one_directory_opened_by_many_is_one(self):
        def open_it():
            return self.layer.create_or_open(self.db, ("one",)).key()

        self.assertEqual(len(set(in_threads(*[open_it] * 4))), 1)

    def test_a_prefix_of_ones_own(self):
        layer = fdb.DirectoryLayer(
            node_subspace=self.space["nodes"], content_subspace=self.space["content"], allow_manual_prefixes=True
        )
        made = layer.create(self.db, ("manual",), prefix=self.space["own"].key())
        self.assertEqual(made.key(), self.space["own"].key())
        self.assertRaises(Exception, layer.create, self.db, ("again",), None, self.space["own"].key())


if __name__ == "__main__":
    unittest.main()
