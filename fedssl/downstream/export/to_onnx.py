"""Export as ONNX, for any number of images of one size.

torch's older exporter is used: the newer one needs another package.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import torch
from torch import Tensor

from fedssl.core.files.atomic import write_atomic
from fedssl.downstream.export.target import (
    Comparison,
    Deployed,
    Target,
    compare,
    describe_input,
    explained_tracing,
    metadata,
)
from fedssl.downstream.packages import need_packages

OPSET = 17  # onnxruntime reads it since version 1.12


def write(target: Target) -> Comparison:
    """Write the file, load it in onnxruntime and compare its outputs."""
    need_packages(("onnx", "onnxruntime"), "onnx")
    import onnxruntime

    write_atomic(target.path, model_bytes(target))
    session = onnxruntime.InferenceSession(str(target.path), providers=["CPUExecutionProvider"])

    def run(batch: Tensor) -> Tensor:
        [outputs] = session.run(None, {input_name(target): batch.numpy()})
        return torch.from_numpy(outputs)

    return compare(target, run, prepared=not target.normalise)


def input_name(target: Target) -> str:
    """Return the name of the input: `pixels`, or `images` that are normalised already."""
    if target.normalise:
        return "pixels"
    return "images"


def model_bytes(target: Target) -> bytes:
    """Return the file's bytes, with the metadata."""
    import onnx

    name = input_name(target)
    stream: Any = io.BytesIO()  # which torch accepts, but does not declare
    with warnings.catch_warnings(), explained_tracing(target):
        # Sizes become constants, as intended; torch prefers its newer exporter.
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            Deployed(target),
            (target.example(1),),
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=[name],
            output_names=[target.output],
            dynamic_axes={name: {0: "n"}, target.output: {0: "n"}},
        )
    model = onnx.load_model_from_string(stream.getvalue())
    onnx.helper.set_model_props(model, dict(metadata(target)))
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def lines(target: Target, place: str) -> str:
    """Return the lines of Python that load the file at a place."""
    name = input_name(target)
    return (
        "import onnxruntime\n"
        "\n"
        f"session = onnxruntime.InferenceSession({place!r})\n"
        f'# session.run(None, {{"{name}": {name}}})  # {describe_input(target)}\n'
    )
