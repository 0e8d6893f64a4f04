# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown, made from the results."""

import statistics

from results import Results, latency, ops, ratio

PLANES = ["udp", "xdp", "switch"]
# Title, name of the measurement, requests in flight.
LOADS = [
    ("1 outstanding, two cores", "two-cpus", 1),
    ("64 outstanding, two cores", "two-cpus", 64),
    ("256 outstanding, two cores", "two-cpus", 256),
    ("1 outstanding, everything on one core", "one-cpu", 1),
    ("64 outstanding, everything on one core", "one-cpu", 64),
    ("256 outstanding, everything on one core", "one-cpu", 256),
    ("a value for each command, 256 outstanding, two clients", "unpacked", 256),
    ("two partitions, 1,024 outstanding, two clients", "partitions", 1024),
]
IN_README = [0, 2, 3, 5, 6, 7]


def readme():
    """At most ten rows: what a stranger wants to know first."""
    e2e, stores, failures = Results("end-to-end"), Results("stores"), Results("failures")
    rows = [["commands/s, median latency", "UDP plane", "XDP plane", "XDP plane, all in one switch"]]
    for title, name, outstanding in (LOADS[at] for at in IN_README):
        cells = [cell(e2e, f"{name}/{plane}", outstanding) for plane in PLANES]
        rows.append([f"echo, {title}", *cells])
    rows.append(["RocksDB puts, three replicas, 256 outstanding", cell(stores, "rocksdb/volatile", 256), "", ""])
    rows.append(["the same, votes on disk", cell(stores, "rocksdb/durable", 256), "", ""])
    longest = [f"{failures.median(gap, plane):,.0f} ms" for plane in ("udp", "xdp")]
    rows.append(["longest gap while a leader, an acceptor and a replica die", *longest, ""])
    return table(rows) + [
        "",
        "In brackets: the share of what one server without replication does in the same run. "
        + f"{e2e.origin()}. RocksDB's rows: {stores.origin()}. The last row: {failures.origin()}.",
    ]


def cell(results, name, outstanding):
    lines = results.lines(name, outstanding=outstanding)
    text = f"{number(results.median(ops, name, outstanding=outstanding))}, "
    text += micros(results.median(latency("p50"), name, outstanding=outstanding))
    if all("baseline" in line for line in lines):
        text += f" ({results.median(ratio, name, outstanding=outstanding):.0%})"
    return text


def end_to_end():
    results = Results("end-to-end")
    rows = [["echo, one replica", "plane", "commands/s (runs)", "p50", "p99", "of unreplicated", "its p50"]]
    for title, name, outstanding in LOADS:
        for plane in PLANES:
            rows.append([title, plane, *full(results, f"{name}/{plane}", outstanding)])
    return table(rows) + ["", results.origin() + "."]


def full(results, name, outstanding):
    of = {"name": name, "outstanding": outstanding}
    least, most = results.spread(ops, **of)
    return [
        f"{number(results.median(ops, **of))} ({number(least)} to {number(most)})",
        micros(results.median(latency("p50"), **of)),
        micros(results.median(latency("p99"), **of)),
        f"{results.median(ratio, **of):.0%}",
        micros(results.median(lambda line: line["baseline"]["latency_us"]["p50"], **of)),
    ]


def stores():
    results = Results("stores")
    rows = [["three replicas", "outstanding", "one client: commands/s (runs), p99", "32 clients", "unreplicated: one, 32"]]
    for name in results.document["runs"]:
        for outstanding in sorted({line["outstanding"] for line in results.lines(name)}):
            rows.append([name.replace("/", ", "), f"{outstanding:,}", *of_store(results, name, outstanding)])
    return table(rows) + ["", results.origin() + "."]


