# SPDX-License-Identifier: Apache-2.0
"""A job queue that loses no job and keeps one result of each.

A worker that dies leaves its job to another one after `patience` milliseconds, so a job may run twice. `finish` removes
the job and stores the result in one step, so only the first result counts.
"""

TAKE = """
redis.pcall('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM')
local left = redis.call('XAUTOCLAIM', KEYS[1], 'workers', ARGV[1], ARGV[2], '0', 'COUNT', 1)[2]
if #left > 0 then return {left[1][1], left[1][2][2]} end
local new = redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[1], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
return new and {new[1][2][1][1], new[1][2][1][2][2]}
"""
FINISH = """
if redis.call('XACK', KEYS[1], 'workers', ARGV[1]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[1])
return redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""


class Jobs:
    def __init__(self, replicas, name, worker="", patience=30_000):
        self._replicas, self._worker, self._patience = replicas, worker, patience
        self._jobs, self._results = f"jobs:{{{name}}}", f"results:{{{name}}}"

    def add(self, job):
        """Adds a job, and returns its number."""
        return self._replicas("XADD", self._jobs, "*", "job", job)

    def take(self):
        """Returns the number of a job and the job, or None if there is none now."""
        return self._replicas("EVAL", TAKE, 1, self._jobs, self._worker, self._patience)

    def finish(self, number, result):
        """Stores the result, and returns whether it is the first one."""
        return bool(self._replicas("EVAL", FINISH, 2, self._jobs, self._results, number, result))

    def result(self, number):
        """Returns the result, or None while there is none."""
        return self._replicas("HGET", self._results, number)
