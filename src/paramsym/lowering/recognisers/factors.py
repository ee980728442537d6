"""Sums of products that share a factor: y + (g − 1)·y + g·z is g·(y + z).

So a layer is corrected by an adapter whose magnitudes are learned apart from its directions:

    base(x) + (m / ‖W + BA‖ − 1) * F.linear(x, W) + m / ‖W + BA‖ * (x @ A.T @ B.T)

In the second form y and z are seen to be one product with the weight that the norm is taken of.
Products are multiplied out where a factor is made of parameters alone, and only if something then
cancels; what is left, or a sum as it was written, is gathered by its common factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from paramsym.lowering.recognisers.affine import Form, forms, is_vector_seen
from paramsym.lowering.recognisers.context import Context, argument
from paramsym.recording.graph import Call, Value

_TERMS = 12  # a longer sum is left as it is
_DEEPEST = 6  # sums within sums
_CANCELLED = 1e-12  # a coefficient below this share of its parts is rounding

Factors = tuple[tuple[Form, int], ...]  # with their powers, in the order in which they were met


@dataclass(frozen=True)
class _Term:
    """A number times powers of tensors."""

    number: float
    factors: Factors = ()

    def times(self, other: _Term) -> _Term:
        powers: dict[Form, int] = {}
        for form, power in (*self.factors, *other.factors):
            powers[form] = powers.get(form, 0) + power
        kept = tuple((form, power) for form, power in powers.items() if power)
        return _Term(self.number * other.number, kept)

    @property
    def inverse(self) -> _Term:
        return _Term(1 / self.number, tuple((form, -power) for form, power in self.factors))

    @property
    def kind(self) -> frozenset[tuple[Form, int]]:
        """What two terms share that add up."""
        return frozenset(self.factors)


class _TooLong(Exception):
    """A sum with too many terms, or one that is not read."""


def common_factors(context: Context, call: Call) -> list[Call] | None:
    """A sum of products as products of sums, if terms of it cancel or share a factor."""
    out = call.outputs[0]
    if out.storage != out.id or not out.dtype.is_floating_point:
        return None
    for reader in (_Reader(context, True), _Reader(context, False)):
        try:
            terms = reader.added(call, _DEEPEST)
        except _TooLong:
            continue
        kept = _summed(terms)
        worth = (
            len(kept) < len({term.kind for term in terms})
            if reader.spreads
            else _most_shared(context, kept) is not None
        )
        if worth and kept and _fits(kept, out):
            return _Writer(context, out).written(kept)
    return None


class _Reader:
    """Sums as terms; one that `spreads` multiplies out, and takes biases apart."""

    def __init__(self, context: Context, spreads: bool):
        self.context, self.spreads = context, spreads

    def added(self, call: Call, depth: int) -> list[_Term]:
        """The terms of a sum or a difference of two."""
        alpha = argument(call, 2, "alpha", default=1)
        items = argument(call, 0, "input", "self"), argument(call, 1, "other")
        if not isinstance(alpha, (int, float)) or "out" in call.kwargs or depth == 0:
            raise _TooLong
        signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.name]
        found = [
            term.times(_Term(float(sign)))
            for item, sign in zip(items, signs, strict=True) if sign
            for term in self.terms(item, depth - 1)
        ]  # fmt: skip
        if len(found) > _TERMS:
            raise _TooLong
        return found

    def terms(self, item: object, depth: int) -> list[_Term]:
        """A number, or a tensor as a sum of products."""
        number = self.context.number(item)
        if number is not None:
            return [_Term(number)] if number else []
        if not isinstance(item, Value):
            raise _TooLong
        found = self.context.multiple(item)
        assert found is not None
        value, by = found
        return [term.times(_Term(by)) for term in self._of(value, depth)]

    def _of(self, value: Value, depth: int) -> list[_Term]:
        call = self.context.writer(value) if value.storage == value.id else None
        if call is not None and call.name in ("add", "sub", "rsub") and depth:
            return self.added(call, depth)
        if call is not None and call.name in ("mul", "div") and depth:
            product = self._product(call, depth)
            if product is not None:
                return product
        if depth and is_vector_seen(self.context, value):
            found = self._seen(self.terms(self.context.owner(value), depth - 1), value.shape)
            if found is not None:
                return found
        return self._atom(value, self.spreads)

    def _atom(self, item: Any, apart: bool = False) -> list[_Term]:
        """A tensor as it is, or as the sum of a linear map and its bias."""
        found = self.context.multiple(item)
        assert found is not None
        value, by = found
        return [_Term(by, ((form, 1),)) for form in forms(self.context, value, apart)]

    def _seen(self, terms: list[_Term], shape: tuple[int, ...]) -> list[_Term] | None:
        """Terms of a vector, looked at along an axis of a shape; None where others enter."""
        found: list[_Term] = []
        for term in terms:
            factors = [(form.along(self.context, shape), n) for form, n in term.factors]
            kept = tuple((form, n) for form, n in factors if form is not None)
            if len(kept) < len(factors):
                return None
            found.append(_Term(term.number, kept))
        return found

    def _product(self, call: Call, depth: int) -> list[_Term] | None:
        """A product or quotient, multiplied out if a factor of it is made of parameters alone."""
        if call.kwargs or len(call.args) != 2:
            return None
        factors = [self.terms(item, depth - 1) for item in call.args]
        if call.name == "div" and len(factors[1]) != 1:
            factors[1] = self._atom(call.args[1])
        count = len(factors[0]) * len(factors[1])
        if count > 1 and not (self.spreads and any(map(self._is_fixed, factors))):
            factors = [
                terms if len(terms) == 1 else self._atom(item)
                for terms, item in zip(factors, call.args, strict=True)
            ]  # fmt: skip
        x, y = factors
        if call.name == "div":
            y = [y[0].inverse]
        return None if count > _TERMS else [one.times(other) for one in x for other in y]

    def _is_fixed(self, terms: Iterable[_Term]) -> bool:
        """Whether no input enters, as far as was recorded."""
        values = [v for term in terms for form, _ in term.factors for v in form.operands]
        recorded = len(self.context.graph.values)
        return not any(v.id in self.context.fed or v.id >= recorded for v in values)


def _summed(terms: Sequence[_Term]) -> list[_Term]:
    """Like terms added up, without those that cancel."""
    totals: dict[frozenset[tuple[Form, int]], tuple[_Term, float, float]] = {}
    for term in terms:
        first, total, size = totals.get(term.kind, (term, 0.0, 0.0))
        totals[term.kind] = (first, total + term.number, size + abs(term.number))
    return [
        _Term(total, first.factors)
        for first, total, size in totals.values() if abs(total) > _CANCELLED * size
    ]  # fmt: skip


def _most_shared(context: Context, terms: Sequence[_Term]) -> tuple[Form, int] | None:
    """The factor of most terms, if more than one has it besides others; data stay in place."""
    count = Counter(
        (form, power)
        for term in terms if len(term.factors) > 1
        for form, power in term.factors if any(v.id in context.moving for v in form.operands)
    )  # fmt: skip
    best = max(count.items(), key=lambda item: item[1], default=(None, 0))
    return best[0] if best[1] > 1 else None


def _fits(terms: Sequence[_Term], out: Value) -> bool:
    """Whether a sum of products has the shape and dtype of a value."""
    found = [form for term in terms for form, _ in term.factors]
    if not found or not all(form.dtype == out.dtype for form in found):
        return False
    return torch.broadcast_shapes(*(form.shape for form in found)) == out.shape


class _Writer:
    """Writes sums of products with common factors taken out."""

    def __init__(self, context: Context, out: Value):
        self.context, self.out = context, out
        self.calls: list[Call] = []

    def written(self, terms: Sequence[_Term]) -> list[Call]:
        """The calls, the last of which gives the value."""
        found = self._sum(terms)
        assert isinstance(found, Value)
        self.calls.append(self.context.call(torch.clone, (found,), self.out))
        return self.calls

    def _sum(self, terms: Sequence[_Term]) -> Value | float:
        """A sum: what most terms share is taken out of them, and what is left in the same way."""
        factor = _most_shared(self.context, terms)
        if factor is None:
            return reduce(lambda x, y: self._two(torch.add, x, y), map(self._term, terms))
        one = _Term(1.0, (factor,))
        group = [t.times(one.inverse) for t in terms if factor in t.kind and len(t.factors) > 1]
        rest = [t for t in terms if factor not in t.kind or len(t.factors) == 1]
        inner = self._sum(group)
        form, power = factor
        product = self._power(inner, form, power)
        return product if not rest else self._two(torch.add, product, self._sum(rest))

    def _term(self, term: _Term) -> Value | float:
        found: Value | float = term.number
        for form, power in sorted(term.factors, key=lambda factor: -factor[1]):
            found = self._power(found, form, power)
        return found

    def _power(self, value: Value | float, form: Form, power: int) -> Value | float:
        """A value times a power of a tensor."""
        by = form.written(self.context, self.calls)
        for _ in range(abs(power)):
            if isinstance(value, Value):
                value = self._two(torch.mul if power > 0 else torch.div, value, by)
                continue
            number, value = value, by
            if power < 0:
                value = self._one(torch.reciprocal, by)
            if number != 1:
                value = self._two(torch.mul, value, number)
        return value

    def _one(self, target: Callable[..., Any], x: Value) -> Value:
        made = self.context.value(x.shape, x)
        self.calls.append(self.context.call(target, (x,), made))
        return made

    def _two(self, target: Callable[..., Any], x: Value | float, y: Value | float) -> Value:
        if not isinstance(x, Value):
            x, y = y, x
        shapes = [v.shape for v in (x, y) if isinstance(v, Value)]
        made = self.context.value(torch.broadcast_shapes(*shapes), self.out)
        self.calls.append(self.context.call(target, (x, y), made))
        return made
