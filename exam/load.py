# SPDX-License-Identifier: Apache-2.0
"""Clients that never stop. Each increments a number of its own, and checks every answer.

Each command has a name, so it counts once although a client sends it again when a connection breaks (docs/redis.md,
"Commands that count once"). A smaller answer than the last one is an acknowledged command that is lost.
"""

import itertools
import socket
import threading
import time
import uuid

CLIENTS = 4
# After this long without an answer a client asks the next front end, in seconds.
PATIENCE = 1.0


class Refused(Exception):
    """An error that a front end answered."""


class Connection:
    """One connection to a front end."""

    def __init__(self, address, password):
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._lines = self._socket.makefile("rb")
        self.call([("AUTH", password)])

    def call(self, commands):
        """Sends commands at once, and returns their answers: numbers, texts or None."""
        self._socket.sendall(b"".join(map(encoded, commands)))
        return [self._answer() for _ in commands]

    def close(self):
        self._lines.close()
        self._socket.close()

    def _answer(self):
        line = self._lines.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the front end is gone")
        kind, text = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise Refused(text)
        if kind == b":":
            return int(text)
        if kind == b"$":
            return None if text == "-1" else self._lines.read(int(text) + 2)[:-2].decode()
        return text


def encoded(command):
    words = [str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Load:
    """The clients, from start to end."""

    def __init__(self, front_ends, password):
        self._front_ends, self._password = front_ends, password
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._last, self._longest = time.monotonic(), 0.0
        self.acknowledged = [0] * CLIENTS
        self.lost = []
        self._clients = [threading.Thread(target=self._increment, args=[n], daemon=True) for n in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def use(self, front_ends):
        """From now on clients that lose their connection try these front ends."""
        self._front_ends = front_ends

    def longest_gap(self):
        """Returns the longest time without an answer to anybody since the last call, in seconds."""
        with self._lock:
            longest = max(self._longest, time.monotonic() - self._last)
            self._longest = 0.0
            return longest

    def serves(self):
        """Returns whether each client has got an answer since now, within a minute."""
        before = list(self.acknowledged)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if all(now > then for now, then in zip(self.acknowledged, before)):
                return True
            time.sleep(0.01)
        return False

    def end(self):
        """Stops all clients."""
        self._ends.set()
        for client in self._clients:
            client.join()

    def _increment(self, client):
        token = uuid.uuid4().hex
        turns = itertools.count(client)
        connection = None
        for number in itertools.count(1):
            commands = [("CLIENT", "SETNAME", f"once:{token}:{number}"), ("INCR", key(client))]
            answer = None
            while answer is None and not self._ends.is_set():
                try:
                    front_ends = self._front_ends
                    connection = connection or Connection(front_ends[next(turns) % len(front_ends)], self._password)
                    answer = connection.call(commands)[1]
                except (OSError, Refused):
                    if connection:
                        connection.close()
                    connection = None
                    time.sleep(0.01)
            if answer is None:
                return
            self._note(client, number, answer)

    def _note(self, client, number, answer):
        now = time.monotonic()
        with self._lock:
            self._longest = max(self._longest, now - self._last)
            self._last = now
            self.acknowledged[client] = number
            if answer != number:
                self.lost.append(f"{key(client)}: command {number} was answered {answer}")
                self._ends.set()


def key(client):
    """Returns the name of a client's number."""
    return f"client-{client}"
