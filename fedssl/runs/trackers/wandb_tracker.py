"""Track a run with Weights & Biases: offline, in the folder `wandb` of the run directory.

A user who sets WANDB_MODE=online, and is logged in, sends the run to a server instead.
"""

from __future__ import annotations

import inspect
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.runs.callbacks import RunInfo
from fedssl.runs.trackers.state import State
from fedssl.runs.trackers.tracker import Tracker, run_name, tags_of
from fedssl.runs.trackers.wandb_log import last_offline_step

PROJECT = "fedssl"  # unless WANDB_PROJECT is set
FLUSH_INTERVAL = 1.0  # seconds between writes to the disk
STORED_AFTER = 60.0  # seconds until a step is on the disk or on the server, in any version
OFFLINE = ("offline", "dryrun")
WITHOUT_KEY = (*OFFLINE, "disabled")


class WandbTracker(Tracker):
    """Sends rounds to Weights & Biases, which keeps the first numbers of a step."""

    _run: Any
    _times: deque[tuple[int, float]]  # steps that may not be stored yet, and when they were sent
    _stored: int

    @classmethod
    def check(cls) -> None:
        """Raise ConfigError if the user wants a server but is not logged in."""
        if mode() not in WITHOUT_KEY and not _logged_in():
            raise ConfigError(
                f"WANDB_MODE is {mode()}, but no API key is configured: run `wandb login`, or "
                "unset WANDB_MODE to write the run to its directory"
            )

    def open(self, run: RunInfo, state: State) -> State:
        """Start a run, or another part of the one that was recorded."""
        import wandb

        identity = state.run or secrets.token_hex(8)
        tags = tags_of(run.experiment)
        init: Any = wandb.init  # its type allows fewer modes than the variable
        self._run = init(
            mode=mode(),
            dir=str(run.folder),
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=identity,
            resume="allow",
            name=run_name(run),
            group=os.environ.get("WANDB_RUN_GROUP", run.title),
            tags=sorted({tags[key] for key in ("method", "algorithm", "topology", "data")}),
            settings=_settings(),
        )
        config = {**run.experiment.to_dict(), "fedssl": tags["fedssl"]}
        self._run.config.update(config, allow_val_change=True)
        self._times = deque()
        self._stored = state.rounds
        if mode() in OFFLINE and state.run is not None:
            in_logs = last_offline_step(run.folder / "wandb", identity)
            self._stored = state.rounds if in_logs is None else in_logs
        return state._replace(run=identity, rounds=self._stored)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a round."""
        self._run.log(dict(numbers), step=step)
        self._times.append((step, time.monotonic()))

    def stored(self, step: int) -> int:
        """Return the last step that was sent long enough ago: steps are stored in the background.

        Later ones are sent again if the process is killed, unless the offline logs have them. The
        library ignores a step that the server has.
        """
        while self._times and time.monotonic() - self._times[0][1] > STORED_AFTER:
            self._stored = self._times.popleft()[0]
        return self._stored

    def log_results(self, step: int, numbers: Mapping[str, float], verdict: str) -> None:
        """Send the final numbers and the verdict as the summary of the run."""
        self._run.summary.update({**numbers, **({"verdict": verdict} if verdict else {})})

    def disconnect(self) -> None:
        """Wait until everything is sent or written."""
        self._run.finish(exit_code=0 if self.ended else 1)

    def location(self) -> str:
        """Return the address of the run, or the folder and the command that uploads it."""
        if self._run.settings.mode in WITHOUT_KEY:
            folder = os.path.dirname(self._run.dir)
            return f"{folder} (offline; `wandb sync` uploads it)"
        return str(self._run.url)


def mode() -> str:
    """Return the mode of Weights & Biases: offline unless the user has set another."""
    return os.environ.get("WANDB_MODE") or "offline"


def _logged_in() -> bool:
    """Return whether an API key is configured, without asking for one."""
    import wandb

    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False, verify=False))
    return wandb.api.api_key is not None  # in earlier versions


def _settings() -> Any:
    """Return settings with which only numbers and settings of the experiment leave the process."""
    import wandb

    wanted = {
        "silent": True,
        "console": "off",
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "x_disable_stats": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_transaction_log_flush_interval": FLUSH_INTERVAL,
    }
    known = getattr(wandb.Settings, "model_fields", wanted)
    return wandb.Settings(**{key: value for key, value in wanted.items() if key in known})
