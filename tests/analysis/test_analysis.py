"""Properties of all analyses: the files they write, the errors they raise, and their figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from error_messages import raises
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tiny_runs import Go

import fedssl
from fedssl.analysis import ANALYSES, Analysis, Results, Summary, analyse
from fedssl.analysis.analysis import round_digits, run_names
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.plots.style import COLOURS, line_style, new_figure

Cli = Callable[..., tuple[int, str, str]]
PNG = b"\x89PNG\r\n\x1a\n"


class Runless(Analysis):
    """An analysis that takes no run directories."""

    min_runs: ClassVar[int] = 0
    max_runs: ClassVar[int | None] = 0

    def measure(self, runs: Sequence[fedssl.Run], notify: Notify) -> Results:
        return {"value": 1}

    def draw(self, results: Results) -> Any:
        return new_figure(1, 1)[0]

    def summary(self, results: Results) -> Summary:
        return Summary("title", ["value"], [["1"]])


@pytest.fixture
def runless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the analysis "runless"."""
    monkeypatch.setitem(ANALYSES._classes, "runless", Runless)


def test_an_analysis_without_runs_writes_where_it_is_asked_to(
    runless: None, tmp_path: Path
) -> None:
    output = analyse("runless", out=tmp_path / "x.json")
    assert json.loads(output.json.read_text()) == {
        "analysis": "runless",
        "settings": {},
        "value": 1,
    }
    assert output.png == tmp_path / "x.png"


def test_every_kind_leaves_numbers_and_a_picture(go: Go, tmp_path: Path) -> None:
    run = go(**{"topology.name": "isolated"})
    for kind in ANALYSES.names():
        output = analyse(kind, [run], tmp_path / kind, notify=lambda line: None)
        assert json.loads(output.json.read_text()) == json.loads(json.dumps(output.results))
        assert output.results["analysis"] == kind
        assert output.png.read_bytes().startswith(PNG)
        assert output.summary.rows
        assert all(len(row) == len(output.summary.columns) for row in output.summary.rows)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        f"{kind}.{end}" for kind in ANALYSES.names() for end in ("json", "png")
    }


def test_files_go_into_the_first_run_directory(go: Go) -> None:
    one, other = go("one"), go("other")
    output = analyse("communication", [one.dir, other.dir])
    assert (output.json, output.png) == (
        one.dir / "analysis/communication.json",
        one.dir / "analysis/communication.png",
    )
    assert list(output.results["rounds"]) == ["one", "other"]


def test_one_run_needs_no_list(go: Go) -> None:
    run = go()
    for one in (run, run.dir, str(run.dir)):
        assert list(analyse("communication", one).results["rounds"]) == ["run"]