def of_store(results, name, outstanding):
    of = {"name": name, "outstanding": outstanding}
    lines = results.lines(**of)
    least, most = results.spread(ops, **of)
    one = f"{number(results.median(ops, **of))} ({number(least)} to {number(most)}), "
    one += micros(results.median(latency("p99"), **of))
    many = bare = ""
    if all("independent" in line for line in lines):
        many = number(results.median(lambda line: ops(line["independent"]), **of))
    if all("baseline" in line for line in lines):
        bare = number(results.median(lambda line: ops(line["baseline"]), **of))
        if many:
            bare += ", " + number(results.median(lambda line: ops(line["independent"]["baseline"]), **of))
    return [one, many, bare]


def catch_up():
    results = Results("catch-up")
    rows = [["store", "while", "seconds", "commands/s", "p50", "p99", "memory of the sender, of the receiver"]]
    for name in results.document["runs"]:
        for title, phase in (("nothing else", "calm"), ("a copy is made", "copying"), ("a replica catches up", "catching_up")):
            rows.append([name, title, *of_phase(results, name, phase)])
    return table(rows) + ["", results.origin() + "."]


def of_phase(results, name, phase):
    def median(field):
        return results.median(lambda line: field(line[phase]), name=name)

    memory = f"{median(lambda line: line['sender_memory_mib']):,.0f} MiB"
    receiver = median(lambda line: line["receiver_memory_mib"])
    if receiver:
        memory += f", {receiver:,.0f} MiB"
    return [
        f"{median(lambda line: line['seconds']):.0f}",
        number(median(ops)),
        micros(median(latency("p50"))),
        micros(median(latency("p99"))),
        memory,
    ]


def roles():
    results = Results("roles")
    rows = [["role", "in test-run", "bare forwarding", "at links: messages/s", "of bare forwarding of as many frames", "as a library", "P4xos: DPDK, FPGA, Tofino"]]
    for role in ("leader", "acceptor", "learner", "sequencer"):
        xdp = {"name": "roles", "plane": "xdp", "role": role}
        line = results.lines(**xdp)[0]
        nanos = results.median(lambda line: line["ns_per_msg"], **xdp)
        bare = results.median(lambda line: line["forwarding_ns_per_msg"], **xdp)
        live = results.median(lambda line: line["live"]["msgs_per_s"], **xdp)
        slower = results.median(lambda line: line["live"]["times_slower_than_forwarding"], **xdp)
        library = results.median(lambda line: line["ns_per_msg"], name="roles", plane="udp", role=role)
        rows.append([
            role,
            f"{nanos:.0f} ns",
            f"{bare:.0f} ns",
            f"{live / 1e6:.1f} million",
            f"1/{slower:.2f}",
            f"{library:.0f} ns",
            ", ".join((line["papers"] or {}).get("latency", [])),
        ])
    return table(rows) + ["", results.origin() + "."]


def dpdk_roles():
    """Each role's own cost is what it takes more than forwarding."""
    results = Results("dpdk")
    rows = [["role", "at once", "a message", "messages/s", "bare forwarding of as many frames", "of it", "round trip", "where", "P4xos: DPDK, FPGA, Tofino: latency", "messages/s"]]
    for role in ("leader", "acceptor", "learner"):
        of_role = {"name": "roles", "plane": "dpdk", "role": role}
        line = results.lines(**of_role)[0]
        trip = results.median(lambda line: line["round_trip_ns"], **of_role)
        for at, burst in enumerate(line["bursts"]):
            own = results.median(lambda line: line["bursts"][at]["ns_per_msg"], **of_role)
            bare = results.median(lambda line: line["bursts"][at]["forwarding_ns_per_msg"], **of_role)
            papers = line["papers"] or {}
            rows.append([
                role,
                f"{burst['burst']}",
                f"{own:.0f} ns",
                f"{1e3 / own:.1f} million",
                f"{bare:.0f} ns",
                f"1/{own / bare:.2f}",
                f"{trip / 1e3:.2f} µs",
                line["link"],
                ", ".join(papers.get("latency", [])),
                ", ".join(papers.get("msgs_per_s", [])),
            ])
    return table(rows) + ["", results.origin() + "."]


