"""The sections on rounds of a report: curves, communication, the guard, privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedssl.core.console import duration
from fedssl.engine.privacy.merge import Spent
from fedssl.pages.report.charts import (
    MAX_CLIENT_LINES,
    Chart,
    accuracy_chart,
    client_chart,
    client_switches,
    figure,
    other_accuracy_chart,
    overall_chart,
)
from fedssl.pages.report.document import Part
from fedssl.pages.report.markup import Content, Markup, bullets, details, paragraph, table, tag
from fedssl.pages.report.overview import data_size
from fedssl.pages.report.training import Event, Training
from fedssl.plots.style import model_title
from fedssl.runs.compare import knn_by_round, knn_on_by_round
from fedssl.runs.private_run import describe
from fedssl.runs.summary import RunSummary

MAX_METRICS = 16  # charts of clients; algorithms may add many numbers
MAX_EVENTS = 100  # that are listed
MAX_ROWS = 60  # rounds in the table


def curve_parts(run: RunSummary, training: Training, charts: dict[str, Chart]) -> list[Part]:
    """Return the section of curves; the charts are added to `charts`."""
    if not training.rounds:
        waiting = paragraph("No round is finished yet.", "muted")
        return [Part("rounds", "By round", "Curves", [waiting])]
    rows = run.results.get("table", {})
    own = _accuracies(run, training)
    other = _other_accuracies(run, training)
    main = {
        "accuracy": accuracy_chart(training, own, rows),
        "accuracy-on": other_accuracy_chart(other),
        "rate": overall_chart("learning rate", training, {"lr": "learning rate"}),
    }
    if any(training.overall.get("images_per_s", [])):  # 0 where it is withheld
        speed = {"images_per_s": "speed"}
        main["speed"] = overall_chart("training images per second", training, speed)
    of_clients = {}
    for metric in training.metrics()[:MAX_METRICS]:
        of_clients[f"client-{metric}"] = client_chart(training, metric)
    if "client-loss" not in of_clients:
        main["loss"] = overall_chart("loss", training, {"loss": "mean of all clients"})
    content = _client_switches(list(training.clients)) if of_clients else []
    order = ["accuracy", "accuracy-on", "client-loss", "loss"]
    both = main | of_clients
    figures = []
    for name in [*order, *[key for key in of_clients if key not in order], "rate", "speed"]:
        chart = both.get(name)
        if chart is not None:
            charts[name] = chart
            figures.append(figure(name, chart))
    content.append(tag("div", *figures, class_="charts"))
    content.append(details("The same as a table", _round_table(training, own, other)))
    return [Part("rounds", "By round", "Curves", content)]


def _client_switches(names: Sequence[str]) -> list[Content]:
    """Return the switches of clients; for many clients also what the charts show of them."""
    content: list[Content] = [client_switches(names)]
    if len(names) > MAX_CLIENT_LINES:
        shown = "charts show their median, the middle half, and the middle 90%."
        content.append(paragraph(f"{len(names):,} clients: {shown}", "muted"))
    return content


def _accuracies(run: RunSummary, training: Training) -> dict[int, float]:
    if run.results.get("table"):
        return knn_by_round(run)
    return _logged(training, "knn")


def _other_accuracies(run: RunSummary, training: Training) -> dict[int, float]:
    """Return the accuracies on the images of `probe.on`."""
    if run.results:
        return knn_on_by_round(run)
    return _logged(training, "knn_on")


def _logged(training: Training, metric: str) -> dict[int, float]:
    """Return the values of those rounds that have one."""
    values = {}
    for number, value in zip(training.rounds, training.overall.get(metric, []), strict=True):
        if value is not None:
            values[number] = value
    return values


def _round_table(
    training: Training, own: Mapping[int, float], other: Mapping[int, float]
) -> Markup:
    """Return the rounds as a table; of many rounds, some that are evenly spread."""
    step = -(-len(training.rounds) // MAX_ROWS)
    positions = [*range(0, len(training.rounds), step)]
    if positions[-1] != len(training.rounds) - 1:
        positions.append(len(training.rounds) - 1)
    overall = training.overall
    accuracies = {"kNN in %": own, "kNN in %, other images": other}
    measured = {heading: points for heading, points in accuracies.items() if points}
    body = []
    for position in positions:
        number = training.rounds[position]
        seconds = overall["seconds"][position]
        body.append(
            [
                str(number),
                _number(overall["loss"][position], ".4g"),
                *(_number(points.get(number), ".1f") for points in measured.values()),
                f"{overall['used'][position]:.0f} of {overall['asked'][position]:.0f}",
                data_size((overall["up"][position] or 0) + (overall["down"][position] or 0)),
                "" if seconds is None else duration(seconds),
            ]
        )
    headings = ["round", "loss", *measured, "uploads used", "sent", "time"]
    return table(headings, body, numbers=range(len(headings)))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def communication_part(training: Training, charts: dict[str, Chart]) -> Part | None:
    """Return the bytes sent by round and in total; None if nothing was sent."""
    if not training.total_up + training.total_down:
        return None
    lines = {"up": "from clients", "down": "to clients"}
    totals = {"up": training.total_up, "down": training.total_down}
    if training.privacy is not None:
        del lines["up"]
    chart = overall_chart("sent per round", training, lines, y_label="MB", unit=1e6)
    clients = max(1, len(training.clients))
    rows = []
    for key, name in lines.items():
        total = totals[key]
        per_round = total / len(training.rounds)
        rows.append([name, data_size(total), data_size(per_round), data_size(total / clients)])
    headings = ["", "in total", "per round", "per client, in total"]
    content: list[Content] = [table(headings, rows, numbers=(1, 2, 3))]
    if chart is not None:
        charts["communication"] = chart
        content.append(tag("div", figure("communication", chart), class_="charts"))
    text = "Sizes of tensors in messages and uploads, without compression and protocol."
    if training.privacy is not None:
        text += " The log of a private run has no sizes of uploads."
    content.append(paragraph(text, "muted"))
    return Part("communication", "Communication", "Communication", content)


def guard_part(training: Training) -> Part:
    """Return what the guard dropped and clipped, with reasons."""
    if not training.events:
        text = "Every upload was used: none was dropped, clipped or used in part."
        return Part("guard", "Uploads that were not used", "Guard", [paragraph(text)])
    kinds = Counter(event.kind for event in training.events)
    reasons = Counter((event.kind, event.reason) for event in training.events)
    summary = [f"{count:,} × {kind}" for kind, count in kinds.items()]
    common = [f"{count:,} × {kind}: {reason}" for (kind, reason), count in reasons.most_common(10)]
    body = list(map(_event_row, training.events[-MAX_EVENTS:]))
    title = f"All {len(training.events):,}"
    if len(training.events) > MAX_EVENTS:
        title = f"The last {MAX_EVENTS} of {len(training.events):,}"
    listed = table(["round", "client", "what", "reason"], body, numbers=(0,))
    content = [paragraph(", ".join(summary)), bullets(common), details(title, listed)]
    return Part("guard", "Uploads that were not used", "Guard", content)


def _event_row(event: Event) -> list[Content]:
    return [str(event.round), model_title(event.client), event.kind, event.reason]


def privacy_part(run: RunSummary, training: Training, charts: dict[str, Chart]) -> Part | None:
    """Return ε by round; None without differential privacy."""
    if training.privacy is None:
        return None
    privacy = training.privacy
    text = describe(Spent(**privacy))
    content: list[Content] = [
        paragraph(f"Client-level differential privacy: {text}."),
        paragraph(
            f"{privacy['releases']:,} releases, noise {privacy['noise']:.4g} times the clip "
            f"{privacy['clip']:g}. Losses and metrics of clients are withheld.",
            "muted",
        ),
    ]
    if run.results.get("privacy", {}).get("budget_spent"):
        content.append(paragraph("Training ended early because the budget was spent.", "warning"))
    chart = overall_chart("ε after each round", training, {"epsilon": "ε"})
    if chart is not None:
        charts["privacy"] = chart
        content.append(tag("div", figure("privacy", chart), class_="charts"))
    return Part("privacy", "Privacy", "Privacy", content)
