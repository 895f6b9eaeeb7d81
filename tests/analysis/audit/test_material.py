"""The images that guesses are made of, and how many guesses an attack is compared with."""

from __future__ import annotations

import pytest
import torch
from factories import bright_dataset
from tiny_runs import Go

from fedssl.analysis.audit import layer_inversion
from fedssl.analysis.audit.gradient_inversion import AttackedStep
from fedssl.analysis.audit.layer_inversion import _attack, _sample
from fedssl.analysis.audit.material import AuditSettings, Material
from fedssl.core.console import ignore_message

pytestmark = pytest.mark.rows("C9")


def test_others_have_the_classes_of_the_named_client(go: Go) -> None:
    """Each client gets only images of one class."""
    run = go()
    material = Material.read(run, AuditSettings(), ignore_message)
    labels = material.data.train.labels
    assert material.unseen is not None
    for label, client in enumerate(list(material.owners)[:2]):
        material.owners[client] = (labels == label).nonzero().flatten()[:3]  # type: ignore[index]
        chosen = (material.unseen.labels == label).nonzero().flatten()
        of_class = material.unseen.pixel_rows[chosen]
        others = material.others(1000, "test", client)
        # All test images of the class, also more than the client has.
        assert len(others) == len(of_class) > 3
        assert torch.equal(_sorted_rows(others), _sorted_rows(of_class))


def _sorted_rows(pixels: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sorted(pixels.flatten(1).tolist()))


def test_the_first_layer_is_compared_with_as_many_guesses_as_candidates(
    go: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go(
        dataset=bright_dataset(size=12), **{"method.name": "mae", "method.backbone": "vit_mini"}
    )
    material = Material.read(run, AuditSettings(), ignore_message)
    compared = []
    errors = layer_inversion._errors

    def recorded(rows: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        compared.append(len(candidates))
        return errors(rows, candidates)

    monkeypatch.setattr(layer_inversion, "_errors", recorded)
    name = "patch_embed.proj"
    names = [f"backbone.{name}.weight", f"backbone.{name}.bias"]
    step = AttackedStep(material.victim.training(), names, [])
    _attack(material, step, name, 0)
    attack, guess = compared
    assert attack == guess > 0


def test_a_sample_has_no_more_rows_than_there_are() -> None:
    rows = torch.arange(5.0)[:, None]
    assert len(_sample(rows, 3, torch.Generator())) == 3
    assert sorted(_sample(rows, 9, torch.Generator()).flatten().tolist()) == [0, 1, 2, 3, 4]
