# SPDX-License-Identifier: Apache-2.0
"""Programs in Python that WirePaxos replicates, and clients of such programs.

A :class:`StateMachine` is the program: every replica applies the same commands in the same order,
so all of them have the same state. :class:`Replica` runs it as a node of a cluster file, and
:class:`Client` submits commands and asks queries. examples/python/counter.py has all three.
:class:`Embedded` is a whole cluster in one process, for tests; pytest has it as the fixture
``wirepaxos``.
"""

from wirepaxos._library import Error, NotFound, Refused, Unknown
from wirepaxos.client import AsyncClient, Client
from wirepaxos.embedded import Embedded
from wirepaxos.replica import Replica, StateMachine

__all__ = [
    "AsyncClient",
    "Client",
    "Embedded",
    "Error",
    "NotFound",
    "Refused",
    "Replica",
    "StateMachine",
    "Unknown",
]

for _error in (Error, NotFound, Refused, Unknown):
    _error.__module__ = __name__
