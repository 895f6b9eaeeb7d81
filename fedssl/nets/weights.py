"""Read and write a backbone's weights as a safetensors file. Pickle is not supported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedssl.core.console import joined
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.nets.pretrained import Fitted, fit

_ZIP = b"PK"  # the first bytes of what torch.save writes, of .npz files and exported programs
_PICKLE = b"\x80"
_PICKLED_ENTRY = b"/data.pkl"  # in the zip file of torch.save
_COUNTER = "num_batches_tracked"
_ALGORITHM = "fedssl.hash"
_DIGEST = "fedssl.sha256"
_NO_DIGEST = "0" * 64
_MAX_NAMES = 3


def load_backbone(backbone: nn.Module, path: Path | str) -> None:
    """Load the weights of a file into a backbone; names and positions are fitted to it.

    Names may be those of fedssl, torchvision, timm or DINOv2 (`pretrained.fit`). A classifier and
    other heads are ignored; batch counters, which old files lack, may be missing. A first
    convolution for another number of channels is adapted (`adapt_channels`). Any other tensor that
    is missing, surplus or of another shape is a ConfigError.
    """
    fitted = _fit_file(backbone, path)
    backbone.load_state_dict({**backbone.state_dict(), **fitted.tensors})


def unused_tensors(backbone: nn.Module, path: Path | str) -> list[str]:
    """Return the names of the tensors in a file that have no place in a backbone.

    The backbone may be on the meta device. Raise ConfigError if the file does not fit it.
    """
    return _fit_file(backbone, path).unused


def _fit_file(backbone: nn.Module, path: Path | str) -> Fitted:
    """Return the tensors of a file that fit a backbone, and the names of those not used."""
    expected = backbone.state_dict()
    _, tensors = read_weights(path)
    fitted = fit(tensors, expected)
    loaded = fitted.tensors
    first = next((name for name, tensor in expected.items() if tensor.dim() == 4), "")
    if first in loaded:
        loaded[first] = adapt_channels(loaded[first], expected[first].shape[1])
    problem = _mismatch(loaded, expected)
    if problem is not None:
        raise ConfigError(f"{path} does not fit this backbone: {problem}")
    return fitted


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapt a first convolution's weight (out, in, h, w) to another number of channels.

    As timm does: for one channel the weights are summed, so that a grey image gives the same result
    as three equal channels. For more channels they are repeated in turn and scaled by in/channels,
    so that activations keep their scale.
    """
    if weight.dim() != 4 or weight.shape[1] == channels:
        return weight
    inputs = weight.shape[1]
    if channels == 1:
        return weight.float().sum(1, keepdim=True)
    repeats = -(-channels // inputs)
    return weight.float().repeat(1, repeats, 1, 1)[:, :channels] * (inputs / channels)


def backbone_file(model: str) -> str:
    """Return the file name of one of several models; a long model name is cut and hashed."""
    name = quote(model, safe="")
    if len(name) > 200:
        name = f"{name[:180]}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
    return f"backbone-{name}.safetensors"


def save_backbone(
    state_dict: Mapping[str, Tensor], path: Path | str, metadata: Mapping[str, str]
) -> None:
    """Write a backbone's weights atomically, with a header of strings and a hash."""
    path = Path(path)
    header = {**metadata, _ALGORITHM: "sha256", _DIGEST: _NO_DIGEST}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state_dict.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, _with_digest(_sort_metadata(save(tensors, header))))


def _sort_metadata(data: bytes) -> bytes:
    """Sort the metadata of a safetensors file, which safetensors writes in random order."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[end:]


def read_weights(path: Path | str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the header and the tensors of a safetensors file.

    The file is verified if fedssl wrote a hash into it.
    """
    path = Path(path)
    data = b""
    try:
        data = path.read_bytes()
        header = _header(data)
        if header.keys() & {_ALGORITHM, _DIGEST} and not _is_intact(data, header):
            raise ConfigError(
                f"{path} is damaged: it does not match the hash in its header. Export it again "
                "with `fedssl run` in its run directory, or restore it from a backup"
            )
        tensors: dict[str, Tensor] = dict(sorted(load(data).items()))
    except FileNotFoundError:
        raise ConfigError(f"there is no weights file {path}") from None
    except (SafetensorError, OSError, ValueError, KeyError) as failure:
        # A safetensors file may start in the same way, with the size of its header.
        if data.startswith(_PICKLE) or (data.startswith(_ZIP) and _PICKLED_ENTRY in data):
            raise ConfigError(_how_to_convert(path)) from None
        raise ConfigError(
            f"{path} is not a safetensors file ({failure}): download it again, or write it with "
            "safetensors.torch.save_file"
        ) from None
    return header, tensors


def _how_to_convert(path: Path) -> str:
    """Return the error for a pickled file, with the lines of Python that convert it."""
    converted = f"{path.stem}.safetensors"
    if converted == path.name:
        converted = f"{path.stem}-converted.safetensors"
    return (
        f"{path} is a pickled file; fedssl reads safetensors only, because a pickle can run code. "
        "Convert it once, in Python:\n"
        f'    weights = torch.load("{path.name}", map_location="cpu", weights_only=True)\n'
        f'    safetensors.torch.save_file(weights, "{converted}")'
    )


def _header(data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file; a ValueError if there is no readable header."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = None
    if isinstance(header, dict):
        metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError("its header is not a table")
    return metadata


def _with_digest(data: bytes) -> bytes:
    """Write a file's SHA-256 into its header; the hash is computed with zeros in its place."""
    return data.replace(_NO_DIGEST.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _is_intact(data: bytes, header: Mapping[str, str]) -> bool:
    """True if a file has the SHA-256 of its header.

    Two keys announce the hash, so that no single damaged byte hides both.
    """
    if header.get(_ALGORITHM) != "sha256":
        return False
    digest = header.get(_DIGEST)
    if not isinstance(digest, str) or len(digest) != len(_NO_DIGEST):
        return False
    return _with_digest(data.replace(digest.encode(), _NO_DIGEST.encode(), 1)) == data


def _mismatch(loaded: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """Return the first difference in names and shapes, or None."""
    missing = [name for name in expected if name not in loaded and not name.endswith(_COUNTER)]
    surplus = [name for name in loaded if name not in expected]
    problems = []
    if missing:
        problems.append(f"missing: {joined(missing, _MAX_NAMES)}")
    if surplus:
        problems.append(f"unexpected: {joined(surplus, _MAX_NAMES)}")
    if problems:
        return "; ".join(problems)
    for name, tensor in loaded.items():
        if tensor.shape != expected[name].shape:
            return f"its {name} is {tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
    return None