def dpdk_clusters():
    results = Results("dpdk")
    rows = [["echo, one replica", "plane", "commands/s", "p50", "p99"]]
    for title, name, outstanding in LOADS[:6]:
        for plane in ("udp", "xdp", "dpdk"):
            of = {"name": f"{name}/{plane}", "outstanding": outstanding}
            rows.append([
                title,
                plane,
                number(results.median(ops, **of)),
                micros(results.median(latency("p50"), **of)),
                micros(results.median(latency("p99"), **of)),
            ])
    return table(rows) + ["", results.origin() + "."]


def auth_roles():
    results = Results("auth")
    rows = [["role, in the kernel", "in test-run", "signed", "times", "at links: messages/s", "signed", "times"]]
    for role in ("leader", "acceptor", "learner", "sequencer", "receiver"):
        of = [{"name": "roles/xdp", "plane": "xdp", "role": role, "auth": auth} for auth in (False, True)]
        nanos = [results.median(lambda line: line["ns_per_msg"], **each) for each in of]
        row = [role, f"{nanos[0]:.0f} ns", f"{nanos[1]:.0f} ns", f"{nanos[1] / nanos[0]:.1f}"]
        if results.lines(**of[0])[0]["live"]:
            live = [results.median(lambda line: line["live"]["msgs_per_s"], **each) for each in of]
            row += [number(live[0]), number(live[1]), f"{live[0] / live[1]:.2f}"]
        else:
            row += ["", "", ""]
        rows.append(row)
    values = [results.median(lambda line: line["values_per_s"], "chain/xdp", auth=auth) for auth in (False, True)]
    made, checked = (
        results.median(lambda line: line["ns_per_packet"], "roles/udp", tag=tag) for tag in ("tag made", "tag checked")
    )
    said = (
        f"As a library a tag takes {made:.0f} ns to make and {checked:.0f} ns to check, with a value of 64 bytes. An agreement alone, in the "
        f"kernel: {number(values[0])} values/s, signed {number(values[1])} ({values[1] / values[0]:.0%})."
    )
    return table(rows) + ["", said, "", results.origin() + "."]


def auth_clusters():
    results = Results("auth")
    rows = [["echo, one replica, two cores", "plane", "commands/s, p50", "signed", "of that without"]]
    for outstanding in (1, 64, 256):
        for plane in ("udp", "xdp"):
            of = [{"name": f"{auth}/{plane}", "outstanding": outstanding} for auth in ("off", "signed")]
            share = results.median(ops, **of[1]) / results.median(ops, **of[0])
            cells = [rate_and_latency(results, each) for each in of]
            rows.append([f"{outstanding} outstanding", plane, *cells, f"{share:.0%}"])
    return table(rows) + ["", results.origin() + "."]


def flood():
    results = Results("flood")
    rows = [
        ["echo, one replica, two cores", "plane", "alone (runs)", "wrong tags a second", "sent to nobody", "sent to the leader (runs)", "of that to nobody"]
    ]
    for outstanding in (1, 64):
        for plane in ("udp", "xdp"):
            for rate in ("100k", "most"):
                of = [
                    {"name": f"{name}/{plane}", "outstanding": outstanding} for name in ("alone", f"nobody-{rate}", f"leader-{rate}")
                ]
                alone, nobody, leader = (results.median(ops, **each) for each in of)
                spreads = [results.spread(ops, **each) for each in of]
                rows.append([
                    f"{outstanding} outstanding",
                    plane,
                    f"{number(alone)} ({number(spreads[0][0])} to {number(spreads[0][1])})",
                    number(results.median(lambda line: line["forged_per_s"], **of[2])),
                    f"{number(nobody)} ({nobody / alone:.0%})",
                    f"{number(leader)} ({number(spreads[2][0])} to {number(spreads[2][1])})",
                    f"{leader / nobody:.0%}",
                ])
    return table(rows) + ["", results.origin() + "."]


