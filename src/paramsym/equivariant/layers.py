"""Linear layers whose weights are the free parameters only."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .arguments import whole
from .component import Component
from .decomposition import Decomposition, decompose
from .division import Real, adjoint, svd
from .errors import ShapeMismatchError
from .groups import PermutationGroup, as_group
from .invariance import InvariantVariety
from .network import BlockNetwork


def _decomposition(group: Any, target: Any, component: Component | None) -> Decomposition:
    """The decomposition of a layer; a component brings its own and must belong to the group."""
    if isinstance(group, Decomposition):
        found = group
    else:
        found = decompose(group, target)
    if component is not None and component.decomposition != found:
        theirs = component.decomposition
        raise ValueError(
            f"the component belongs to {theirs.group} -> {theirs.target_group}, but the layer is "
            f"for {found.group} -> {found.target_group}; expected the same group. Take it from "
            "components(group, rank) with the layer's own group."
        )
    return found


def _balanced(block: Real, rank: int) -> tuple[Real, Real]:
    left, values, right = svd(block)
    root = np.sqrt(values[:rank])[:, None]
    return left[:, :rank] * root, adjoint(right[:, :rank] * root)


class EquivariantLinear(nn.Module):
    r"""A linear map ℝⁿ → ℝᵐ that commutes with a group: y(P_σ x) = P_σ y(x).

    Weights are the blocks A_i over ℝ, ℂ, ℍ (Σ δ_i d_i e_i numbers), or with a component their
    factors (Σ δ_i r_i (d_i + e_i) numbers), and one bias for each invariant of the target. The
    n × m matrix is never formed.

    Args:
        group: the group on the source ℝⁿ (or one permutation, or a `Decomposition`).
        target: the action of the same generators on ℝᵐ; default the source action.
        component: bounds the ranks of the blocks; needs one channel on both sides.
        bias: whether to add an invariant bias.
        in_channels: copies of the source; with more than one, x has shape (…, channels, n).
        out_channels: copies of the target.
        dtype: of weights and bases; default torch's.
        generator: of the initial weights.
        form: of the change of basis: "product", "separable" (axis by axis, where an orbit is a
            grid), "fourier" (by FFTs, on a grid); default the cheapest by measured cost. All are
            the same function to rounding.

    Raises:
        ValueError: the component is of another group, or no form has this name.
        ShapeMismatchError: (when called) x does not end in n, or in (channels, n).

    Source: arXiv:2309.13736 for cyclic groups.
    """

    def __init__(
        self,
        group: Any,
        target: Any = None,
        *,
        component: Component | None = None,
        bias: bool = False,
        in_channels: int = 1,
        out_channels: int = 1,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        form: str | None = None,
    ) -> None:
        super().__init__()
        self.decomposition = _decomposition(group, target, component)
        self.component = component
        self.network = BlockNetwork(
            self.decomposition,
            () if component is None else (component.ranks,),
            in_channels=in_channels,
            out_channels=out_channels,
            dtype=dtype,
            generator=generator,
            form=form,
        )
        self.bias: nn.Parameter | None = None
        if bias:
            fixed = self.decomposition.invariants
            shape = (len(fixed),) if out_channels == 1 else (out_channels, len(fixed))
            self.bias = nn.Parameter(torch.zeros(shape, dtype=dtype))
            like = torch.as_tensor(fixed, dtype=self.bias.dtype)
            self.register_buffer("fixed", like, persistent=False)
            self.fixed: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """y (…, m) or (…, channels, m) from x (…, n) or (…, channels, n)."""
        y = self.network(x)
        return y if self.bias is None else y + self.bias @ self.fixed

    @torch.no_grad()
    def load_matrix(self, matrix: Any) -> None:
        """Sets the weights so that the layer is the nearest one to a matrix (m × n).

        Raises:
            ValueError: the layer has several channels.
            ShapeMismatchError: another shape.
        """
        if self.network.channels != (1, 1):
            raise ValueError(
                f"EquivariantLinear.load_matrix: the layer has channels {self.network.channels}; "
                "expected one on both sides. Set the weights of network.layers instead."
            )
        load_blocks(self.network, self.decomposition.blocks(matrix))

    @torch.no_grad()
    def matrix(self) -> Tensor:
        """The dense matrix (m × n) of the linear part, for inspection; one channel only."""
        return dense(self.network)


def dense(network: BlockNetwork) -> Tensor:
    """The matrix (m × n) of a linear network, from its action on the unit vectors."""
    n = network.decomposition.shape[1]
    like = network.nothing
    return network(torch.eye(n, dtype=like.dtype, device=like.device)).T


def load_blocks(network: BlockNetwork, blocks: list[Real]) -> None:
    """Sets a network of one or two block layers to given blocks A_i (e_i × d_i × δ_i)."""
    columns = zip(*(layer.weights for layer in network.layers), strict=True)
    for b, weights in zip(network.stored, columns, strict=True):
        for row, i in enumerate(b.blocks):
            if len(weights) == 1:
                factors: tuple[Real, ...] = (blocks[i],)
            else:
                decoder, encoder = _balanced(blocks[i], b.copies[1])
                factors = (encoder, decoder)
            for weight, factor in zip(weights, factors, strict=True):
                weight[row] = torch.as_tensor(factor, dtype=weight.dtype)


class InvariantLinear(nn.Module):
    r"""A linear map ℝⁿ → ℝᵐ with y(P_σ x) = y(x): sums over orbits, then k weights for each output.

    Args:
        group: the group on ℝⁿ, with k orbits.
        out_features: m.
        rank: bounds the rank by a factorisation m × r, r × k; default none.
        bias: whether to add a bias.
        dtype: of the weights; default torch's.
        generator: of the initial weights.

    Raises:
        RankTooLargeError: rank > min(m, n).
        ShapeMismatchError: (when called) x does not end in n.

    Source: arXiv:2309.13736, the encoder with weight sharing along cycles.
    """

    def __init__(
        self,
        group: Any,
        out_features: int,
        *,
        rank: int | None = None,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.group: PermutationGroup = as_group(group)
        orbits = self.group.orbits
        out_features = whole(out_features, "InvariantLinear(out_features=…)")
        largest = min(out_features, self.group.degree)
        variety = InvariantVariety(self.group, out_features, largest if rank is None else rank)
        inner = len(orbits) if rank is None else variety.effective_rank

        def normal(*shape: int) -> nn.Parameter:
            weight = torch.randn(shape, dtype=dtype, generator=generator)
            return nn.Parameter(weight / max(shape[1], 1) ** 0.5)

        self.encoder = None if rank is None else normal(inner, len(orbits))
        self.decoder = normal(out_features, inner)
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype)) if bias else None
        order = np.concatenate([np.array(orbit) for orbit in orbits])
        ends = np.cumsum([len(orbit) for orbit in orbits])
        number = np.repeat(np.arange(len(orbits)), np.diff(ends, prepend=0))
        self.register_buffer("orbit", torch.as_tensor(number[np.argsort(order)]), persistent=False)
        self.orbit: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """y (…, m) from x (…, n)."""
        if x.shape[-1:] != (self.group.degree,):
            expected = ("…", self.group.degree)
            raise ShapeMismatchError("InvariantLinear(input)", x.shape, expected)
        pooled = x.new_zeros(*x.shape[:-1], len(self.group.orbits)).index_add(-1, self.orbit, x)
        if self.encoder is not None:
            pooled = pooled @ self.encoder.T
        return nn.functional.linear(pooled, self.decoder, self.bias)

    @torch.no_grad()
    def matrix(self) -> Tensor:
        """The invariant matrix M = ψ(M)·E (m × n)."""
        folded = self.decoder if self.encoder is None else self.decoder @ self.encoder
        return folded[:, self.orbit]
