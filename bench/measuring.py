# SPDX-License-Identifier: Apache-2.0
"""How a measurement runs: the lines of `commands`, what they print, and on which machine and commit."""

import json
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# A measurement that takes longer hangs.
TIMEOUT = 900


class Failed(Exception):
    """A measurement ended with an error, and printed why."""


def built():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    return str(target / "release" / "wirepaxos-lab")


def read_commands(experiment, only=None):
    """Name and words of each line, or of those whose name is in `only`."""
    path, commands = HERE / experiment / "commands", []
    for line in path.read_text().splitlines():
        name, colon, words = line.partition(":")
        if colon and not line.startswith("#") and (not only or name in only):
            commands.append((name, words.split()))
    if not commands:
        sys.exit(f"{path}: no such measurement")
    return commands


def run(experiment, program, words):
    """The JSON objects that it prints, one a line. If it fails, the last line of its errors says why."""
    start = [program]
    if words[0].startswith("./"):
        start = [str(HERE / experiment / words[0]), "--program", str(pathlib.Path(program).with_name("wirepaxos"))]
        words = words[1:]
    line = [*start, *words, "--json"]
    try:
        ended = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
    except OSError as error:
        raise Failed(f"{start[0]}: {error.strerror}; build it with ./dev setup") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"took more than {TIMEOUT} s: {' '.join(line)}") from error
    sys.stderr.write(ended.stderr)
    if ended.returncode != 0:
        why = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        raise Failed(f"failed: {' '.join(line)}: {why}")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def commit():
    def git(*words):
        ended = subprocess.run(["git", *words], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
        return ended.stdout.strip()

    # Results of other experiments change nothing of what is measured.
    changed = git("status", "--porcelain", "--", "..", ":!../bench", ":!../docs", ":!../README.md")
    return git("rev-parse", "--short=10", "HEAD") + ("-changed" if changed else "")


def machine():
    def field(path, name):
        for line in open(path):
            if line.startswith(name):
                return line.split(":", 1)[1].strip()
        return "unknown"

    memory = int(field("/proc/meminfo", "MemTotal").split()[0])
    return {
        "cpu": field("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory_gib": round(memory / 2**20),
        "kernel": platform.release().split("-")[0],
    }
