"""Polynomial layers: sums of powers of affine forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional

from .initial import deviations
from .monomial import exponent
from .terms import Block, Degrees, Group, Term, group_end, grouped, kinds_of, rows_of

_USUAL = 8.0  # affine forms of this size occur: the largest of some 10¹⁵ standard normal numbers


class Polynomial(nn.Module):
    r"""Polynomials as sums of powers of affine forms,

        P_k(x) = Σ_t s_kt (a_ktᵀ x + b_kt)^{d_kt}.

    The degrees d are fixed, and may differ by output and term. All affine forms are the rows of one
    matrix: outputs with the same degrees stand together, their terms ordered by degree, so that a
    call is one product with a matrix, one power for each degree, and a sum. Give outputs with the
    same degrees next to each other: the order of those that are apart is not derived as free.

    Args:
        in_features: the number of variables.
        out_features: the number of polynomials.
        degrees: of the terms, whole numbers ≥ 1: one list for all outputs, or one for each.
        signs: s, 1 or −1, in the shape of `degrees`; 1 by default. An odd degree needs none.
        power: the exponent of the `RectifiedMonomial` that follows, None if none does; only the
            initial scale depends on it.
        bias: whether forms have constants b; without them P is a sum of homogeneous polynomials.
        generator: of the initial weights.
        device: of the weights.
        dtype: of the weights, a real floating-point one; default torch's.

    Attributes:
        weight: the forms a, of shape (terms, in_features); `rows(k)` says which are of output k.
        bias: the constants b, of shape (terms,), or None.

    Raises:
        ValueError: a size or a degree that is no whole number ≥ 1, a sign that is not ±1, a power
            that is not positive, lists of another shape, a dtype that is complex or integer.

    Warns:
        UserWarning: an output whose terms are all even and of sign 1 is never negative; a degree at
            which forms of size 8 overflow the dtype.

    Source: "On a group of invariances in a class of functions", section I.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        degrees: Degrees = (1, 2, 3),
        signs: Degrees | None = None,
        *,
        power: float | None = None,
        bias: bool = True,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
                raise ValueError(
                    f"Polynomial({name}={size!r}): a whole number of at least 1 was expected. Pass "
                    "the number of variables, then that of polynomials."
                )
        dtype = dtype or torch.get_default_dtype()
        _require_real(dtype)
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.power = None if power is None else exponent(power, "Polynomial")
        self.kinds = kinds_of(out_features, degrees, signs)
        self.groups = grouped(self.kinds)
        self._rows = rows_of(self.kinds, self.groups)
        terms = sum(group.rows for group in self.groups)
        self.weight = nn.Parameter(torch.empty(terms, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(terms, device=device, dtype=dtype)) if bias else None
        self._order = self._places()
        self._warn(dtype)
        if not self.weight.is_meta:
            self.reset_parameters(generator)

    def _places(self) -> list[int] | None:
        """Where in the groups each output stands; None if they are in order."""
        stored = [k for group in self.groups for k in group.outputs]
        in_order = stored == [*range(self.out_features)]
        return None if in_order else sorted(range(len(stored)), key=stored.__getitem__)

    @property
    def degrees(self) -> list[list[int]]:
        """By output, the degrees of its terms."""
        return [[degree for degree, _ in row] for row in self.kinds]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weights at which activations keep their mean square, 1 for inputs of mean square 1.

        Of the output, or with a `power` of what the rectified monomial makes of it. Weights are
        normal, biases ± one number; `initial.py` derives both. In one network the mean square of
        a layer is that of a sample: fluctuations of the order of 1/√width remain.
        """
        for group in self.groups:
            profile = tuple(b.kind for b in group.blocks for _ in range(b.copies))
            sizes = dict(
                zip(profile, deviations(profile, self.power, self.bias is not None), strict=True)
            )
            for block in group.blocks:
                inner, outer = sizes[block.kind]
                rows = slice(block.start, group_end(block, group))
                deviation = inner / math.sqrt(self.in_features)
                self.weight[rows].normal_(0, deviation, generator=generator)
                if self.bias is not None:
                    signs = self.bias[rows].bernoulli_(0.5, generator=generator)
                    signs.mul_(2 * outer).sub_(outer)

    def forward(self, x: Tensor) -> Tensor:
        """The values (…, out_features) of the polynomials at points (…, in_features)."""
        _require_real(self.weight.dtype)
        forms = functional.linear(x, self.weight, self.bias)
        sizes = [b.copies * len(g.outputs) for g in self.groups for b in g.blocks]
        parts = iter(forms.split(sizes, -1) if len(sizes) > 1 else [forms])
        values = [_sum([_powers(next(parts), b, g) for b in g.blocks]) for g in self.groups]
        value = torch.cat(values, -1) if len(values) > 1 else values[0]
        return value if self._order is None else value[..., self._order]

    def rows(self, output: int) -> list[int]:
        """The rows of `weight` with the terms of one output, in the order of its degrees."""
        return [*self._rows[output]]

    def terms(self) -> list[list[Term]]:
        """By output, its terms; the tensors are views of the parameters, without gradient."""
        weight = self.weight.detach()
        bias = weight.new_zeros(len(weight)) if self.bias is None else self.bias.detach()
        return [
            [Term(d, s, weight[r], bias[r]) for (d, s), r in zip(kinds, rows, strict=True)]
            for kinds, rows in zip(self.kinds, self._rows, strict=True)
        ]

    @classmethod
    def from_terms(cls, terms: Sequence[Sequence[Term]], power: float | None = None) -> Polynomial:
        """The layer with given terms by output; weights of one shape and dtype, copied."""
        first = _require_alike(terms)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these weights are what was asked for
            layer = cls(
                len(first), len(terms),
                [[t.degree for t in row] for row in terms],
                [[t.sign for t in row] for row in terms],
                power=power, device="meta", dtype=first.dtype,
            )  # fmt: skip
        rows = [r for output in layer._rows for r in output]
        back = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__))
        flat = [term for row in terms for term in row]
        layer.weight = nn.Parameter(torch.stack([t.weight.detach() for t in flat])[back])
        layer.bias = nn.Parameter(torch.stack([t.bias.detach() for t in flat])[back])
        return layer

    def extra_repr(self) -> str:
        """Sizes, and what terms how many outputs have."""
        kinds = [
            f"{len(g.outputs)} × ({' + '.join(_written(b) for b in g.blocks)})" for g in self.groups
        ]
        return f"{self.in_features}, {self.out_features}: {', '.join(kinds)}"

    def _warn(self, dtype: torch.dtype) -> None:
        never = [k for k, row in enumerate(self.kinds) if all(d % 2 == 0 and s > 0 for d, s in row)]
        if never:
            warnings.warn(
                f"Polynomial: outputs {_few(never)} have terms of even degree and sign 1 only, and "
                "are never negative: a rectifier that follows does nothing, and −x² is out of "
                "reach. Add a term of odd degree, or pass signs=.",
                stacklevel=3,
            )
        degree = max(d for row in self.kinds for d, _ in row)
        largest = float(torch.finfo(dtype).max) ** (1 / degree)
        if largest < _USUAL:
            warnings.warn(
                f"Polynomial: terms of degree {degree} overflow {dtype} where a form exceeds "
                f"{largest:.3g}. Lower the degree, take a wider dtype, or see with "
                "waring.require_finite where it happens on your data.",
                stacklevel=3,
            )


def _powers(forms: Tensor, block: Block, group: Group) -> Tensor:
    """The sum of one block's terms by output, (…, outputs · copies) → (…, outputs)."""
    degree, sign = block.kind
    if block.copies > 1:  # before the power: squares are then summed as in a norm
        forms = forms.unflatten(-1, (len(group.outputs), block.copies))
    powers = forms if degree == 1 else forms**degree
    if block.copies > 1:
        powers = powers.sum(-1)
    return powers if sign > 0 else -powers


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _require_alike(by_output: Sequence[Sequence[Term]]) -> Tensor:
    """The weight of the first of some terms, whose weights and biases have to fit each other."""
    if not by_output or not all(by_output):
        raise ValueError(
            f"Polynomial.from_terms: {len(by_output)} outputs came, with "
            f"{[len(row) for row in by_output]} terms; at least one term for each of at least one "
            "output was expected. Give the zero polynomial one term with zero weights."
        )
    terms = [term for row in by_output for term in row]
    first = terms[0].weight
    for k, term in enumerate(terms):
        weight, bias = term.weight, term.bias
        good = isinstance(weight, Tensor) and isinstance(bias, Tensor)
        good = good and weight.shape == first.shape and weight.ndim == 1 and bias.ndim == 0
        if not good or {weight.dtype, bias.dtype} != {first.dtype}:
            described = [f"{list(t.shape)} of {t.dtype}" if isinstance(t, Tensor) else repr(t)
                         for t in (weight, bias)]  # fmt: skip
            raise ValueError(
                f"Polynomial.from_terms: term {k} of {len(terms)} has weight and bias "
                f"{' and '.join(described)}; a vector {list(first.shape)} and a scalar "
                f"tensor were expected, of {first.dtype} as in the first term. Convert them first."
            )
    return first


def _require_real(dtype: torch.dtype) -> None:
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(
            f"Polynomial: weights of {dtype} came; a real floating-point dtype was expected, since "
            "the group of the layer has positive scales and real roots of them. Pass "
            "dtype=torch.float64."
        )


def _written(block: Block) -> str:
    degree, sign = block.kind
    return (
        ("-" if sign < 0 else "") + (f"{block.copies}·" if block.copies > 1 else "") + f"z^{degree}"
    )


def _few(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) < 6 else f"{numbers[:4]} and {len(numbers) - 4} more"
