# SPDX-License-Identifier: Apache-2.0
"""Pictures with the paper's side and ours: bars or curves, as figure.json says."""

import matplotlib

matplotlib.use("svg")
# Letters stay letters, and the same figures give the same bytes.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "wirepaxos", "font.size": 9})

import matplotlib.pyplot as plt

THEIRS = ["#7f7f7f", "#b0b0b0", "#555555", "#d0d0d0"]
OURS = ["#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#e377c2"]
# Where the axis of a distribution has its labels.
SHARES = [0.25, 0.5, 0.75, 0.9, 0.99, 0.999]


def draw(panels, ours, path, digest):
    """Writes the picture; `digest` tells later whether it shows the newest figures."""
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2 * len(panels), 3.6), squeeze=False)
    for axis, panel, series in zip(axes[0], panels, ours):
        if panel["kind"] == "bars":
            bars(axis, panel, series)
        else:
            curves(axis, panel, series)
        axis.set_title(panel["title"], fontsize=9)
        axis.set_ylabel(panel["ylabel"])
        axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    save(figure, path, digest)
    plt.close(figure)


def save(figure, path, digest):
    """At once, so that a killed run leaves the old picture."""
    new = path.with_suffix(".new")
    metadata = {"Date": None, "Description": f"figures {digest}"}
    figure.savefig(new, format="svg", metadata=metadata)
    new.rename(path)


def coloured(panel, series):
    """Each series with its label and colour, the paper's first, and whether it is the paper's."""
    for at, each in enumerate(panel["theirs"]):
        label = each["label"] if "paper" in each["label"] else f"paper: {each['label']}"
        yield each, label, THEIRS[at % len(THEIRS)], True
    for at, each in enumerate(series):
        yield each, each["label"], OURS[at % len(OURS)], False


def bars(axis, panel, series):
    every = list(coloured(panel, series))
    width = 0.8 / len(every)
    for at, (each, label, colour, theirs) in enumerate(every):
        shown = [(row, value) for row, value in enumerate(each["values"]) if value is not None]
        places = [row + (at - (len(every) - 1) / 2) * width for row, _ in shown]
        axis.bar(places, [value for _, value in shown], width * 0.95, color=colour, label=label, hatch="//" if theirs else None)
    axis.set_xticks(range(len(panel["categories"])), panel["categories"], fontsize=8)
    if panel["log"]:
        axis.set_yscale("log")
        plain(axis.yaxis)
    elif any(value is not None and value < 0 for each, *_ in every for value in each["values"]):
        axis.axhline(0, color="black", linewidth=0.6)


def curves(axis, panel, series):
    for at, (each, label, colour, theirs) in enumerate(coloured(panel, series)):
        style = "--s" if theirs else "-o"
        # The later is smaller: a line that covers another leaves it to be seen.
        size = max(3, 8 - at)
        axis.plot(each["x"], each["y"], style, color=colour, label=label, markersize=size, linewidth=size / 3)
        if "lowest" in each:
            axis.vlines(each["x"][0], each["lowest"], each["y"][0], color=colour, linewidth=1)
            axis.plot(each["x"][:1], [each["lowest"]], "_", color=colour, markersize=8)
    axis.set_xlabel(panel["xlabel"])
    if panel["logx"]:
        axis.set_xscale("log")
        plain(axis.xaxis)
    else:
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if panel["kind"] == "quantiles":
        axis.set_yscale("logit")
        axis.set_yticks(SHARES, [f"{100 * share:g}%" for share in SHARES])
        axis.set_yticks([], minor=True)
        axis.set_ylim(0.2, 0.9995)
    elif panel["logy"]:
        axis.set_yscale("log")
        plain(axis.yaxis)
    else:
        axis.set_ylim(0, 1.08 * axis.get_ylim()[1])


def plain(axis):
    """Labels such as 1,000 rather than powers of ten, and enough of them: some at 2 and 5 where the axis is short."""
    least, most = axis.get_view_interval()
    steps = (1,) if most / least > 300 else (1, 2, 5)
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=steps))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
