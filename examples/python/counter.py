#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A counter that WirePaxos replicates.

    counter.py CLUSTER.toml serve REPLICA     runs a replica, until Ctrl-C
    counter.py CLUSTER.toml add NUMBER        adds to the counter at all replicas
    counter.py CLUSTER.toml get               shows it

The group of the cluster file says `application = "own"`.
"""

import sys

from wirepaxos import Client, Error, Replica, StateMachine


class Counter(StateMachine):
    def __init__(self):
        self.value = 0

    def apply(self, command):
        self.value += int(command)

    def read(self, query):
        return str(self.value).encode()

    def snapshot(self):
        return str(self.value).encode()

    def restore(self, state):
        self.value = int(state)


def main():
    match sys.argv[1:]:
        case [cluster, "serve", name]:
            Replica(cluster, name, Counter).serve()
        case [cluster, "add", number]:
            with Client(cluster) as client:
                client.execute(number.encode())
        case [cluster, "get"]:
            with Client(cluster) as client:
                print(client.read().decode())
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except Error as why:
        sys.exit(f"counter: {why}")
