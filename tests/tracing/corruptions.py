"""Ways to make a sound symmetry wrong, one at a time.

A corruption takes a symmetry and returns the wrong one with the names of the claims that it
touched; all others must survive refutation. Spaces are found by their group, not by their name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paramsym import ParameterSymmetry, Shift, Space
from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
)
from paramsym.structure.axes import Fixed, carried, parse_axis, spaces_of
from paramsym.structure.shift import Factor, Term, Window

Corrupted = tuple[ParameterSymmetry, set[str]]
Corruption = Callable[[ParameterSymmetry], Corrupted]


def space_with(symmetry: ParameterSymmetry, group: type[Group], at: int = 0) -> str:
    """The name of a space with a group of this class."""
    return [n for n, s in symmetry.spaces.items() if type(s.group) is group][at]


def with_axes(symmetry: ParameterSymmetry, tensor: str, *axes) -> ParameterSymmetry:
    """The symmetry with another type on one tensor."""
    return replace(symmetry, signature={**symmetry.signature, tensor: tuple(axes)})


# -- groups -----------------------------------------------------------------------------------


def grown(small: type[Group], make: Callable[[int], Group]) -> Corruption:
    """A larger group on one space."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        name = space_with(symmetry, small)
        space = symmetry.spaces[name]
        spaces = {**symmetry.spaces, name: replace(space, group=make(space.size))}
        return replace(symmetry, spaces=spaces), {name}

    return corrupt


def signed(size: int) -> Group:
    """Permutations with scalings of either sign."""
    return Monomial(size, signed=True)


# -- types ------------------------------------------------------------------------------------


def respelled(group: type[Group], old: str, new: str, at: int = 0) -> Corruption:
    """Another spelling of one space in one tensor that carries it; `@` stands for its name."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        name = space_with(symmetry, group)
        old_text, new_text = old.replace("@", name), new.replace("@", name)
        found = [
            (tensor, k)
            for tensor, axes in symmetry.signature.items()
            for k, axis in enumerate(axes)
            if str(axis) == old_text
        ]
        tensor, k = found[at]
        axes = list(symmetry.signature[tensor])
        axes[k] = parse_axis(new_text)
        return with_axes(symmetry, tensor, *axes), {name}

    return corrupt


def held(group: type[Group], at: int = 0) -> Corruption:
    """A tensor that should move with a space stands still."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        name = space_with(symmetry, group)
        tensors = [
            n for n, axes in symmetry.signature.items() for a in axes if name in spaces_of(a)
        ]
        tensor = tensors[at]
        touched = {space for axis in symmetry.signature[tensor] for space in spaces_of(axis)}
        return with_axes(symmetry, tensor, *map(Fixed, symmetry.shape(tensor))), touched

    return corrupt


def moving(tensor: str, axis: int, group: Callable[[int], Group] = Permutation) -> Corruption:
    """A new space acts on a fixed axis."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        axes = list(symmetry.signature[tensor])
        made = Space("made_up", group(symmetry.shape(tensor)[axis]))
        axes[axis] = carried("made_up")
        spaces = {**symmetry.spaces, "made_up": made}
        return with_axes(replace(symmetry, spaces=spaces), tensor, *axes), {"made_up"}

    return corrupt


def exchanged(tensor: str) -> Corruption:
    """The types of the two axes of one tensor change places."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        axes = symmetry.signature[tensor]
        touched = {space for axis in axes for space in spaces_of(axis)}
        return with_axes(symmetry, tensor, *reversed(axes)), touched

    return corrupt


