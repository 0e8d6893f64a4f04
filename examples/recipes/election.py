# SPDX-License-Identifier: Apache-2.0
"""Leader election.

Each candidate calls `campaign` several times within `milliseconds`. At most one is the leader by the group's clock; each
new leader has a larger term. As with a lock, what a leader does elsewhere carries its term, and a smaller one is refused.
"""

import uuid

CAMPAIGN = """
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
if not leader then redis.call('INCR', KEYS[2]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return tonumber(redis.call('GET', KEYS[2]))
"""
RESIGN = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class Candidate:
    def __init__(self, replicas, name, milliseconds):
        self._replicas, self._milliseconds, self._me = replicas, milliseconds, uuid.uuid4().hex
        self._leader, self._term = f"leader:{{{name}}}", f"term:{{{name}}}"

    def campaign(self):
        """Becomes or stays the leader and returns the term, or returns None while somebody else leads."""
        return self._replicas("EVAL", CAMPAIGN, 2, self._leader, self._term, self._me, self._milliseconds) or None

    def resign(self):
        """Lets others lead at once."""
        self._replicas("EVAL", RESIGN, 1, self._leader, self._me)
