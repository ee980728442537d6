"""The search for what is wrong in a symmetry, once something is.

Each suspicion is tried on two trials at fresh weights and inputs, and what is found guilty is
reduced to the most of it that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from paramsym.algebra import Group
from paramsym.checking.bench import progress
from paramsym.checking.moves import Claim, Pass, claims_of, moved, passes_of
from paramsym.checking.trial import Trial
from paramsym.checking.trials import Trials
from paramsym.checking.weaker import weaker
from paramsym.structure.symmetry import ParameterSymmetry

TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
_APPROXIMATE = 1e-5  # for families that hold up to the negligible ε of a norm


Passes = list[tuple[Pass, float]]  # with their tolerances in float64


def all_passes(symmetry: ParameterSymmetry, many: bool) -> Passes:
    """Every pass."""
    passes = [(one, TOLERANCES[torch.float64]) for one in passes_of(symmetry, many)]
    if loose := claims_of(symmetry, exact=False):
        passes.append((Pass(loose, 0.5), _APPROXIMATE))
    return passes


def at_half_strength(symmetry: ParameterSymmetry, many: bool = False) -> Passes:
    """The pass that is tried at other lengths: everything at once."""
    return all_passes(symmetry, many)[1:2]


class Search:
    """Finds the claims that fail on two trials at fresh weights and inputs, and reduces them.

    Of a large model there are three trials at most; of a small one four, since a trial whose units
    are all closed or saturated sees nothing, and would speak for whatever is claimed.
    """

    def __init__(
        self,
        trials: Trials,
        symmetry: ParameterSymmetry,
        passes: Callable[[ParameterSymmetry, bool], Passes] = all_passes,
    ):
        self.trials, self.symmetry, self.passes, self.worst = trials, symmetry, passes, 0.0
        self.made: dict[int, Trial] = {}
        self.spare = 2 if trials.small else 1  # trials that may see nothing

    @property
    def first(self) -> Trial:
        return self._trial(1)

    def _trial(self, number: int) -> Trial:
        """One of the trials, made when those before have not settled the matter."""
        if number not in self.made:
            self.made[number] = self.trials.careful(number)
        return self.made[number]

    def run(self) -> tuple[ParameterSymmetry, tuple[str, ...], float]:
        """What survives, what was refuted, and the worst error of what survives."""
        symmetry, refuted = self.symmetry, []
        with progress(len(claims_of(symmetry)), "refutation") as advance:
            while failing := self._failing(symmetry):
                for guilty in self._wrong(symmetry, *failing) or [self._guilty(symmetry, *failing)]:
                    symmetry, text = self._reduced(symmetry, guilty, failing[1])
                    refuted.append(text)
                    advance()
        return symmetry, tuple(refuted), self.worst

    def _failing(self, symmetry: ParameterSymmetry) -> tuple[Pass, float] | None:
        """The first pass that fails."""
        self.worst = 0.0
        for one, tolerance in self.passes(symmetry, self.trials.small):
            if self._fails(symmetry, one, tolerance):
                return one, tolerance
        return None

    def _fails(self, symmetry: ParameterSymmetry, one: Pass, tolerance: float) -> bool:
        """Whether a move changes an output on both trials, beyond what rounding does."""
        seen = 0
        for number in range(1, 3 + self.spare):
            seen += self._seen(self._trial(number), symmetry, one, tolerance)
            if seen == 2 or number - seen > self.spare:
                break
        return seen == 2

    def _seen(self, trial: Trial, symmetry: ParameterSymmetry, one: Pass, tolerance: float) -> bool:
        tolerance = max(tolerance, TOLERANCES[trial.dtype])
        generator = torch.Generator().manual_seed(11)
        try:
            state, ends = moved(symmetry, one, trial.state, generator, trial.dtype)
            error = trial.error(state, ends, tolerance)
        except Exception:  # see `refute`
            return True
        if error <= tolerance:
            self.worst = max(self.worst, error)
        return error > tolerance

    def _wrong(self, symmetry: ParameterSymmetry, one: Pass, tolerance: float) -> list[Pass]:
        """The claims of a pass that fail alone: what is wrong is mostly several of them.

        They are halved on the first trial that sees any, and each that is left is tried on the
        others. Claims that fail together alone are not found.
        """

        def wrong(trial: Trial, claims: tuple[Claim, ...], known: bool = False) -> Iterator[Pass]:
            part, half = replace(one, claims=claims), len(claims) // 2
            if not claims or not (known or self._seen(trial, symmetry, part, tolerance)):
                return
            if not half:
                yield part
                return
            first = [*wrong(trial, claims[:half])]
            yield from first
            yield from wrong(trial, claims[half:], known=not first)

        for number in range(1, 2 + self.spare):
            if found := [*wrong(self._trial(number), one.claims)]:
                return [part for part in found if self._fails(symmetry, part, tolerance)]
        return []

    def _guilty(self, symmetry: ParameterSymmetry, one: Pass, tolerance: float) -> Pass:
        """The shortest beginning of a pass that fails; its last claim is the guilty one."""
        low, high = 0, len(one.claims)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fails(symmetry, replace(one, claims=one.claims[:middle]), tolerance):
                high = middle
            else:
                low = middle
        return replace(one, claims=one.claims[:high])

    def _reduced(
        self, symmetry: ParameterSymmetry, guilty: Pass, tolerance: float
    ) -> tuple[ParameterSymmetry, str]:
        """The symmetry with the most of the guilty claim that survives, alone and with the rest."""
        claim = guilty.claims[-1]
        strengths = [one.strength for one, _ in self.passes(symmetry, self.trials.small)]
        passes = dict.fromkeys((*(Pass((claim,), each) for each in strengths), guilty))
        *options, best = weaker(symmetry, claim)
        failed: list[Group] = []
        for less, text in reversed(options):  # where a group fails, all that contain it do
            group = less.spaces[claim.name].group
            if any(other <= group for other in failed):
                continue
            if any(self._fails(less, one, tolerance) for one in passes):
                failed.append(group)
            else:
                best = less, text
        return best
