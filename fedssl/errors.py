"""What can go wrong on purpose: each error is one sentence a user can act on, with its own exit code."""


class FedsslError(Exception):
    """Base of every error fedssl raises for a user to read; the command line prints it without a traceback."""

    exit_code = 1


class ConfigError(FedsslError):
    """The experiment cannot be run as written: a typo, a wrong type, an impossible combination."""

    exit_code = 2


class DataError(FedsslError):
    """Images are missing, unreadable or not what the experiment says.

    The sentence is fit for any log and report. Names of private files are not in it but in the `detail`, which is for
    their owner: the command line shows it on a terminal, and nobody writes it anywhere.
    """

    exit_code = 3

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(sentence)
        self.detail = detail


class RunError(FedsslError):
    """The run stopped safely; its last checkpoint is intact."""

    exit_code = 4


class ClientError(FedsslError):
    """One client cannot take part in this round; the others go on."""
