"""Which form the change of basis takes."""

import torch

from .base import Columns, Form
from .fourier import Fourier
from .product import Product
from .separable import Separable

FORMS: dict[str, type[Form]] = {"product": Product, "separable": Separable, "fourier": Fourier}


def costs(columns: Columns) -> dict[str, float]:
    """The forms that apply, with their nanoseconds for one vector."""
    found = {name: form.cost(columns) for name, form in FORMS.items()}
    return {name: cost for name, cost in found.items() if cost is not None}


def choose(columns: Columns, dtype: torch.dtype, form: str | None = None) -> Form:
    """The cheapest form, or the named one where it applies.

    Args:
        columns: the class of orbits and the coefficients.
        dtype: of the constants.
        form: "product", "separable" or "fourier" instead of the cheapest; an orbit to which it
            does not apply (one that is no grid) keeps the product.

    Raises:
        ValueError: no form has this name.
    """
    if form is not None and form not in FORMS:
        raise ValueError(
            f"form={form!r}: expected one of {', '.join(map(repr, FORMS))}, or None for the "
            "cheapest. Pass one of these."
        )
    if not len(columns.used):
        return Product(columns, dtype)
    known = costs(columns)
    cheapest = min(known, key=known.__getitem__)
    name = cheapest if form is None else form if form in known else "product"
    return FORMS[name](columns, dtype)
