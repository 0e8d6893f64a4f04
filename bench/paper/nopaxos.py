# SPDX-License-Identifier: Apache-2.0
"""Our side of the figures of NOPaxos: series for each panel, and values for the sentence and the claims."""

from p4xos import after, by_50_ms, median_gap, thousands
from results import latency, ops, ratio

PROTOCOLS = {
    "unreplicated": "unreplicated",
    "nopaxos": "NOPaxos",
    "vr": "Paxos (VR)",
    "vr-batch": "Paxos, batches",
    "fast": "Fast Paxos",
    "spec": "Spec. Paxos",
}


def latency_by_throughput(ours):
    results = ours.of("protocols")

    def of(name, pick, protocol, n):
        return results.median(pick, name, protocol=protocol, outstanding=n)

    most = [of("unpacked/udp", thousands, protocol, 256) for protocol in PROTOCOLS]
    light = [of("packed/udp", latency("p50"), protocol, 1) for protocol in PROTOCOLS]
    panels = [[{"label": "ours", "values": [each / most[1] for each in most]}], [{"label": "ours", "values": light}]]
    stubs = {n: results.median(ratio, "stubs/udp", protocol="nopaxos", outstanding=n) for n in (64, 256, 1024)}
    one = results.median(
        lambda line: line["latency_us"]["p50"] - line["baseline"]["latency_us"]["p50"], "one-cpu/udp", protocol="nopaxos"
    )
    values = {
        "paxos": most[1] / most[2],
        "spec": most[1] / most[5],
        "unreplicated": most[1] / most[0],
        "latency": light[2] / light[1],
        "stubs": max(stubs.values()),
        "added": one,
    }
    return panels, values


def message_counts(ours):
    results = ours.of("message-counts")

    def of(field):
        return [results.median(lambda line: line[field], "five", protocol=each) for each in ("vr", "fast", "spec", "nopaxos")]

    delays, most = of("delays"), of("bottleneck")
    return [[{"label": "ours", "values": delays}], [{"label": "ours", "values": most}]], {"delays": delays[-1], "nopaxos": most[-1]}


def sequencers(ours):
    results = ours.of("protocols")
    places = ["switch", "host"]
    series = [
        {
            "label": f"ours, {n} outstanding",
            "values": [
                results.median(latency("p50"), "sequencers", sequencer=place, protocol="nopaxos", outstanding=n)
                / results.median(latency("p50"), "sequencers", sequencer="switch", protocol="nopaxos", outstanding=n)
                for place in places
            ],
        }
        for n in (1, 256)
    ]
    host = [
        results.median(thousands, "sequencers", sequencer=place, protocol="nopaxos", outstanding=256) for place in places
    ]
    return [series], {"latency": series[0]["values"][1], "loaded": series[1]["values"][1], "throughput": host[1] / host[0]}


def loss(ours):
    results = ours.of("protocols")
    rates = [0.001, 0.01, 0.1, 1]

    def left(protocol):
        return [
            results.median(lambda line: line["of_lossless"], "loss", protocol=protocol, loss=rate) for rate in rates
        ]

    shares = {protocol: left(protocol) for protocol in PROTOCOLS}
    series = [{"label": f"ours, {PROTOCOLS[p]}", "x": rates, "y": shares[p]} for p in PROTOCOLS]

    def rate(protocol):
        return results.median(ops, "loss", protocol=protocol, loss=1)

    return [series], {"nopaxos": shares["nopaxos"][-1], "spec": rate("spec") / rate("vr"), "batch": rate("nopaxos") / rate("vr-batch")}


def replicas(ours):
    results = ours.of("protocols")
    counts = [3, 5, 7, 9]
    rates = [results.median(ops, "scale", replicas=n) for n in counts]
    cpu = [results.median(lambda line: line["leader_cpu_us"], "scale", replicas=n) for n in counts]
    panels = [[{"label": "ours, NOPaxos", "x": counts, "y": [each / rates[0] for each in rates]}]]
    return panels, {"nine": rates[-1] / rates[0], "cpu": cpu[-1] / cpu[0]}


