#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries all recipes, again and again, until its input ends; it may be used while replicas die.

    try_all.py HOST:PORT...

After each round it adds 1 to the key `rounds`.
"""

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import settings
from election import Candidate
from jobs import Jobs
from limiter import Limiter
from lock import Lock
from replicas import Replicas
from sessions import Sessions

ADDRESSES = sys.argv[1:]
# Longer than any failover, so that nobody loses a lock who holds it for a moment.
LONG = 60_000
PATIENCE = 120


def main():
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    replicas = connect()
    watched = Watched()
    for number in itertools.count():
        for recipe in (lock, lock_that_expires, election, jobs, limiter, sessions):
            recipe(f"{recipe.__name__}:{number}")
        settings.put(replicas, "round", number)
        await_that(lambda: watched.seen.get("round") == str(number), "a change is seen")
        replicas("INCR", "rounds")
        if ended.is_set():
            break
    # Each round has counted once.
    assert replicas("GET", "rounds") == str(number + 1)


class Watched:
    """The settings as a thread that watches them has seen them last."""

    def __init__(self):
        self.seen = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        for self.seen in settings.watch(ADDRESSES):
            pass


def connect():
    return Replicas(ADDRESSES)


def at_once(tasks):
    """Runs all tasks at once, each in a thread with a connection of its own, and returns what they return."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(lambda task: task(connect()), tasks))


def await_that(condition, what):
    end = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.01)
    return result


def lock(name):
    """Who holds the lock may read and write a number in two steps, and nothing is lost."""

    def add(replicas):
        mine = Lock(replicas, name, LONG)
        tokens = []
        for _ in range(5):
            tokens.append(await_that(mine.acquire, "the lock is free"))
            replicas("SET", f"sum:{name}", int(replicas("GET", f"sum:{name}") or 0) + 1)
            mine.release()
        return tokens

    tokens = sum(at_once([add] * 3), [])
    assert sorted(tokens) == list(range(1, 16)), tokens
    assert connect()("GET", f"sum:{name}") == "15"


def lock_that_expires(name):
    """A holder that was away for too long has the smaller token, and can't release the lock of the next one."""
    slow, quick = Lock(connect(), name, 50), Lock(connect(), name, LONG)
    old = await_that(slow.acquire, "the lock is free")
    new = await_that(quick.acquire, "the lock has expired")
    assert old < new
    slow.release()
    assert slow.acquire() is None


def election(name):
    """There is one leader in a term, the leader stays, and another one follows who resigns."""
    candidates = [Candidate(connect(), name, LONG) for _ in range(3)]
    terms = [candidate.campaign() for candidate in candidates]
    assert terms == [1, None, None], terms
    assert candidates[0].campaign() == 1
    candidates[0].resign()
    assert [candidate.campaign() for candidate in candidates[1:]] == [2, None]


def jobs(name):
    """Each job has one result, although one worker dies with a job and another one is too slow."""
    queue = Jobs(connect(), name)
    numbers = [queue.add(n) for n in range(12)]
    lost, _ = Jobs(connect(), name, "dies").take()
    slow, job = Jobs(connect(), name, "is slow").take()

    def work(worker):
        def run(replicas):
            mine = Jobs(replicas, name, worker, patience=200)

            def is_done():
                if taken := mine.take():
                    number, job = taken
                    mine.finish(number, int(job) * 2)
                return all(map(mine.result, numbers))

            await_that(is_done, "all jobs have a result")

        return run

    at_once([work(f"worker-{n}") for n in range(2)])
    assert not Jobs(connect(), name).finish(slow, "too late")
    assert {lost, slow} <= set(numbers) and int(job) == 1
    assert [queue.result(number) for number in numbers] == [str(2 * n) for n in range(12)]


def limiter(name):
    """Exactly as many uses are allowed as there may be, and the window ends."""
    allowed = at_once([lambda replicas: Limiter(replicas, name, 7, LONG).allows()] * 12)
    assert allowed.count(True) == 7, allowed
    short = Limiter(connect(), f"short:{name}", 1, 50)
    assert short.allows()
    await_that(short.allows, "the window ends")


def sessions(_):
    """What one machine stores another one reads, until it ends."""
    first, second = Sessions(connect(), LONG), Sessions(Replicas(ADDRESSES[::-1]), LONG)
    session = first.begin({"user": "Ann", "basket": [1, 2]})
    assert second.load(session) == {"user": "Ann", "basket": [1, 2]}
    second.save(session, {"user": "Ann", "basket": []})
    assert first.load(session)["basket"] == []
    second.end(session)
    assert first.load(session) is None
    short = Sessions(connect(), 1)
    ending = short.begin({})
    await_that(lambda: connect()("GET", f"session:{ending}") is None, "the session ends")


if __name__ == "__main__":
    main()
