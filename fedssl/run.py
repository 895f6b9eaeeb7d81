"""A run: a directory with the experiment, the rounds log, checkpoints and the backbone it ends with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl import assemble, integrity, nets
from fedssl.agree import agree, read_experiment, same_images
from fedssl.changes import flat
from fedssl.collaborative import collaborative
from fedssl.data import Dataset, from_python
from fedssl.data.progress import Say, say_nothing, say_on_stderr
from fedssl.drive import drive
from fedssl.errors import ConfigError, RunError, is_out_of_memory, out_of_memory
from fedssl.evaluate import Evaluation, backbone_of, for_probe
from fedssl.experiment import Experiment, load
from fedssl.finish import finish
from fedssl.models import Models, saved_models
from fedssl.per_client import per_client
from fedssl.probes import PROBES
from fedssl.report.rounds import read_rounds
from fedssl.score import Score
from fedssl.transfer import On, other_images

RUNS = Path("runs")
KNOWN = "the run was trained on images of this data set, and may have seen those that it is measured with"
WITH_CLIENTS = {"per-client": per_client, "collaborative": collaborative}  # probes that need to know who has what


class Run:
    """A run directory, finished or not: what was asked for, what happened, what came out."""

    def __init__(
        self,
        folder: str | Path,
        data_dir: str | Path | None = None,
        device: str = "auto",
        dataset: Any = None,
    ) -> None:
        self.dir = Path(folder)
        if not (self.dir / "experiment.toml").is_file():
            raise ConfigError(f"{self.dir} is not a run directory: it has no experiment.toml")
        self.experiment = read_experiment(self.dir, say_on_stderr)
        self.device = assemble.resolve_device(device)
        self._data_dir, self._dataset = Path(data_dir or "data"), dataset

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds log: one record for each finished round."""
        return list(read_rounds(self.dir / "rounds.jsonl"))

    @property
    def results(self) -> dict[str, Any]:
        """The final measurements; empty while the run is not finished."""
        try:
            found = integrity.read_json(self.dir, "results.json") or {}
        except ValueError:
            path = self.dir / "results.json"
            raise RunError(f"{path} is damaged; `fedssl run` with this directory measures the run again") from None
        return found if found.get("rounds") == self.experiment.rounds else {}  # else it has been prolonged since

    def data(self, say: Say = say_on_stderr) -> Dataset:
        return assemble.read_data(self.experiment, self._data_dir, self._dataset, say)

    def public(self, data: Dataset, say: Say = say_on_stderr) -> Tensor | None:
        """The images that everybody may see, if the algorithm needs some; `data` are the run's."""
        return assemble.read_public(self.experiment, data, self._data_dir, say)

    def deal(self, data: Dataset, say: Say = say_nothing) -> tuple[Dataset, dict[str, Tensor]]:
        """The run's images as clients saw them, and who held which; refused where they are not those of then."""
        seen, owners = assemble.deal(self.experiment, data, say)
        if not same_images(self.dir, seen, owners, say_on_stderr):
            raise ConfigError(
                f"the images are not those that {self.dir} was trained on: who had which, and which were left out, is "
                "not known any more"
            )
        return seen, owners

    def models(self) -> Models:
        """The models of the newest checkpoint, by name."""
        return saved_models(self.experiment, self.dir, say_on_stderr)

    def backbone(self, model: str | None = None) -> nets.Backbone:
        """A trained backbone as a module in eval mode; `model` names one where there are several."""
        models = self._some_models()
        if model is None and len(models) > 1:
            raise ConfigError(f"this run has several models, name one of: {', '.join(models)}")
        if model is not None and model not in models:
            raise ConfigError(f'this run has no model "{model}"; known: {", ".join(models)}')
        state = models[model or next(iter(models))]
        first = next(e for e in state.layout.entries if e.part == "backbone" and len(e.shape) == 4)
        with torch.random.fork_rng(devices=[]):  # a new backbone draws weights, here only to be overwritten
            return backbone_of(state, assemble.build_backbone(self.experiment, first.shape[1]))

    def evaluate(self, probe: str = "linear", on: On | None = None, **settings: Any) -> Score:
        """A probe's accuracy in percent for every model; settings as under [probe], e.g. labels=100. `on` names other
        images to measure with: a data set, a table as under [data], or a Dataset."""
        changed = for_probe(self.experiment, probe, settings)
        models = self._some_models()
        if on is not None and not self._trained_on(on):
            return self._transfer(changed, probe, on, models)
        evaluation = Evaluation(changed, data := self.data(), self.device)
        if probe in WITH_CLIENTS:
            return WITH_CLIENTS[probe](evaluation, models, *self.deal(data))
        if PROBES[probe].learns == "few" and changed.data.leave_out:
            self.deal(data)  # or others might be taken for those left out
        return evaluation.measure(models, (probe,), models.apart)[probe]

    def _transfer(self, changed: Experiment, probe: str, on: On, models: Models) -> Score:
        if probe in WITH_CLIENTS:
            raise ConfigError(f'probe "{probe}" needs to know which images clients have, and nobody has others')
        if PROBES[probe].learns == "nothing":
            raise ConfigError("a classifier knows the classes it was trained on, and no others")
        data = other_images(on, self._image(), self._data_dir, say_on_stderr)
        without = changed.with_changes({"data.leave_out": 0.0})  # which were other images
        score = Evaluation(without, data, self.device, seen=False).measure(models, (probe,), models.apart)[probe]
        if self._own(on) is not None:
            score.add_note(KNOWN)
        return score

    def _trained_on(self, on: On) -> bool:
        """Whether these are the very images of the run, which it is then measured on as ever."""
        own = self.experiment.to_dict()["data"]
        return (said := self._own(on)) is not None and own | said == own

    def _own(self, on: On) -> dict[str, Any] | None:
        """What is said about images, where they are of the data set that the run trains on; None of others."""
        said = {"name": on} if isinstance(on, str) else on
        own = self.experiment.to_dict()["data"]
        if not isinstance(said, Mapping) or own["name"] == "given":
            return None
        paths = [Path(table["path"]) if "path" in table else None for table in (own, said)]
        return dict(said) if own["name"] == said.get("name") and paths[0] == paths[1] else None

    def _image(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that the run trains on: as an exported backbone says, or as they are."""
        for file in sorted(self.dir.glob("backbone*.safetensors")):
            if integrity.is_damaged(self.dir, file.name):
                continue
            with contextlib.suppress(ConfigError, KeyError, ValueError, TypeError):
                channels, height, width = json.loads(nets.read_weights(file)[0]["image"])
                return channels, height, width
        return self.data().train.image

    def _some_models(self) -> Models:
        """The models of the newest checkpoint; damage to the files next to it is reported."""
        integrity.check(self.dir, say_on_stderr)
        models = self.models()
        if not models:
            raise ConfigError(f"{self.dir} has no model yet: clients have theirs when they have trained")
        return models

    def __repr__(self) -> str:
        return f"Run({str(self.dir)!r}, {len(self.rounds)}/{self.experiment.rounds} rounds)"


def run(
    experiment: str | Path | Experiment,
    dir: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    dataset: Any = None,
    test: Any = None,
    quiet: bool = False,
    set: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Run an experiment to its end, going on where the directory stands; returns the finished run.

    `experiment` is a recipe's name, a TOML file or an Experiment. Settings change by keyword (`rounds=3`,
    `method={"name": "byol"}`) or by dotted key (`set={"algorithm.update": "both"}`); a table changes
    only the keys that it names, in both. `dataset`, and `test` for labelled images to measure with,
    take images straight from Python: a pair of arrays, a torch or a Hugging Face data set.
    """
    if test is not None and (dataset is None or isinstance(dataset, Dataset)):
        raise ConfigError("test= goes with training images in dataset=; a Dataset brings its own test images")
    changed = flat(changes) | flat(set or {})
    if dataset is not None:
        dataset = from_python(dataset, test) if not isinstance(dataset, Dataset) else dataset
        changed.setdefault("data.name", "given")
    if isinstance(experiment, Experiment):
        title, chosen = "run", experiment.with_changes(changed)
        chosen.check()
    else:
        title = Path(experiment).name.removesuffix(".toml")  # not its stem: recipes' names have dots
        chosen = load(experiment, changed)
    own_name = bool(changed) or isinstance(experiment, Experiment)
    folder = Path(dir) if dir is not None else default_dir(title, chosen, own_name)
    torch_device = assemble.resolve_device(device)
    agree(chosen, folder, torch_device, say_nothing)  # again under the lock, but here before images are read
    root, say = Path(data_dir or "data"), say_nothing if quiet else say_on_stderr
    data = assemble.read_data(chosen, root, dataset, say)
    public = assemble.read_public(chosen, data, root, say)
    try:
        drive(chosen, folder, data, public, torch_device, title, quiet)
        if not finish(folder, data, public, torch_device, quiet):
            say(
                f"{folder} was finished already, all {chosen.rounds} rounds of it: nothing was trained or measured. "
                f"For more rounds, raise them and name it: --set rounds={2 * chosen.rounds} --dir {folder}; to start "
                "anew, choose another --dir"
            )
    except (MemoryError, RuntimeError, OSError) as problem:
        if is_out_of_memory(problem):
            raise out_of_memory(problem) from problem
        if not isinstance(problem, OSError):
            raise
        raise RunError(f"{folder} cannot be written: {problem}; what was saved before is intact") from problem
    return Run(folder, root, device, dataset)


def default_dir(title: str, experiment: Experiment, changed: bool) -> Path:
    """runs/NAME for a recipe as it is; a changed one gets a name of its own and never meets the other's files."""
    return RUNS / (f"{title}-{experiment.hash()[:8]}" if changed else title)
