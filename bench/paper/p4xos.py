# SPDX-License-Identifier: Apache-2.0
"""Our side of the figures of P4xos and of Partitioned Paxos: series for each panel, and values for the sentence and the claims."""

import pathlib
import statistics

from results import latency, ops

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The clock of the paper's NetFPGA; ours was simulated, and ran at none.
FPGA_MHZ = 250
LOADS = (1, 64, 256)


def thousands(line):
    return ops(line) / 1000


def point(results, name, **fields):
    """Thousand commands a second, and the 99th percentile of the latency in µs."""
    return results.median(thousands, name, **fields), results.median(latency("p99"), name, **fields)


def curve(label, results, name, loads=LOADS, **fields):
    points = [point(results, name, outstanding=n, **fields) for n in loads]
    return {"label": label, "x": [x for x, _ in points], "y": [y for _, y in points]}


def quantiles(label, results, name, **fields):
    """Three points of the distribution of the latency."""
    x = [results.median(latency(percentile), name, **fields) for percentile in ("p50", "p99", "p999")]
    return {"label": label, "x": x, "y": [0.5, 0.99, 0.999]}


def ratio(results, name, other, pick, **fields):
    return results.median(pick, name, **fields) / results.median(pick, other, **fields)


def cpu_by_role(ours):
    of = {"name": "unpacked/udp", "outstanding": 256}
    results = ours.of("end-to-end")

    def share(role):
        def pick(line):
            spent = [s for name, s in line["cpu_s"].items() if name.startswith(role)]
            return 100 * statistics.mean(spent) / line["seconds"]

        return results.median(pick, **of)

    roles = ["client", "leader", "acceptor", "replica"]
    values = dict(zip(roles, map(share, roles)))
    values["thousands"] = results.median(thousands, **of)
    return [[{"label": "ours, UDP plane, two cores for all", "values": [values[role] for role in roles]}]], values


def hops(ours):
    results = ours.of("fat-tree")
    ways = ["paxos/hosts", "paxos/hosts-that-take-no-time", "paxos/switches"]
    links = [results.median(lambda line: line["links"], "tree", run="idle", way=way) for way in ways]
    loads = ["idle", "load-10", "load-20", "load-30"]
    times = {way: [results.median(latency("p50"), "tree", run=run, way=way) for run in loads] for way in ways}
    panels = [
        [{"label": "ours, simulated", "values": [links[0], links[2]]}],
        [{"label": way.replace("paxos/", "").replace("-", " "), "x": [0, 10, 20, 30], "y": times[way]} for way in ways],
    ]
    network = times[ways[1]][0] / times[ways[2]][0]
    return panels, {"links": links[0] / links[2], "network": network, "all": times[ways[0]][0] / times[ways[2]][0]}


def role_lines(ours):
    roles = ["leader", "acceptor", "learner"]
    xdp = [ours.of("roles").lines("roles", plane="xdp", role=role)[0] for role in roles]
    dpdk = [ours.of("dpdk").lines("roles", plane="dpdk", role=role)[0] for role in roles]
    return roles, xdp, dpdk


def fpga_cycles():
    """Cycles of leader, acceptor and learner in SystemVerilog, as a test of programs/fpga has counted them."""
    path = ROOT / "programs" / "fpga" / "results" / "latency.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    cycles = dict(line.split() for line in lines if not line.startswith("#"))
    return [int(cycles[role]) for role in ("leader", "acceptor", "learner") if role in cycles]


def role_latency(ours):
    roles, xdp, dpdk = role_lines(ours)
    simulated = [cycles / FPGA_MHZ for cycles in fpga_cycles()]
    forwarding = [xdp[0]["forwarding_ns_per_msg"], dpdk[0]["bursts"][0]["forwarding_ns_per_msg"]]
    series = [
        {"label": "ours, XDP, in test-run", "values": [forwarding[0] / 1e3, *(line["ns_per_msg"] / 1e3 for line in xdp)]},
        {
            "label": "ours, DPDK, a port in memory",
            "values": [forwarding[1] / 1e3, *(line["bursts"][0]["ns_per_msg"] / 1e3 for line in dpdk)],
        },
    ]
    if len(simulated) == 3:
        title = f"ours, SystemVerilog, cycles of {FPGA_MHZ} MHz"
        series.append({"label": title, "values": [None, *simulated]})
    dpdk_ratio = dpdk[0]["bursts"][0]["ns_per_msg"] / forwarding[1]
    return [series], {"leader": dpdk_ratio, "slowest_ns": max(line["bursts"][0]["ns_per_msg"] for line in dpdk)}


