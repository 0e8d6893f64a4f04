# SPDX-License-Identifier: Apache-2.0
"""docs/paper.md, and a README for each figure."""

from figure import HERE, PAPERS, Figure, names
from measuring import read_commands

ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "paper.md"
SOURCES = {
    "P4xos": "Dang et al., *P4xos: Consensus as a Network Service*, IEEE/ACM ToN 2020",
    "Partitioned Paxos": "Dang et al., *Partitioned Paxos via the Network Data Plane*, 2019",
    "NOPaxos": "Li et al., *Just Say NO to Paxos Overhead*, OSDI 2016",
}


def texts(figures):
    """Path and text of every page that is made from the figures."""
    yield PAGE, page(figures)
    for figure in figures:
        yield HERE / figure.name / "README.md", readme(figure)


def page(figures):
    lines = [
        "# The papers' figures, and ours",
        "",
        "Theirs are of *their hardware*, cited from their text; ours of two shared virtual cores: compare ratios. *Software* is libpaxos",
        "there, our sockets here. `./dev bench paper [FIGURE...]` measures them and makes this page. Titles lead to set-ups and reasons.",
        "",
        "## Claims",
        "",
        *claims(figures),
    ]
    for paper in PAPERS:
        lines += ["", f"## {paper}", "", f"{SOURCES[paper]}."]
        for figure in figures:
            if figure.document["paper"] == paper and figure.is_drawn():
                lines += section(figure)
    return "\n".join(lines) + "\n"


def section(figure):
    document, name = figure.document, figure.name
    where = document["where"].split(", section")[0]
    return [
        "",
        f"### {document['title']} ([{where}](../bench/paper/{name}/README.md))",
        "",
        f"![{name}](../bench/paper/{name}/{name}.svg)",
    ]


def claims(figures):
    every = [claim for figure in figures for claim in figure.claims()]
    met = [claim for claim in every if claim.is_met()]
    lines = [
        f"{len(met)} of {len(every)} are met: at most 15% worse.",
        "",
        "| met | paper | ours |",
        "|---|---|---|",
        *(f"| {linked(claim)} | {claim.limit()} | {claim.shown(claim.ours)} |" for claim in met),
        "",
        "| not met | paper | ours | cause |",
        "|---|---|---|---|",
    ]
    for claim in every:
        if not claim.is_met():
            cells = [linked(claim), claim.limit(), claim.shown(claim.ours), claim.document.get("cause", "")]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def remedies(figure):
    """What would have to be done for the claims that aren't met."""
    claims = [claim for claim in figure.claims() if not claim.is_met() and claim.document.get("todo")]
    if claims:
        yield "**Not met, and what would have to be done:**"
        yield ""
        yield from (f"- {claim.document['claim']}: {claim.document['todo']}" for claim in claims)
        yield ""


def linked(claim):
    return f"[{claim.document['claim']}](../bench/paper/{claim.figure.name}/README.md)"


def readme(figure):
    document = figure.document
    lines = [f"# {document['title']}", "", f"{document['paper']}, {document['where']}.", ""]
    if not figure.is_drawn():
        same = document["same_as"]
        return "\n".join([*lines, f"The same as [{Figure(same).document['where']} of P4xos](../{same}/README.md)."]) + "\n"
    lines += [f"**The paper:** {document['shows']}", "", f"**Ours:** {figure.difference()}", ""]
    if document["differs"]:
        lines += [f"**Where the set-up differs:** {document['differs']}", ""]
    lines += remedies(figure)
    lines += [f"![{document['title']}]({figure.name}.svg)"]
    commands = list(command_lines(figure))
    if commands:
        lines += ["", f"Measured by `./dev bench paper {figure.name}`:", "", "```", *commands, "```"]
    origins = figure.ours.origins()
    if origins:
        lines += ["", *(f"- {each}" for each in origins)]
    return "\n".join(lines) + "\n"


def command_lines(figure):
    for experiment, name in figure.measurements():
        words = words_of(figure, experiment, name)
        yield f"bench/{experiment}/{words[2:]}" if words.startswith("./") else f"wirepaxos-lab {words}"


def words_of(figure, experiment, name):
    """The arguments of `wirepaxos-lab`, or a program of the experiment."""
    if experiment == "own":
        return figure.document["measurements"]["own"][name]
    return " ".join(read_commands(experiment, [name])[0][1])


def all_figures():
    return [Figure(name) for name in names()]