def test_a_place_that_cannot_be_written_to_is_refused_before_measuring(
    go: Go, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go()
    (run.dir / "analysis").touch()  # a file instead of a folder: not even root can write there
    monkeypatch.setattr(ANALYSES["divergence"], "measure", lambda *args: pytest.fail("measured"))
    code, _, err = cli("analyse", "divergence", str(run.dir))
    assert code == 2
    problem = "cannot be written to (Not a directory); choose another with --out"
    assert err == f"fedssl: {run.dir}/analysis {problem}\n"


def test_the_command_prints_a_table_and_the_files_it_wrote(go: Go, cli: Cli) -> None:
    run = go()
    code, out, _ = cli("analyse", "divergence", str(run.dir), "--set", 'keys=["loss"]')
    assert code == 0
    assert f"wrote {run.dir}/analysis/divergence.png" in out
    assert "loss" in out
    assert "effective_rank" not in out
    code, out, _ = cli("analyse", "divergence", str(run.dir), "--json")
    assert json.loads(out)["analysis"] == "divergence"


@pytest.mark.usefixtures("runless")
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["angel", "DIR"], 'unknown analysis "angel", did you mean "angles"?'),
        (["angles"], "needs a run directory"),
        (["runless", "DIR", "--out", "x"], "takes at most 0 run directories (got 1)"),
        (["runless"], "set the file name with --out"),
        (["scores", "DIR"], 'unknown analysis "scores"'),
        (["theory", "--out", "x"], 'unknown analysis "theory"'),
        (["divergence", "DIR", "--out", "nowhere/x"], "there is no folder nowhere"),
        (["divergence", "DIR", "--out", "."], "--out . is a folder"),
        (
            ["divergence", "DIR", "--set", "key=1"],
            'unknown key "divergence.key", did you mean "divergence.keys"?',
        ),
        (
            ["divergence", "DIR", "--set", 'keys=["nu"]'],
            'the rounds log has no "nu"; it has: loss, ',
        ),
        (["divergence", "DIR", "--set", "device=cpu"], 'unknown key "divergence.device"'),
        (["divergence", "DIR", "DIR"], "a run directory was given twice"),
        (["angles", "DIR"], "--set local=true"),
        (
            ["communication", "DIR", "--set", "accuracies=[150]"],
            "communication.accuracies.0: input should be less",
        ),
        (["map", "DIR", "--set", 'models=["x"]'], 'there is no model "x"; there are: global'),
    ],
)
def test_refusals(
    args: list[str],
    problem: str,
    go: Go,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = go()
    code, _, err = cli("analyse", *(str(run.dir) if word == "DIR" else word for word in args))
    assert code == 2
    assert problem in err
    assert len(err.strip().splitlines()) == 1


def test_names_of_runs_are_as_short_as_they_can_be(go: Go, tmp_path: Path) -> None:
    runs = [go("a/demo"), go("b/demo"), go("c")]
    assert run_names(runs[::2]) == ["demo", "c"]
    assert run_names(runs) == ["a/demo", "b/demo", f"{tmp_path.name}/c"]


def test_a_missing_extra_is_reported_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(ConfigError):
        analyse("divergence", out="x")


def test_other_files_between_runs_are_skipped(go: Go, tmp_path: Path) -> None:
    """A pattern may match them; a path that does not exist, or one other folder, is refused."""
    run = go()
    messages: list[str] = []
    (tmp_path / "a-table").mkdir()
    (tmp_path / "notes.txt").touch()
    output = analyse(
        "communication",
        [tmp_path / "a-table", tmp_path / "notes.txt", run.dir],
        notify=messages.append,
    )
    assert list(output.results["best"]) == ["run"]
    assert output.json.parent.parent == run.dir
    assert [line.partition(" is not a run directory")[0] for line in messages] == [
        str(tmp_path / name) for name in ("a-table", "notes.txt")
    ]
    for dirs in ([tmp_path / "a-table"], [run.dir, tmp_path / "rum"]):
        with raises(ConfigError):
            analyse("communication", dirs)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("communication", ["one", "other"]), ("divergence", ["0", "1", "2"])],
)
def test_the_legend_is_below_all_panels_with_every_name_once(
    kind: str, expected: list[str], go: Go
) -> None:
    output = analyse(kind, [go("one"), go("other", **{"train.lr": 0.01})])
    drawn = ANALYSES[kind]().draw(output.results)
    assert [axes.get_legend() for axes in drawn.axes] == [None] * len(drawn.axes)
    (below,) = drawn.legends
    assert [text.get_text() for text in below.get_texts()] == expected
    FigureCanvasAgg(drawn).draw()  # computes the layout
    top = below.get_window_extent().y1
    assert all(axes.get_tightbbox().y0 >= top for axes in drawn.axes if axes.axison)


@pytest.mark.parametrize("kind", ["communication", "divergence"])
def test_rounds_are_whole(kind: str, go: Go) -> None:
    """Also with a single round, where the narrow axis contains one integer only."""
    drawn = ANALYSES[kind]().draw(analyse(kind, [go(rounds=1)]).results)
    FigureCanvasAgg(drawn).draw()
    (ticks,) = {tuple(axes.get_xticks()) for axes in drawn.axes if axes.get_xlabel() == "round"}
    assert 1 in ticks
    assert all(tick == round(tick) for tick in ticks)


def test_lines_look_different() -> None:
    styles = [line_style(number) for number in range(4 * len(COLOURS))]
    assert len({tuple(style.items()) for style in styles}) == len(styles)


def test_short_numbers() -> None:
    assert round_digits([1 / 3, 123456789.0], 3) == [0.333, 123000000.0]