def sequencer_fails(ours):
    panels, values = after("sequencer-killed", "protocols", "failover")(ours)
    quick = ours.of("protocols").lines("failover-fast", event="sequencer-killed")
    panels[0].append({"label": f"ours, probed every 2 ms, mean of {len(quick)} runs", **by_50_ms(quick)})
    return panels, {**values, "fast": median_gap(quick)}


def fat_tree(ours):
    results = ours.of("fat-tree")
    runs = ["idle", "load-10", "load-20", "load-30"]
    ways = ["sequencer/common-ancestor", "sequencer/root", "sequencer/middlebox", "sequencer/host"]

    def of(way, run, pick):
        return results.median(lambda line: pick(line["beside_group_tree"]), "tree", run=run, way=way)

    def title(way):
        return way.replace("sequencer/", "").replace("-", " ")

    loads = [0, 10, 20, 30]
    def share(added):
        return 100 * added["nothing_added"]

    def p99(added):
        return added["added_us"]["p99"]

    shares = {way: [of(way, run, share) for run in runs] for way in ways}
    late = {way: [of(way, run, p99) for run in runs] for way in ways}

    def panel(pick):
        """Groups anywhere for each place of the sequencer; then other trees and groups."""
        series = [(f"ours, {title(way)}", loads, [of(way, run, pick) for run in runs]) for way in ways]
        for name, where in (("eight-pods", "8 pods"), ("in-a-pod", "group in a pod")):
            few = [f"{name}-10", f"{name}-30"]
            series += [(f"ours, {where}, {title(way)}", [10, 30], [of(way, run, pick) for run in few]) for way in ways[:2]]
        return [{"label": label, "x": x, "y": y} for label, x, y in series]

    panels = [panel(share), panel(p99)]
    carried = {
        service: results.lines("tree", run=f"large-{service}", way="carried")[0] for service in ("nopaxos", "paxos")
    }
    return panels, {
        "share": shares[ways[0]][2] / 100,
        "least": min(shares[ways[0]]),
        "most": max(shares[ways[0]]),
        "p99": late[ways[0]][3],
        "million": carried["nopaxos"]["busiest_switch_per_s"] / 1e6,
        "link": 100 * carried["nopaxos"]["busiest_link"],
        "paxos_link": 100 * carried["paxos"]["busiest_link"],
    }


def retwis(ours):
    results = ours.of("retwis")

    def most(protocol):
        return results.median(lambda line: (line["best"] or {"transactions_per_s": 0})["transactions_per_s"], "all", protocol=protocol)

    rates = {protocol: most(protocol) for protocol in [*PROTOCOLS, "paxos", "redis"]}
    nopaxos = rates["nopaxos"]
    series = [rates[protocol] / nopaxos for protocol in ("unreplicated", "nopaxos", "vr", "spec")]
    others = max(rates[protocol] for protocol in ("vr", "vr-batch", "fast", "spec"))
    values = {
        "rate": nopaxos,
        "paxos": nopaxos / rates["vr"],
        "best": nopaxos / others,
        "unreplicated": nopaxos / rates["unreplicated"],
        "redis": rates["redis"] / rates["paxos"],
    }
    return [[{"label": "ours", "values": series}]], values


def sequencer_latency(ours):
    results = ours.of("protocols")

    def added(percentile, place):
        def pick(line):
            return line["latency_us"][percentile] - line["baseline"]["latency_us"][percentile]

        return results.median(pick, "sequencers", sequencer=place, protocol="nopaxos", outstanding=1)

    places = {"host": "ours, at a socket", "xdp": "ours, in the kernel of its host", "switch": "ours, in a kernel switch"}
    series = [{"label": title, "values": [added(p, place) for p in ("p50", "p99")]} for place, title in places.items()]
    ns = ours.of("roles").lines("roles", plane="xdp", role="sequencer")[0]["ns_per_msg"]
    return [series], {"ns": ns, "switch": series[2]["values"][0]}


FIGURES = {
    "nopaxos-table1": message_counts,
    "nopaxos-4.1": fat_tree,
    "nopaxos-4.2.2": sequencer_latency,
    "nopaxos-fig5": latency_by_throughput,
    "nopaxos-fig6": sequencers,
    "nopaxos-fig7": loss,
    "nopaxos-fig8": replicas,
    "nopaxos-fig9": sequencer_fails,
    "nopaxos-fig10": retwis,
}
