"""The papers of a method and an algorithm, as the docstrings of their modules cite them."""

from __future__ import annotations

import re
import sys

from fedssl.experiment.experiment import Experiment

# Authors, "title", venue and year.
NAME = r"[A-Z][a-z]+"
CITATION = re.compile(
    rf'(?:{NAME}(?:, | & | and )?)+(?: et al\.)?, "[^"]+"(?: \(\w+\))?,\s[^".;]*?\d{{4}}'
)
REMARKS = "Departures:"  # what follows in a docstring may cite other papers


def papers_of(experiment: Experiment) -> list[str]:
    """Return the papers that the modules of the method and of the algorithm cite."""
    papers = []
    for owner in (experiment.method.method, type(experiment.algorithm)):
        papers += citations(sys.modules[owner.__module__].__doc__ or "")
    return list(dict.fromkeys(papers))


def citations(docstring: str) -> list[str]:
    """Return the papers that a docstring cites before it lists departures from them."""
    text = " ".join(docstring.partition(REMARKS)[0].split())
    return CITATION.findall(text)
