"""fedssl: pre-train vision backbones on unlabelled images that never leave their owners."""

__version__ = "0.1.0"

from fedssl.errors import FedsslError
from fedssl.experiment import Experiment
from fedssl.reproduce import reproduce, sweep
from fedssl.run import Run, run

__all__ = ["Experiment", "FedsslError", "Run", "__version__", "reproduce", "run", "sweep"]
