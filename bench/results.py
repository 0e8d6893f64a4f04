# SPDX-License-Identifier: Apache-2.0
"""What was measured: the newest results of each experiment."""

import json
import pathlib
import statistics

HERE = pathlib.Path(__file__).resolve().parent


def as_text(document):
    """The file's text: JSON with a line for each record that a measurement printed, so that a change shows in a diff."""
    head = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "runs"]
    runs = [f"  {json.dumps(name)}: [{turns_as_text(turns)}]" for name, turns in document["runs"].items()]
    return "{\n" + ",\n".join([*head, ' "runs": {\n' + ",\n".join(runs) + "\n }"]) + "\n}\n"


def turns_as_text(turns):
    return ",".join("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]" for lines in turns)


class NoResults(Exception):
    """Nothing was measured yet."""


class Results:
    """One run of an experiment, with the median of its turns for whatever is asked."""

    def __init__(self, experiment):
        paths = sorted((HERE / experiment / "results").glob("*.json"))
        if not paths:
            raise NoResults(f"bench/{experiment}/results is empty: run ./dev bench record {experiment}")
        found = [(json.loads(path.read_text()), path) for path in paths]
        self.document, self.path = max(found, key=lambda each: each[0]["date"])

    def lines(self, name, **fields):
        """What each turn printed for `name`, where these fields have these values."""
        turns = self.document["runs"][name]
        found = [
            line
            for turn in turns
            for line in turn
            if all(line.get(field) == value for field, value in fields.items())
        ]
        if not found:
            raise SystemExit(f"{self.path}: nothing for {name} with {fields}")
        return found

    def median(self, pick, name, **fields):
        return statistics.median(map(pick, self.lines(name, **fields)))

    def spread(self, pick, name, **fields):
        values = [pick(line) for line in self.lines(name, **fields)]
        return min(values), max(values)

    def origin(self):
        """Where and when, for under a table."""
        machine, document = self.document["machine"], self.document
        turns = {len(turns) for turns in document["runs"].values()}
        return (
            f"{document['date'][:10]}, commit {document['commit']}, {machine['cpus']} CPUs ({machine['cpu']}), "
            f"{machine['memory_gib']} GiB, Linux {machine['kernel']}; {of_runs(max(turns))}"
        )


def of_runs(turns):
    return "one run" if turns == 1 else f"medians of {turns} runs in turn"


def ops(line):
    return line["ops_per_s"]


def ratio(line):
    """The share of what a server without replication does, in the same run."""
    return line["ops_per_s"] / line["baseline"]["ops_per_s"]


def latency(percentile):
    return lambda line: line["latency_us"][percentile]
