# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in this process, for tests of a program."""

import atexit
import contextlib
import logging
import os
import pathlib
import tempfile
from collections.abc import Callable

from wirepaxos._library import Error, library
from wirepaxos.client import Client
from wirepaxos.replica import Replica, StateMachine

_log = logging.getLogger("wirepaxos")
_REPLICAS = 3


class Embedded:
    """A cluster whose nodes are all threads of this process: three replicas of a program, three
    acceptors, two leaders and a controller.

        with Embedded(Counter) as cluster, cluster.client() as client:
            client.execute(b"3")
            assert client.read() == b"3"

    It has a loopback address and a directory of its own, so several may run at once; the directory
    is removed at the end. The nodes log to standard error, from the level on that the environment's
    ``WIREPAXOS_LOG`` names. If a program's ``apply`` raises an exception, the logger ``wirepaxos``
    has it, once for each replica. All nodes share the fate of this process, so this is no cluster
    for data that anybody needs.
    """

    def __init__(self, program: Callable[[], StateMachine], *, partitions: int = 1) -> None:
        """Starts the cluster, and returns once it serves; :class:`Error` if it can't.

        ``program`` is called once for each partition at each replica.
        """
        self._program = program
        self._replicas: dict[int, Replica] = {}
        self._stack = contextlib.ExitStack()
        try:
            self._start(partitions)
        except BaseException:
            self._close_quietly()
            raise
        # A replica that calls into an interpreter that has ended would crash it.
        atexit.register(self._close_quietly)

    def _start(self, partitions):
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="wirepaxos-"))
        self._file = pathlib.Path(directory) / "cluster.toml"
        self._stack.enter_context(_nodes(self._file, partitions))
        # What is entered later ends earlier: clients, then replicas, then the other nodes.
        self._stack.callback(self._stop_replicas)
        for index in range(_REPLICAS):
            self.start_replica(index)

    @property
    def file(self) -> pathlib.Path:
        """The cluster file's path."""
        return self._file

    def client(self) -> Client:
        """Returns a client, which is closed at the latest when the cluster is."""
        return self._stack.enter_context(Client(self._file))

    def start_replica(self, index: int) -> None:
        """Starts the replica ``index``, from 0, with its last snapshot.

        It executes the commands since then as the others have them. :class:`Error` if it runs, or
        can't start.
        """
        name = _name(index)
        if index in self._replicas:
            raise Error(f"replica {index} runs already")
        replica = Replica(self._file, name, self._program)
        replica.start()
        self._replicas[index] = replica

    def stop_replica(self, index: int) -> None:
        """Stops the replica ``index`` in good order, which stores a snapshot.

        :class:`Error` if it doesn't run, or if the replica couldn't go on.
        """
        self._take(index).stop()

    def kill_replica(self, index: int) -> None:
        """Stops the replica ``index`` without a snapshot, so that it leaves what a crash leaves."""
        self._take(index).stop(save=False)

    def close(self) -> None:
        """Stops everything, and removes the directory.

        :class:`Error` if a replica or another node couldn't go on; everything is stopped all the
        same.
        """
        atexit.unregister(self._close_quietly)
        self._stack.close()

    def _take(self, index):
        _name(index)
        if index not in self._replicas:
            raise Error(f"replica {index} doesn't run")
        return self._replicas.pop(index)

    def _stop_replicas(self):
        with contextlib.ExitStack() as replicas:
            while self._replicas:
                _, replica = self._replicas.popitem()
                replicas.callback(replica.stop)

    def _close_quietly(self):
        try:
            self.close()
        except Exception as why:
            _log.error("the cluster of a test has not ended well: %s", why)

    def __enter__(self) -> "Embedded":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # The exception of the test says more than what the end says.
        self.close() if kind is None else self._close_quietly()


@contextlib.contextmanager
def _nodes(file, partitions):
    """Runs all nodes of a new cluster but its replicas."""
    nodes = library().paxos_nodes_new(os.fsencode(file))
    if not nodes:
        raise Error(f"the name of the directory for temporary files must be UTF-8: {file}")
    try:
        if library().paxos_nodes_write_file(nodes, partitions) != 0:
            raise Error(_why(nodes))
        if library().paxos_nodes_start(nodes) != 0:
            raise Error(_why(nodes))
        yield
    except BaseException:
        library().paxos_nodes_free(nodes)
        raise
    if library().paxos_nodes_free(nodes) != 0:
        raise Error("a node has failed: see standard error")


def _why(nodes):
    return library().paxos_nodes_error(nodes).decode(errors="replace")


def _name(index):
    if not 0 <= index < _REPLICAS:
        raise Error(f"there is no replica {index}: they count from 0 to {_REPLICAS - 1}")
    return f"replica-{index + 1}"
