"""Every protection that is removed exists once, and the tests of its row are marked."""

from __future__ import annotations

import ast

import pytest

from benchmarks.mutations import ROOT, Mutation, mutated, read_mutations

MUTATIONS = read_mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.removes)
def test_a_mutation_applies_and_is_python(mutation: Mutation) -> None:
    """Its row is marked in at least one of its test files."""
    ast.parse(mutated(mutation))
    marked = False
    for test in mutation.tests:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text("utf-8")
        assert f"def {name}" in text
        marked = marked or f'"{mutation.row}"' in text
    assert marked


def test_each_protection_is_named_once() -> None:
    names = [mutation.removes for mutation in MUTATIONS]
    assert len(names) == len(set(names))
    assert len(names) >= 40
