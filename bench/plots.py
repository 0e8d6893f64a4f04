# SPDX-License-Identifier: Apache-2.0
"""Pictures, made from the results."""

import textwrap

import matplotlib

matplotlib.use("svg")
# Letters stay letters, and the same results give the same bytes.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "wirepaxos", "font.size": 9})

import matplotlib.pyplot as plt

from results import HERE, Results, ops, ratio
from tables import LOADS, PLANES, all_cpu, partitions_of

NAMES = {"udp": "UDP plane", "xdp": "XDP plane", "switch": "XDP plane, all in one switch"}


def end_to_end():
    results = Results("end-to-end")
    figure, axes = plt.subplots(figsize=(9, 4))
    for at, plane in enumerate(PLANES):
        places = [row + (at - 1) * 0.27 for row in range(len(LOADS))]
        of = [(f"{name}/{plane}", outstanding) for _, name, outstanding in LOADS]
        shares = [100 * results.median(ratio, name, outstanding=n) for name, n in of]
        spreads = [results.spread(ratio, name, outstanding=n) for name, n in of]
        errors = [
            [max(0, share - 100 * least) for share, (least, _) in zip(shares, spreads)],
            [max(0, 100 * most - share) for share, (_, most) in zip(shares, spreads)],
        ]
        axes.bar(places, shares, 0.25, yerr=errors, capsize=2, label=NAMES[plane], error_kw={"linewidth": 0.7})
    axes.axhline(100, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(LOADS)), [textwrap.fill(title, 17) for title, _, _ in LOADS], fontsize=7)
    axes.set_ylabel("% of one server\nwithout replication")
    headed(axes, "Commands/s, echo, one replica: medians, lowest and highest run")
    save(figure, "end-to-end")


def stores():
    results = Results("stores")
    names = [name for name in results.document["runs"] if name.endswith("volatile")]
    figure, axes = plt.subplots(figsize=(6, 3.2))
    bars = {
        "three replicas": ops,
        "unreplicated": lambda line: ops(line["baseline"]),
        "three replicas, 32 clients": lambda line: ops(line["independent"]),
        "unreplicated, 32 clients": lambda line: ops(line["independent"]["baseline"]),
    }
    for at, (label, pick) in enumerate(bars.items()):
        heights = [results.median(pick, name, outstanding=256) / 1000 for name in names]
        axes.bar([row + (at - 1.5) * 0.2 for row in range(len(names))], heights, 0.19, label=label)
    axes.set_xticks(range(len(names)), [name.split("/")[0] for name in names])
    axes.set_ylabel("thousand commands/s")
    headed(axes, "256 outstanding, UDP plane")
    save(figure, "stores")


def roles():
    results = Results("roles")
    names = ["leader", "acceptor", "learner"]
    figure, axes = plt.subplots(figsize=(5, 3))
    for at, (label, field) in enumerate((("the role", "ns_per_msg"), ("bare forwarding", "forwarding_ns_per_msg"))):
        heights = [results.median(lambda line: line[field], "roles", plane="xdp", role=role) for role in names]
        axes.bar([row + (at - 0.5) * 0.4 for row in range(len(names))], heights, 0.38, label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("ns a message")
    headed(axes, "XDP programs in test-run")
    save(figure, "roles")


def execution():
    results = Results("execution")
    lines = {
        "RocksDB, UDP": ("rocksdb/udp", 256),
        "RocksDB, XDP": ("rocksdb/xdp", 256),
        "LevelDB, UDP": ("leveldb/udp", 256),
        "echo, UDP": ("echo/udp", 1024),
        "echo, XDP": ("echo/xdp", 1024),
    }
    figure, (rates, seconds) = plt.subplots(1, 2, figsize=(9, 3.5))
    for label, (name, outstanding) in lines.items():
        counts = partitions_of(results, name)
        of = [{"name": name, "partitions": count, "outstanding": outstanding} for count in counts]
        rates.plot(counts, [results.median(ops, **each) / 1000 for each in of], marker="o", label=label)
        seconds.plot(counts, [results.median(all_cpu, **each) for each in of], marker="o", label=label)
    for axes, what in ((rates, "thousand commands/s"), (seconds, "CPU seconds of all processes\nfor a million commands")):
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.set_xlabel("partitions")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
    rates.set_yscale("log")
    figure.legend(*rates.get_legend_handles_labels(), frameon=False, fontsize=8, loc="upper center", ncol=5)
    save(figure, "execution", above=0.9)


def headed(axes, title):
    """The legend above the bars, the title above both."""
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=4)
    axes.set_title(title, pad=26)


def save(figure, experiment, above=1):
    figure.tight_layout(rect=(0, 0, 1, above))
    figure.savefig(HERE / experiment / f"{experiment}.svg", metadata={"Date": None})
    plt.close(figure)


def all_of_them():
    end_to_end()
    stores()
    roles()
    execution()
