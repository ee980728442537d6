r"""Equivariant maps between permutation representations, through any number of inner spaces.

    x  ──Qᵀ──▸  ⊕ V_i^{d_i}  ──A──▸  ⊕ V_i^{k_i}  ── gate ──▸ …  ──A──▸  ⊕ V_i^{e_i}  ──Q──▸  y

Every inner space is a list of multiplicities; blocks that vanish anywhere along the way are dropped
before anything is computed.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from .adapted import AdaptedBasis
from .arguments import whole
from .blocks import (
    BlockLinear,
    Bundle,
    Multiplicities,
    bundle,
    fold_channels,
    join_rows,
    split_rows,
    unfold_channels,
)
from .decomposition import Decomposition
from .errors import ShapeMismatchError
from .nonlinearities import NormGate


class BlockNetwork(nn.Module):
    """Block-diagonal layers between two permutation representations with channels.

    Args:
        decomposition: source (n) and target (m) representation.
        inner: multiplicities of each inner space.
        in_channels: copies of the source representation.
        out_channels: copies of the target representation.
        gates: whether a `NormGate` follows each inner space.
        latent: the number of an inner space (from 0) without a gate.
        dtype: of weights and bases.
        generator: of the initial weights.
    """

    def __init__(
        self,
        decomposition: Decomposition,
        inner: Sequence[Multiplicities] = (),
        *,
        in_channels: int = 1,
        out_channels: int = 1,
        gates: bool = False,
        latent: int | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        dtype = dtype or torch.get_default_dtype()
        isotypics = decomposition.isotypics
        source, target = [v.source for v in isotypics], [v.target for v in isotypics]
        spaces = _spaces(decomposition, inner, in_channels, out_channels)
        self.decomposition = decomposition
        self.channels = (in_channels, out_channels)
        self.spaces = spaces
        self.bundles: tuple[Bundle, ...] = bundle(isotypics, spaces)
        kept = [i for b in self.bundles for i in b.blocks]
        self.source = AdaptedBasis(decomposition.source_classes, isotypics, source, kept, dtype)
        same = decomposition.target_classes is decomposition.source_classes
        # One module under two names would be saved twice; the second name is kept out of modules.
        self._target = [
            self.source
            if same
            else AdaptedBasis(decomposition.target_classes, isotypics, target, kept, dtype)
        ]
        if not same:
            self.target = self._target[0]
        # Remembers dtype and device where there is no weight.
        self.register_buffer("_nothing", torch.zeros(0, dtype=dtype), persistent=False)
        self._nothing: Tensor
        self.layers = nn.ModuleList(
            BlockLinear(self.bundles, step, dtype, generator) for step in range(len(spaces) - 1)
        )
        self.gates = nn.ModuleList(
            NormGate(self.bundles, space, dtype) if gates and space - 1 != latent else nn.Identity()
            for space in range(1, len(spaces) - 1)
        )

    def analyse(self, x: Tensor) -> tuple[list[Tensor], torch.Size]:
        """Samples (…, n), or (…, channels, n), as the values of space 0; and the leading shape."""
        channels, n = self.channels[0], self.decomposition.shape[1]
        tail = (n,) if channels == 1 else (channels, n)
        if tuple(x.shape[-len(tail) :]) != tail:
            raise ShapeMismatchError("equivariant layer (input)", x.shape, ("…", *tail))
        lead = x.shape[: x.dim() - len(tail)]
        if channels > 1:
            x = x.reshape(prod(lead), channels, n).transpose(0, 1)
        rows = self.source.analyse(x.reshape(prod(lead) * channels, n))
        return split_rows(fold_channels(rows, self.bundles, channels, 0), self.bundles, 0), lead

    def synthesise(self, values: list[Tensor], lead: torch.Size) -> Tensor:
        """The values of the last space as samples (…, m), or (…, channels, m)."""
        channels, m = self.channels[1], self.decomposition.shape[0]
        batch = prod(lead)
        last = len(self.spaces) - 1
        rows = join_rows(values, self.bundles, batch) if values else self.empty(batch)
        y = self._target[0].synthesise(unfold_channels(rows, self.bundles, channels, last))
        if channels == 1:
            return y.reshape(*lead, m)
        return y.reshape(channels, batch, m).transpose(0, 1).reshape(*lead, channels, m)

    def empty(self, batch: int) -> Tensor:
        """No coordinates at all, for a component of rank 0."""
        return self._nothing.new_zeros(0, batch)

    def run(self, values: list[Tensor], first: int, last: int) -> list[Tensor]:
        """Layers first … last − 1, each inner one followed by its gate."""
        for step in range(first, last):
            values = self.layers[step](values)
            if step < len(self.gates):
                values = self.gates[step](values)
        return values

    def forward(self, x: Tensor) -> Tensor:
        values, lead = self.analyse(x)
        values = self.run(values, 0, len(self.layers))
        return self.synthesise(values, lead)


def _spaces(
    decomposition: Decomposition, inner: Sequence[Multiplicities], before: int, after: int
) -> list[Multiplicities]:
    """The multiplicities of every space, the outer ones with their channels."""
    before = whole(before, "EquivariantLinear(in_channels=…)", low=1)
    after = whole(after, "EquivariantLinear(out_channels=…)", low=1)
    where = "EquivariantAutoencoder(hidden=…)"
    return [
        tuple(before * v.source for v in decomposition.isotypics),
        *(tuple(whole(k, where) for k in space) for space in inner),
        tuple(after * v.target for v in decomposition.isotypics),
    ]
