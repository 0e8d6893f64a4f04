# SPDX-License-Identifier: Apache-2.0
"""What we measured for a figure: its own results where there are some, otherwise those of the experiment that it names."""

import json
import pathlib

from results import NoResults, Results

HERE = pathlib.Path(__file__).resolve().parent


class Ours:
    """The results of a figure by experiment."""

    def __init__(self, figure):
        paths = sorted((HERE / figure / "results").glob("*.json"))
        documents = [json.loads(path.read_text()) for path in paths]
        self.figure = figure
        self.document = max(documents, key=lambda each: each["date"], default=None)
        self.used = {}

    def of(self, experiment):
        """The experiment's results, with this figure's own runs in place of those of the same name."""
        if experiment not in self.used:
            self.used[experiment] = self.only_own() if experiment == "own" else Results(experiment)
            own = self.runs_of(experiment)
            if own and experiment != "own":
                runs = {**self.used[experiment].document["runs"], **own}
                self.used[experiment].document = {**self.document, "runs": {**runs}}
        return self.used[experiment]

    def only_own(self):
        if not self.document:
            raise NoResults(f"Nothing was measured yet: `./dev bench paper {self.figure}`.")
        results = Results.__new__(Results)
        results.document = {**self.document, "runs": self.runs_of("own")}
        results.path = HERE / self.figure / "results"
        return results

    def runs_of(self, experiment):
        runs = self.document["runs"] if self.document else {}
        start = f"{experiment}/"
        return {name[len(start) :]: turns for name, turns in runs.items() if name.startswith(start)}

    def origins(self):
        """Where and when, for each experiment of which something was asked."""
        return [f"{name}: {results.origin()}" for name, results in sorted(self.used.items())]