def chain():
    results = Results("chain")
    rows = [["learners", "values/s (runs)", "bare forwarding", "lost"]]
    for name, learners in (("one", 1), ("three", 3)):
        least, most = results.spread(lambda line: line["values_per_s"], name)
        rows.append([
            str(learners),
            f"{number(results.median(lambda line: line['values_per_s'], name))} ({number(least)} to {number(most)})",
            number(results.median(lambda line: line["forwarding_values_per_s"], name)),
            number(sum(line["sent"] - line["delivered"] for line in results.lines(name))),
        ])
    return table(rows) + ["", results.origin() + "."]


def gap(line):
    return line["longest_gap_ms"]


def failures():
    results = Results("failures")
    planes = ("udp", "xdp")
    rows = [["longest time without any answer", "UDP plane", "XDP plane"]]
    for phase in [phase["name"] for phase in results.lines("udp")[0]["phases"]]:
        def of(line):
            return next(p["longest_gap_ms"] for p in line["phases"] if p["name"] == phase)

        rows.append([phase, *(f"{results.median(of, plane):,.0f} ms" for plane in planes)])
    rows.append(["operations/s of the whole run", *(number(results.median(ops, plane)) for plane in planes)])
    rows.append(["acknowledged writes, lost", *(
        f"{number(results.median(lambda line: line['acknowledged'], plane))}, {sum(line['lost'] for line in results.lines(plane))}"
        for plane in planes
    )])
    return table(rows) + ["", results.origin() + "."]


def connections():
    results = Results("connections")
    names = list(results.document["runs"])
    firsts = [results.lines(name)[0] for name in names]
    replicas = [line["replicas"] for line in firsts]
    heads = [f"{n} front end" + "s" * (n > 1) for n in replicas]
    rows = [[f"of {firsts[0]['connections']:,} connections", *heads]]

    def row(title, pick):
        rows.append([title, *(f"{results.median(pick, name):,.0f}" for name in names)])

    row("served", lambda line: line["served"])
    row("told that there are too many", lambda line: line["too_many"])
    row("closed without a word, or not answered", lambda line: line["other"])
    row("of those served: GETs answered while all are open", lambda line: line["gets_answered"])
    row("seconds until all are answered", lambda line: line["seconds"])
    row("slowest GET, ms", lambda line: line["get_ms"]["max"])
    for title, at in (("before", "before"), ("while they are open", "open"), ("once they are closed", "closed")):
        row(f"memory of a replica {title}, MiB", lambda line: replica_memory(line, at))
    return table(rows) + ["", results.origin() + "."]


def many_keys():
    results = Results("many-keys")
    name = "rocksdb"
    rows = [["million keys", "SET: commands/s, p99", "GET: commands/s, p99"]]
    turns = results.document["runs"][name]
    for at in range(min(len(turn) for turn in turns)):
        lines = [turn[at] for turn in turns]

        def median(pick):
            return statistics.median(pick(line) for line in lines)

        def shown(test):
            rate = median(lambda line: line[test]["ops_per_s"])
            return f"{number(rate)}, {median(lambda line: line[test]['p99_ms']):.1f} ms"

        rows.append([f"{median(lambda line: line['keys']) / 1e6:.1f}", shown("set"), shown("get")])
    return table(rows) + ["", results.origin() + "."]


def replica_memory(line, at):
    return max(mib for name, mib in line["memory_mib"][at].items() if name.startswith("replica"))


def syncs():
    results = Results("syncs")
    rows = [["until it is on the disk", "4 KiB: p50, p99", "CPU", "64 KiB: p50, p99", "CPU"]]
    for line in results.document["runs"]["ways"][0]:
        if line["bytes"] != 4096:
            continue
        row = [f"{line['way']}, {'into room' if line['file'] == 'allocated' else 'over what was'} {line['file']}"]
        for size in (4096, 65536):
            of = {"name": "ways", "way": line["way"], "file": line["file"], "bytes": size}
            p50, p99, cpu = (results.median(lambda l, f=f: l[f], **of) for f in ("p50_us", "p99_us", "cpu_us"))
            row += [f"{micros(p50)}, {micros(p99)}", micros(cpu)]
        rows.append(row)
    return table(rows) + ["", results.origin() + "."]


