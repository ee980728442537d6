"""Equivariant autoencoders whose weights are the free parameters of one component."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .blocks import Multiplicities, join_rows, split_rows
from .component import Component
from .division import Real
from .layers import EquivariantLinear, _decomposition, dense, load_blocks
from .network import BlockNetwork
from .orthogonal import OrthogonalGroup

Activation = str | Callable[[Tensor], Tensor] | None


class EquivariantAutoencoder(nn.Module):
    r"""An autoencoder ℝⁿ → ℝʳ → ℝⁿ that commutes with a group by construction.

    Without hidden layers and activation its functions are exactly one component, and its weights
    the Σ δ_i r_i (d_i + e_i) free parameters. The code is a point of ⊕ V_i^{r_i}, on which the
    group acts by `component.latent_action`.

    Args:
        group: the group on ℝⁿ (or one permutation, or a `Decomposition`).
        component: the ranks r_i of the bottleneck.
        hidden: spaces between input and bottleneck, mirrored in the decoder: a number k for k
            copies of ℝⁿ, or the multiplicities of each block.
        activation: None for a linear network; "norm" for learned gates on the norm of each copy of
            each irreducible in every hidden space; a function of one number (such as torch.relu)
            to be applied to the k copies of ℝⁿ of every hidden space.
        dtype: of weights and bases; default torch's.
        generator: of the initial weights.
        form: of the change of basis: "product", "separable" (axis by axis, where an orbit is a
            grid), "fourier" (by FFTs, on a grid); default the cheapest by measured cost. All are
            the same function to rounding, with the same weights.

    Raises:
        ValueError: the component is of another group, no form has this name, or a pointwise
            activation meets a hidden space that is not a number of copies of ℝⁿ, or a group that
            does not only permute coordinates.
        ShapeMismatchError: (when called) x does not end in n.

    Source: arXiv:2309.13736; several layers and nonlinearities are its outlook.
    """

    def __init__(
        self,
        group: Any,
        component: Component,
        *,
        hidden: Sequence[int | Sequence[int]] = (),
        activation: Activation = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        form: str | None = None,
    ) -> None:
        super().__init__()
        self.decomposition = _decomposition(group, None, component)
        self.component = component
        if not (activation is None or activation == "norm" or callable(activation)):
            raise ValueError(
                f"EquivariantAutoencoder(activation={activation!r}): expected None, 'norm', or a "
                "function of one number such as torch.relu. Pass one of the three."
            )
        pointwise = activation if callable(activation) else None
        self.activation = pointwise
        self.before = nn.ModuleList()
        self.after = nn.ModuleList()
        options: dict[str, Any] = {"dtype": dtype, "generator": generator, "form": form}
        inner: list[Multiplicities] = []
        edge = 1
        if pointwise is not None:
            channels = [1, *(self._channels(k) for k in hidden)]
            for a, b in pairwise(channels):
                self.before.append(self._pixels(a, b, options))
            for a, b in pairwise(reversed(channels)):
                self.after.append(self._pixels(a, b, options))
            edge = channels[-1]
        else:
            inner = [self._multiplicities(space) for space in hidden]
        self.core = BlockNetwork(
            self.decomposition,
            [*inner, component.ranks, *reversed(inner)],
            in_channels=edge,
            out_channels=edge,
            gates=activation == "norm",
            latent=len(inner),
            **options,
        )
        self._depth = len(inner) + 1
        coordinates, rows = self._latent_order()
        self.register_buffer("_coordinates", torch.as_tensor(coordinates), persistent=False)
        self.register_buffer("_rows", torch.as_tensor(rows), persistent=False)
        self._coordinates: Tensor
        self._rows: Tensor

    def _pixels(self, a: int, b: int, options: dict[str, Any]) -> EquivariantLinear:
        return EquivariantLinear(
            self.decomposition, in_channels=a, out_channels=b, bias=True, **options
        )

    def _channels(self, space: int | Sequence[int]) -> int:
        group = self.decomposition.group
        matrices = group.generators if isinstance(group, OrthogonalGroup) else ()
        if not all(np.isin(matrix, (0, 1)).all() for matrix in matrices):
            raise ValueError(
                f"EquivariantAutoencoder(activation={self.activation}): {group} mixes coordinates "
                "or changes their signs, and a function of one number does not commute with that; "
                "expected a group that permutes them. Pass activation='norm'."
            )
        if isinstance(space, int):
            return space
        raise ValueError(
            f"EquivariantAutoencoder(hidden={space!r}): a pointwise activation needs coordinates "
            "that the group permutes; expected a number of copies of the input. Pass an integer, "
            "or activation='norm'."
        )

    def _multiplicities(self, space: int | Sequence[int]) -> Multiplicities:
        if isinstance(space, int):
            return tuple(space * v.source for v in self.decomposition.isotypics)
        if len(space) != len(self.decomposition.isotypics):
            raise ValueError(
                f"EquivariantAutoencoder(hidden={tuple(space)}): {len(space)} multiplicities, but "
                f"the group has {len(self.decomposition.isotypics)} blocks. Give one for each."
            )
        return tuple(space)

    def _latent_order(self) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates of `Component.encoder` that are carried, and their rows of the value.

        A hidden space without a block carries none of its coordinates; padding is other rows.
        """
        isotypics, ranks = self.decomposition.isotypics, self.component.ranks
        widths = [v.dimension * r for v, r in zip(isotypics, ranks, strict=True)]
        starts = np.concatenate([[0], np.cumsum(widths)])
        coordinates, rows = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        row = 0
        for b in self.core.bundles:
            for i in b.blocks:
                grid = starts[i] + np.arange(widths[i])
                coordinates.append(grid.reshape(b.slices, -1).T.ravel())
                rows.append(row + np.arange(widths[i]))
                row += b.copies[self._depth] * b.size * b.slices
        self._height = row
        return np.concatenate(coordinates), np.concatenate(rows)

    def encode(self, x: Tensor) -> Tensor:
        """The code (…, r) of samples (…, n), in the coordinates of `Component.encoder`."""
        values, lead = self.core.analyse(self._to_core(x))
        values = self.core.run(values, 0, self._depth)
        if not values:
            return x.new_zeros(*lead, self.component.rank)
        rows = join_rows(values, self.core.bundles, self._depth)
        code = rows.new_zeros(self.component.rank, rows.shape[1])
        code = code.index_copy(0, self._coordinates, rows.index_select(0, self._rows))
        return code.T.reshape(*lead, self.component.rank)

    def decode(self, code: Tensor) -> Tensor:
        """Samples (…, n) from codes (…, r)."""
        lead = code.shape[:-1]
        columns = code.reshape(prod(lead), self.component.rank).T
        carried = columns.index_select(0, self._coordinates)
        rows = code.new_zeros(self._height, columns.shape[1]).index_copy(0, self._rows, carried)
        values = split_rows(rows, self.core.bundles, self._depth) if self.core.bundles else []
        values = self.core.run(values, self._depth, len(self.core.layers))
        return self._from_core(self.core.synthesise(values, lead))

    def forward(self, x: Tensor) -> Tensor:
        """Reconstructions (…, n) of samples (…, n)."""
        return self._from_core(self.core(self._to_core(x)))

    def _to_core(self, x: Tensor) -> Tensor:
        for layer in self.before:
            assert self.activation is not None
            x = self.activation(layer(x))
        return x

    def _from_core(self, y: Tensor) -> Tensor:
        for layer in self.after:
            assert self.activation is not None
            y = layer(self.activation(y))
        return y

    @property
    def parameter_count(self) -> int:
        """The number of weights."""
        return sum(p.numel() for p in self.parameters())

    @torch.no_grad()
    def load_blocks(self, blocks: Sequence[Real]) -> None:
        """Sets a linear network without hidden layers to the nearest one with blocks A_i.

        `component.decomposition.blocks(M)` gives the blocks of a matrix.

        Args:
            blocks: A_i (e_i × d_i × δ_i).

        Raises:
            ValueError: the network has hidden layers.
        """
        if len(self.core.layers) != 2 or len(self.before):
            raise ValueError(
                "EquivariantAutoencoder.load_blocks: the network has hidden layers, so a matrix "
                "does not determine its weights; expected hidden=(). Build it without them."
            )
        load_blocks(self.core, list(blocks))

    @torch.no_grad()
    def matrix(self) -> Tensor:
        """The dense matrix (n × n) of a linear network, for inspection.

        Raises:
            ValueError: the network is not linear.
        """
        linear = self.activation is None and not any(
            len(list(gate.parameters())) for gate in self.core.gates
        )
        if not linear:
            raise ValueError(
                "EquivariantAutoencoder.matrix: the network has an activation; expected a linear "
                "one. Call it on samples instead."
            )
        return dense(self.core)
