r"""Equivariant maps between orthogonal representations, through any number of inner spaces.

    x  ──Qᵀ──▸  ⊕ V_i^{d_i}  ──A──▸  ⊕ V_i^{k_i}  ── gate ──▸ …  ──A──▸  ⊕ V_i^{e_i}  ──Q──▸  y

Every inner space is a list of multiplicities; blocks that vanish anywhere along the way are dropped
before anything is computed.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from .adapted import AdaptedBasis, columns_of_blocks
from .arguments import whole
from .blocks import BlockLinear, Bundle, Multiplicities, bundle
from .decomposition import Decomposition
from .errors import ShapeMismatchError
from .nonlinearities import NormGate
from .padding import pad


class BlockNetwork(nn.Module):
    """Block-diagonal layers between two orthogonal representations with channels.

    Args:
        decomposition: source (n) and target (m) representation.
        inner: multiplicities of each inner space.
        in_channels: copies of the source representation.
        out_channels: copies of the target representation.
        gates: whether a `NormGate` follows each inner space.
        latent: the number of an inner space (from 0) without a gate.
        dtype: of weights and bases.
        generator: of the initial weights.
        form: of the change of basis (see `forms.choice`); default the cheapest.
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
        form: str | None = None,
    ) -> None:
        super().__init__()
        dtype = dtype or torch.get_default_dtype()
        isotypics = decomposition.isotypics
        spaces = _spaces(decomposition, inner, in_channels, out_channels)
        self.decomposition = decomposition
        self.channels = (in_channels, out_channels)
        self.spaces = spaces
        # Weights are kept by equal shapes, whatever is multiplied together.
        self.stored: tuple[Bundle, ...] = bundle(isotypics, spaces)
        self.bundles, bases = _bases(decomposition, self.stored, dtype, form)
        self.source = bases[0]
        # One module under two names would be saved twice; the second name is kept out of modules.
        self._target = [bases[-1]]
        if len(bases) > 1:
            self.target = bases[-1]
        # Remembers dtype and device where there is no weight.
        self.register_buffer("nothing", torch.zeros(0, dtype=dtype), persistent=False)
        self.nothing: Tensor
        self.layers = nn.ModuleList(
            BlockLinear(self.stored, self.bundles, step, dtype, generator)
            for step in range(len(spaces) - 1)
        )
        self.gates = nn.ModuleList(
            NormGate(self.stored, self.bundles, space, dtype)
            if gates and space - 1 != latent
            else nn.Identity()
            for space in range(1, len(spaces) - 1)
        )

    def analyse(self, x: Tensor) -> tuple[list[Tensor], torch.Size]:
        """Samples (…, n), or (…, channels, n), as the values of space 0; and the leading shape."""
        channels, n = self.channels[0], self.decomposition.shape[1]
        tail = (n,) if channels == 1 else (channels, n)
        if tuple(x.shape[-len(tail) :]) != tail:
            raise ShapeMismatchError("equivariant layer (input)", x.shape, ("…", *tail))
        lead = x.shape[: x.dim() - len(tail)]
        if _lowered(x):  # the bases are orthogonal in their own dtype alone
            with torch.autocast(x.device.type, enabled=False):
                return self.analyse(x.to(self.nothing.dtype))
        return self.source.analyse(x.reshape(prod(lead), channels, n)), lead

    def synthesise(self, values: list[Tensor], lead: torch.Size) -> Tensor:
        """The values of the last space as samples (…, m), or (…, channels, m)."""
        channels, m = self.channels[1], self.decomposition.shape[0]
        tail = (m,) if channels == 1 else (channels, m)
        if not values:  # a component of rank 0
            return self.nothing.new_zeros(*lead, *tail)
        if _lowered(values[0]):
            with torch.autocast(values[0].device.type, enabled=False):
                return self.synthesise([value.to(self.nothing.dtype) for value in values], lead)
        return self._target[0].synthesise(values, channels).reshape(*lead, *tail)

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


def _lowered(x: Tensor) -> bool:
    """Whether autocast would round the products of this tensor; not every device has it."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


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


def _bases(
    decomposition: Decomposition,
    stored: Sequence[Bundle],
    dtype: torch.dtype,
    form: str | None,
) -> tuple[list[Bundle], list[AdaptedBasis]]:
    """The bundles of the products, and the bases: the source's, and the target's if it differs."""
    isotypics = decomposition.isotypics
    ends = [(decomposition.source_classes, [v.source for v in isotypics])]
    if decomposition.target_classes is not decomposition.source_classes:
        ends.append((decomposition.target_classes, [v.target for v in isotypics]))
    columns = [columns_of_blocks(classes, isotypics, d) for classes, d in ends]
    keys = [tuple(len(c) for side in columns for c in side[i]) for i in range(len(isotypics))]
    bundles = pad(stored, keys)
    return bundles, [
        AdaptedBasis(classes, side, bundles, dtype, form)
        for (classes, _), side in zip(ends, columns, strict=True)
    ]
