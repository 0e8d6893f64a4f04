# SPDX-License-Identifier: Apache-2.0
"""A cluster on this machine, for measurements that `wirepaxos` doesn't make itself."""

import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 60
# Behind a node's first port, which those of further partitions follow.
CONTROL, REDIS = 64, 65
SET = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"


def port(at):
    """The first one of a node."""
    return 7000 + 100 * at


class Cluster:
    """Nodes of a cluster on loopback, in an address of its own."""

    def __init__(self, program, directory, application, replicas, partitions=1):
        self.program, self.directory, self.application, self.partitions = program, directory, application, partitions
        self.host = f"127.{random.randint(64, 127)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
        roles = ["controller", "leader"] + ["acceptor"] * 3 + ["replica"] * replicas
        self.nodes = [(f"{role}-{at}", role) for at, role in enumerate(roles, start=1)]
        self.ports = [port(at) + REDIS for at, (_, role) in enumerate(self.nodes) if role == "replica"]
        self.file = directory / "cluster.toml"
        self.file.write_text(self.text())
        self.processes = {}

    def text(self):
        text = f'cluster = "{random.getrandbits(32) | 1:08x}"\ndata = "data"\n\n[[group]]\nid = 0\napplication = "{self.application}"\n'
        text += f"partitions = {self.partitions}\n"
        for at, (name, role) in enumerate(self.nodes):
            text += f'\n[[node]]\nname = "{name}"\nid = {at + 1}\nrole = "{role}"\n'
            text += f'address = "{self.host}:{port(at)}"\ncontrol = "{self.host}:{port(at) + CONTROL}"\n'
            if role == "replica":
                text += f'redis = "{self.host}:{port(at) + REDIS}"\n'
        return text

    def __enter__(self):
        for name, _ in self.nodes:
            log = open(self.directory / f"{name}.log", "w")
            words = [self.program, "node", "-c", str(self.file), "--name", name]
            self.processes[name] = subprocess.Popen(words, stderr=log, stdout=log)
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait()

    def await_service(self):
        for port in self.ports:
            deadline = time.monotonic() + PATIENCE
            while not self.serves(port):
                if time.monotonic() > deadline:
                    sys.exit(f"{self.host}:{port} doesn't serve")
                time.sleep(0.2)

    def serves(self, port):
        try:
            with socket.create_connection((self.host, port), timeout=5) as connection:
                connection.sendall(SET)
                return connection.recv(100) == b"+OK\r\n"
        except OSError:
            return False

    def memory(self):
        """What each process keeps in memory, in MiB."""

        def of(process):
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            return int(line.split()[1]) // 1024

        return {name: of(process) for name, process in self.processes.items()}

    def front_ends(self):
        words = [self.program, "status", "-c", str(self.file), "--json"]
        answer = subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout
        nodes = json.loads(answer)["nodes"]
        wanted = ("connected", "connections", "connections_refused", "sessions_lost")
        found = {}
        for node in nodes:
            counts = (node.get("status") or {}).get("front_end")
            if counts:
                found[node["name"]] = {name: counts[name] for name in wanted if name in counts}
        return found
