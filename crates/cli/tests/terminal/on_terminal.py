# SPDX-License-Identifier: Apache-2.0
"""Runs a command on a terminal of its own, and says whether the terminal is afterwards as it was.

    on_terminal.py q|ctrl-c|int|term WORD COMMAND...
        waits for WORD, makes the screen smaller, waits until the command has drawn that, presses
        the key or sends the signal, and waits for the end
    on_terminal.py none - COMMAND...
        only waits for the end

Prints the exit code, "restored" or how the terminal differs, whether the command has left its own
screen, and what it wrote after that.
"""

import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time

LIMIT_S = 60
LEAVES = "\x1b[?1049l"
SIZES = [(24, 80), (10, 40)]


def main():
    end, word, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    main_end, other_end = os.openpty()
    set_size(other_end, SIZES[0])
    before = termios.tcgetattr(other_end)
    child = os.fork()
    if child == 0:
        os.setsid()
        fcntl.ioctl(other_end, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(other_end, descriptor)
        os.execvp(command[0], command)
    screen = Screen(main_end)
    if end != "none":
        screen.wait_for(word)
        set_size(other_end, SIZES[1])
        # Now there isn't room for all lines.
        screen.wait_for("more lines")
        press(end, main_end, child)
    status = screen.wait_for_end(child)
    after = termios.tcgetattr(other_end)
    print("code", os.waitstatus_to_exitcode(status))
    print("restored" if before == after else f"differs: {before} {after}")
    print("left the screen" if LEAVES in screen.text else "STAYS")
    print(screen.text[screen.text.rfind(LEAVES) :])


def press(end, main_end, child):
    if end in ("int", "term"):
        os.kill(child, {"int": signal.SIGINT, "term": signal.SIGTERM}[end])
    else:
        # Ctrl-C is a key, too: the terminal makes the signal of it.
        os.write(main_end, b"\x03" if end == "ctrl-c" else end.encode())


def set_size(descriptor, size):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


class Screen:
    def __init__(self, descriptor):
        self.descriptor, self.text = descriptor, ""
        self.deadline = time.monotonic() + LIMIT_S

    def read(self):
        if time.monotonic() > self.deadline:
            sys.exit(f"not within {LIMIT_S} s: {self.text[-2000:]!r}")
        if select.select([self.descriptor], [], [], 0.1)[0]:
            self.text += os.read(self.descriptor, 65536).decode(errors="replace")

    def wait_for(self, word):
        start = len(self.text)
        while word not in self.text[start:]:
            self.read()

    def wait_for_end(self, child):
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            self.read()
        while select.select([self.descriptor], [], [], 0)[0]:
            self.read()
        return status


if __name__ == "__main__":
    main()
