"""Which texts of an exported program may be evaluated: arithmetic of sizes, and nothing else.

`torch.export` writes a size that depends on others as the text of a Python expression, such as
`Mul(Integer(2), Symbol('s6', positive=True, integer=True))`, and `sympy.sympify` evaluates the text
when the program is read. A text is therefore parsed here first, and every node of its tree has to
be of a kind that is named below. What is allowed cannot reach an attribute, an import or a function
that is not listed; and its value stays small, since a power or a shift is bounded before it is
computed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import NamedTuple

LONGEST = 20_000  # characters of one text
BITS = 4096  # of a number that a text may describe
TERMS = 20_000  # of a polynomial, were it multiplied out

# The constructors of sympy that `sympy.srepr` writes for a size.
_SYMPY = """
    Add Mul Pow Max Min Abs Mod floor ceiling Piecewise ITE
    Eq Ne Lt Le Gt Ge Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan
    And Or Not Xor
""".split()
# The functions of torch.utils._sympy.functions.
_TORCH = """
    FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift
    PowByNatural FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat
    TruncToInt RoundToInt RoundDecimal ToFloat Identity BitwiseFn_bitwise_and BitwiseFn_bitwise_or
    BitwiseFn_bitwise_xor
""".split()
_UNARY = "sqrt cos cosh sin sinh tan tanh asin acos atan exp log asinh log2".split()
FUNCTIONS = frozenset([*_SYMPY, *_TORCH, *(f"OpaqueUnaryFn_{name}" for name in _UNARY)])
_POWERS = frozenset(["Pow", "PowByNatural", "FloatPow"])
_SHIFTS = frozenset(["LShift"])
_CONSTANTS = frozenset("true false oo int_oo True False".split())
_PREFIXES = frozenset("s u zf zuf".split())  # of the symbols that torch makes
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


class Untrusted(ValueError):
    """A text that would be evaluated or looked up is of no known kind: what was found, and what
    was expected."""

    def __init__(self, found: str, expected: str):
        self.found, self.expected = found, expected
        super().__init__(f"{found}; expected {expected}")


class Size(NamedTuple):
    """Bounds of a value, were it multiplied out: the bits of its numbers, and how many terms.

    A symbol stays a symbol and counts as one bit; but an exponent may lose its symbols when it is
    simplified, so that it is bounded by the numbers in it.
    """

    bits: int
    terms: int


def check_expression(text: object) -> None:
    """Refuse a text that is not arithmetic of symbols and numbers.

    Raises:
        Untrusted: with the first part of the text that is none.
    """
    measure(parse(text, "sizes"), EXPRESSION)


def parse(text: object, of: str) -> ast.expr:
    expected = f"arithmetic of {of}: symbols, numbers, and the functions that torch.export writes"
    if not isinstance(text, str):
        raise Untrusted(f"a {type(text).__name__}", expected)
    if len(text) > LONGEST:
        raise Untrusted(f"a text of {len(text)} characters", f"at most {LONGEST}")
    if not (text.isascii() and text.isprintable()) or "#" in text or "\\" in text:
        raise Untrusted(shown(text), expected)
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Untrusted(shown(text), expected) from None


def shown(text: str, limit: int = 70) -> str:
    """A text as an error shows it: on one line and not too long."""
    return ascii(text if len(text) <= limit else text[:limit] + "…")


def refuse(node: ast.AST) -> Untrusted:
    kind = "names and numbers of sizes, combined by the functions that torch.export writes"
    return Untrusted(shown(ast.unparse(node)), kind)


Rules = Mapping[type[ast.AST], Callable[..., Size]]


def measure(node: ast.AST, rules: Rules, depth: int = 0) -> Size:
    """The bounds of an expression; the walk that allows the nodes of `rules` alone."""
    rule = rules.get(type(node))
    if rule is None:
        raise refuse(node)
    if depth > 100:
        raise Untrusted("an expression nested more than 100 deep", "a shallower one")
    return _bounded(rule(node, lambda part: measure(part, rules, depth + 1)), node)


def _bounded(size: Size, node: ast.AST) -> Size:
    if size.bits > BITS or size.terms > TERMS:
        raise Untrusted(
            f"{shown(ast.unparse(node))}, which may have {size.bits} bits and {size.terms} terms",
            f"sizes of at most {BITS} bits and {TERMS} terms",
        )
    return size


def total(parts: list[Size]) -> Size:
    return Size(max((p.bits for p in parts), default=1) + len(parts), sum(p.terms for p in parts))


def product(parts: list[Size]) -> Size:
    terms = 1
    for part in parts:
        terms = min(TERMS + 1, terms * max(1, part.terms))
    return Size(sum(p.bits for p in parts), terms)


def _power(base: Size, exponent: Size, node: ast.expr) -> Size:
    """A power with the largest exponent that its expression could turn out to be."""
    value = integer(node)
    times = max(1, abs(value)) if value is not None else 1 << min(exponent.bits, 20)
    return Size(base.bits * times, min(TERMS + 1, base.terms ** min(times, 64)))


def integer(node: ast.expr) -> int | None:
    """The value of a literal integer, spelled `3`, `-3` or `Integer(3)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        return integer(node.args[0]) if node.func.id == "Integer" else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def constant(node: ast.Constant, _: object) -> Size:
    if type(node.value) is bool:
        return Size(1, 1)
    if type(node.value) is int and abs(node.value) < 1 << 64:
        return Size(max(1, node.value.bit_length()), 1)
    if type(node.value) is float and _plain(node.value):
        return Size(_magnitude(node.value), 1)
    raise refuse(node)


def _magnitude(value: float) -> int:
    return max(1, int(abs(value)).bit_length())


def _plain(value: float) -> bool:
    """A float whose decimal exponent is small: sympy computes ten to that power as an integer."""
    return 1e-300 < abs(value) < 1e300


def name_of(node: ast.Name, _: object) -> Size:
    if node.id in _CONSTANTS or node.id.rstrip("0123456789") in _PREFIXES:
        return Size(1, 1)
    raise refuse(node)


def _unary(node: ast.UnaryOp, inner: Callable[[ast.expr], Size]) -> Size:
    if not isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
        raise refuse(node)
    return inner(node.operand)


def _binary(node: ast.BinOp, inner: Callable[[ast.expr], Size]) -> Size:
    left, right = inner(node.left), inner(node.right)
    if isinstance(node.op, ast.Pow):
        return _power(left, right, node.right)
    if not isinstance(node.op, _ARITHMETIC):
        raise refuse(node)
    combine = total if isinstance(node.op, (ast.Add, ast.Sub)) else product
    return combine([left, right])


def _compare(node: ast.Compare, inner: Callable[[ast.expr], Size]) -> Size:
    known = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    if not all(isinstance(op, known) for op in node.ops):
        raise refuse(node)
    return total([inner(part) for part in (node.left, *node.comparators)])


def _logic(node: ast.BoolOp, inner: Callable[[ast.expr], Size]) -> Size:
    return total([inner(part) for part in node.values])


def _tuple(node: ast.Tuple, inner: Callable[[ast.expr], Size]) -> Size:
    return total([inner(part) for part in node.elts])  # the branches of Piecewise


def call(node: ast.Call, inner: Callable[[ast.expr], Size]) -> Size:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _LITERALS:
        return _literal(name, node)
    if name not in FUNCTIONS or any(word.arg != "evaluate" for word in node.keywords):
        raise refuse(node)
    for word in node.keywords:
        if not (isinstance(word.value, ast.Constant) and type(word.value.value) is bool):
            raise refuse(node)
    parts = [inner(part) for part in node.args]
    if name in _POWERS and len(parts) == 2:
        return _power(parts[0], parts[1], node.args[1])
    if name in _SHIFTS and len(parts) == 2:
        return Size(parts[0].bits + (1 << min(parts[1].bits, 20)), parts[0].terms)
    return total(parts) if name == "Add" else product(parts)


def _literal(name: str, node: ast.Call) -> Size:
    """`Symbol('s6', integer=True)`, `Integer(3)`, `Rational(1, 2)`, `Float('0.5', dps=15)`."""
    values = [_value(part) for part in node.args]
    words = {word.arg: _value(word.value) for word in node.keywords}
    size = _LITERALS[name](values, words)
    if size is None:
        raise refuse(node)
    return size


def _symbol(values: list[object], words: dict[str | None, object]) -> Size | None:
    named = len(values) == 1 and isinstance(values[0], str) and values[0].isidentifier()
    assumed = all(w is not None and type(v) is bool for w, v in words.items())
    return Size(1, 1) if named and assumed else None


def _float(values: list[object], words: dict[str | None, object]) -> Size | None:
    exact = all(
        w in ("precision", "dps") and isinstance(v, int) and 0 < v <= 200 for w, v in words.items()
    )
    if not exact or len(values) != 1 or not _decimal(values[0]):
        return None
    return Size(_magnitude(float(str(values[0]))), 1)


def _ratio(values: list[object], words: dict[str | None, object]) -> Size | None:
    """One integer, or two of which the second is not zero."""
    numbers = [v for v in values if type(v) is int and abs(v) < 1 << 64]
    if words or not len(values) == len(numbers) in (1, 2) or 0 in numbers[1:]:
        return None
    return Size(max(1, *(number.bit_length() for number in numbers)), 1)


_LITERALS = {"Symbol": _symbol, "Integer": _ratio, "Rational": _ratio, "Float": _float}


def _value(node: ast.expr) -> object:
    number = integer(node)
    return node.value if number is None and isinstance(node, ast.Constant) else number


def _decimal(value: object) -> bool:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return False
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return False
    return _plain(number) or (number == 0 and set(str(value)) <= set("-+0."))


EXPRESSION: Rules = {
    ast.Constant: constant,
    ast.Name: name_of,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _logic,
    ast.Tuple: _tuple,
    ast.Call: call,
}
