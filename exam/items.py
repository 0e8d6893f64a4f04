# SPDX-License-Identifier: Apache-2.0
"""What an operator has to do with a cluster that serves, item by item."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Callable

from cluster import PATIENCE, Cluster, Failed, fill
from load import CLIENTS, Connection, Load, key

# Has the program say that it has the format level after its own, in which nothing differs.
NEXT_LEVEL = {"WIREPAXOS_TEST_LEVEL": "2"}


@dataclass(frozen=True)
class Item:
    """One item: what happens, the one command that it takes, and what carries it out."""

    name: str
    what: str
    command: str
    run: Callable
    short: bool = False
    """The item belongs to the short form."""
    missing: Callable = lambda exam: None
    """Returns why the item can't be tried here, or None."""


def lose_machine(number):
    def run(exam):
        cluster, machine = exam.cluster, exam.cluster.machines[number]
        nodes = cluster.nodes(machine)
        cluster.kill(nodes)
        cluster.lose_disk(machine)
        exam.must_serve(f"without machine {number + 1}")
        cluster.start(nodes)

    return run


def other_leader(exam):
    exam.cluster.run("failover", "--to", "leader-2")
    exam.cluster.run("failover", "--to", "leader-1")


def maintain(exam):
    """The machine whose leader leads stops for a while. That costs no epoch but the one of the hand-over."""
    cluster = exam.cluster
    for machine in cluster.machines:
        drained = cluster.run("members", "drain", machine)
        if drained["handed_over"]:
            break
    else:
        raise Failed("no machine has handed over what leads")
    cluster.stop(cluster.nodes(machine))
    exam.must_serve(f"without {machine}")
    [group] = cluster.run("members")["groups"]
    if group["epoch"] != drained["handed_over"][0]["epoch"]:
        raise Failed(f"epoch {group['epoch']} has followed {drained['handed_over']}")
    cluster.start(cluster.nodes(machine))


def restart_all(exam):
    """As for another version of the program: each node ends in good order and starts again, the leader last."""
    for node in exam.cluster.nodes():
        exam.cluster.stop([node])
        exam.cluster.start([node])
        exam.cluster.await_health()


def downgrade(exam):
    """Takes each node back to the program before, and goes on with that."""
    for node in exam.cluster.nodes():
        exam.cluster.exchange(node, exam.old, {})
        exam.cluster.await_health()


def upgrade(exam):
    """Exchanges the program node by node, moves the cluster to the next level and back. A program without that level is
    refused meanwhile."""
    cluster, [first, *others] = exam.cluster, exam.cluster.nodes()
    cluster.exchange(first, exam.program, NEXT_LEVEL)
    cluster.await_health()
    cluster.must_fail("has level 1: install the newer program", "upgrade", "finish")
    for node in others:
        cluster.exchange(node, exam.program, NEXT_LEVEL)
        cluster.await_health()
    cluster.await_success("upgrade", "check")
    cluster.run("upgrade", "finish")
    cluster.stop(["acceptor-2"])
    cluster.must_refuse("acceptor-2", exam.program, "the cluster is at format level 2, and this program")
    cluster.start(["acceptor-2"])
    cluster.await_health()
    cluster.run("upgrade", "back")


def rotate_keys(exam):
    for _ in range(3):
        exam.cluster.run("keys", "rotate")
        # Nodes look at their key file once a second, and `status` names those with an older one.
        exam.cluster.await_health()


def fill_disk(number):
    def run(exam):
        cluster, machine = exam.cluster, exam.cluster.machines[number]
        filler = fill(cluster.disk(machine))
        exam.must_serve(f"while the disk of machine {number + 1} is full")
        filler.unlink()
        cluster.restart_what_ended()

    return run


def new_cluster(exam):
    """Backs up, and restores into a cluster of five machines with other addresses and keys."""
    acknowledged = list(exam.load.acknowledged)
    backups = exam.directory / "backups"
    backups.mkdir(exist_ok=True)
    exam.cluster.run("backup", "create", backups)
    machines = [f"127.{exam.network}.1.{number}" for number in range(1, 6)]
    new = Cluster(exam.program, exam.directory / "new", machines)
    try:
        new.run("backup", "restore", backups, "--into", new.file, file=False)
        must_continue(new, acknowledged, exam.load.acknowledged)
    finally:
        new.end()


def must_continue(new, before, after):
    """Starts a restored cluster, in which each client's number must be from between these."""
    new.start(new.nodes())
    new.await_health()
    connection = Connection(new.front_ends[0], new.password)
    for client in range(CLIENTS):
        [number] = connection.call([("INCR", key(client))])
        if not before[client] < number <= after[client] + 2:
            raise Failed(f"{key(client)} is {number} in the new cluster, and was {before[client]} to {after[client]}")
    connection.close()


