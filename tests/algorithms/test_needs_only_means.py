"""Only a class that defines `merge` can declare that it reads uploads through means alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import pytest

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Upload
from fedssl.algorithms import FedAvg
from fedssl.core.state.tree import Tree

Uploads = Iterable[Upload]


class Inherited(FedAvg):
    mu: float = 0.0


class FirstUpload(FedAvg):
    def merge(self, site: Tree, uploads: Uploads, mean: Callable[[], Averaging]) -> Tree:
        return next(iter(uploads)).tree


class BelowFirstUpload(FirstUpload):
    pass


class Declared(FirstUpload):
    @property
    def needs_only_means(self) -> bool:
        return True

    def merge(self, site: Tree, uploads: Uploads, mean: Callable[[], Averaging]) -> Tree:
        return FedAvg.merge(self, site, uploads, mean)


class DeclaredAsConstant(FedAvg):
    needs_only_means: ClassVar[bool] = True  # type: ignore[assignment,misc]

    def merge(self, site: Tree, uploads: Uploads, mean: Callable[[], Averaging]) -> Tree:
        return super().merge(site, uploads, mean)


class BelowDeclared(Declared):
    mu: float = 0.0


class MergeOfAMixin:
    def merge(self, site: Tree, uploads: Uploads, mean: Callable[[], Averaging]) -> Tree:
        return next(iter(uploads)).tree


class WithMixin(MergeOfAMixin, FedAvg):
    pass


@pytest.mark.parametrize(
    ("algorithm", "declared"),
    [
        (FedAvg, True),
        (Inherited, True),
        (FirstUpload, False),
        (BelowFirstUpload, False),
        (Declared, True),
        (DeclaredAsConstant, True),
        (BelowDeclared, True),
        (WithMixin, False),
    ],
)
def test_a_class_that_overrides_merge_must_declare_it_again(
    algorithm: type[Algorithm], declared: bool
) -> None:
    assert algorithm().needs_only_means is declared


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        *((name, True) for name in ("fedavg", "fedprox", "fedavgm", "fedadam", "fedu")),
        *((name, True) for name in ("fedbn", "fedema", "perssfl")),
        ("ccl", False),  # features of each client
        ("fedca", False),  # projections of each client
        ("featarc", False),  # the cluster of each client
    ],
)
def test_built_in_algorithms(name: str, declared: bool) -> None:
    assert ALGORITHMS[name]().needs_only_means is declared
