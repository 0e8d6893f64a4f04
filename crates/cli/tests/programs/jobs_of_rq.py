# SPDX-License-Identifier: Apache-2.0
"""rq: jobs, dependencies, retries, failures, and what is scheduled. The worker is at another replica than who asks."""

import datetime
import subprocess
import sys
import time

import redis
from rq import Queue, Retry
from rq.registry import FailedJobRegistry

PATIENCE = 60


def add(x, y):
    return x + y


def fail():
    raise ValueError("on purpose")


def main():
    import jobs_of_rq as jobs

    host, port = sys.argv[1].split(":")
    connection = redis.Redis(host, int(port))
    queue = Queue(connection=connection)
    many = [queue.enqueue(jobs.add, n, n) for n in range(20)]
    behind = queue.enqueue(jobs.add, 1, 1, depends_on=many[:2])
    bad = queue.enqueue(jobs.fail, retry=Retry(max=2))
    later = queue.enqueue_in(datetime.timedelta(seconds=2), jobs.add, 5, 5)
    words = ["worker", "--url", f"redis://{sys.argv[2]}", "--with-scheduler"]
    worker = subprocess.Popen([sys.executable, "-m", "rq.cli", *words])
    try:
        for job in [*many, behind, later]:
            await_status(job, "finished")
        await_status(bad, "failed")
    finally:
        worker.terminate()
        worker.wait(PATIENCE)
    assert [job.return_value() for job in many] == [2 * n for n in range(20)]
    assert (behind.return_value(), later.return_value()) == (2, 10)
    assert bad.id in FailedJobRegistry(queue=queue).get_job_ids()


def await_status(job, status):
    end = time.monotonic() + PATIENCE
    while job.get_status(refresh=True) != status:
        assert time.monotonic() < end, (job, job.get_status())
        time.sleep(0.1)


if __name__ == "__main__":
    main()
