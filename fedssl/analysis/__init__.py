"""What can be read off finished (or running) runs beside their accuracy: numbers, a picture and a table for each kind.

    from fedssl.analysis import analyse

    done = analyse("communication", ["runs/demo"], accuracies=[75, 80])
    done.found, done.json, done.png

Labels are used here for measuring only; nothing here trains a model that anybody keeps.
"""

import fedssl.analysis.angles
import fedssl.analysis.communication
import fedssl.analysis.divergence
import fedssl.analysis.false_negatives
import fedssl.analysis.maps
import fedssl.analysis.scores
import fedssl.analysis.theory
import fedssl.analysis.weights  # noqa: F401 - all register what they hold
from fedssl.analysis.analysis import ANALYSES, Analysis, Done, Found, Summary, analyse

__all__ = ["ANALYSES", "Analysis", "Done", "Found", "Summary", "analyse"]
