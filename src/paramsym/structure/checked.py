"""What refutation says about a symmetry: which claims were tried on numbers, and what fell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Checked:
    """The result of trying a derived symmetry on generic weights before it is returned.

    `passes` counts the finite moves that were compared, 0 where nothing could be compared; `note`
    then says why. `error` is the largest relative change of an output under what was kept, and
    `tolerance` what was allowed. `refuted` lists what was derived and does not hold: it has been
    taken out of the symmetry, and it is a defect of paramsym that is worth a report. `lengths`
    are changes of inputs (an axis, its entries, and how many they became), each at which something
    does not hold that is true at the example's; it has been taken out, too, and `note` names it.
    """

    passes: int = 0
    dtype: str = ""
    tolerance: float = 0.0
    error: float = 0.0
    refuted: tuple[str, ...] = ()
    note: str = ""
    lengths: tuple[tuple[tuple[int, int, int], ...], ...] = ()

    def __str__(self) -> str:
        if self.passes:
            head = (
                f"refutation: {self.passes} passes in {self.dtype} at generic weights, worst error "
                f"{self.error:.0e}"
            )
        else:
            head = "refutation: not checked"
        if self.refuted:
            head += (
                "; refuted and removed, a defect of paramsym that you should report: "
                + "; ".join(self.refuted)
            )
        elif self.passes:
            head += "; nothing refuted"
        return f"{head}; {self.note}" if self.note else head

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Checked:
        """The inverse of `to_dict`."""
        lengths = tuple(
            tuple((axis, before, after) for axis, before, after in changes)
            for changes in data.get("lengths", ())
        )
        return Checked(**{**data, "refuted": tuple(data["refuted"]), "lengths": lengths})
