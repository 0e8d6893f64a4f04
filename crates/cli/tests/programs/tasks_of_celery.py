# SPDX-License-Identifier: Apache-2.0
"""Celery with Redis as broker and for results: the worker is at one replica, who asks for tasks at another one."""

import os
import subprocess
import sys

from celery import Celery, chain, chord, group

HERE = os.environ.get("WORKER_AT") or f"redis://{sys.argv[1]}"
app = Celery("tasks_of_celery", broker=HERE, backend=HERE)
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return self.request.retries


def main():
    words = ["-A", "tasks_of_celery", "worker", "-c", "2", "-P", "threads", "-l", "WARNING"]
    at = {"WORKER_AT": f"redis://{sys.argv[2]}"}
    worker = subprocess.Popen([sys.executable, "-m", "celery", *words], env={**os.environ, **at})
    try:
        ask()
    finally:
        worker.terminate()
        worker.wait(60)


def ask():
    assert add.delay(2, 3).get(timeout=60) == 5
    assert chain(add.s(1, 2), add.s(3))().get(timeout=60) == 6
    assert group(add.s(n, n) for n in range(20))().get(timeout=60) == [2 * n for n in range(20)]
    assert chord([add.s(n, n) for n in range(10)], total.s())().get(timeout=60) == 90
    assert flaky.delay().get(timeout=60) == 2
    assert add.apply_async((1, 1), countdown=1).get(timeout=60) == 2
    add.apply_async((1, 1), countdown=600).revoke()
    assert app.control.ping(timeout=10, limit=1)
    assert app.control.inspect(timeout=10, limit=1).active() is not None


if __name__ == "__main__":
    # Workers know tasks by the module's name.
    import tasks_of_celery

    tasks_of_celery.main()
