"""Analyses of finished or running runs beyond their accuracy: numbers, a picture and a table each.

    from fedssl.analysis import analyse

    output = analyse("communication", ["runs/demo"], accuracies=[75, 80])
    output.results, output.json, output.png

Labels are used for measuring only. Models trained here are discarded.
"""

import fedssl.analysis.angles
import fedssl.analysis.communication
import fedssl.analysis.divergence
import fedssl.analysis.false_negatives
import fedssl.analysis.maps
import fedssl.analysis.weights  # noqa: F401 - each import registers an analysis
from fedssl.analysis.analysis import (
    ANALYSES,
    Analysis,
    AnalysisOutput,
    Results,
    Summary,
    analyse,
    run_analysis,
)

__all__ = [
    "ANALYSES",
    "Analysis",
    "AnalysisOutput",
    "Results",
    "Summary",
    "analyse",
    "run_analysis",
]
