# SPDX-License-Identifier: Apache-2.0
"""Clients of a replicated program."""

import asyncio
import concurrent.futures
import ctypes
import os
import threading

from wirepaxos._library import Error, failure, library, new_context

_LATEST, _STALE = 0, 1


class Client:
    """Submits commands to a replicated program, and asks it queries.

    A command takes effect once, whatever is lost or dies on the way: the client repeats it until a
    replica acknowledges it. Threads may share a client; their calls take turns.
    """

    def __init__(self, cluster_file: str | os.PathLike[str]) -> None:
        """Connects to the cluster; :class:`Error` if that isn't possible."""
        self._turn = threading.Lock()
        self._context = new_context(cluster_file)
        if library().paxos_ctx_start(self._context) != 0:
            why = failure(self._context)
            self.close()
            raise Error(str(why))

    def submit(self, command: bytes, *, key: bytes | None = None, partition: int = 0) -> None:
        """Hands over a command, for the partition of ``key`` or for ``partition``.

        It returns before the command has taken effect: :meth:`flush` tells. :class:`Refused`: it
        is too large (`max_value` of the cluster file), or too many others wait.
        """
        with self._turn:
            context = self._open()
            if key is not None:
                done = library().submit_by_key(context, key, len(key), command, len(command))
            else:
                pids = (ctypes.c_uint16 * 1)(_number(partition))
                done = library().submit_to(context, pids, 1, command, len(command))
            if done != 0:
                raise failure(context)

    def flush(self, timeout: float = 10.0) -> None:
        """Waits up to ``timeout`` seconds until everything submitted has taken effect.

        :class:`Refused` or :class:`Unknown` otherwise, for all since the last call.
        """
        with self._turn:
            context = self._open()
            if library().paxos_ctx_flush(context, int(timeout * 1000)) != 0:
                raise failure(context)

    def execute(
        self,
        command: bytes,
        *,
        key: bytes | None = None,
        partition: int = 0,
        timeout: float = 10.0,
    ) -> None:
        """Submits one command, and waits until it has taken effect."""
        self.submit(command, key=key, partition=partition)
        self.flush(timeout)

    def read(
        self, query: bytes = b"", *, partition: int = 0, stale: bool = False, timeout: float = 10.0
    ) -> bytes:
        """Returns what the program's ``read`` says to a query.

        It sees everything that anybody was told before, or with ``stale`` what one replica has,
        which may be old. Groups with NOPaxos have no queries.
        """
        answer = ctypes.c_void_p()
        freshness = _STALE if stale else _LATEST
        with self._turn:
            context = self._open()
            size = library().paxos_read(
                context,
                _number(partition),
                query,
                len(query),
                freshness,
                int(timeout * 1000),
                ctypes.byref(answer),
            )
            if size < 0:
                raise Error(str(failure(context)))
            return ctypes.string_at(answer, size) if size else b""

    def close(self) -> None:
        """Ends the connection; what isn't flushed may or may not take effect."""
        with self._turn:
            if self._context is not None:
                library().paxos_ctx_free(self._context)
                self._context = None

    def _open(self):
        if self._context is None:
            raise Error("the client is closed")
        return self._context

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio: each call runs in one thread beside the event loop."""

    def __init__(self, cluster_file: str | os.PathLike[str]) -> None:
        self._file = cluster_file
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "wirepaxos")
        self._client: Client | None = None

    async def execute(self, command: bytes, **options: object) -> None:
        """See :meth:`Client.execute`."""
        await self._run(lambda client: client.execute(command, **options))

    async def read(self, query: bytes = b"", **options: object) -> bytes:
        """See :meth:`Client.read`."""
        return await self._run(lambda client: client.read(query, **options))

    async def close(self) -> None:
        """See :meth:`Client.close`."""
        if self._client is not None:
            await self._run(Client.close)
        self._thread.shutdown(wait=False)

    async def _run(self, call):
        def in_thread():
            if self._client is None:
                self._client = Client(self._file)
            return call(self._client)

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _number(partition):
    if not 0 <= partition < 64:
        raise Error(f"there is no partition {partition}: they count from 0 to 63 at most")
    return partition
