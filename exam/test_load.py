# SPDX-License-Identifier: Apache-2.0
"""The clients notice a front end that has lost a command."""

import socketserver
import threading
import time
import unittest

from load import Load


class Forgetful(socketserver.StreamRequestHandler):
    """A front end that counts, and at its 50th command forgets one."""

    def handle(self):
        while line := self.rfile.readline():
            words = [self._word() for _ in range(int(line[1:]))]
            self.wfile.write(self._answer(words))

    def _word(self):
        length = int(self.rfile.readline()[1:])
        return self.rfile.read(length + 2)[:-2].decode()

    def _answer(self, words):
        if words[0] != "INCR":
            return b"+OK\r\n"
        with self.server.lock:
            self.server.commands += 1
            count = self.server.counts.get(words[1], 0) + (self.server.commands != self.server.forgets)
            self.server.counts[words[1]] = count
        return b":%d\r\n" % count


class TestLoad(unittest.TestCase):
    def lost_by(self, forgets):
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forgetful) as server:
            server.daemon_threads = True
            server.lock, server.commands, server.counts, server.forgets = threading.Lock(), 0, {}, forgets
            threading.Thread(target=server.serve_forever, daemon=True).start()
            load = Load(["%s:%d" % server.server_address] * 3, "password")
            while server.commands < 200 and not load.lost:
                time.sleep(0.01)
            load.end()
            server.shutdown()
            return load.lost

    def test_a_command_that_is_lost_is_named(self):
        self.assertRegex(self.lost_by(50)[0], r"^client-\d: command \d+ was answered \d+$")

    def test_nothing_is_lost_otherwise(self):
        self.assertEqual(self.lost_by(-1), [])


if __name__ == "__main__":
    unittest.main()
