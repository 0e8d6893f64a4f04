# SPDX-License-Identifier: Apache-2.0
"""Django's cache with Redis, and sessions in it. Django reads at any of its servers but the first, and writes at that one."""

import sys
import time
from importlib import import_module

import django
from django.conf import settings

settings.configure(
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": [f"redis://{address}" for address in sys.argv[1:]],
        }
    },
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    INSTALLED_APPS=["django.contrib.sessions"],
    SECRET_KEY="x",
)
django.setup()

from django.core.cache import cache  # noqa: E402


def use_cache():
    cache.clear()
    cache.set("a", {"x": 1}, 30)
    assert cache.get("a") == {"x": 1}
    assert not cache.add("a", 1) and cache.add("b", 1)
    assert cache.incr("b") == 2 and cache.decr("b", 2) == 0
    cache.set_many({"c": 1, "d": 2}, 10)
    assert cache.get_many(["c", "d", "e"]) == {"c": 1, "d": 2}
    assert cache.touch("c", 100) and not cache.touch("none")
    assert cache.has_key("c") and cache.delete("c") and not cache.delete("c")
    assert cache.get_or_set("g", lambda: 7) == 7
    cache.set("short", 1, 1)
    time.sleep(1.5)
    assert cache.get("short") is None


def use_sessions():
    store = import_module(settings.SESSION_ENGINE).SessionStore
    first = store()
    first["k"] = "v"
    first.create()
    second = store(session_key=first.session_key)
    assert second["k"] == "v"
    second["k"] = "w"
    second.save()
    assert store(session_key=first.session_key)["k"] == "w"
    second.flush()
    assert "k" not in store(session_key=first.session_key)


use_cache()
use_sessions()
