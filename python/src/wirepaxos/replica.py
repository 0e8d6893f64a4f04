# SPDX-License-Identifier: Apache-2.0
"""Runs a state machine as a replica of a cluster."""

import abc
import ctypes
import logging
import os
import pathlib
import signal
import threading
import tomllib
from collections.abc import Callable

from wirepaxos import snapshots
from wirepaxos._library import CHECKPOINT, DELIVER_IN, ENDED, READ
from wirepaxos._library import Error, failure, library, new_context

_log = logging.getLogger("wirepaxos")


class StateMachine(abc.ABC):
    """The program of one partition.

    All replicas apply the same commands in the same order, so ``apply`` must depend on nothing but
    state and command: no clock, no random numbers, no files, no order of a set.
    """

    @abc.abstractmethod
    def apply(self, command: bytes) -> None:
        """Executes a command.

        If it raises an exception, the command counts as executed, with what it has changed: a
        command that every replica fails at must not end them all. So check before you change.
        """

    def read(self, query: bytes) -> bytes:
        """Returns the answer to a query, and changes nothing.

        If it raises an exception, the answer is empty, and the log says why.
        """
        raise NotImplementedError("this program answers no queries")

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """Returns the whole state."""

    @abc.abstractmethod
    def restore(self, state: bytes) -> None:
        """Takes the state that ``snapshot`` has returned."""


class Replica:
    """A replica: a node of the cluster file whose group says ``application = "own"``.

    A program that is a replica calls :meth:`serve`; one that does more, :meth:`start` and
    :meth:`stop`.
    """

    def __init__(
        self,
        cluster_file: str | os.PathLike[str],
        name: str,
        program: Callable[[], StateMachine],
    ) -> None:
        """``program`` makes the state machine of one partition, and is called once for each.

        :class:`Error` if a snapshot is damaged.
        """
        self._file, self._name, self._program = os.fspath(cluster_file), name, program
        self._directory = _directory(pathlib.Path(self._file), name)
        self._machines: dict[int, _Machine] = {}
        self._over = threading.Event()
        self._why: str | None = None
        self._saves = True
        self._ended_well = False
        self._thread: threading.Thread | None = None
        for pid in snapshots.partitions(self._directory):
            self._machine(pid)

    def serve(self) -> None:
        """Runs the replica until SIGINT, SIGTERM or ``wirepaxos stop``; then makes a checkpoint.

        It must be called in the main thread. :class:`Error` if the replica can't start, or can't go
        on.
        """
        handlers = {n: signal.signal(n, self._end) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.start()
            try:
                while self._thread.is_alive():
                    self._thread.join(0.5)
            finally:
                self.stop()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def start(self) -> None:
        """Starts the replica in threads of its own, and returns once it runs.

        Call :meth:`stop` before the program ends. A replica that has ended is started again by
        another object. :class:`Error` if it can't start.
        """
        if self._thread is not None:
            raise Error(f"{self._name} was started already: make another Replica to start it again")
        context = new_context(self._file, self._name)
        # Kept here for as long as the library may call them.
        self._callbacks = self._set_callbacks(context)
        if library().paxos_ctx_start(context) != 0:
            why = failure(context)
            library().paxos_ctx_free(context)
            raise Error(self._why or str(why))
        self._thread = threading.Thread(target=self._await_end, args=[context], daemon=True)
        self._thread.start()

    def stop(self, *, save: bool = True) -> None:
        """Ends the replica after a checkpoint, or without one, which leaves what a crash leaves.

        :class:`Error` if it couldn't go on earlier, or can't save its state.
        """
        if self._thread is None:
            return
        self._saves = save
        self._over.set()
        self._thread.join()
        if self._why or (save and not self._ended_well):
            raise Error(self._why or "the replica has failed: see standard error")

    def _await_end(self, context):
        """Ends the replica as soon as it is told to, or can't go on."""
        self._over.wait()
        self._ended_well = library().paxos_ctx_free(context) == 0

    def _set_callbacks(self, context):
        callbacks = {
            "deliver_in": DELIVER_IN(self._deliver),
            "read": READ(self._read),
            "checkpoint": CHECKPOINT(self._checkpoint),
            "ended": ENDED(self._ended),
        }
        for name, callback in callbacks.items():
            setattr(context.contents, name, callback)
        return callbacks

    def _end(self, *_):
        self._over.set()

    def _fail(self, why):
        """Ends the replica. Until it has ended it makes no checkpoint, so nothing is forgotten."""
        self._why = self._why or why
        self._over.set()

    def _machine(self, pid):
        if pid not in self._machines:
            self._machines[pid] = _Machine(self._program(), self._directory, pid)
        return self._machines[pid]

    # ---- Called by the library, from a thread of its own, one at a time -------------------------

    def _deliver(self, _, pid, instance, value, size):
        if self._why is not None:
            return
        try:
            self._machine(pid).apply(instance, ctypes.string_at(value, size) if size else b"")
        except BaseException as why:
            self._fail(f"partition {pid} can't go on at instance {instance}: {why!r}")

    def _read(self, _, pid, query, size, answer):
        try:
            machine = self._machine(pid)
            said = machine.program.read(ctypes.string_at(query, size) if size else b"")
            library().paxos_append(answer, said, len(said))
        except Exception:
            _log.exception("a query of partition %d failed, and its answer is empty", pid)
        except BaseException as why:
            self._fail(f"partition {pid} can't go on: {why!r}")

    def _checkpoint(self, _, pid):
        if self._why is not None or not self._saves:
            return -1
        try:
            self._machine(pid).save()
            return 0
        except BaseException as why:
            self._fail(f"the snapshot of partition {pid} can't be written: {why}")
            return -1

    def _ended(self, _, why):
        if why is not None:
            self._fail(why.decode(errors="replace"))
        self._over.set()


class _Machine:
    """The program of a partition, and the last instance that it has applied."""

    def __init__(self, program, directory, pid):
        self.program = program
        self._place = (directory, pid)
        self._last = -1
        found = snapshots.load(*self._place)
        if found is not None:
            self._last, state = found
            program.restore(state)
        # Commands up to here come again after a crash, and the state has them.
        self._restored = self._last

    def apply(self, instance, command):
        if instance <= self._restored:
            return
        self._last = instance
        try:
            self.program.apply(command)
        except MemoryError:
            # Another replica may have had enough.
            raise
        except Exception:
            _log.exception("the command at instance %d failed, at each replica alike", instance)

    def save(self):
        snapshots.store(*self._place, self._last, self.program.snapshot())


def _directory(file, name):
    """Returns where snapshots are kept: in the node's data directory, so that both go together."""
    try:
        data = tomllib.loads(file.read_text()).get("data", "data")
    except (OSError, ValueError) as why:
        raise Error(f"{file}: {why}") from why
    return file.parent / data / name / "python"
