# SPDX-License-Identifier: Apache-2.0
"""Snapshots: what was stored is found, and what is damaged is refused and left alone."""

import pathlib
import tempfile
import unittest

from wirepaxos import Error, snapshots


class Snapshots(unittest.TestCase):
    def setUp(self):
        self._scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self._scratch.cleanup)
        self.directory = pathlib.Path(self._scratch.name) / "python"

    def test_what_was_stored_is_found(self):
        self.assertEqual(snapshots.partitions(self.directory), [])
        self.assertIsNone(snapshots.load(self.directory, 3))
        snapshots.store(self.directory, 3, 17, b"a\nb")
        snapshots.store(self.directory, 3, 18, b"")
        snapshots.store(self.directory, 0, -1, b"\n")
        self.assertEqual(snapshots.partitions(self.directory), [0, 3])
        self.assertEqual(snapshots.load(self.directory, 3), (18, b""))
        self.assertEqual(snapshots.load(self.directory, 0), (-1, b"\n"))

    def test_whatever_is_damaged_is_refused_and_left_alone(self):
        snapshots.store(self.directory, 0, 17, b"state")
        path = self.directory / "partition-0.snapshot"
        whole = path.read_bytes()
        for end in range(len(whole)):
            self._refused(path, whole[:end], "damaged")
        for at in range(len(whole)):
            flipped = bytes([whole[at] ^ 1])
            self._refused(path, whole[:at] + flipped + whole[at + 1 :], "damaged|format")
        self._refused(path, whole + b"more", "damaged")
        self._refused(path, whole.replace(b'"format": 1', b'"format": 2'), "install a newer one")

    def _refused(self, path, content, why):
        path.write_bytes(content)
        with self.assertRaisesRegex(Error, why):
            snapshots.load(self.directory, 0)
        self.assertEqual(path.read_bytes(), content)


if __name__ == "__main__":
    unittest.main()
