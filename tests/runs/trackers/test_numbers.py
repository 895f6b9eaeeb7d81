"""The numbers that trackers show, from records and results written by hand."""

from __future__ import annotations

from typing import Any

from fedssl.runs.trackers.numbers import (
    MAX_CLIENTS,
    ClientNames,
    final_numbers,
    flat_settings,
    round_numbers,
    series_name,
)


def _client(name: str, loss: float | None, dropped: str | None = None) -> dict[str, Any]:
    client: dict[str, Any] = {"client": name, "dropped": dropped, "bytes_down": 10}
    if loss is not None:
        client |= {"loss": loss, "alignment": None, "notes": {"cluster": 2, "name": "x"}}
    return client


def _record(*clients: dict[str, Any]) -> dict[str, Any]:
    return {
        "round": 3,
        "of": 5,
        "failed": False,
        "loss": 2.0,
        "knn": None,
        "knn_settings": {"k": 20},
        "code": "01234567",
        "clients": list(clients),
    }


def test_every_number_of_a_record_has_a_flat_name() -> None:
    names = ClientNames()
    record = _record(_client("a", 1.0), _client("b", 3.0), _client("c", None, "too late"))
    names.add(record)
    assert round_numbers(record, names) == {
        "of": 5,
        "failed": 0,
        "loss": 2,
        "knn_settings/k": 20,
        "clients/a/bytes_down": 10,
        "clients/a/loss": 1,
        "clients/a/notes/cluster": 2,
        "clients/b/bytes_down": 10,
        "clients/b/loss": 3,
        "clients/b/notes/cluster": 2,
        "clients/c/bytes_down": 10,
        "clients_mean/bytes_down": 10,
        "clients_min/bytes_down": 10,
        "clients_max/bytes_down": 10,
        "clients_mean/loss": 2,
        "clients_min/loss": 1,
        "clients_max/loss": 3,
        "clients_mean/notes/cluster": 2,
        "clients_min/notes/cluster": 2,
        "clients_max/notes/cluster": 2,
        "clients_selected": 3,
        "clients_dropped": 1,
    }


def test_a_private_round_has_what_its_log_has() -> None:
    """Of clients, the log has the size of the message only; the rest are public figures."""
    names = ClientNames()
    record = _record({"client": "a", "dropped": None, "bytes_down": 10})
    record |= {"loss": None, "privacy": {"epsilon": 1.5, "delta": 1e-5, "releases": 3}}
    names.add(record)
    numbers = round_numbers(record, names)
    assert {key for key in numbers if key.startswith("clients/")} == {"clients/a/bytes_down"}
    assert numbers["privacy/epsilon"] == 1.5
    assert "loss" not in numbers


def test_the_first_clients_of_the_log_have_series_and_all_are_summarised() -> None:
    names = ClientNames()
    names.add(_record(*[_client(f"c{number}", 1.0) for number in range(MAX_CLIENTS - 1)]))
    assert not names.full
    late = _record(_client("d", 1.0), _client("e", 2.0))
    names.add(late)
    assert names.full
    numbers = round_numbers(late, names)
    assert numbers["clients/d/loss"] == 1
    assert "clients/e/loss" not in numbers
    assert numbers["clients_max/loss"] == 2


def test_names_of_clients_are_safe_and_distinct() -> None:
    assert series_name("site-3.north_a") == "site-3.north_a"
    for name in ("a/b", "a:b", "..", "", "é", "x" * 61, "a ", "a?b"):
        safe = series_name(name)
        assert safe.isascii()
        assert "/" not in safe
        assert ".." not in safe
    assert len({series_name(name) for name in ("a/b", "a:b", "a_b", "a?b")}) == 4


def test_results_by_row_and_probe() -> None:
    several = {"mean": 60.0, "std": 2.0, "models": {"a": 58.0, "b": 62.0}}
    results = {
        "table": {"this run": {"knn": {"mean": 70.0}}, "isolated": {"knn": several}},
        "on": {"table": {"this run": {"knn": {"mean": 40.0}}}},
        "verdict": {"gains": {"isolated": {"knn": {"estimate": 10.0, "low": 8.0, "high": 12.0}}}},
        "privacy": {"unit": "client", "epsilon": 2.5, "budget_spent": True},
    }
    assert final_numbers(results) == {
        "final/knn": 70,
        "final/isolated/knn": 60,
        "final/isolated/knn_std": 2,
        "final_on/knn": 40,
        "final_gain/isolated/knn/estimate": 10,
        "final_gain/isolated/knn/low": 8,
        "final_gain/isolated/knn/high": 12,
        "final_privacy/epsilon": 2.5,
        "final_privacy/budget_spent": 1,
    }
    assert final_numbers({}) == {}


def test_settings_by_dotted_key() -> None:
    values = {"seed": 1, "train": {"lr": 0.5, "fast": True}, "probe": {"baselines": ["random"]}}
    assert flat_settings(values) == {
        "seed": 1,
        "train.lr": 0.5,
        "train.fast": True,
        "probe.baselines": "['random']",
    }