def execution_stores():
    results = Results("execution")
    rows = [[
        "puts, three replicas, 256 outstanding", "partitions", "commands/s (runs)", "p99",
        "of a write a command", "of writes as large", "CPU seconds of a replica for a million", "of these, the store's",
    ]]
    for name in results.document["runs"]:
        if results.lines(name)[0]["app"] == "echo" or name.startswith("independent"):
            continue
        for partitions in partitions_of(results, name):
            of = {"name": name, "partitions": partitions}
            least, most = results.spread(ops, **of)
            rows.append([
                name.replace("/", ", "),
                str(partitions),
                f"{number(results.median(ops, **of))} ({number(least)} to {number(most)})",
                micros(results.median(latency("p99"), **of)),
                f"{results.median(ratio, **of):.0%}",
                f"{results.median(lambda line: ops(line) / ops(line['baseline_batched']), **of):.0%}",
                f"{results.median(replica_cpu, **of):.1f}",
                f"{results.median(store_share, **of):.0%}",
            ])
    return table(rows) + ["", results.origin() + "."]


def partitions_of(results, name):
    return sorted({line["partitions"] for line in results.lines(name)})


def replica_cpu(line):
    """Seconds of a replica's process for a million commands."""
    return line["cpu_s_per_million"]["replica-1"]


def store_share(line):
    """Of a replica's CPU time, what the store's library takes. It is asked a moment later than the process."""
    return min(1, line["store_cpu_s"]["replica-1"] / line["cpu_s"]["replica-1"])


def all_cpu(line):
    return sum(line["cpu_s_per_million"].values())


def execution_partitions():
    results = Results("execution")
    counts = partitions_of(results, "echo/udp")
    rows = [["echo: commands/s, CPU of all processes a command", "outstanding", *(f"{n} partitions" if n > 1 else "1 partition" for n in counts)]]
    names = (name for name in results.document["runs"] if name.startswith("echo"))
    for name in sorted(names, key=lambda name: name.split("/")[::-1]):
        for outstanding in sorted({line["outstanding"] for line in results.lines(name)}):
            cells = []
            for partitions in counts:
                of = {"name": name, "partitions": partitions, "outstanding": outstanding}
                cells.append(f"{number(results.median(ops, **of))}, {micros(results.median(all_cpu, **of))}")
            rows.append([name.replace("/", ", "), f"{outstanding:,}", *cells])
    return table(rows) + ["", results.origin() + "."]


def execution_multi():
    results = Results("execution")
    rows = [["commands over two of four partitions", "commands/s (runs)", "p50", "p99"]]
    for percent in (0, 1, 10, 50):
        name = f"multi-{percent}/udp"
        least, most = results.spread(ops, name)
        rows.append([
            f"{percent}%",
            f"{number(results.median(ops, name))} ({number(least)} to {number(most)})",
            micros(results.median(latency("p50"), name)),
            micros(results.median(latency("p99"), name)),
        ])
    return table(rows) + ["", results.origin() + "."]


def execution_durable():
    results = Results("execution")
    rows = [["outstanding", "volatile: commands/s, p99", "durable: commands/s, p99", "of volatile"]]
    for outstanding in (1, 64, 1024):
        of = {"outstanding": outstanding}
        rate = {kind: results.median(ops, f"{kind}/udp", **of) for kind in ("volatile", "durable")}
        cells = [
            f"{number(rate[kind])}, {micros(results.median(latency('p99'), f'{kind}/udp', **of))}"
            for kind in ("volatile", "durable")
        ]
        rows.append([f"{outstanding:,}", *cells, f"{rate['durable'] / rate['volatile']:.0%}"])
    return table(rows) + ["", results.origin() + "."]


def execution_independent():
    return independent("execution")


def many_clients():
    return independent("many-clients")