def role_throughput(ours):
    roles, xdp, dpdk = role_lines(ours)
    rates = [max(burst["msgs_per_s"] for burst in line["bursts"]) / 1e6 for line in dpdk]
    live = [line["live"]["msgs_per_s"] / 1e6 for line in xdp]
    series = [{"label": "ours, DPDK, a port in memory", "values": rates}, {"label": "ours, XDP, live at virtual links", "values": live}]
    return [series], {"leader": rates[0], "acceptor": rates[1], "learner": rates[2], "live": live[0]}


def echo_distribution(load):
    """With so many requests in flight; our clients have no fixed rate."""

    def panels(ours):
        results, dpdk = ours.of("end-to-end"), ours.of("dpdk")
        series = [
            quantiles("ours, UDP plane", results, "two-cpus/udp", outstanding=load),
            quantiles("ours, XDP plane, all in one switch", results, "two-cpus/switch", outstanding=load),
            quantiles("ours, DPDK plane", dpdk, "two-cpus/dpdk", outstanding=load),
        ]
        speedup = ratio(dpdk, "two-cpus/udp", "two-cpus/dpdk", latency("p50"), outstanding=load)
        switch = ratio(results, "two-cpus/udp", "two-cpus/switch", latency("p50"), outstanding=load) if load == 1 else 0
        return [series], {"dpdk": speedup, "switch": switch, "p50": series[2]["x"][0]}

    return panels


def echo_throughput(ours):
    dpdk = ours.of("dpdk")
    series = [
        curve("ours, UDP plane, in a lab", dpdk, "two-cpus/udp"),
        curve("ours, XDP plane", dpdk, "two-cpus/xdp"),
        curve("ours, DPDK plane", dpdk, "two-cpus/dpdk"),
        curve("ours, XDP plane, all in one switch", ours.of("end-to-end"), "two-cpus/switch"),
    ]
    most = {name: ratio(dpdk, f"two-cpus/{name}", "two-cpus/udp", ops, outstanding=256) for name in ("dpdk", "xdp")}
    return [series], {**most, "thousands": max(series[2]["x"]), "p99": series[2]["y"][-1]}


def leveldb_distribution(ours):
    results = ours.of("own")
    series = [quantiles(f"ours, {plane.upper()} plane", results, f"light/{plane}", outstanding=1) for plane in ("udp", "xdp")]
    return [series], {"xdp": series[0]["x"][1] / series[1]["x"][1], "udp_p99": series[0]["x"][1], "xdp_p99": series[1]["x"][1]}


def leveldb_throughput(ours):
    results = ours.of("stores")
    rates = [results.median(thousands, f"leveldb-gets-50-{reads}/volatile", outstanding=256) for reads in ("log", "quorum")]
    return [[{"label": "ours, UDP plane", "values": rates}]], {"log": rates[0], "quorum": rates[1]}


def rocksdb_throughput(ours):
    results = ours.of("execution")
    loads = (256,)
    series = [
        curve("ours, UDP plane", results, "rocksdb/udp", loads, partitions=1),
        curve("ours, XDP plane", results, "rocksdb/xdp", loads, partitions=1),
        curve("ours, UDP plane, a value each", results, "rocksdb-unpacked/udp", loads, partitions=1),
        curve("ours, XDP plane, a value each", results, "rocksdb-unpacked/xdp", loads, partitions=1),
    ]
    xdp = ratio(results, "rocksdb/xdp", "rocksdb/udp", ops, outstanding=256, partitions=1)
    latencies = ratio(results, "rocksdb/udp", "rocksdb/xdp", latency("p99"), outstanding=256, partitions=1)
    return [series], {"xdp": xdp, "latency": latencies, "thousands": max(each["x"][0] for each in series)}


