"""The rank of almost every form over the complex numbers: Alexander and Hirschowitz."""

from __future__ import annotations

from math import comb

# (variables, degree) of degree above two where the count of parameters is wrong, by one
_EXCEPTIONS = {(3, 4): 6, (4, 4): 10, (5, 4): 15, (5, 3): 8}


def generic_rank(variables: int, degree: int) -> int:
    """How many powers of linear forms add up to almost every form, over the complex numbers.

    A form of degree d in n variables has C(n + d − 1, d) coefficients, and each linear form has n:
    ⌈C(n + d − 1, d)/n⌉ powers are needed, and they suffice, except

    - for quadrics, where it is n, the rank of a symmetric matrix;
    - (n, d) = (3, 4), (4, 4), (5, 4) and (5, 3), where one more is needed: 6, 10, 15 and 8.

    Over the real numbers an open set of forms has this rank; others, of higher rank, may be open
    too (typical ranks). A single form may have a lower or a higher rank, at most twice this one.
    A polynomial in affine forms counts one variable more than it has, for the constants.

    Args:
        variables: n, of the forms.
        degree: d, of the powers.

    Returns:
        The number of powers.

    Raises:
        ValueError: if n or d is no positive integer.

    Source: Alexander and Hirschowitz, "Polynomial interpolation in several variables" (1995);
    twice the generic rank: Blekherman and Teitler, "On maximum, typical and generic ranks" (2015).
    """
    for name, value in (("variables", variables), ("degree", degree)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"generic_rank({name}={value!r}): a positive integer was expected, for forms in at "
                "least one variable and of degree at least one. Pass for example "
                "generic_rank(variables=3, degree=4)."
            )
    if degree == 1:
        return 1
    if degree == 2:
        return variables
    counted = -(-comb(variables + degree - 1, degree) // variables)
    return _EXCEPTIONS.get((variables, degree), counted)
