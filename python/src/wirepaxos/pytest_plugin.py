# SPDX-License-Identifier: Apache-2.0
"""The pytest fixture ``wirepaxos``, which pytest finds wherever this package is installed.

    def test_counting(wirepaxos):
        client = wirepaxos(Counter, partitions=2).client()
        client.execute(b"3", partition=1)
        assert client.read(partition=1) == b"3"
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from wirepaxos.embedded import Embedded


@pytest.fixture
def wirepaxos() -> Iterator[Callable[..., Embedded]]:
    """Starts clusters in this process, by the arguments of ``wirepaxos.Embedded``.

    They end after the test, which fails if a replica couldn't go on.
    """
    with contextlib.ExitStack() as clusters:
        yield lambda *program, **options: clusters.enter_context(Embedded(*program, **options))
