# SPDX-License-Identifier: Apache-2.0
"""A store for web sessions, each of which ends a while after its last use."""

import json
import secrets


class Sessions:
    def __init__(self, replicas, seconds):
        self._replicas, self._seconds = replicas, seconds

    def begin(self, data):
        """Stores the data of a new session, and returns the secret that names it."""
        session = secrets.token_urlsafe(32)
        self.save(session, data)
        return session

    def save(self, session, data):
        self._replicas("SET", f"session:{session}", json.dumps(data), "EX", self._seconds)

    def load(self, session):
        """Returns the data, or None if the session has ended, and counts as a use."""
        data = self._replicas("GETEX", f"session:{session}", "EX", self._seconds)
        return None if data is None else json.loads(data)

    def end(self, session):
        self._replicas("DEL", f"session:{session}")
