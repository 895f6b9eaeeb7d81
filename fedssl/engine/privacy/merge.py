"""Merge a round's uploads with client-level differential privacy.

The mechanism of one round: clip every client's update, over all models that it uploads together, to
an L2 norm of `clip`; sum with weight 1; add Gaussian noise of standard deviation noise · clip to
every coordinate; divide by the number of clients that the plan asked. The algorithm receives the
result as the only upload of the round, so that whatever it does with it is post-processing, and
so is everything after it: later rounds, checks of the merged model, the server's optimizer.

Two runs are neighbours if they differ in the contribution of one client: in one run it is zero, in
all rounds. The roster, the plan, and which clients delivered a valid upload are public.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fedssl.algorithm import Algorithm, Averaging, Upload
from fedssl.core.errors import RunError
from fedssl.core.state.layout import Layout
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree
from fedssl.engine.privacy.accountant import Account, Plans
from fedssl.engine.privacy.clipped_sum import ClippedSum
from fedssl.engine.privacy.ledger import Charge, Ledger
from fedssl.engine.privacy.settings import PrivacySettings
from fedssl.engine.uploads.records import Report
from fedssl.engine.uploads.validate import Schema
from fedssl.topologies.topology import SERVER, Plan

WITHHELD = "sent no valid upload; the reason is withheld ([privacy])"
Enough = Callable[[int, int], bool]  # (valid uploads, clients asked) -> whether to merge


class Spent(NamedTuple):
    """The privacy that a run has cost so far."""

    releases: int
    epsilon: float | None  # None: infinite
    delta: float
    noise: float
    clip: float


class PrivateMerge:
    """Merges the rounds of one run; writes a line into its ledger before each release."""

    def __init__(
        self,
        algorithm: Algorithm,
        schema: Schema,
        settings: PrivacySettings,
        *,
        noise: float,
        ledger: Ledger,
        plans: Plans,
        enough: Enough = lambda valid, asked: True,
        mean: Callable[[], Averaging] = Mean,
    ) -> None:
        """`noise` is in multiples of the clip; `plans` returns the clients asked in a round."""
        assert settings.clip is not None
        self.clip = settings.clip
        self.noise = noise
        self._algorithm = algorithm
        self._models = models_of(schema)
        self._settings = settings
        self._ledger = ledger
        self._enough = enough
        self._mean = mean
        self._account = Account(plans, settings.delta)
        for charge in ledger.charges:
            self._account.charge(charge.round - 1, charge.noise)

    def within_budget(self, round: int) -> bool:
        """True if a release in a round, from 0, keeps ε within the budget."""
        budget = self._settings.epsilon
        return budget is None or self._account.epsilon_after(round, self.noise) <= budget

    def __call__(self, round: int, plan: Plan, site: Tree, uploads: Iterable[Upload]) -> Tree:
        """Return the site's next state; the same state, and no release, if too few are valid."""
        total = ClippedSum(self._center(plan, site), self.clip, self.noise)
        valid = 0

        def add(upload: Upload) -> None:
            nonlocal valid
            total.add(upload.tree)
            valid += 1

        deque(map(add, uploads), maxlen=0)  # a loop would hold an upload while the next is made
        asked = len(plan.site_of)
        if not self._enough(valid, asked):
            return site
        self._charge(round, asked)
        released = Upload(SERVER, 1.0, total.noised_mean(asked))
        return self._algorithm.merge(site, iter([released]), self._mean)

    def _charge(self, round: int, asked: int) -> None:
        """Write the release into the ledger. It must not be made before this returns."""
        self._account.charge(round, self.noise)
        self._ledger.append(
            Charge(
                round + 1,
                self.noise,
                self.clip,
                clients=asked,
                epsilon=finite(self._account.epsilon()),
                delta=self._settings.delta,
            )
        )

    def _center(self, plan: Plan, site: Tree) -> dict[str, State]:
        """Return the public models from which updates are measured: those that the site sends."""
        client = next(iter(plan.site_of))
        known = {
            **self._algorithm.statistics_reference(site),
            **self._algorithm.broadcast(site, client),
        }
        center = {}
        for key, layout in self._models.items():
            start = known.get(key)
            if (
                not isinstance(start, State)
                or not layout.offsets.keys() <= start.layout.offsets.keys()
            ):
                raise RunError(
                    f'clients upload the model "{key}", of which they receive no earlier version, '
                    "so its update cannot be clipped: use another algorithm, or no [privacy]"
                )
            center[key] = start.restricted(layout)
        return center

    def withhold(self, reports: list[Report]) -> None:
        """Remove, in place, all that clients report but whether they sent a valid upload."""
        for i, report in enumerate(reports):
            dropped = None
            if report.dropped is not None:
                dropped = WITHHELD
            reports[i] = Report(report.client, dropped, bytes_down=report.bytes_down)

    @property
    def spent(self) -> Spent:
        """The privacy that the run has cost so far."""
        epsilon = finite(self._account.epsilon())
        releases = len(self._ledger.charges)
        return Spent(releases, epsilon, self._settings.delta, self.noise, self.clip)


def finite(epsilon: float) -> float | None:
    """Return ε, or None if it is infinite, which JSON cannot represent."""
    if math.isfinite(epsilon):
        return epsilon
    return None


def models_of(schema: Schema) -> Mapping[str, Layout]:
    """Return the layouts of an upload that has nothing but models; raise RunError for others."""
    models = {}
    for key, spec in schema.items():
        if not isinstance(spec, Layout):
            raise RunError(f'[privacy] clips models, but clients also upload "{key}"')
        models[key] = spec
    return models