def independent(experiment):
    results = Results(experiment)
    rows = [["clients with one command in flight each", "commands/s", "p50", "p99", "unreplicated", "of unreplicated"]]
    for name in results.document["runs"]:
        if not name.startswith("independent"):
            continue

        def alone(line):
            return line["independent"]

        def bare(line):
            return line["independent"]["baseline"]

        rows.append([
            name.removeprefix("independent-").replace("all-answer", "all answer").replace("-", ", ").replace("/", ", "),
            number(results.median(lambda line: ops(alone(line)), name)),
            micros(results.median(lambda line: latency("p50")(alone(line)), name)),
            micros(results.median(lambda line: latency("p99")(alone(line)), name)),
            number(results.median(lambda line: ops(bare(line)), name)),
            f"{results.median(lambda line: ops(alone(line)) / ops(bare(line)), name):.0%}",
        ])
    return table(rows) + ["", results.origin() + "."]


def execution_cpu():
    """Where the CPU time of a command goes."""
    results = Results("execution")
    rows = [[
        "µs of CPU for a command", "partitions", "outstanding", "all processes", "client or clients", "leader", "an acceptor",
        "a replica", "CPUs busy", "unreplicated: all, its clients, its server",
    ]]
    for name, partitions, outstanding in cpu_loads(results):
        of = {"name": name, "partitions": partitions, "outstanding": outstanding}

        def measured(line):
            return line["independent"] if name.startswith("independent") else line

        def median(pick):
            return results.median(lambda line: pick(measured(line)), **of)

        row = [name.replace("/", ", "), str(partitions), f"{outstanding:,}"]
        row += [f"{median(cpu_of(process)):.2f}" for process in ("", "client")]
        for role in ("leader", "acceptor", "replica"):
            each = median(cpu_of(role))
            row.append(f"{each:.2f}" if each >= 0.005 else "")
        row.append(f"{median(lambda line: sum(line['cpu_s'].values()) / line['seconds']):.2f}")
        bare = ""
        if name.startswith("independent"):
            picks = (cpu_of(""), cpu_of("client"), cpu_of("unreplicated"))
            bare = ", ".join(f"{median(lambda line, pick=pick: pick(line['baseline'])):.2f}" for pick in picks)
        rows.append(row + [bare])
    return table(rows) + ["", results.origin() + "."]


def cpu_loads(results):
    """Those of which the text says what limits them."""
    for name in results.document["runs"]:
        if name.startswith("spin"):
            yield name, 1, 1
        elif name.startswith("echo") and name.endswith("/udp"):
            yield name, 1, 64
            yield name, 4, 64
        elif name in ("volatile/udp", "durable/udp"):
            yield name, 1, 1024
        elif name.startswith("independent-32") and "rocksdb" not in name:
            yield name, 1, 32


def cpu_of(role):
    """Microseconds for a command of a process of this role, the mean of them; of all processes where none is named."""

    def pick(line):
        spent = [seconds for name, seconds in line["cpu_s"].items() if name.startswith(role)]
        return sum(spent) / (len(spent) if role else 1) * 1e6 / (line["ops_per_s"] * line["seconds"])

    return pick


PROTOCOLS = {
    "unreplicated": "unreplicated",
    "nopaxos": "NOPaxos",
    "paxos": "Paxos",
    "vr": "Multi-Paxos",
    "vr-batch": "Multi-Paxos with batches",
    "fast": "Fast Paxos",
    "spec": "Speculative Paxos",
}
# Title, name of the measurement, requests in flight.
PROTOCOL_LOADS = [
    ("1 outstanding", "packed/udp", 1),
    ("256 outstanding, packed", "packed/udp", 256),
    ("256 outstanding, a request each, two clients", "unpacked/udp", 256),
    ("32 clients, 1 outstanding each", "independent-32/udp", 32),
    ("five replicas, 64 outstanding, a request each", "five-replicas/udp", 64),
]


