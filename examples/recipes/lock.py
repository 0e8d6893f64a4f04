# SPDX-License-Identifier: Apache-2.0
"""A lock with a fencing token.

At most one client holds the lock by the group's clock. A holder that is paused doesn't notice that its time has passed,
so whatever the lock protects must refuse a token below the largest one that it has seen: tokens only grow.
"""

import uuid

ACQUIRE = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
return redis.call('INCR', KEYS[2])
"""
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class Lock:
    def __init__(self, replicas, name, milliseconds):
        self._replicas, self._milliseconds, self._owner = replicas, milliseconds, uuid.uuid4().hex
        self._lock, self._tokens = f"lock:{{{name}}}", f"tokens:{{{name}}}"

    def acquire(self):
        """Returns the token, which is at least 1, or None while somebody holds the lock."""
        return self._replicas("EVAL", ACQUIRE, 2, self._lock, self._tokens, self._owner, self._milliseconds) or None

    def release(self):
        """Releases the lock if this client still holds it."""
        self._replicas("EVAL", RELEASE, 1, self._lock, self._owner)