def renamed(one: str, tensor: str, axis: int) -> Corruption:
    """One axis carries a space of its own instead of the one that it shares (untied)."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        axes = list(symmetry.signature[tensor])
        (name,) = set(spaces_of(axes[axis]))
        made = replace(symmetry.spaces[name], name=one)
        axes[axis] = parse_axis(str(axes[axis]).replace(name, one))
        spaces = {**symmetry.spaces, one: made}
        return with_axes(replace(symmetry, spaces=spaces), tensor, *axes), {name, one}

    return corrupt


def merged(group: type[Group], tensors: Callable[[str], bool] = lambda _: True) -> Corruption:
    """The first two spaces of a group become one, wherever they are carried."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        one, two = space_with(symmetry, group), space_with(symmetry, group, 1)
        signature = {
            n: tuple(parse_axis(_swap(str(a), two, one)) for a in axes) if tensors(n) else axes
            for n, axes in symmetry.signature.items()
        }
        return replace(symmetry, signature=signature), {one, two}

    return corrupt


def _swap(text: str, old: str, new: str) -> str:
    return " ".join(
        word.replace(old, new) if word.strip("()*").split("^")[0] == old else word
        for word in text.split(" ")
    )


# -- shifts, dead parameters and rows ---------------------------------------------------------


def _first(symmetry: ParameterSymmetry, terms: int, family: str = "") -> Shift:
    return next(s for s in symmetry.shifts if len(s.terms) >= terms and family in s.family)


def shifted(change: Callable[[Shift], Shift], terms: int = 2, family: str = "") -> Corruption:
    """Another motion along one shift."""

    def corrupt(symmetry: ParameterSymmetry) -> Corrupted:
        old = _first(symmetry, terms, family)
        shifts = tuple(change(s) if s is old else s for s in symmetry.shifts)
        return replace(symmetry, shifts=shifts), {old.name}

    return corrupt


def doubled(shift: Shift) -> Shift:
    """A wrong coefficient on the last term."""
    *rest, last = shift.terms
    return replace(shift, terms=(*rest, replace(last, coefficient=2 * last.coefficient)))


def flipped(shift: Shift) -> Shift:
    """The wrong sign on the first term."""
    first, *rest = shift.terms
    return replace(shift, terms=(replace(first, coefficient=-first.coefficient), *rest))


def shortened(shift: Shift) -> Shift:
    """A missing term."""
    return replace(shift, terms=shift.terms[:-1])


def unfactored(shift: Shift) -> Shift:
    """The wrong power of a coefficient that is read from the parameters."""

    def wrong(term: Term) -> Term:
        factors = tuple(replace(f, power=f.power + 1) for f in term.factors)
        return replace(term, factors=factors)

    return replace(shift, terms=tuple(map(wrong, shift.terms)))


def unkept(shift: Shift) -> Shift:
    """A direction that readers see: the projector onto their kernel is left out."""

    def plain(term: Term) -> Term:
        return replace(term, factors=tuple(f for f in term.factors if not f.kernel))

    return replace(shift, terms=tuple(map(plain, shift.terms)))


def first_order(symmetry: ParameterSymmetry) -> Corrupted:
    """GL(n) between two linear layers as a shift: exact to first order, wrong as a finite move."""
    rows, columns = symmetry.shape("0.weight")
    above = symmetry.shape("2.weight")[0]
    first = Window("0.weight", "ik", (rows, columns), (columns, 1))
    read = Window("0.weight", "jk", (rows, columns), (columns, 1))
    bias, bias_read = Window("0.bias", "i", (rows,), (1,)), Window("0.bias", "j", (rows,), (1,))
    second = Window("2.weight", "oj", (above, rows), (rows, 1))
    second_read = Window("2.weight", "oi", (above, rows), (rows, 1))
    made = Shift(
        "first_order", "to first order", "ij", (rows, rows),
        (Term(first, 1.0, (Factor(read),)), Term(bias, 1.0, (Factor(bias_read),)),
         Term(second, -1.0, (Factor(second_read),))),
    )  # fmt: skip
    return replace(symmetry, shifts=(*symmetry.shifts, made)), {"first_order"}


def dead(parameter: str) -> Corruption:
    """A parameter that the function depends on is called dead."""
    return lambda symmetry: (replace(symmetry, dead=(*symmetry.dead, parameter)), {parameter})


