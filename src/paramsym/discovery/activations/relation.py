"""One relation f(αz + β) = a·f(z) + b·z + c, and one-parameter groups of them.

The maps A(z) = αz + β for which f∘A lies in the span of f, z and 1 form a group, on which
(A) ↦ a is a homomorphism unless f is affine. On (f, z, 1) a relation acts by the matrix

    [[a, b, c], [0, α, β], [0, 0, 1]],

so that relations are composed and inverted as matrices, and a one-parameter group is exp(tM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .numbers import combination, raised, spelled


@dataclass(frozen=True)
class Relation:
    """f(αz + β) = a·f(z) + b·z + c on the domain of f.

    Attributes:
        alpha, beta: of the map of arguments.
        a, b, c: of the map of values.
        residual: the largest difference of both sides on fresh points, near and far, relative to
            the numbers that enter it (infinite where nothing was measured).
    """

    alpha: float
    beta: float
    a: float
    b: float = 0.0
    c: float = 0.0
    residual: float = math.inf

    @property
    def matrix(self) -> Tensor:
        """The action on (f, z, 1)."""
        rows = [[self.a, self.b, self.c], [0.0, self.alpha, self.beta], [0.0, 0.0, 1.0]]
        return torch.tensor(rows, dtype=torch.float64)

    @classmethod
    def of(cls, matrix: Tensor, residual: float = math.inf) -> Relation:
        """The relation with a matrix."""
        (a, b, c), (_, alpha, beta), _ = matrix.tolist()
        return cls(alpha, beta, a, b, c, residual)

    def __matmul__(self, other: Relation) -> Relation:
        """The relation of A₁∘A₂: arguments are mapped by `other` first."""
        # f(A₁A₂z) = a₁ f(A₂z) + b₁ A₂z + c₁, so that the matrices multiply in this order
        return Relation.of(self.matrix @ other.matrix, self.residual + other.residual)

    def __invert__(self) -> Relation:
        """The relation of A⁻¹."""
        return Relation.of(torch.linalg.inv(self.matrix), self.residual)

    @property
    def centre(self) -> float | None:
        """The fixed point of αz + β; none for a shift."""
        return None if self.alpha == 1 else self.beta / (1 - self.alpha)

    @property
    def name(self) -> str:
        """What the relation is called: odd, even, reflection, period, …"""
        pure = self.b == 0 and self.c == 0
        if self.alpha == -1:
            if self.beta == 0 and pure and abs(self.a) == 1:
                return "odd" if self.a == -1 else "even"
            return "reflection"
        if self.alpha == 1:
            if not pure or abs(self.a) != 1:
                return "shift"
            return "period" if self.a == 1 else "half period"
        return "scaling"

    @property
    def needs(self) -> tuple[str, ...]:
        """What a layer must have besides V and U for the relation to lift to it."""
        found = []
        if self.beta:
            found.append("writer bias")
        if self.c or self.b:
            found.append("reader bias")
        if self.b:
            found.append("skip")
        return tuple(found)

    @property
    def lifts(self) -> str:
        """When the relation moves the weights of a layer U f(Vx + v) + o and keeps its function."""
        if not self.a:
            return "to no layer: f(αz + β) does not depend on f(z)"
        moves = [_moved("V", self.alpha)] if self.alpha != 1 else []
        if self.alpha != 1 or self.beta:
            moves.append("v → " + combination([(self.alpha, "v"), (self.beta, "")]))
        moves += [_moved("U", 1 / self.a)] if self.a != 1 else []
        if not self.needs:
            return "to any hidden layer: " + ", ".join(moves)
        if self.needs and (self.c or self.b):
            terms = [(1.0, "o"), (-self.c / self.a, "U"), (-self.b / self.a, "Uv")]
            moves.append("o → " + combination(terms))
        if self.b:
            moves.append("W → " + combination([(1.0, "W"), (-self.b / self.a, "UV")]))
        words = {
            "writer bias": "v of the writers",
            "reader bias": "o of the readers",
            "skip": "a linear path W from the layer's input to its output",
        }
        return (
            "where there is "
            + " and ".join(words[n] for n in self.needs)
            + (": " + ", ".join(moves))
        )

    def __str__(self) -> str:
        argument = combination([(self.alpha, "z"), (self.beta, "")], positive_first=True)
        value = combination([(self.a, "f(z)"), (self.b, "z"), (self.c, "")])
        return f"f({argument}) = {value}"

    def times(self, unit: float) -> Relation:
        """The relation of unit·f: b and c carry the unit of f."""
        return replace(self, b=self.b * unit, c=self.c * unit)

    def measured(self, residual: float) -> Relation:
        """The same relation with its residual."""
        return replace(self, residual=residual)


@dataclass(frozen=True)
class Family:
    """A one-parameter group of relations: X f = degree·f + μ·z + ν for X = (κz + τ) d/dz.

    Attributes:
        kappa, tau: of the vector field; (1, −p) scales about p, (0, 1) shifts.
        degree: the exponent of f, (z − p) f' = degree·f + …, or the rate, f' = degree·f + ….
        mu, nu: of the affine part.
        residual: the largest of several elements, as for a relation.
    """

    kappa: float
    tau: float
    degree: float
    mu: float = 0.0
    nu: float = 0.0
    residual: float = math.inf

    @property
    def generator(self) -> Tensor:
        """M with (f, z, 1)∘A_t = exp(tM)(f, z, 1)."""
        rows = [[self.degree, self.mu, self.nu], [0.0, self.kappa, self.tau], [0.0, 0.0, 0.0]]
        return torch.tensor(rows, dtype=torch.float64)

    def at(self, t: float) -> Relation:
        """The relation at parameter t: s = e^t for scalings, the distance for shifts."""
        return Relation.of(torch.linalg.matrix_exp(t * self.generator), self.residual)

    def times(self, unit: float) -> Family:
        """The family of unit·f: μ and ν carry the unit of f."""
        return replace(self, mu=self.mu * unit, nu=self.nu * unit)

    @property
    def is_shift(self) -> bool:
        return self.kappa == 0

    @property
    def centre(self) -> float | None:
        """What a scaling holds fixed."""
        return None if self.is_shift else -self.tau / self.kappa

    @property
    def lifts(self) -> str:
        """As for a relation, of a generic element."""
        return self.at(0.5).lifts.split(":")[0]

    def __str__(self) -> str:
        return self._shift() if self.is_shift else self._scaling()

    def _scaling(self) -> str:
        """With u = z − p: f(p + su) = s^d f + μ u (s − s^d)/(1 − d) + (ν + μp)(s^d − 1)/d."""
        p, d = self.centre or 0.0, self.degree
        mu, nu = self.mu, self.nu + self.mu * p
        power = "1" if d == 0 else "s" if d == 1 else f"s^{raised(d)}"
        inner = f"(z {_signed(-p, '')})" if p else "z"
        argument = f"{spelled(p)} + s·{inner}" if p else "s·z"
        value = "f(z)" if d == 0 else f"{power}·f(z)"
        if mu:
            factor = f"s·log(s)·{inner}" if d == 1 else f"(s − {power})·{inner}"
            value += " " + _signed(mu if d == 1 else mu / (1 - d), factor)
        if nu:
            value += " " + (_signed(nu, "log(s)") if d == 0 else _signed(nu / d, f"({power} − 1)"))
        return f"f({argument}) = {value} for s > 0"

    def _shift(self) -> str:
        """(f, z, 1) at z + t: exponentials in t for a rate d ≠ 0, polynomials for d = 0."""
        d, mu, nu = self.degree, self.mu, self.nu
        if d:
            rate = combination([(d, "t")])
            power = f"e^{rate}" if len(rate) == 1 else f"e^({rate})"
            parts = [(-mu / d, "t"), ((nu + mu / d) / d, f"({power} − 1)")]
            parts.append((mu / d, f"({power} − 1)·z"))
            value = f"{power}·f(z)"
        else:
            value = "f(z)"
            parts = [(mu, "t·z"), (mu / 2, "t²"), (nu, "t")]
        value += "".join(f" {_signed(c, unit)}" for c, unit in parts if c)
        return f"f(z + t) = {value} for all t"


def _moved(name: str, factor: float) -> str:
    return f"{name} → {combination([(factor, name)])}"


def _signed(value: float, unit: str) -> str:
    """A term with its sign in front, as it is appended to a sum."""
    sign = "−" if value < 0 else "+"
    return f"{sign} {combination([(abs(value), unit)])}"
