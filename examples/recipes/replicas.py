# SPDX-License-Identifier: Apache-2.0
"""Sends Redis commands to a replicated group, so that each takes effect once, whichever machine dies meanwhile.

When a connection breaks, a client can't know whether its last command took effect. `Replicas` names each command
(docs/redis.md, "Commands that count once") and sends it again to the next replica until it has an answer.
"""

import time
import uuid

import redis


class Replicas:
    """Executes commands, each once. Threads can't share one: each needs its own.

    `addresses` are front ends, as in ["10.0.0.1:6379", "10.0.0.2:6379"]. Arguments of redis.Redis, such as `password`,
    may follow. A command that the group refuses raises redis.ResponseError.
    """

    def __init__(self, addresses, **options):
        options = {"socket_timeout": 2, "decode_responses": True, **options}
        self._clients = [redis.Redis(*address.rsplit(":", 1), **options) for address in addresses]
        self._token, self._number = uuid.uuid4().hex, 0

    def __call__(self, *command):
        self._number += 1
        while True:
            pipeline = self._clients[0].pipeline(transaction=False)
            pipeline.client_setname(f"once:{self._token}:{self._number}")
            pipeline.execute_command(*command)
            try:
                return pipeline.execute()[1]
            except (redis.ConnectionError, redis.TimeoutError):
                self._clients.append(self._clients.pop(0))  # the next replica
                time.sleep(0.05)
