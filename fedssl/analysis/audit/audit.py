"""`audit`: run the attacks on a run and write their results for the owner of the images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.analysis.analysis import Summary
from fedssl.analysis.audit.feature_inversion import invert_features
from fedssl.analysis.audit.inversion import invert_updates
from fedssl.analysis.audit.layer_inversion import invert_first_layer
from fedssl.analysis.audit.material import AuditSettings, Material
from fedssl.analysis.audit.picture import draw_audit
from fedssl.analysis.audit.result import AttackResult
from fedssl.analysis.audit.view_membership import infer_membership
from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.devices.precision import threads
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_writable, replaced_file
from fedssl.core.provenance import code
from fedssl.core.settings import validate
from fedssl.core.suggestions import suggest
from fedssl.plots.style import encode_png, need_matplotlib
from fedssl.runs.run import Run

FOLDER = "audit"  # in the run directory
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
WARNING = "audit.png shows private images: it is for the owner of the images only"
ASSUMED = (
    "attackers are assumed to know the method, the model that was sent and, for one step, the "
    "views; a failed attack is no proof of privacy, since a stronger one may succeed"
)

ATTACKS: dict[str, tuple[Callable[[Material], Iterator[AttackResult]], ...]] = {
    "inversion": (invert_updates, invert_first_layer),
    "membership": (infer_membership,),
    "features": (invert_features,),
}


class AuditOutput(NamedTuple):
    """The results of an audit, their summary, and the files they were written to."""

    results: Mapping[str, Any]  # the content of audit.json: figures, no pixels
    summary: Summary
    json: Path
    png: Path


def audit(
    run: str | Path | Run,
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    device: str = "auto",
    data_dir: str | Path | None = None,
    notify: Notify = print_to_stderr,
    set: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AuditOutput:
    """Measure what attackers could learn from a run about its images; write DIR/audit/.

    It reads the images of all clients. Settings are those of `AuditSettings`, by keyword or in
    `set`. Nothing else in the run directory changes.
    """
    need_matplotlib()
    chosen = validate(AuditSettings, {**settings, **(set or {})}, "audit")
    check_attacks(attacks)
    opened = run if isinstance(run, Run) else Run(run, data_dir, device)
    folder = opened.dir / FOLDER
    check_writable(folder, "a copy of the run directory")
    material = Material.read(opened, chosen, notify)
    found = _attack(material, attacks)
    results = {
        "code": code(),
        "settings": chosen.model_dump(mode="json"),
        **material.describe(),
        "attacks": [_plain(result) for result in found],
    }
    _make_private(folder)
    json_path = folder / "audit.json"
    png_path = folder / "audit.png"
    text = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    _write(json_path, text.encode())
    _write(png_path, encode_png(draw_audit(found)))
    return AuditOutput(results, _summary(material, found), json_path, png_path)


def _attack(material: Material, attacks: Sequence[str]) -> list[AttackResult]:
    """Run attacks with as many threads as a client has: other numbers give other bits."""
    found: list[AttackResult] = []
    with threads(material.run.experiment.train.threads):
        for attack in attacks:
            for function in ATTACKS[attack]:
                found.extend(function(material))
    return found


def check_attacks(names: Sequence[str]) -> None:
    """Raise ConfigError for an unknown attack, or without any."""
    for name in names:
        if name not in ATTACKS:
            hint = suggest(name, list(ATTACKS)) or f"; there are: {', '.join(ATTACKS)}"
            raise ConfigError(f'unknown attack "{name}"{hint}')
    if not names:
        raise ConfigError(f"no attack is chosen; there are: {', '.join(ATTACKS)}")


def _plain(result: AttackResult) -> dict[str, Any]:
    """Return a result without its images."""
    return {
        "attack": result.attack,
        "case": result.case,
        "result": result.result,
        "guessing": result.guessing,
        "meaning": result.meaning,
        **result.details,
    }


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    folder.chmod(PRIVATE_FOLDER)  # also a folder that existed, whatever the umask was


def _write(path: Path, data: bytes) -> None:
    with replaced_file(path, PRIVATE_FILE) as file:
        file.write(data)


def _summary(material: Material, found: Sequence[AttackResult]) -> Summary:
    rows = []
    notes = []
    for result in found:
        rows.append([result.name, result.result, result.guessing])
        notes.append(f"{result.name}: {result.meaning}")
    title = (
        f"{material.run.dir}, {material.snapshot.rounds} rounds; attacks on client "
        f"{material.client}, {len(material.owners[material.client]):,} images"
    )
    settings = material.settings
    if settings.noise or settings.clip:
        notes.append(
            "updates were clipped or noised before the attacks, as the settings clip and noise "
            "ask; the run itself may do neither"
        )
    return Summary(title, ["attack", "result", "guessing"], rows, [*notes, ASSUMED, WARNING])
