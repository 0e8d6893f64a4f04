# SPDX-License-Identifier: Apache-2.0
"""huey, with and without priorities: tasks, pipelines, delays, locks."""

import sys

from huey import PriorityRedisHuey, RedisHuey

host, port = sys.argv[1].split(":")


def use(huey):

    @huey.task(retries=2)
    def add(x, y):
        return x + y

    @huey.task()
    @huey.lock_task("lock")
    def locked():
        return 1

    consumer = huey.create_consumer(workers=2, initial_delay=0.05)
    consumer.start()
    results = [add(n, n) for n in range(20)]
    assert [result.get(blocking=True, timeout=60) for result in results] == [2 * n for n in range(20)]
    assert add.schedule((1, 2), delay=1).get(blocking=True, timeout=60) == 3
    pipeline = huey.enqueue(add.s(1, 2).then(add, 3))
    assert list(pipeline.get(blocking=True, timeout=60)) == [3, 6]
    assert locked().get(blocking=True, timeout=60) == 1
    consumer.stop(graceful=True)


use(RedisHuey("plain", host=host, port=int(port)))
use(PriorityRedisHuey("priority", host=host, port=int(port)))
