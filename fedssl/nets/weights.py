"""A backbone's weights as a safetensors file: start from one, write one. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.extents import sync_folder

_PREFIXES = ("module.", "backbone.", "encoder.")
_CLASSIFIERS = ("fc.", "head.")
_COUNTER = "num_batches_tracked"
_ALGORITHM = "fedssl.hash"
_DIGEST = "fedssl.sha256"
_NO_DIGEST = "0" * 64


def load_backbone(backbone: nn.Module, path: Path | str) -> None:
    """Start from given weights, in place: a file with fedssl's, torchvision's or timm's names.

    Names may have `module.`, `backbone.` and `encoder.` before them. A classifier (`fc.*`, `head.*`) is left out; batch
    counters, which old files lack, may be missing. A first convolution made for another number of channels is
    adapted (`adapt_channels`). Anything else that is missing, surplus or of another shape is refused.
    """
    wanted = backbone.state_dict()
    found = _strip(read_weights(path)[1], wanted)
    first = next((name for name, tensor in wanted.items() if tensor.dim() == 4), "")
    if first in found:
        found[first] = adapt_channels(found[first], wanted[first].shape[1])
    if problem := _misfit(found, wanted):
        raise ConfigError(f"{path} does not fit this backbone: {problem}")
    backbone.load_state_dict({**wanted, **found})


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """A first convolution's weight (out, in, h, w) for images of another number of channels, as timm does it.

    To one channel the weights are summed: a grey image gives what it would as three equal channels. To more,
    they are repeated in turn and scaled by in/channels, so that activations keep their size.
    """
    inputs = weight.shape[1] if weight.dim() == 4 else channels
    if inputs == channels:
        return weight
    if channels == 1:
        return weight.float().sum(1, keepdim=True)
    repeats = -(-channels // inputs)
    return weight.float().repeat(1, repeats, 1, 1)[:, :channels] * (inputs / channels)


def backbone_file(model: str) -> str:
    """What the file of one of several models is called: as the model is, as far as a file's name can be that long."""
    name = quote(model, safe="")
    short = name if len(name) <= 200 else f"{name[:180]}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
    return f"backbone-{short}.safetensors"


def save_backbone(state_dict: Mapping[str, Tensor], path: Path | str, metadata: Mapping[str, str]) -> None:
    """Write a backbone's weights with a header of strings and a hash; the file appears whole or not at all."""
    path = Path(path)
    about = {**metadata, _ALGORITHM: "sha256", _DIGEST: _NO_DIGEST}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state_dict.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(_with_digest(_in_order(save(tensors, about))))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def _in_order(data: bytes) -> bytes:
    """The same safetensors file with its metadata sorted: safetensors writes them in an order drawn at random."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[end:]


def read_weights(path: Path | str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the header and the tensors of a safetensors file, verified if fedssl wrote a hash into it."""
    path = Path(path)
    try:
        data = path.read_bytes()
        header = _header(data)
        if header.keys() & {_ALGORITHM, _DIGEST} and not _is_intact(data, header):
            raise ConfigError(
                f"{path} is damaged: it does not match the hash in its header. Export it again with `fedssl run` in "
                "its run directory, or restore it from a backup"
            )
        tensors: dict[str, Tensor] = dict(sorted(load(data).items()))
    except FileNotFoundError:
        raise ConfigError(f"there is no weights file {path}") from None
    except (SafetensorError, OSError, ValueError, KeyError) as failure:
        raise ConfigError(f"{path} is not a safetensors file ({failure}); pickled weights are not read") from None
    return header, tensors


def _header(data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file; a ValueError if there is no readable header."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    about = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(about, dict):
        raise ValueError("its header is not a table")
    return about


def _with_digest(data: bytes) -> bytes:
    """Write a file's SHA-256 into its header; it is computed with zeros in that place."""
    return data.replace(_NO_DIGEST.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _is_intact(data: bytes, header: Mapping[str, str]) -> bool:
    """True if a file has the SHA-256 of its header. Two keys announce it, so that no single damaged byte hides both."""
    digest = header.get(_DIGEST)
    if header.get(_ALGORITHM) != "sha256" or not isinstance(digest, str) or len(digest) != len(_NO_DIGEST):
        return False
    return _with_digest(data.replace(digest.encode(), _NO_DIGEST.encode(), 1)) == data


def _misfit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    missing = [name for name in wanted if name not in found and not name.endswith(_COUNTER)]
    surplus = [name for name in found if name not in wanted]
    if missing or surplus:
        lists = (("lacks", missing), ("also has", surplus))
        return "it " + " and ".join(f"{word} {_some(names)}" for word, names in lists if names)
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape:
            return f"its {name} is {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}"
    return None


def _strip(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without prefixes and classifier. A prefix that belongs to the backbone's own name stays."""
    stripped: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = name
        while own not in wanted and (prefix := next((p for p in _PREFIXES if own.startswith(p)), None)):
            own = own.removeprefix(prefix)
        if own in stripped:
            raise ConfigError(f"the weights file has {own} twice, under different prefixes")
        if own in wanted or not own.startswith(_CLASSIFIERS):
            stripped[own] = tensor
    return stripped


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
