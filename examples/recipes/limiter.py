# SPDX-License-Identifier: Apache-2.0
"""A rate limiter: at most `limit` uses in each window, counted over all machines."""

USE = """
local uses = redis.call('INCR', KEYS[1])
if uses == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return uses
"""


class Limiter:
    def __init__(self, replicas, name, limit, milliseconds):
        self._replicas, self._limit, self._milliseconds = replicas, limit, milliseconds
        self._uses = f"uses:{{{name}}}"

    def allows(self):
        """Counts a use, and returns whether it is within the limit."""
        return self._replicas("EVAL", USE, 1, self._uses, self._milliseconds) <= self._limit
