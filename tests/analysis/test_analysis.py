"""What all analyses share: where they write, what they refuse, and that each draws what it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import fedssl
from fedssl.analysis import ANALYSES, analyse
from fedssl.analysis.analysis import listed, run_names
from fedssl.analysis.look import COLOURS, look
from fedssl.errors import ConfigError

Go = Callable[..., fedssl.Run]
PNG = b"\x89PNG\r\n\x1a\n"


def test_every_kind_leaves_numbers_and_a_picture(go: Go, tmp_path: Path) -> None:
    run = go(**{"topology.name": "isolated"})
    tiny: dict[str, dict[str, Any]] = {"theory": {"d": [20, 30], "seeds": 1}}
    several = [run, *(go(f"lr{lr}", **{"train.lr": lr}) for lr in (0.01, 0.1))]
    for kind in ANALYSES.names():
        dirs = {"theory": [], "scores": several}.get(kind, [run])
        done = analyse(kind, dirs, tmp_path / kind, say=lambda line: None, **tiny.get(kind, {}))
        assert json.loads(done.json.read_text()) == json.loads(json.dumps(done.found))
        assert done.found["analysis"] == kind
        assert done.png.read_bytes().startswith(PNG)
        assert done.summary.rows
        assert all(len(row) == len(done.summary.columns) for row in done.summary.rows)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        f"{kind}.{end}" for kind in ANALYSES.names() for end in ("json", "png")
    }


def test_files_go_into_the_first_run_directory(go: Go) -> None:
    one, other = go("one"), go("other")
    done = analyse("communication", [one.dir, other.dir])
    assert (done.json, done.png) == (one.dir / "analysis/communication.json", one.dir / "analysis/communication.png")
    assert list(done.found["rounds"]) == ["one", "other"]


def test_one_run_needs_no_list(go: Go) -> None:
    run = go()
    for one in (run, run.dir, str(run.dir)):
        assert list(analyse("communication", one).found["rounds"]) == ["run"]


def test_a_place_that_cannot_be_written_to_is_refused_before_measuring(
    go: Go, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go()
    (run.dir / "analysis").touch()  # a file where the folder would be: nobody can write there, root neither
    monkeypatch.setattr(ANALYSES["divergence"], "measure", lambda *args: pytest.fail("measured"))
    code, _, err = cli("analyse", "divergence", str(run.dir))
    assert code == 2
    assert err == f"fedssl: {run.dir}/analysis cannot be written to (Not a directory); choose another with --out\n"


def test_the_command_prints_a_table_and_says_where(go: Go, cli: Callable[..., tuple[int, str, str]]) -> None:
    run = go()
    code, out, _ = cli("analyse", "divergence", str(run.dir), "--set", 'keys=["loss"]')
    assert code == 0
    assert f"wrote {run.dir}/analysis/divergence.png" in out
    assert "loss" in out
    assert "effective_rank" not in out
    code, out, _ = cli("analyse", "divergence", str(run.dir), "--json")
    assert json.loads(out)["analysis"] == "divergence"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["angel", "DIR"], 'unknown analysis "angel", did you mean "angles"?'),
        (["angles"], "needs a run directory"),
        (["theory", "DIR", "--out", "x"], "takes no run directories, not 1"),
        (["theory"], "say with --out"),
        (["divergence", "DIR", "--out", "nowhere/x"], "there is no such folder"),
        (["divergence", "DIR", "--out", "."], "it is a folder"),
        (["divergence", "DIR", "--set", "key=1"], 'unknown key "divergence.key", did you mean "keys"?'),
        (["divergence", "DIR", "--set", 'keys=["nu"]'], 'the rounds log has no "nu"; it has: loss, '),
        (["divergence", "DIR", "--set", "device=cpu"], 'unknown key "divergence.device"'),
        (["divergence", "DIR", "DIR"], "the same run directory was given twice"),
        (["angles", "DIR"], "--set local=true"),
        (["scores", "DIR"], "a rank correlation needs 3 runs or more that can be compared, on the same images"),
        (["communication", "DIR", "--set", "accuracies=[150]"], "communication.accuracies.0: input should be less"),
        (["map", "DIR", "--set", 'models=["x"]'], 'there is no model "x"; there are: global'),
    ],
)
def test_refusals(
    args: list[str],
    problem: str,
    go: Go,
    cli: Callable[..., tuple[int, str, str]],
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


def test_a_missing_extra_is_said_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"\[viz\]"):
        analyse("theory", out="x")


def test_what_is_no_run_is_skipped_beside_runs(go: Go, tmp_path: Path) -> None:
    """As runs/*/ names them; not a slip of the pen, nor a folder alone."""
    run, said = go(), list[str]()
    (tmp_path / "a-table").mkdir()
    (tmp_path / "notes.txt").touch()
    done = analyse("communication", [tmp_path / "a-table", tmp_path / "notes.txt", run.dir], say=said.append)
    assert list(done.found["best"]) == ["run"]
    assert done.json.parent.parent == run.dir
    assert [line.partition(" is not a run directory")[0] for line in said] == [
        str(tmp_path / name) for name in ("a-table", "notes.txt")
    ]
    for dirs in ([tmp_path / "a-table"], [run.dir, tmp_path / "rum"]):
        with pytest.raises(ConfigError, match="is not a run directory"):
            analyse("communication", dirs)


@pytest.mark.parametrize("kind", ["communication", "divergence", "scores"])
def test_legends_lie_beside_what_they_explain(kind: str, go: Go) -> None:
    """Below all panels, with every name once."""
    runs = [go("one"), go("other", **{"train.lr": 0.01})]
    done = analyse(kind, [*runs, go("third", **{"train.lr": 0.1})] if kind == "scores" else runs)
    drawn = ANALYSES[kind]().draw(done.found)
    assert [axes.get_legend() for axes in drawn.axes] == [None] * len(drawn.axes)
    (below,) = drawn.legends
    names = [text.get_text() for text in below.get_texts()]
    assert names == {"communication": ["one", "other"], "divergence": ["0", "1", "2"], "scores": ["byol"]}[kind]
    FigureCanvasAgg(drawn).draw()  # which is when places are found
    top = below.get_window_extent().y1
    assert all(axes.get_tightbbox().y0 >= top for axes in drawn.axes if axes.axison)


@pytest.mark.parametrize("kind", ["communication", "divergence"])
def test_rounds_are_whole(kind: str, go: Go) -> None:
    """Also where there is but one, in whose narrow axis there is but one whole number."""
    drawn = ANALYSES[kind]().draw(analyse(kind, [go(rounds=1)]).found)
    FigureCanvasAgg(drawn).draw()
    (ticks,) = {tuple(axes.get_xticks()) for axes in drawn.axes if axes.get_xlabel() == "round"}
    assert 1 in ticks
    assert all(tick == round(tick) for tick in ticks)


def test_lines_look_different() -> None:
    looks = [look(number) for number in range(4 * len(COLOURS))]
    assert len({tuple(each.items()) for each in looks}) == len(looks)


def test_short_numbers() -> None:
    assert listed([1 / 3, 123456789.0], 3) == [0.333, 123000000.0]
