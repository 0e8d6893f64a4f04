# SPDX-License-Identifier: Apache-2.0
"""Pictures, made from the results."""

import sys
import textwrap

import matplotlib

matplotlib.use("svg")
# Letters stay letters, and the same results give the same bytes.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "wirepaxos", "font.size": 9})

import matplotlib.pyplot as plt

from results import HERE, NoResults, Results, latency, ops, ratio
from tables import LOADS, PLANES, PROTOCOLS, all_cpu, partitions_of

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
    # Those that have something beside them.
    names = ["rocksdb/volatile", "leveldb/volatile", "echo/volatile"]
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


def protocols():
    """Figures 5, 7 and 9 of the paper."""
    results = Results("protocols")
    figure, (rates, losses, failures) = plt.subplots(1, 3, figsize=(13, 3.8))
    for protocol, label in PROTOCOLS.items():
        of = [{"name": "unpacked/udp", "protocol": protocol, "outstanding": n} for n in (64, 256)]
        rates.plot(
            [results.median(ops, **each) / 1000 for each in of],
            [results.median(latency("p50"), **each) for each in of],
            marker="o",
            label=label,
        )
        lossy = sorted({line["loss"] for line in results.lines("loss")} - {0})
        shares = [100 * results.median(lambda line: line["of_lossless"], "loss", protocol=protocol, loss=rate) for rate in lossy]
        losses.plot(lossy, shares, marker="o")
    rates.set_xlabel("thousand commands/s, a request each:\n64 and 256 outstanding")
    rates.set_ylabel("median latency, µs")
    losses.set_xscale("log")
    losses.set_xlabel("% of packets lost on each link")
    losses.set_ylabel("% of commands/s without loss")
    losses.set_ylim(bottom=0)
    for event in ("sequencer-killed", "replica-leader-killed", "hand-over"):
        line = results.lines("failover", event=event)[0]
        times = [(at - line["event_at"]) * 10 for at in range(len(line["answered_by_10_ms"]))]
        failures.plot(times, [n / 10 for n in line["answered_by_10_ms"]], linewidth=0.8, label=event.replace("-", " "))
    failures.set_xlim(-200, 800)
    failures.set_xlabel("ms after it happened, one run each")
    failures.set_ylabel("thousand answers/s")
    failures.legend(frameon=False, fontsize=8)
    figure.legend(*rates.get_legend_handles_labels(), frameon=False, fontsize=8, loc="upper center", ncol=7)
    save(figure, "protocols", above=0.9)


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
    try:
        protocols()
    except NoResults as why:
        print(f"SKIPPED: {why}", file=sys.stderr)