def rocksdb_in_the_network(ours):
    results = ours.of("execution")
    names = ["rocksdb", "rocksdb-unpacked"]
    series = [
        {
            "label": f"ours, {plane.upper()} plane",
            "values": [results.median(thousands, f"{name}/{plane}", outstanding=256, partitions=1) for name in names],
        }
        for plane in ("udp", "xdp")
    ]
    return [series], {"xdp": series[1]["values"][0] / series[0]["values"][0]}


def rocksdb_distribution(ours):
    results = ours.of("many-clients")
    names = {"udp": "ours, UDP plane", "switch": "ours, XDP plane, all in one switch"}

    def of(plane, percentile):
        return results.median(
            lambda line: line["independent"]["latency_us"][percentile], f"independent-32-rocksdb/{plane}", outstanding=32
        )

    series = [
        {"label": label, "x": [of(plane, p) for p in ("p50", "p99", "p999")], "y": [0.5, 0.99, 0.999]}
        for plane, label in names.items()
    ]
    return [series], {"switch": series[0]["x"][0] / series[1]["x"][0]}


def rocksdb_partitions(ours):
    results = ours.of("execution")

    def of(name, counts):
        return [results.median(thousands, name, partitions=n, outstanding=256) for n in counts]

    disk, memory = of("rocksdb/udp", (1, 2, 4)), of("rocksdb-ram/udp", (1, 4))
    series = [
        {"label": "ours, UDP plane, disk", "x": [1, 2, 4], "y": disk},
        {"label": "ours, UDP plane, RAM disk", "x": [1, 4], "y": memory},
    ]
    return [series], {"four": disk[2] / disk[0], "memory": memory[1] / disk[2]}


def after(event, experiment="failures", name="events"):
    """Answers by 50 ms, the mean of all runs, as a share of those before the event; and medians of the longest gap and of the time
    until as much is answered as before."""

    def panels(ours):
        results = ours.of(experiment)
        lines = results.lines(name, event=event)
        series = {"label": f"ours, {event.replace('-', ' ')}, mean of {len(lines)} runs", **by_50_ms(lines)}
        gap, calm = median_gap(lines), median_gap(results.lines(name, event="nothing"))
        peaks = [peak for line in lines for peak in line["peak_ms_runs"]]
        return [[series]], {
            "gap": gap,
            "calm": calm,
            "ratio": gap / calm,
            "peak": statistics.median(peaks),
            "detection": lines[0]["detection_ms"],
        }

    return panels


def median_gap(lines):
    return statistics.median(gap for line in lines for gap in line["gap_ms"]["runs"])


def by_50_ms(lines):
    every = [shares_of(line) for line in lines]
    times = sorted(set.intersection(*(set(each) for each in every)))
    return {"x": times, "y": [statistics.mean(each[at] for each in every) for at in times]}


def shares_of(line):
    """Milliseconds after the event -> answers in the 50 ms from then, of those before it."""
    counts, event = line["answered_by_10_ms"], line["event_at"]
    before = statistics.mean(counts[:event])
    starts = [at for at in range(event % 5, len(counts) - 4, 5) if -50 <= at - event < 100]
    return {10 * (at - event): statistics.mean(counts[at : at + 5]) / before for at in starts}


FIGURES = {
    "p4xos-fig1": cpu_by_role,
    "p4xos-fig2": hops,
    "p4xos-table1": role_latency,
    "p4xos-table2": role_throughput,
    "p4xos-fig7a": echo_distribution(1),
    "p4xos-fig7b": echo_throughput,
    "p4xos-fig7c": leveldb_distribution,
    "p4xos-fig7d": leveldb_throughput,
    "p4xos-fig8a": after("acceptor-killed"),
    "p4xos-fig8b": after("leader-killed"),
    "partitioned-fig2": rocksdb_in_the_network,
    "partitioned-fig8a": echo_throughput,
    "partitioned-fig8b": echo_distribution(64),
    "partitioned-fig8c": rocksdb_throughput,
    "partitioned-fig8d": rocksdb_distribution,
    "partitioned-fig9": rocksdb_partitions,
    "partitioned-fig10": rocksdb_throughput,
    "partitioned-fig11a": after("acceptor-killed"),
    "partitioned-fig11b": after("leader-killed"),
}
