"""Index types: how the entries along one axis of a tensor are counted.

An axis of length n is counted by a *leaf* (n indistinguishable units), by a *product* (row-major
pairs: heads and their coordinates), or by a *sum* (concatenation: queries, keys and values).
Reading an axis in a new way *refines* its type in place, for every tensor that shares it, and
`unify` makes two axes count the same thing. Where two readings contradict each other the units
can no longer be exchanged: both sides are frozen. The tensors whose axes these are go on being read
in two ways; they are *torn*, and `paramsym.lowering.held` sees to it that nothing else changes them
either.

Invariant: positions of two axes that were unified, or cut out of one another, belong to the same
free units.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

_SERIALS = itertools.count()


class Node:
    """A mutable index type; `resolve` follows refinements and unifications."""

    __slots__ = ("bound", "frozen", "kind", "parts", "serial", "size")

    def __init__(self, kind: str, size: int, parts: tuple[Node, ...] = (), frozen: str = ""):
        self.kind = kind  # "leaf", "product" or "sum"
        self.size = size
        self.parts = parts
        self.bound: Node | None = None
        self.frozen = frozen  # why the order of a leaf is fixed; empty while it is free
        self.serial = next(_SERIALS)  # an order that does not depend on memory addresses

    def __repr__(self) -> str:
        node = resolve(self)
        if node.kind == "leaf":
            return f"{node.size}" + ("!" if node.frozen else "")
        return "(" + (" " if node.kind == "product" else "+").join(map(repr, node.parts)) + ")"


def leaf(size: int, frozen: str = "") -> Node:
    """`size` units in a free order, or in a frozen one for the given reason."""
    return UNIT if size == 1 else Node("leaf", size, frozen=frozen)


UNIT = Node("product", 1)


def resolve(node: Node) -> Node:
    """The node that currently describes this axis."""
    root = node
    while root.bound is not None:
        root = root.bound
    while node.bound is not None:  # path compression
        node.bound, node = root, node.bound
    return root


def factors(node: Node) -> list[Node]:
    """The factors of an axis, outermost first; units of size one are left out."""
    node = resolve(node)
    if node.kind != "product":
        return [node]
    return [inner for part in node.parts for inner in factors(part)]


def terms(node: Node) -> list[Node]:
    """The summands of an axis in order."""
    node = resolve(node)
    if node.kind != "sum":
        return [node]
    return [inner for part in node.parts for inner in terms(part)]


def summands(node: Node) -> list[Node]:
    """The summands of an axis in order, where a sum at the head of a product is distributed."""
    node = resolve(node)
    if node.kind == "sum":
        return [inner for part in node.parts for inner in summands(part)]
    head, *rest = factors(node) or [node]
    if not rest or head.kind != "sum":
        return [node]
    return [inner for term in terms(head) for inner in summands(product([term, *rest]))]


def product(parts: Sequence[Node]) -> Node:
    """Row-major product."""
    flat = [inner for part in parts for inner in factors(part)]
    if len(flat) == 1:
        return flat[0]
    return Node("product", math.prod(p.size for p in flat), tuple(flat)) if flat else UNIT


def direct_sum(parts: Sequence[Node]) -> Node:
    """Concatenation."""
    parts = [p for p in parts if p.size]
    if len(parts) == 1:
        return parts[0]
    return Node("sum", sum(p.size for p in parts), tuple(parts))


def leaves(node: Node) -> Iterator[Node]:
    """Every leaf below a node, with repetition."""
    node = resolve(node)
    if node.kind == "leaf":
        yield node
    for part in node.parts:
        yield from leaves(part)


def freeze(node: Node, reason: str) -> None:
    """Fix the order of every unit below; the first reason stays."""
    for item in leaves(node):
        item.frozen = item.frozen or reason


def is_frozen(node: Node) -> bool:
    """Whether the order of every unit below is fixed."""
    return all(leaf.frozen for leaf in leaves(node))


def _bind(node: Node, target: Node) -> None:
    """Let a leaf be described by another node, which inherits that its order is frozen."""
    target = resolve(target)
    if node is target:
        return
    if any(item is node for item in leaves(target)):  # a part cannot be its own whole
        freeze(target, "the axis is read as a part of itself")
        return
    if node.frozen:
        freeze(target, node.frozen)
    node.bound = target


def split_product(node: Node, sizes: Sequence[int], reason: str) -> list[Node]:
    """Read an axis as a row-major product of the given sizes and return the factors."""
    node = resolve(node)
    if len(sizes) == 1:
        return [node]
    if node.kind == "leaf":
        parts = [leaf(size) for size in sizes]
        _bind(node, product(parts))
        return parts
    if node.kind == "sum":
        return _split_sum_by_product(node, sizes, reason)
    result: list[Node] = []
    rest = factors(node)
    for size in sizes:  # collect factors from the outside until the size is met
        taken: list[Node] = []
        got = 1
        while got < size:
            head = rest.pop(0)
            need = size // got
            if size % got == 0 and head.size > need and head.size % need == 0:
                head, tail = split_product(head, [need, head.size // need], reason)
                rest = factors(tail) + rest
            if size % (got * head.size):
                return _scramble(node, sizes, reason)
            taken.append(head)
            got *= head.size
        result.append(product(taken))
    return result


def _split_sum_by_product(node: Node, sizes: Sequence[int], reason: str) -> list[Node]:
    """Read a sum of equal pieces as copies of one piece: a product with a sum of single units.

    The copies are told apart (each is a block of its own, as it was when it was written), and
    what is inside of them is the same.
    """
    if 1 in sizes:
        found = iter(split_product(node, [size for size in sizes if size > 1], reason))
        return [UNIT if size == 1 else next(found) for size in sizes]
    outer, inner = sizes[0], math.prod(sizes[1:])
    pieces = split_sum(node, [inner] * outer, reason)
    for other in pieces[1:]:
        unify(pieces[0], other, reason)
    copies = Node("sum", outer, (UNIT,) * outer)
    return [copies, *split_product(pieces[0], sizes[1:], reason)]


def split_sum(node: Node, sizes: Sequence[int], reason: str) -> list[Node]:
    """Read an axis as a concatenation of pieces of the given sizes and return the pieces."""
    node = resolve(node)
    sizes = [size for size in sizes if size]
    if len(sizes) == 1:
        return [node]
    if node.kind == "leaf":
        parts = [leaf(size) for size in sizes]
        _bind(node, direct_sum(parts))
        return parts
    if node.kind == "product":
        head, *rest = factors(node)
        inner = node.size // head.size
        if any(size % inner for size in sizes):
            return _scramble(node, sizes, reason)
        return [
            product([piece, *rest])
            for piece in split_sum(head, [size // inner for size in sizes], reason)
        ]
    result: list[Node] = []
    rest = terms(node)
    for size in sizes:
        taken: list[Node] = []
        got = 0
        while got < size:
            head = rest.pop(0)
            if head.size > size - got:
                head, tail = split_sum(head, [size - got, head.size - size + got], reason)
                rest = [*terms(tail), *rest]
            taken.append(head)
            got += head.size
        result.append(direct_sum(taken))
    return result


def _scramble(node: Node, sizes: Sequence[int], reason: str) -> list[Node]:
    """Give up on a reading that cuts across the units: nothing may be exchanged."""
    freeze(node, reason)
    return [leaf(size, frozen=reason) for size in sizes]


def unify(a: Node, b: Node, reason: str) -> None:
    """Let two axes of equal length count the same units in the same order."""
    a, b = resolve(a), resolve(b)
    if a is b:
        return
    if a.size != b.size:
        raise ValueError(f"index types of different size: {a!r} and {b!r}")
    if a.kind == "leaf":
        _bind(a, b)
    elif b.kind == "leaf":
        _bind(b, a)
    elif a.kind == "sum" or b.kind == "sum":
        _unify_sum(a, b, reason)
    else:
        _unify_product(a, b, reason)


def _unify_sum(a: Node, b: Node, reason: str) -> None:
    if a.kind != "sum":
        a, b = b, a
    if b.kind == "product":
        head = factors(b)[0]
        inner = b.size // head.size
        if any(term.size % inner for term in terms(a)):
            freeze(a, reason)
            freeze(b, reason)
            return
    cuts = sorted(_cuts(terms(a)) | _cuts(terms(b)))
    sizes = [hi - lo for lo, hi in zip(cuts, cuts[1:], strict=False)]
    for left, right in zip(split_sum(a, sizes, reason), split_sum(b, sizes, reason), strict=True):
        unify(left, right, reason)


def _cuts(parts: Sequence[Node]) -> set[int]:
    position, cuts = 0, {0}
    for part in parts:
        position += part.size
        cuts.add(position)
    return cuts


def _unify_product(a: Node, b: Node, reason: str) -> None:
    left, right = factors(a), factors(b)
    while left and right:
        x, y = left.pop(0), right.pop(0)
        if x.size == y.size:
            unify(x, y, reason)
            continue
        if x.size < y.size:
            x, y, left, right = y, x, right, left
        if x.size % y.size:
            freeze(a, reason)
            freeze(b, reason)
            return
        outer, inner = split_product(x, [y.size, x.size // y.size], reason)
        unify(outer, y, reason)
        left = factors(inner) + left


def blocks(
    node: Node, whole: Callable[[Node], bool] = lambda node: False
) -> list[tuple[int, tuple[tuple[Node, int, int], ...]]]:
    """The homogeneous blocks of an axis: (offset, ((leaf, stride, origin), ...)), in order.

    Within a block, entry number offset + Σ iₖ·strideₖ belongs to the units i₁, i₂, … of its
    leaves. The origin of a leaf is where its own reading of the axis starts: blocks that differ
    only further inside share it. Everything counts positions along this axis. Nodes that are
    `whole` are taken for leaves.
    """
    node = resolve(node)
    if node.kind == "leaf" or whole(node):
        return [(0, ((node, 1, 0),))]
    if node.kind == "sum":
        result, position = [], 0
        for part in node.parts:
            for offset, inner in blocks(part, whole):
                moved = tuple((n, stride, position + origin) for n, stride, origin in inner)
                result.append((position + offset, moved))
            position += part.size
        return result
    result = [(0, ())]
    for part in node.parts:
        size = part.size
        inner = blocks(part, whole)
        result = [
            (
                offset * size + more,
                (
                    *((n, stride * size, origin * size) for n, stride, origin in found),
                    *((n, stride, offset * size + origin) for n, stride, origin in extra),
                ),
            )
            for offset, found in result
            for more, extra in inner
        ]
    return result
