"""Export as a program of torch.export: one .pt2 file that torch loads without fedssl.

The file has the graph, the weights and, in `fedssl.json`, the metadata. It has no pickled object:
tensors are stored as raw bytes, and the example inputs, which torch would pickle, are removed. So
are the stack traces of the graph, which have paths of this machine.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import torch

from fedssl.core.errors import FedsslError
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

METADATA = "fedssl.json"
PICKLED_PAYLOADS = ("custom_obj", "opaque_obj")  # names of records that torch pickles


def write(target: Target) -> Comparison:
    """Write the program, load it again and compare its outputs."""
    write_atomic(target.path, program_bytes(target))
    check_no_pickle(target.path)
    program = torch.export.load(str(target.path)).module()
    return compare(target, program, prepared=not target.normalise)


def program_bytes(target: Target) -> bytes:
    """Return the file's bytes; the number of images is dynamic, their size is not."""
    example = target.example(2)  # torch takes the size 1 for a constant
    count = torch.export.Dim("n", min=1)
    with torch.no_grad(), explained_tracing(target):
        program = torch.export.export(Deployed(target), (example,), dynamic_shapes=({0: count},))
    program.example_inputs = None  # torch would pickle them
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it has paths of this machine
    stream = io.BytesIO()
    torch.export.save(program, stream, extra_files={METADATA: json.dumps(metadata(target))})
    return stream.getvalue()


def check_no_pickle(path: Path) -> None:
    """Raise FedsslError if a program's file has a record that torch would unpickle."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            name = Path(record.filename).name
            inputs = "sample_inputs/" in record.filename and record.file_size > 0
            if inputs or name.startswith(PICKLED_PAYLOADS) or _marks_pickle(archive, record):
                raise FedsslError(
                    f"this version of torch ({torch.__version__}) pickles a part of the program "
                    f"({record.filename}): export to onnx instead"
                )


def _marks_pickle(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> bool:
    """True if a record lists tensors that are stored as pickles."""
    if not record.filename.endswith("_config.json"):
        return False
    config = json.loads(archive.read(record)).get("config", {})
    return any(payload.get("use_pickle") for payload in config.values())


def lines(target: Target, place: str) -> str:
    """Return the lines of Python that load the file at a place."""
    return (
        "import torch\n"
        "\n"
        f"program = torch.export.load({place!r})\n"
        f"model = program.module()  # {describe_input(target)}\n"
    )
