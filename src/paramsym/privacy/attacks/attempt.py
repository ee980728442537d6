"""What an attack on a job is told as: its success beside a control in which it must fail."""

from __future__ import annotations

from dataclasses import dataclass


class NotApplicable(Exception):
    """A job lacks what an attack needs; the text says what."""


@dataclass(frozen=True)
class Attempt:
    """One attack against a job.

    Attributes:
        attack: what it finds out, "the input key from one's own parameters".
        claim: what it speaks against: data, labels, model, non-transferability or linkage.
        needs: what the attacker has to have, in plain words.
        measure: what `value` is, "relative error of A".
        value: its success as a number.
        control: the same number where it must fail.
        control_is: what the control is, in plain words.
        succeeded: whether the value says success.
        control_failed: whether the control fails, as it must; otherwise the value says nothing.
        seconds: CPU time of the attack.
        says: what follows, in one plain sentence.
    """

    attack: str
    claim: str
    needs: str
    measure: str
    value: float
    control: float
    control_is: str
    succeeded: bool
    control_failed: bool
    seconds: float
    says: str