def protocols():
    """Figure 5."""
    results = Results("protocols")
    rows = [["commands/s, median latency", *(title for title, _, _ in PROTOCOL_LOADS)]]
    for protocol, title in PROTOCOLS.items():
        of = [{"name": name, "protocol": protocol, "outstanding": n} for _, name, n in PROTOCOL_LOADS]
        rows.append([title, *(rate_and_latency(results, each) for each in of)])
    rows.append(["NOPaxos of unreplicated", *(
        f"{results.median(ratio, name, protocol='nopaxos', outstanding=n):.0%}" for _, name, n in PROTOCOL_LOADS
    )])
    lines = table(rows)
    stubs = [["NOPaxos with stub followers", "commands/s, median latency", "of unreplicated", "leader's CPU of the unreplicated server's, a command"]]
    for n in sorted({line["outstanding"] for line in results.lines("stubs/udp")}):
        of = {"name": "stubs/udp", "protocol": "nopaxos", "outstanding": n}
        cpu = results.median(lambda line: line["leader_cpu_us"] / line["baseline"]["leader_cpu_us"], **of)
        stubs.append([f"{n:,} outstanding", rate_and_latency(results, of), f"{results.median(ratio, **of):.0%}", f"{cpu:.2f} times"])
    of = {"name": "one-cpu/udp", "protocol": "nopaxos"}
    added = results.median(lambda line: line["latency_us"]["p50"] - line["baseline"]["latency_us"]["p50"], **of)
    on_one = f"One outstanding, everything on one core: {micros(added)} above unreplicated ({rate_and_latency(results, of)})."
    return lines + ["", *table(stubs), "", on_one, "", results.origin() + "."]


def rate_and_latency(results, of):
    return f"{number(results.median(ops, **of))}, {micros(results.median(latency('p50'), **of))}"


def protocols_sequencer():
    """Figure 6."""
    results = Results("protocols")
    rows = [["sequencer", *(f"{n} outstanding: commands/s, p50, p99" for n in (1, 256))]]
    for title, fields in [
        ("none (unreplicated)", {"protocol": "unreplicated"}),
        ("at a socket", {"sequencer": "host"}),
        ("in the kernel of a host", {"sequencer": "xdp"}),
        ("in a switch", {"sequencer": "switch"}),
    ]:
        cells = []
        for n in (1, 256):
            of = {"name": "sequencers", "outstanding": n, **fields}
            cells.append(f"{rate_and_latency(results, of)}, {micros(results.median(latency('p99'), **of))}")
        rows.append([title, *cells])
    return table(rows) + ["", results.origin() + "."]


def protocols_loss():
    """Figure 7."""
    results = Results("protocols")
    rates = sorted({line["loss"] for line in results.lines("loss")})
    rows = [["lost on each link", *(f"{rate:g}%" for rate in rates)]]
    for protocol, title in PROTOCOLS.items():
        cells = []
        for rate in rates:
            of = {"name": "loss", "protocol": protocol, "loss": rate}
            cells.append(f"{number(results.median(ops, **of))} ({results.median(lambda line: line['of_lossless'], **of):.0%})")
        rows.append([title, *cells])
    return table(rows) + ["", "In brackets: the share of what it does without loss. " + results.origin() + "."]


def protocols_scale():
    """Figure 8."""
    results = Results("protocols")
    rows = [["replicas", "commands/s, median latency", "leader's CPU a command"]]
    for n in sorted({line["replicas"] for line in results.lines("scale")}):
        of = {"name": "scale", "replicas": n}
        cpu = results.median(lambda line: line["leader_cpu_us"], **of)
        rows.append([str(n), rate_and_latency(results, of), f"{cpu:.2f} µs"])
    return table(rows) + ["", results.origin() + "."]


def events(results, name):
    """A row for each event of `bench failover`: its name, its gaps, and when all is as before; and its lines."""
    for event in dict.fromkeys(line["event"] for line in results.lines(name)):
        lines = results.lines(name, event=event)
        gaps = [gap for line in lines for gap in line["gap_ms"]["runs"]]
        peaks = [peak for line in lines for peak in line["peak_ms_runs"]]
        yield [
            event.replace("-", " "),
            f"{statistics.median(gaps):.0f} ms, {max(gaps):.0f} ms",
            f"{statistics.median(peaks):.0f} ms",
        ], lines