def unread(parameter: str, *rows: int) -> Corruption:
    """Rows of a table that are read are called unreached."""
    return lambda symmetry: (
        replace(symmetry, unreached={**symmetry.unreached, parameter: rows}),
        {parameter},
    )


CORRUPTIONS: dict[str, tuple[str, Corruption]] = {
    "ReLU units change sign": ("MLP, ReLU", grown(Monomial, signed)),
    "ReLU units rotate": ("MLP, ReLU", grown(Monomial, Orthogonal)),
    "ReLU units mix": ("MLP, ReLU", grown(Monomial, GeneralLinear)),
    "GELU units are scaled": ("MLP, GELU", grown(Permutation, Monomial)),
    "GELU units change sign": ("MLP, GELU", grown(Permutation, SignedPermutation)),
    "tanh units are scaled": ("MLP, tanh", grown(SignedPermutation, signed)),
    "radial units mix": ("MLP, radial", grown(Orthogonal, GeneralLinear)),
    "rotary pairs mix": ("Llama", grown(ComplexScaling, GeneralLinear)),
    "an RMS stream mixes": ("Llama", grown(Orthogonal, GeneralLinear)),
    "covariant where dual": ("MLP, ReLU", respelled(Monomial, "@*", "@")),
    "covariant where dual, bases": ("MLP, identity", respelled(GeneralLinear, "@*", "@")),
    "dual where covariant": ("MLP, identity", respelled(GeneralLinear, "@", "@*")),
    "dual where covariant, a bias": ("MLP, ReLU", respelled(Monomial, "@", "@*", at=1)),
    "a wrong power": ("MLP, ReLU", respelled(Monomial, "@", "@^2")),
    "the root is forgotten": ("MLP, squared ReLU", respelled(Monomial, "@^1/2", "@")),
    "the order alone": ("MLP, ReLU", respelled(Monomial, "@*", "@^0")),
    "a weight is held": ("MLP, ReLU", held(Monomial)),
    "a bias is held": ("MLP, tanh", held(SignedPermutation, at=1)),
    "a reader is held": ("MLP, GELU", held(Permutation, at=2)),
    "inputs move": ("MLP, ReLU", moving("0.weight", 1)),
    "outputs move": ("MLP, GELU", moving("4.bias", 0)),
    "inputs are scaled": ("MLP, tanh", moving("0.weight", 1, PositiveScaling)),
    "a vocabulary moves": ("GPT-2", moving("transformer.wte.weight", 0)),
    "kernels turn": ("convolutions", moving("stem.weight", 2)),
    "axes are exchanged": ("MLP, ReLU", exchanged("2.weight")),
    "axes of equal length are exchanged": ("square", exchanged("2.weight")),
    "a bias is untied": ("MLP, ReLU", renamed("own", "0.bias", 0)),
    "a reader is untied": ("MLP, GELU", renamed("own", "2.weight", 1)),
    "a reader of two units is untied": ("narrow", renamed("own", "2.weight", 1)),
    "two layers are tied in one of them": (
        "square", merged(Monomial, lambda name: name == "2.bias")
    ),
    "two bases are tied in one tensor": (
        "MultiheadAttention", merged(GeneralLinear, lambda name: name == "out_proj.weight")
    ),
    "a gain is scaled against nothing": ("Llama", held(Scaling, at=0)),
    "a shift with a wrong coefficient": ("GPT-2", shifted(doubled)),
    "a shift with a wrong sign": ("MLP, identity", shifted(flipped)),
    "a shift without its partner": ("LSTM", shifted(shortened)),
    "a slide without its partner": ("convolutions", shifted(shortened)),
    "a shift with a wrong factor": ("GPT-2", shifted(unfactored, 2, "slides")),
    "a direction that readers see": ("MLP, identity", shifted(unkept, 1, "no reader of it")),
    "exact to first order only": ("MLP, identity", first_order),
    "a live bias is dead": ("MLP, ReLU", dead("2.bias")),
    "a read row is unreached": ("GPT-2", unread("transformer.wpe.weight", 0, 8)),
}  # fmt: skip
