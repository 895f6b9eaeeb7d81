"""Sections of the page of results about benchmarks: one table for each JSON file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from markdown_table import table
from stored_runs import benchmark_files, read_benchmark, read_json


def learning() -> Iterator[str]:
    """Compare federated training with a random backbone and other baselines."""
    found = read_benchmark("learning")
    yield "## Improvement over a random backbone\n"
    yield (
        "`python -m benchmarks.learning`, on the images that come with the package: "
        "kNN accuracy in % for seeds 0, 1, 2.\n"
    )
    kinds = ("federated", "random", "isolated", "centralized")
    yield table(
        (
            "",
            "federated",
            "random backbone",
            "each client alone",
            "centralized",
            "over random",
        ),
        (
            [
                name,
                *(_each(row.get(kind, [])) for kind in kinds),
                f"{row['over_random']['mean']:+.1f}",
            ]
            for name, row in found["rows"].items()
        ),
    )


def demo() -> Iterator[str]:
    """List the accuracies of the demo for each seed."""
    seeds = read_benchmark("demo/seeds")["seeds"]
    yield "## The demo\n"
    yield (
        "`python -m benchmarks.demo`: `make demo` over seeds, "
        "kNN and a linear probe with 100 labels.\n"
    )
    rows = seeds[0]["accuracy"]
    yield table(
        ("", "kNN", "linear"),
        (
            [
                row,
                *(_each([s["accuracy"][row][probe] for s in seeds]) for probe in ("knn", "linear")),
            ]
            for row in rows
        ),
    )


def speed() -> Iterator[str]:
    """List the speed of rounds and steps, the overhead of the engine, and its memory."""
    yield "## Speed\n"
    yield from _rounds_of_peers()
    yield from _steps()
    yield from _overhead()
    yield from _many_clients()


def _rounds_of_peers() -> Iterator[str]:
    peer = read_benchmark("speed/peer")
    workers = read_benchmark("speed/peer-workers")
    device = peer["machine"]["cuda"]["device"]
    yield f"`python -m benchmarks.peer`, whole rounds of five clients on one {device}:\n"
    compared = {
        "peer without workers": peer,
        f"{workers['case']['peer_workers']} workers": workers,
    }
    rows = []
    for name, measured in compared.items():
        own = f"{measured['fedssl']['images_per_s']:,.0f}"
        other = f"{measured['peer']['images_per_s']:,.0f}"
        rows.append([name, own, other, f"{measured['ratio']:.1f}"])
    yield table(("", "fedssl, images/s", "peer, images/s", "ratio"), rows)
    minutes = peer["fedssl"]["fedema_default_run_minutes"]
    yield f"FedEMA's default run at that rate: {minutes} minutes.\n"


def _steps() -> Iterator[str]:
    yield "`python -m benchmarks.step`, one client, images/s:\n"
    methods: dict[str, Any] = {}
    for path in benchmark_files("speed/step*.json"):
        methods |= read_json(path)["methods"]
    modes = list(dict.fromkeys(mode for method in methods.values() for mode in method["modes"]))
    rows = []
    for name, method in methods.items():
        rows.append([name, *(_rate(method["modes"].get(mode)) for mode in modes)])
    yield table(("", *modes), rows)


def _overhead() -> Iterator[str]:
    yield "`python -m benchmarks.round`, the engine's overhead per client and round on one core:\n"
    rows = []
    for name, case in read_benchmark("speed/round")["cases"].items():
        microseconds = f"{case['microseconds']:,}"
        rows.append([name, microseconds, case["ratio"], case["ratio of a deepcopy loop"]])
    yield table(("", "µs", "× copy and add a row", "a deepcopy loop, ×"), rows)


def _many_clients() -> Iterator[str]:
    yield "`python -m benchmarks.scale`, many clients with memory:\n"
    sizes = read_benchmark("speed/scale")["sizes"]
    keys = {"clients": ",d", "ms_per_client": ".1f", "peak_mib": ",.0f", "rows_on_disk_mib": ",.0f"}
    head = ("clients", "ms for a client's round", "peak memory, MiB", "on disk, MiB")
    yield table(head, ([format(size[key], how) for key, how in keys.items()] for size in sizes))


def _each(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _rate(mode: Mapping[str, Any] | None) -> str:
    return f"{mode['images_per_s']:,.0f}" if mode else ""
