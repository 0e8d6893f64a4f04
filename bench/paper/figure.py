# SPDX-License-Identifier: Apache-2.0
"""A table or figure of a paper: what figure.json says of it, and what we measured for it."""

import hashlib
import json
import pathlib

import nopaxos
import p4xos
from ours import Ours
from results import NoResults

HERE = pathlib.Path(__file__).resolve().parent
SIDES = {**p4xos.FIGURES, **nopaxos.FIGURES}
# A ratio counts as met if it is at most so much worse than the paper's.
MARGIN = 0.15
PAPERS = ["P4xos", "Partitioned Paxos", "NOPaxos"]


class Figure:
    def __init__(self, name):
        self.name = name
        self.document = json.loads((HERE / name / "figure.json").read_text())
        self.ours = Ours(name)
        self.series, self.values, self.missing = [], {}, self.document.get("missing")
        if name in SIDES:
            try:
                self.series, self.values = SIDES[name](self.ours)
            # One whose results lack something doesn't keep the others from their pages.
            except (NoResults, KeyError, SystemExit) as why:
                self.missing = f"There are no results of {why}." if isinstance(why, KeyError) else str(why)
        self.series = self.series or [[] for _ in self.document["panels"]]

    def path(self, suffix):
        return HERE / self.name / f"{self.name}.{suffix}"

    def is_drawn(self):
        return "same_as" not in self.document

    def digest(self):
        """Changes with whatever the picture shows."""
        text = json.dumps([self.document["panels"], self.series], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def picture_is_new(self):
        path = self.path("svg")
        return path.exists() and f"figures {self.digest()}" in path.read_text()

    def difference(self):
        if self.missing:
            return self.missing
        return self.document["difference"].format(**self.values)

    def measurements(self):
        """(experiment, name) of each command that measures our side."""
        return [(experiment, name) for experiment, names in self.document["measurements"].items() for name in names]

    def claims(self):
        return [Claim(self, each) for each in self.document["claims"]]


class Claim:
    """What a paper says of itself, and ours beside it."""

    def __init__(self, figure, document):
        self.figure, self.document = figure, document
        self.theirs, self.ours = document["theirs"], figure.values.get(document["ours"])

    def is_met(self):
        if self.ours is None:
            return False
        if self.document["better"] == "higher":
            return self.ours >= (1 - MARGIN) * self.theirs
        return self.ours <= (1 + MARGIN) * self.theirs

    def limit(self):
        """The paper's value, marked where less is better."""
        return ("≤ " if self.document["better"] == "lower" else "") + self.shown(self.theirs)

    def shown(self, value):
        if value is None:
            return "not measured"
        digits = 0 if value >= 20 else 1 if value >= 2 else 2
        return f"{self.document['unit']} {value:,.{digits}f}".strip()


def names():
    """All figures, in the order of the papers."""
    found = [path.parent.name for path in HERE.glob("*/figure.json")]
    return sorted(found, key=place)


def place(name):
    paper, _, rest = name.partition("-")
    kinds = ["table", "4", "fig"]
    kind = next(at for at, start in enumerate(kinds) if rest.startswith(start))
    number = int("".join(filter(str.isdigit, rest.removeprefix("table").removeprefix("fig")[:2])) or 0)
    return ["p4xos", "partitioned", "nopaxos"].index(paper), kind if kind < 2 else 1, number, rest
