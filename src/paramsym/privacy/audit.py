"""An audit of one's own job: every attack that applies, beside a control in which it must fail.

An audit refutes. That no attack of this list succeeds shows that these do not, and nothing about
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TypeAlias

from paramsym.privacy.attacks import ATTACKS
from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.job import Job

Attack: TypeAlias = Callable[[Job], Attempt]
Report: TypeAlias = Callable[[str], None]

CLAIMS: Mapping[str, str] = MappingProxyType({
    "data": "who is sent the inputs cannot recover them",
    "labels": "who is sent the targets cannot tell what they mean",
    "model": "who is sent the parameters cannot convert them to a usable model",
    "non-transferability": "parameters of one session are of no use in another",
    "linkage": "two sessions with one model cannot be linked",
})  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """What attacks found out about a job.

    Attributes:
        attempts: the attacks that apply, in the order in which they were tried.
        skipped: the others, with what the job lacks for them.
    """

    attempts: tuple[Attempt, ...]
    skipped: Mapping[str, str]

    def against(self, claim: str) -> list[Attempt]:
        """The attacks that succeeded against a claim, and whose control failed as it must."""
        return [a for a in self.attempts if a.claim == claim and a.succeeded and a.control_failed]

    @property
    def unsound(self) -> list[Attempt]:
        """Attacks that succeed where they must not either, so that their success says nothing."""
        return [a for a in self.attempts if not a.control_failed]

    def __str__(self) -> str:
        lines = ["What is claimed, and what is left of it for this job:", ""]
        for claim, said in CLAIMS.items():
            tried = [a for a in self.attempts if a.claim == claim]
            broken = self.against(claim)
            count = f"{len(broken)} of the {len(tried)} attacks that were tried succeeded"
            left = f"false here, {count}:" if broken else f"{count}." if tried else "nothing tried."
            lines.append(f"  {claim} ({said}): {left}")
            lines += [f"      {a.says} Needs {a.needs}." for a in broken]
        lines += ["", "Each attack, and its control:", ""]
        for a in self.attempts:
            mark = "succeeded" if a.succeeded else "failed"
            control = "fails, as it must" if a.control_failed else "DOES NOT FAIL: says nothing"
            lines += [
                f"  {a.attack}: {mark}, in {a.seconds:.2g} CPU-seconds",
                f"      {a.measure}: {a.value:.3g}",
                f"      control, {a.control_is}: {a.control:.3g}, {control}",
            ]
        if self.skipped:
            lines += ["", "Not tried:", ""]
            lines += [f"  {attack}: {why}" for attack, why in self.skipped.items()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything as JSON text: `attempts` with the fields of `Attempt`, and `skipped`."""
        found = {"attempts": [asdict(a) for a in self.attempts], "skipped": dict(self.skipped)}
        return json.dumps(found, ensure_ascii=False, indent=2)


def audit(job: Job, attacks: Iterable[str] | None = None, progress: Report | None = None) -> Audit:
    """Run attacks against one's own job, each with a control in which it must fail.

    An attack sees what the other side is sent (`job.view`) and what everybody has, and is scored
    against what the job keeps for itself.

    Args:
        job: the model, the key, the data, and what everybody may have of them.
        attacks: names of those to run; by default all.
        progress: is told the name of each attack before it begins.

    Returns:
        An `Audit`: `print` shows what is left of each claim.

    Raises:
        ValueError: there is no attack of a name.
    """
    chosen = [*ATTACKS] if attacks is None else [*attacks]
    if unknown := [name for name in chosen if name not in ATTACKS]:
        raise ValueError(
            f"audit(job, attacks={unknown[:3]}): no attack has that name; names among "
            f"{[*ATTACKS]} were expected. Leave attacks out to run all of them."
        )
    found, skipped = [], {}
    for name in chosen:
        if progress is not None:
            progress(name)
        try:
            found.append(ATTACKS[name](job))
        except NotApplicable as reason:
            skipped[name] = str(reason)
    return Audit(tuple(found), skipped)