def failures_events():
    results = Results("failures")
    rows = [["what happens", "nothing answered: median, longest", "as many answers as before after"]]
    rows.extend(row for row, _ in events(results, "events"))
    rows.extend([f"NOPaxos: {row[0]}", *row[1:]] for row, _ in events(results, "events-nopaxos"))
    return table(rows) + ["", f"{results.origin()}, each of 7."]


def protocols_failover():
    """Figure 9."""
    results = Results("protocols")
    rows = [["what happens", "detected after", "nothing answered: median, longest", "as many answers as before after"]]
    for name in ("failover", "failover-fast"):
        for (event, gaps, peaks), lines in events(results, name):
            # Replicas notice by themselves that their leader is silent.
            detected = f"{lines[0]['detection_ms']} ms" if event.startswith("sequencer") else ""
            rows.append([event, detected, gaps, peaks])
    return table(rows) + ["", results.origin() + "."]


def protocols_stores():
    results = Results("protocols")
    rows = [["RocksDB puts", "commands/s, median latency", "p99", "commit_holds", "rollbacks"]]
    for protocol in ("nopaxos", "paxos"):
        of = {"name": "rocksdb/udp", "protocol": protocol}
        rows.append([
            PROTOCOLS[protocol],
            rate_and_latency(results, of),
            micros(results.median(latency("p99"), **of)),
            *(f"{results.median(lambda line, f=f: line[f], **of):,.0f}" for f in ("commit_holds", "rollbacks")),
        ])
    return table(rows) + ["", results.origin() + "."]


def protocols_durable():
    results = Results("protocols")
    counts = (1, 64, 1024)
    rows = [["stored before anybody is told", *(f"{n:,} outstanding: commands/s, p50, p99" for n in counts)]]
    for protocol, what in (("nopaxos", "logs of replicas"), ("paxos", "votes of acceptors")):
        cells = []
        for outstanding in counts:
            of = {"name": "durable/udp", "protocol": protocol, "outstanding": outstanding}
            cells.append(f"{rate_and_latency(results, of)}, {micros(results.median(latency('p99'), **of))}")
        rows.append([f"{PROTOCOLS[protocol]}: {what}", *cells])
    return table(rows) + ["", results.origin() + "."]


REDIS_SERVERS = {
    "wirepaxos": "WirePaxos",
    "two": "two replicas",
    "replica": "one replica, WAIT 1",
    "appendonly": "appendonly",
    "alone": "alone",
}


def redis(pipeline, tests=None):
    """What each test (or each of `tests`) comes to with each server, and the time within which 99% of its pipelines are answered."""
    results = Results("redis")
    rows = [[f"`-P {pipeline}`, commands/s (p99)", *REDIS_SERVERS.values(), "of alone"]]
    names = [f"{server}-{pipeline}" for server in REDIS_SERVERS]
    for test in tests or [line["test"] for line in results.document["runs"][names[0]][0]]:
        rates = [results.median(ops, name, test=test) for name in names]
        late = [results.median(lambda line: line["p99_ms"], name, test=test) for name in names]
        cells = [f"{number(rate)} ({ms:.1f} ms)" for rate, ms in zip(rates, late)]
        rows.append([test, *cells, f"{100 * rates[0] / rates[-1]:.0f}%"])
    return table(rows) + ["", results.origin() + "."]


def number(value):
    """With as many digits as mean something."""
    value = float(value)
    digits = 3 - len(str(int(value)))
    return f"{round(value, min(digits, 0)):,.0f}"


def micros(value):
    if value >= 1000:
        return f"{value / 1000:.1f} ms"
    return f"{value:.0f} µs" if value >= 20 else f"{value:.1f} µs"


def table(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
