# SPDX-License-Identifier: Apache-2.0
"""A cluster of several machines, each of which is an address of loopback and a disk of its own."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

# A node or a cluster that isn't there by then won't come, in seconds.
PATIENCE = 90
# What `status` says of nodes with another program than most.
ANOTHER_VERSION = ": another version than "
# From linux/prctl.h.
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """An item failed, and why."""


class Cluster:
    """What `wirepaxos init` writes for these machines, below a directory, and the nodes' processes.

    `make_disk` makes the directory that is a machine's disk; without it all machines share one.
    """

    def __init__(self, program, directory, machines, make_disk=None):
        self.directory = directory
        self.machines = machines
        self._program = program
        # The program of each node that runs another one, and what it adds to its environment.
        self._others = {}
        self._processes = {}
        directory.mkdir()
        made = self.run("init", "--machines", ",".join(machines), "--app", "redis", "--data",
                        directory / "data", "--out", directory / "made", file=False)
        self.front_ends = made["redis"]
        self.file = directory / "made/cluster.toml"
        self.password = (directory / "made/redis.password").read_text().strip()
        self._machine_of = {node["name"]: node["machine"] for node in made["nodes"]}
        (directory / "data").mkdir(mode=0o700)
        if make_disk:
            self._lay_disks(make_disk)

    def _lay_disks(self, make_disk):
        """Puts each node's directory onto the disk of its machine."""
        for machine in self.machines:
            make_disk(self.disk(machine))
        for node, machine in self._machine_of.items():
            home = self.disk(machine) / node
            home.mkdir(mode=0o700)
            (self.directory / "data" / node).symlink_to(home)

    def disk(self, machine):
        return self.directory / f"disk-of-{machine}"

    def nodes(self, machine=None):
        """Returns the names of a machine's nodes, or all, in the order in which they may restart."""
        ranks = ("controller", "replica", "acceptor", "leader")
        names = [node for node, where in self._machine_of.items() if machine in (None, where)]
        return sorted(names, key=lambda node: ranks.index(node.rsplit("-", 1)[0]))

    def names(self, nodes):
        """Returns whether the cluster file names all of these nodes."""
        text = self.file.read_text()
        return all(f'"{node}"' in text for node in nodes)

    def front_ends_now(self):
        """Returns where the replicas of the cluster file serve clients."""
        return re.findall(r'^redis = "([^"]+)"', self.file.read_text(), re.MULTILINE)

    def take_in(self, node, machine):
        """Counts a node that has joined by command."""
        self._machine_of[node] = machine

    def leave_out(self, nodes):
        """Waits until nodes that leave by command have ended by themselves, and counts them no more."""
        for node in nodes:
            self._processes.pop(node).wait(PATIENCE)
            del self._machine_of[node]

    # ---- What an operator does

    def run(self, *words, file=True):
        """Runs a command, and returns the JSON that it prints."""
        file = ["-c", str(self.file)] if file else []
        command = [self._program, *map(str, words), "--json", *file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"`{' '.join(map(str, words))}`: {done.stderr.strip() or done.stdout.strip()}")
        return json.loads(done.stdout)

    def await_success(self, *words):
        """Runs a command again and again until it succeeds: it names what stands in the way."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.run(*words)
            except Failed:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def must_fail(self, expected, *words):
        """Runs a command that must fail for this reason."""
        try:
            self.run(*words)
        except Failed as failed:
            if expected in str(failed):
                return
            raise
        raise Failed(f"`{' '.join(words)}` succeeds, and should fail: {expected}")

    def start(self, nodes):
        """Starts nodes, as systemd would."""
        for node in nodes:
            program, environment = self._others.get(node, (self._program, {}))
            command = [program, "node", "-c", self.file, "--name", node]
            with open(self.directory / f"{node}.log", "ab") as log:
                self._processes[node] = subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
                    preexec_fn=end_with_this_process
                )

    def exchange(self, node, program, environment):
        """Ends a node in good order, and starts it with another program."""
        self.stop([node])
        self._others[node] = (program, environment)
        self.start([node])

    def must_refuse(self, node, program, expected):
        """Starts a stopped node with a program that must end by itself, give this reason, and write nothing."""
        before = contents(self.directory / "data" / node)
        command = [program, "node", "-c", self.file, "--name", node]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if not done.returncode or expected not in done.stderr:
            raise Failed(f"{node} with {program} ended with {done.returncode} and not by {expected!r}: {done.stderr[-500:]}")
        if contents(self.directory / "data" / node) != before:
            raise Failed(f"{node} with {program} was refused, but has changed its files")

    def stop(self, nodes):
        """Ends nodes in good order."""
        for node in nodes:
            self._processes[node].terminate()
        for node in nodes:
            self._processes[node].wait(PATIENCE)

    def kill(self, nodes):
        for node in nodes:
            self._processes[node].kill()
            self._processes[node].wait(PATIENCE)

    def lose_disk(self, machine):
        """Replaces a machine's disk by an empty one."""
        for node in self.nodes(machine):
            shutil.rmtree(self.disk(machine) / node)
            (self.disk(machine) / node).mkdir(mode=0o700)

    def restart_what_ended(self):
        """Starts nodes again that ended by themselves, as systemd would."""
        self.start([node for node, process in self._processes.items() if process.poll() is not None])

    # ---- What an operator sees

    def status(self):
        command = [self._program, "status", "--json", "-c", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise Failed(f"`status --json` printed no JSON: {done.stderr.strip()}") from None

    def await_health(self):
        """Waits until `status` has nothing to say."""
        end = time.monotonic() + PATIENCE
        while warnings := self._warnings():
            if time.monotonic() > end:
                raise Failed(f"after {PATIENCE} s `status` still says: {warnings[0]}")
            self.restart_what_ended()
            time.sleep(0.1)

    def _warnings(self):
        status = self.status()
        if status["is_well"]:
            return []
        warnings = [warning for node in status["nodes"] for warning in node["warnings"]] + status["warnings"]
        # As long as nodes run two programs, `status` says so.
        others = [warning for warning in warnings if not (self._others and ANOTHER_VERSION in warning)]
        return others if warnings else ["it isn't well, and doesn't say why"]

    def end(self):
        """Kills all nodes that still run."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


def contents(directory):
    """Returns the contents of all files below a directory."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(path, path.read_bytes()) for path in files]


def end_with_this_process():
    """Has the kernel kill a node when the exam is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def fill(directory):
    """Takes all of a file system's room, and returns the file that has it."""
    path = pathlib.Path(directory) / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            block = os.urandom(size)
            try:
                while True:
                    file.write(block)
            except OSError:
                continue
    return path
