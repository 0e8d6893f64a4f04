# SPDX-License-Identifier: Apache-2.0
"""Configuration that is watched.

A message says only that something changed. Who hears it, or has connected anew, reads all settings, so the last change
is never missed; changes that follow one another quickly may be seen together.
"""

import time

import redis

PUT = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PUBLISH', KEYS[1], ARGV[1])
"""


def put(replicas, name, value, key="settings"):
    """Changes one setting, and tells who watches."""
    replicas("EVAL", PUT, 1, key, name, value)


def watch(addresses, key="settings", **options):
    """Yields all settings now, and after each change, for ever."""
    options = {"socket_timeout": 2, "health_check_interval": 2, "decode_responses": True, **options}
    clients = [redis.Redis(*address.rsplit(":", 1), **options) for address in addresses]
    while True:
        try:
            with clients[0].pubsub() as subscription:
                subscription.subscribe(key)
                for _ in messages(subscription):
                    yield clients[0].hgetall(key)
        except (redis.ConnectionError, redis.TimeoutError):
            clients.append(clients.pop(0))  # the next replica
            time.sleep(0.05)


def messages(subscription):
    """Yields each message, the one that confirms the subscription first."""
    while True:
        message = subscription.get_message(timeout=1)
        if message is not None:
            yield message
