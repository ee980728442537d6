"""Groups as text: `parse_group(str(group)) == group`.

Permutation(5)    Monomial(5)    Monomial(5, signed)    Wreath(GeneralLinear(4), 3)
"""

import re

from .complex_scaling import ComplexScaling, UnitComplex
from .group import Group
from .linear import GeneralLinear, Orthogonal, OrthogonalFixingOnes
from .monomial import (
    Monomial,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
)
from .wreath import Wreath

SIZED = {
    group.__name__: group
    for group in (
        Trivial,
        Signs,
        PositiveScaling,
        Scaling,
        Permutation,
        SignedPermutation,
        Monomial,
        ComplexScaling,
        UnitComplex,
        Orthogonal,
        OrthogonalFixingOnes,
        GeneralLinear,
    )
}
_PLAIN = re.compile(r"(\w+)\(\s*(\d+)\s*(,\s*signed\s*)?\)")
_WREATH = re.compile(r"Wreath\((.*),\s*(\d+)\s*\)", re.DOTALL)


def parse_group(text: str) -> Group:
    """The group that prints as this text.

    Raises:
        ValueError: the text is not a group, or a group cannot have this size.
    """
    stripped = text.strip()
    if match := _WREATH.fullmatch(stripped):
        return Wreath(parse_group(match[1]), int(match[2]))
    match = _PLAIN.fullmatch(stripped)
    if match and match[3] and match[1] == "Monomial":
        return Monomial(int(match[2]), signed=True)
    if match and not match[3] and match[1] in SIZED:
        return SIZED[match[1]](int(match[2]))
    raise ValueError(
        f"parse_group({text!r}): expected one of {', '.join(SIZED)} with a size in parentheses, "
        "'Monomial(5, signed)', or 'Wreath(GROUP, COPIES)'. Write for example 'Permutation(5)'."
    )