def restore_a_second(exam):
    """A cluster of its own, with an archive, is lost under load, and is brought back as it was at one second."""
    backups = exam.directory / "archive"
    backups.mkdir()

    def cluster(name, network):
        machines = [f"127.{exam.network}.{network}.{number}" for number in range(1, 4)]
        return Cluster(exam.program, exam.directory / name, machines)

    old = cluster("archived", 2)
    with open(old.file, "a", encoding="utf-8") as file:
        file.write(f'\n[backup]\ndirectory = "{backups}"\narchive = true\n')
    load = None
    try:
        old.start(old.nodes())
        old.await_health()
        load = Load(old.front_ends, old.password)
        await_archive(old, backups, "")
        if not load.serves():
            raise Failed("the cluster with an archive doesn't serve")
        before = list(load.acknowledged)
        time.sleep(1)
        moment = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        time.sleep(1)
        after = list(load.acknowledged)
        await_archive(old, backups, moment)
    finally:
        if load:
            load.end()
        old.end()
    new = cluster("second", 3)
    try:
        new.run("backup", "restore", backups, "--to", moment, "--into", new.file, file=False)
        must_continue(new, before, after)
    finally:
        new.end()


def await_archive(cluster, backups, moment):
    """Waits until a backup can be brought to a moment."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        listed = cluster.run("backup", "list", backups, file=False)["backups"]
        if any((of["until"] or "") > moment for of in listed):
            return
        time.sleep(0.2)
    raise Failed(f"nothing is archived up to {moment}")


def add_acceptors(exam):
    change_members(exam, "add", [], {"acceptor-4": 4, "acceptor-5": 5})


def exchange_acceptors(exam):
    """Each acceptor of the beginning makes room for one on another machine."""
    for old, new in ((1, 6), (2, 7), (3, 8)):
        change_members(exam, "replace", [f"acceptor-{old}"], {f"acceptor-{new}": new})
        exam.cluster.await_health()


def remove_acceptors(exam):
    change_members(exam, "remove", ["acceptor-4", "acceptor-5"], {})


def replace_leader(exam):
    """The first leader makes room for one on another machine."""
    change_members(exam, "replace", ["leader-1"], {"leader-3": 6})


def grow_replicas(exam):
    change_members(exam, "add", [], {"replica-4": 4})
    exam.load.use(exam.cluster.front_ends_now())


def replace_replica(exam):
    change_members(exam, "replace", ["replica-1"], {"replica-5": 5})
    exam.load.use(exam.cluster.front_ends_now())


def shrink_replicas(exam):
    change_members(exam, "remove", ["replica-2"], {})
    exam.load.use(exam.cluster.front_ends_now())


def change_members(exam, order, leaving, joining):
    """Gives the order, starts the nodes that join once the cluster file has them, and waits until all is done."""
    machines = {node: f"127.{exam.network}.0.{number}" for node, number in joining.items()}
    joined = [f"{node}={machine}" for node, machine in machines.items()]
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(exam.cluster.run, "members", order, *leaving, *joined)
        while not exam.cluster.names(machines) and not done.done():
            time.sleep(0.02)
        for node, machine in machines.items():
            exam.cluster.take_in(node, machine)
        exam.cluster.start(machines)
        done.result()
    exam.cluster.leave_out(leaving)


def needs_old(exam):
    return None if exam.old else "no version before is known: name its program, or its commit, by --old"


def needs_root(_exam):
    return None if os.geteuid() == 0 else "it needs root, for a small file system"


ITEMS = [
    Item("machine-1", "a machine dies with its disk", "start it with an empty directory", lose_machine(0), short=True),
    Item("machine-2", "the next one does", "start it with an empty directory", lose_machine(1)),
    Item("grow", "five acceptors instead of three", "wirepaxos members add", add_acceptors),
    Item("machine-3", "the acting controller's machine does", "none", lose_machine(2), short=True),
    Item("leader", "another leader, and back", "wirepaxos failover --to NODE", other_leader, short=True),
    Item("drain", "the leader's machine stops for a while", "wirepaxos members drain MACHINE", maintain, short=True),
    Item("restart", "all nodes restart, as for another program", "systemctl restart NODE", restart_all),
    Item("downgrade", "the version before replaces this one", "systemctl restart NODE", downgrade, missing=needs_old),
    Item("upgrade", "a later version, and its formats", "wirepaxos upgrade check, finish, back", upgrade, short=True),
    Item("keys", "the secret is replaced", "wirepaxos keys rotate, three times", rotate_keys),
    Item("disk-1", "a disk is full, and free again", "none", fill_disk(0), missing=needs_root),
    Item("disk-2", "so is the next one", "none", fill_disk(1), missing=needs_root),
    Item("disk-3", "so is the acting controller's", "none", fill_disk(2), missing=needs_root),
    Item("exchange", "each old acceptor is replaced by a new one", "wirepaxos members replace", exchange_acceptors),
    Item("shrink", "three acceptors again", "wirepaxos members remove", remove_acceptors),
    Item("leader-new", "the first leader is replaced by a new one", "wirepaxos members replace", replace_leader, short=True),
    Item("replica-add", "four replicas instead of three", "wirepaxos members add", grow_replicas, short=True),
    Item("replica-new", "a replica is replaced by a new one", "wirepaxos members replace", replace_replica),
    Item("replica-less", "three replicas again", "wirepaxos members remove", shrink_replicas),
    Item("restore", "a new cluster of five machines from a backup", "wirepaxos backup create, restore", new_cluster),
    Item("second", "a lost cluster as it was at one second", "wirepaxos backup restore --to TIME", restore_a_second),
]
