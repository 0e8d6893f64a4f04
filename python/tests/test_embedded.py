# SPDX-License-Identifier: Apache-2.0
"""Clusters in this process: they serve, keep what was acknowledged, and leave nothing behind."""

import os
import tempfile
import threading
import unittest
from unittest import mock

from wirepaxos import Embedded, Error, StateMachine


class Sum(StateMachine):
    """Adds numbers, and notes what it was given to restore, and what was too much for it."""

    def __init__(self, restored, had_too_much):
        self._value, self._restored, self._had_too_much = 0, restored, had_too_much

    def apply(self, command):
        if command == b"too much":
            self._had_too_much.set()
            raise MemoryError
        self._value += int(command)

    def read(self, query):
        return b"%d" % self._value

    def snapshot(self):
        return b"%d" % self._value

    def restore(self, state):
        self._restored.append(state)
        self._value = int(state)


class Clusters(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch, self.restored, self.had_too_much = scratch.name, [], threading.Event()
        place = mock.patch.object(tempfile, "tempdir", scratch.name)
        place.start()
        self.addCleanup(place.stop)

    def embedded(self, **options):
        return Embedded(lambda: Sum(self.restored, self.had_too_much), **options)

    def give_too_much(self, cluster):
        cluster.client().submit(b"too much")
        self.assertTrue(self.had_too_much.wait(60))

    def left(self):
        return os.listdir(self.scratch)

    def test_a_replica_that_is_started_again_has_what_was_acknowledged(self):
        with self.embedded() as cluster, cluster.client() as client:
            client.execute(b"3")
            cluster.kill_replica(0)
            client.execute(b"4")
            cluster.start_replica(0)
            self.assertEqual(self.restored, [], "a crash leaves no snapshot of so few commands")
            self._alone(cluster, 0)
            self.assertEqual(client.read(), b"7")
            cluster.stop_replica(0)
            cluster.start_replica(1)
            client.execute(b"5")
            cluster.stop_replica(1)
            self.restored.clear()
            cluster.start_replica(0)
            self.assertEqual(self.restored, [b"7"], "the rest comes from the log")
            self.assertEqual(client.read(), b"12")
        self.assertEqual(self.left(), [])

    def _alone(self, cluster, index):
        for other in {0, 1, 2} - {index}:
            cluster.stop_replica(other)

    def test_an_exception_of_apply_is_logged_and_the_command_counts(self):
        with self.embedded() as cluster, cluster.client() as client:
            with self.assertLogs("wirepaxos", "ERROR") as said:
                client.execute(b"not a number")
            self.assertIn("invalid literal for int()", said.output[0])
            client.execute(b"2")
            self.assertEqual(client.read(), b"2")
            cluster.stop_replica(2)

    def test_two_clusters_at_the_same_time_know_nothing_of_each_other(self):
        with self.embedded() as one, self.embedded(partitions=2) as two:
            self.assertEqual(len(self.left()), 2)
            self.assertTrue(one.file.is_file() and two.file.is_file())
            clients = one.client(), two.client()
            clients[0].execute(b"1")
            clients[1].execute(b"20", partition=0)
            clients[1].execute(b"300", partition=1)
            self.assertEqual(clients[0].read(), b"1")
            self.assertEqual([clients[1].read(partition=pid) for pid in (0, 1)], [b"20", b"300"])
            with self.assertRaisesRegex(Error, "replica 0 runs already"):
                one.start_replica(0)
            with self.assertRaisesRegex(Error, "from 0 to 2"):
                one.start_replica(3)
            two.stop_replica(1)
            with self.assertRaisesRegex(Error, "replica 1 doesn't run"):
                two.stop_replica(1)
        self.assertEqual(self.left(), [])
        with self.assertRaisesRegex(Error, "closed"):
            clients[0].execute(b"1")

    def test_the_end_tells_that_a_replica_could_not_go_on(self):
        cluster = self.embedded()
        why = "partition 0 can't go on at instance .*MemoryError"
        with self.assertRaisesRegex(Error, why), cluster:
            self.give_too_much(cluster)
        self.assertEqual(self.left(), [])
        cluster.close()

    def test_a_cluster_that_cannot_start_leaves_nothing_behind(self):
        with self.assertRaisesRegex(Error, "1 to 64"):
            self.embedded(partitions=65)
        with mock.patch("wirepaxos.embedded._REPLICAS", 4):
            with self.assertRaisesRegex(Error, "replica-4"):
                self.embedded()
        self.assertEqual(self.left(), [])

    def test_the_exception_of_a_test_is_not_replaced_by_that_of_the_end(self):
        with self.assertLogs("wirepaxos", "ERROR") as said, self.assertRaises(ZeroDivisionError):
            with self.embedded() as cluster:
                self.give_too_much(cluster)
                raise ZeroDivisionError
        self.assertIn("can't go on", said.output[0])
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main()
