"""Constraints at random points: generic weights, generic inputs, and the gradient of one output.

Each sample has weights, inputs and a covector v of its own, and gives ∇_θ ⟨v, F(θ, x)⟩. The user's
weights are not read: a symmetry holds at all of them. Weights are normal, so that a network keeps
the size of what passes; buffers are constants of the function and stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from paramsym.checking.generic import generic_inputs, is_mask, table_lengths
from paramsym.checking.generic_weights import unit
from paramsym.checking.measure import around
from paramsym.checking.together import REFUSED, batching
from paramsym.recording.precision import converted, functional, plain_lookups
from paramsym.recording.record import Inputs, record, split_inputs
from paramsym.recording.refusals import TraceError
from paramsym.recording.running import Walk
from paramsym.structure.tangent import as_real

_ENTRIES = 1 << 22  # gradient entries of one batch of samples
_LARGEST = 256  # samples of one batch
_AGREE = 1e-6  # relative difference of a gradient by batches and by itself; in float32 its root
_SPREAD = 0.3  # of a single number around the user's


@dataclass(frozen=True)
class Points:
    """Samples: weights, inputs and covectors, each with the samples along the first axis."""

    weights: dict[str, Tensor]  # real numbers, (samples, *shape)
    leaves: list[Tensor]  # the tensors among the inputs, (samples, *shape)
    covectors: Tensor  # (samples, outputs)

    def __len__(self) -> int:
        return len(self.covectors)

    def at(self, sample: int) -> Points:
        """One sample."""
        return self.among(slice(sample, sample + 1))

    def among(self, samples: slice | Tensor) -> Points:
        """Some of the samples."""
        return Points(
            {n: w[samples] for n, w in self.weights.items()},
            [leaf[samples] for leaf in self.leaves],
            self.covectors[samples],
        )

    def moved(self, there: Mapping[Any, Tensor]) -> Points:
        """The samples with other weights (by name), inputs (by place) or covectors ("").

        Where these are several times as many as the samples, the rest is repeated.
        """
        times = len(next(iter(there.values()), self.covectors)) // len(self)

        def at(key: str | int, own: Tensor) -> Tensor:
            return there[key] if key in there else own.repeat(times, *[1] * (own.ndim - 1))

        return Points(
            {n: at(n, w) for n, w in self.weights.items()},
            [at(k, leaf) for k, leaf in enumerate(self.leaves)],
            at("", self.covectors),
        )

    @staticmethod
    def joined(several: Sequence[Points]) -> Points:
        """All samples of several."""
        return Points(
            {n: torch.cat([p.weights[n] for p in several]) for n in several[0].weights},
            [torch.cat(leaves) for leaves in zip(*(p.leaves for p in several), strict=True)],
            torch.cat([p.covectors for p in several]),
        )


class Sampler:
    """Draws points, and gradients at points.

    Attributes:
        shapes: of the floating parameters, in real numbers.
        keeps: what of the inputs is the same in all samples, in words; empty if nothing is.
        near: whether tensors of one number stay near the user's.
    """

    def __init__(
        self, model: torch.nn.Module, inputs: Inputs, outputs: Callable[[Any], Any] | None,
        training: bool, generator: torch.Generator, dtype: torch.dtype, fresh: bool,
    ):  # fmt: skip
        self.model, self.outputs, self.training = model, outputs, training
        self.generator, self.dtype, self.fresh = generator, dtype, fresh
        self.state = converted(model, dtype)
        self.walk = Walk(model, self.state.keys())
        names = [n for n, _ in model.named_parameters()]
        numbers = {n: self.state[n] for n in names}
        self.own = {
            n: p for n, p in numbers.items()
            if (p.is_floating_point() or p.is_complex()) and p.numel()
        }  # fmt: skip
        self.shapes = {n: tuple(as_real(p).shape) or (1,) for n, p in self.own.items()}
        self.lengths = self._lengths(inputs)
        self.given, self.tree = pytree.tree_flatten(pytree.tree_map(_usable, split_inputs(inputs)))
        self.tensors = [k for k, leaf in enumerate(self.given) if isinstance(leaf, Tensor)]
        # two values at most are a mask beside an input that is drawn, and an example otherwise
        self.masks = True
        self.masks = any(map(self._is_drawn, range(len(self.tensors))))
        self.keeps = self._kept()
        self.batched, self.checked, self.near = True, False, False
        self.spread = 1.0
        self.scale = torch.ones(())
        self.count = 0

    def _lengths(self, inputs: Inputs) -> dict[int, int]:
        try:
            graph = record(self.model, inputs, self.outputs, self.training)
            return table_lengths(graph, self.model)
        except TraceError:  # no graph: what indexes a table is not known, and integers are kept
            return {}

    def _is_drawn(self, at: int) -> bool:
        """Whether a tensor of the inputs is another one in each sample."""
        leaf = self.given[self.tensors[at]]
        if not self.fresh:
            return False
        mask = is_mask(leaf) and (self.masks or not bool(leaf.isfinite().all()))
        if leaf.is_complex() or (leaf.is_floating_point() and not mask):
            return True
        return at in self.lengths and leaf.dtype != torch.bool

    def is_drawn_float(self, at: int) -> bool:
        """Whether a tensor of the inputs holds numbers that are drawn."""
        leaf = self.given[self.tensors[at]]
        return self._is_drawn(at) and (leaf.is_floating_point() or leaf.is_complex())

    def _kept(self) -> tuple[str, ...]:
        return tuple(
            f"{tuple(self.given[k].shape)} of {str(self.given[k].dtype).removeprefix('torch.')}"
            for at, k in enumerate(self.tensors)
            if not self._is_drawn(at)
        )

    @property
    def varies(self) -> bool:
        """Whether any input is another one in each sample."""
        return len(self.keeps) < len(self.tensors)

    def measure(self) -> list[Tensor]:
        """The outputs at one sample; their number and size are kept for the covectors."""
        point = replace(self._points(1), covectors=torch.ones(1, 1))
        with torch.no_grad():
            found = self.values(point)
        self.count = sum(as_real(t).numel() for t in found)
        if self.count:
            self.scale = 1 / _flat([around(as_real(t)) for t in found])
        return found

    def points(self, count: int) -> Points:
        """So many samples."""
        drawn = self._points(count)
        covectors = self._normal(count, self.count).to(self.scale) * self.scale
        return replace(drawn, covectors=covectors)

    def _points(self, count: int) -> Points:
        weights = {n: self._weight(n, count).to(self.own[n].device) for n in self.shapes}
        return Points(weights, self._inputs(count), torch.ones(count, 1))

    def _weight(self, name: str, count: int) -> Tensor:
        drawn, shape = self._normal(count, *self.shapes[name]), tuple(self.own[name].shape)
        if self.near and self._is_number(name):
            own = float(self.own[name])  # a temperature or an exponent
            return own * (1 + _SPREAD * drawn) if own else _SPREAD * drawn
        return drawn * unit(shape)

    def _is_number(self, name: str) -> bool:
        return self.own[name].numel() == 1 and not self.own[name].is_complex()

    @property
    def numbers(self) -> list[str]:
        """Tensors of one number."""
        return [*filter(self._is_number, self.shapes)]

    def _inputs(self, count: int) -> list[Tensor]:
        leaves = [self.given[k] for k in self.tensors]
        if not self.fresh:
            return [self._cast(t.detach().expand(count, *t.shape)) for t in leaves]
        stacked: list[Any] = []
        for at, leaf in enumerate(leaves):
            copies = leaf.detach().expand(count, *leaf.shape)
            if self.is_drawn_float(at):
                # numbers that are all different, so that they are not taken for a mask
                kind = torch.complex128 if leaf.is_complex() else torch.float64
                copies = torch.randn(copies.shape, generator=self.generator, dtype=kind)
            stacked.append(copies.reshape(-1, *leaf.shape[1:]))
        drawn, _ = generic_inputs(tuple(stacked), self.lengths, self.generator, self.spread)
        return [
            self._cast(d.reshape(count, *leaf.shape)).to(leaf.device)
            for d, leaf in zip(drawn, leaves, strict=True)
        ]

    def _cast(self, leaf: Tensor) -> Tensor:
        if leaf.is_complex():
            return leaf.to(self.dtype.to_complex())
        return leaf.to(self.dtype) if leaf.is_floating_point() else leaf

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def values(self, point: Points) -> list[Tensor]:
        """All floating outputs at the first of some samples."""
        return self._values(
            {n: w[0] for n, w in point.weights.items()}, [leaf[0] for leaf in point.leaves]
        )

    def filled(
        self, weights: dict[str, Tensor], leaves: list[Tensor]
    ) -> tuple[dict[str, Tensor], tuple[Any, ...], dict[str, Any]]:
        """The state and the arguments of a call at the weights and inputs of one sample."""
        state = dict(self.state)
        for name, weight in weights.items():
            own = self.own[name]
            shaped = weight.reshape(as_real(own).shape)
            state[name] = torch.view_as_complex(shaped) if own.is_complex() else shaped
        given = list(self.given)
        for k, leaf in zip(self.tensors, leaves, strict=True):
            given[k] = leaf
        args, kwargs = pytree.tree_unflatten(given, self.tree)
        return state, args, kwargs

    def _values(self, weights: dict[str, Tensor], leaves: list[Tensor]) -> list[Tensor]:
        state, args, kwargs = self.filled(weights, leaves)
        with plain_lookups():
            return functional(
                self.model, state, args, kwargs, self.outputs, self.training, self.walk
            )

    def all_values(self, points: Points) -> Tensor:
        """All floating outputs of each sample, in float64: (samples, outputs)."""

        def one(weights: dict[str, Tensor], leaves: list[Tensor]) -> Tensor:
            return _flat(self._values(weights, leaves))

        with torch.no_grad(), batching():
            if self.batched:
                try:
                    return torch.func.vmap(one)(points.weights, points.leaves).double().cpu()
                except REFUSED:
                    self.batched = False
            each = [_flat(self.values(points.at(k))) for k in range(len(points))]
        return torch.stack(each).double().cpu()

    def _pairing(self, weights: dict[str, Tensor], leaves: list[Tensor], v: Tensor) -> Tensor:
        values = _flat(self._values(weights, leaves))
        # what is infinite, as a masked score, has no derivative, and hides no other output
        return torch.where(values.isfinite(), values, 0.0) @ v

    def gradients(self, points: Points) -> dict[str, Tensor]:
        """∇_θ ⟨v, F(θ, x)⟩ for each sample, in float64: name → (samples, *shape)."""
        if self.batched:
            try:
                with batching():
                    found = torch.func.vmap(torch.func.grad(self._pairing))(
                        points.weights, points.leaves, points.covectors
                    )
                if self._confirmed(points, found):
                    return {n: g.detach().double().cpu() for n, g in found.items()}
            except REFUSED:
                pass
            self.batched = False
        each = [self._gradient(points.at(k)) for k in range(len(points))]
        return {n: torch.cat([one[n] for one in each]).double().cpu() for n in self.shapes}

    def _confirmed(self, points: Points, found: dict[str, Tensor]) -> bool:
        """Whether the first gradient of the first batch is what it is by itself."""
        if self.checked:
            return True
        self.checked = True
        alone = self._gradient(points.at(0))
        size = max(float(g.abs().max()) for g in alone.values())
        off = max(float((alone[n] - found[n][:1]).abs().max()) for n in alone)
        limit = _AGREE if self.dtype == torch.float64 else math.sqrt(_AGREE)
        return not math.isfinite(size) or off <= limit * size

    def _gradient(self, point: Points) -> dict[str, Tensor]:
        """One gradient by reverse mode; zero where the graph does not lead."""
        with torch.enable_grad():
            leaves = {n: w[0].clone().requires_grad_() for n, w in point.weights.items()}
            value = self._pairing(leaves, [t[0] for t in point.leaves], point.covectors[0])
            found: Any = [None] * len(leaves)
            if value.requires_grad:
                found = torch.autograd.grad(value, [*leaves.values()], allow_unused=True)
        return {
            n: (torch.zeros_like(w) if g is None else g)[None]
            for (n, w), g in zip(leaves.items(), found, strict=True)
        }

    def batches(self, count: int) -> Iterator[int]:
        """Sizes of batches that add up to a number of samples."""
        entries = sum(math.prod(shape) for shape in self.shapes.values())
        step = max(1, min(_LARGEST, _ENTRIES // max(1, entries)))
        for start in range(0, count, step):
            yield min(step, count - start)


def _usable(leaf: Any) -> Any:  # a tensor of inference mode, for autograd
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([as_real(t).reshape(-1) for t in tensors])
