"""The counts and the report of the benchmark of a step."""

from __future__ import annotations

import pytest
import torch

from benchmarks.step import SMALL, Case, Fit, count_flops, measure

CPU = torch.device("cpu")
CASE = Case("cnn", small=True, steps=3, batch=4, size=16)


@pytest.mark.parametrize("method", ["byol", "simsiam"])
def test_a_step_s_operations_are_counted(method: str) -> None:
    """Multiplications for one view of one image of 16x16. Its crop: two products, 3·16·16·16 each.
    `cnn`: three convolutions of 3x3, 3→32 onto 8x8, 32→64 onto 4x4, 64→128 onto 2x2; heads of 512
    and 128. A forward pass, as many again for the gradients of weights and as many for those of
    inputs, but for the first convolution's; and with a target one more forward pass without
    predictor. Four images, two views, an addition to each multiplication.
    """
    crop = 2 * 3 * 16**3
    first = 3 * 9 * 32 * 8**2
    backbone = first + 32 * 9 * 64 * 4**2 + 64 * 9 * 128 * 2**2
    hidden, dim = SMALL["hidden"], SMALL["dim"]
    projector = 512 * hidden + hidden * dim
    predictor = dim * hidden + hidden * dim
    target = backbone + projector if method == "byol" else 0
    expected = crop + 3 * (backbone + projector + predictor) - first + target
    assert (
        count_flops(Fit(CASE.build(method, "eager", CPU), CASE.pixels(CPU))) == 4 * 2 * 2 * expected
    )


def test_modes_are_measured_and_refusals_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """12 images per repeat; a CPU cannot capture, and the third mode does not exist."""
    found = measure(CASE, "simclr", ["eager", "captured", "imagined"], 3, CASE.pixels(CPU))
    assert list(found["modes"]) == ["eager"]
    eager = found["modes"]["eager"]
    assert eager["images_per_s"] == pytest.approx(4 / (eager["step_ms"] / 1e3), rel=1e-3)
    assert eager["tflops"] == pytest.approx(
        found["tflop_per_step"] / (eager["step_ms"] / 1e3), rel=2e-3
    )
    assert eager["share_of_matmul"] == pytest.approx(
        eager["tflops"] / found["matmul_tflops"]["median"], rel=1e-2
    )
    assert len(eager["images_per_s_spread"]["each"]) == 3
    assert 1e-4 < found["matmul_tflops"]["least"] < 10  # any CPU
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["simclr, captured", "simclr, imagined"]
