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
_LITERALS = frozenset(["Symbol", "Dummy", "Integer", "Rational", "Float"])


class Untrusted(ValueError):
    """A text that would be evaluated or looked up is of no known kind: what was found, and what
    was expected."""

    def __init__(self, found: str, expected: str):
        self.found, self.expected = found, expected
        super().__init__(f"{found}; expected {expected}")


class _Size(NamedTuple):
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
    _measure(_parse(text, "sizes"), _EXPRESSION)


def check_guard(text: object) -> None:
    """Refuse a guard that does more than compare sizes of the inputs, `L['x'].size()[0] == 3`.

    Guards are compiled and run by `ExportedProgram.module()`, which also copies their text into a
    string between double quotes: strings in them are names.
    """
    _measure(_parse(text, "sizes of the inputs, L['x'].size()[0]"), _GUARD)


def _parse(text: object, of: str) -> ast.expr:
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


def _refuse(node: ast.AST) -> Untrusted:
    kind = "names and numbers of sizes, combined by the functions that torch.export writes"
    return Untrusted(shown(ast.unparse(node)), kind)


_Rules = Mapping[type[ast.AST], Callable[..., _Size]]


def _measure(node: ast.AST, rules: _Rules, depth: int = 0) -> _Size:
    """The bounds of an expression; the walk that allows the nodes of `rules` alone."""
    rule = rules.get(type(node))
    if rule is None:
        raise _refuse(node)
    if depth > 100:
        raise Untrusted("an expression nested more than 100 deep", "a shallower one")
    return _bounded(rule(node, lambda part: _measure(part, rules, depth + 1)), node)


def _bounded(size: _Size, node: ast.AST) -> _Size:
    if size.bits > BITS or size.terms > TERMS:
        raise Untrusted(
            f"{shown(ast.unparse(node))}, which may have {size.bits} bits and {size.terms} terms",
            f"sizes of at most {BITS} bits and {TERMS} terms",
        )
    return size


def _sum(parts: list[_Size]) -> _Size:
    return _Size(max((p.bits for p in parts), default=1) + len(parts), sum(p.terms for p in parts))


def _product(parts: list[_Size]) -> _Size:
    terms = 1
    for part in parts:
        terms = min(TERMS + 1, terms * max(1, part.terms))
    return _Size(sum(p.bits for p in parts), terms)


def _power(base: _Size, exponent: _Size, node: ast.expr) -> _Size:
    """A power with the largest exponent that its expression could turn out to be."""
    value = _integer(node)
    times = max(1, abs(value)) if value is not None else 1 << min(exponent.bits, 20)
    return _Size(base.bits * times, min(TERMS + 1, base.terms ** min(times, 64)))


def _integer(node: ast.expr) -> int | None:
    """The value of a literal integer, spelled `3`, `-3` or `Integer(3)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        return _integer(node.args[0]) if node.func.id == "Integer" else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _constant(node: ast.Constant, _: object) -> _Size:
    if type(node.value) is bool:
        return _Size(1, 1)
    if type(node.value) is int and abs(node.value) < 1 << 64:
        return _Size(max(1, node.value.bit_length()), 1)
    if type(node.value) is float and _plain(node.value):
        return _Size(_magnitude(node.value), 1)
    raise _refuse(node)


def _magnitude(value: float) -> int:
    return max(1, int(abs(value)).bit_length())


def _plain(value: float) -> bool:
    """A float whose decimal exponent is small: sympy computes ten to that power as an integer."""
    return 1e-300 < abs(value) < 1e300


def _name(node: ast.Name, _: object) -> _Size:
    if node.id in _CONSTANTS or node.id.rstrip("0123456789") in _PREFIXES:
        return _Size(1, 1)
    raise _refuse(node)


def _unary(node: ast.UnaryOp, inner: Callable[[ast.expr], _Size]) -> _Size:
    if not isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
        raise _refuse(node)
    return inner(node.operand)


def _binary(node: ast.BinOp, inner: Callable[[ast.expr], _Size]) -> _Size:
    left, right = inner(node.left), inner(node.right)
    if isinstance(node.op, ast.Pow):
        return _power(left, right, node.right)
    if not isinstance(node.op, _ARITHMETIC):
        raise _refuse(node)
    combine = _sum if isinstance(node.op, (ast.Add, ast.Sub)) else _product
    return combine([left, right])


def _compare(node: ast.Compare, inner: Callable[[ast.expr], _Size]) -> _Size:
    known = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    if not all(isinstance(op, known) for op in node.ops):
        raise _refuse(node)
    return _sum([inner(part) for part in (node.left, *node.comparators)])


def _logic(node: ast.BoolOp, inner: Callable[[ast.expr], _Size]) -> _Size:
    return _sum([inner(part) for part in node.values])


def _tuple(node: ast.Tuple, inner: Callable[[ast.expr], _Size]) -> _Size:
    return _sum([inner(part) for part in node.elts])  # the branches of Piecewise


def _call(node: ast.Call, inner: Callable[[ast.expr], _Size]) -> _Size:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _LITERALS:
        return _literal(name, node)
    if name not in FUNCTIONS or any(word.arg != "evaluate" for word in node.keywords):
        raise _refuse(node)
    for word in node.keywords:
        if not (isinstance(word.value, ast.Constant) and type(word.value.value) is bool):
            raise _refuse(node)
    parts = [inner(part) for part in node.args]
    if name in _POWERS and len(parts) == 2:
        return _power(parts[0], parts[1], node.args[1])
    if name in _SHIFTS and len(parts) == 2:
        return _Size(parts[0].bits + (1 << min(parts[1].bits, 20)), parts[0].terms)
    return _sum(parts) if name == "Add" else _product(parts)


def _literal(name: str, node: ast.Call) -> _Size:
    """`Symbol('s6', integer=True)`, `Integer(3)`, `Rational(1, 2)`, `Float('0.5', precision=53)`."""
    values = [_value(part) for part in node.args]
    words = {word.arg: _value(word.value) for word in node.keywords}
    if name in ("Symbol", "Dummy"):
        good = len(values) == 1 and isinstance(values[0], str) and values[0].isidentifier()
        good = good and all(word is not None for word in words)
        good = good and all(type(v) is bool or w == "dummy_index" for w, v in words.items())
    elif name == "Float":
        good = len(values) == 1 and _decimal(values[0])
        good = good and set(words) <= {"precision", "dps"}
        good = good and all(type(v) is int and 0 < v <= 200 for v in words.values())
    else:
        good = not words and len(values) == (1 if name == "Integer" else 2)
        good = good and all(type(v) is int and abs(v) < 1 << 64 for v in values)
        good = good and (name == "Integer" or values[1] != 0)
    if not good:
        raise _refuse(node)
    if name == "Float":
        return _Size(_magnitude(float(str(values[0]))), 1)
    numbers = [value for value in values if isinstance(value, int)]
    return _Size(max((number.bit_length() for number in numbers), default=1) or 1, 1)


def _value(node: ast.expr) -> object:
    number = _integer(node)
    return node.value if number is None and isinstance(node, ast.Constant) else number


def _decimal(value: object) -> bool:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return False
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return False
    return _plain(number) or (number == 0 and set(str(value)) <= set("-+0."))


# -- guards ------------------------------------------------------------------------------------

_SIZES = frozenset("size stride storage_offset dim numel shape ndim".split())


def _guard_name(node: ast.Name, inner: object) -> _Size:
    return _Size(1, 1) if node.id in ("L", "inf") else _name(node, inner)


def _subscript(node: ast.Subscript, inner: Callable[[ast.expr], _Size]) -> _Size:
    key = node.slice
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        if not all(c.isalnum() or c in "_.- " for c in key.value):
            raise _refuse(node)
    elif _integer(key) is None:
        raise _refuse(node)
    return inner(node.value)


def _attribute(node: ast.Attribute, inner: Callable[[ast.expr], _Size]) -> _Size:
    if isinstance(node.value, ast.Name) and node.value.id == "math" and node.attr == "inf":
        return _Size(1, 1)
    if node.attr not in _SIZES:
        raise _refuse(node)
    return inner(node.value)


def _guard_call(node: ast.Call, inner: Callable[[ast.expr], _Size]) -> _Size:
    if isinstance(node.func, ast.Attribute) and not node.keywords:
        mathematical = isinstance(node.func.value, ast.Name) and node.func.value.id == "math"
        if mathematical:
            if node.func.attr not in ("isnan", "trunc", "floor", "ceil", "sqrt"):
                raise _refuse(node)
            return _product([inner(part) for part in node.args])
        return _sum([inner(node.func), *(inner(part) for part in node.args)])
    if isinstance(node.func, ast.Name) and node.func.id in ("max", "min", "abs", "round"):
        return _product([inner(part) for part in node.args])
    return _call(node, inner)


def _guard_constant(node: ast.Constant, inner: object) -> _Size:
    if isinstance(node.value, str) and all(c.isalnum() or c in "_.- " for c in node.value):
        return _Size(1, 1)
    return _Size(1, 1) if node.value is None else _constant(node, inner)


_EXPRESSION: _Rules = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _logic,
    ast.Tuple: _tuple,
    ast.Call: _call,
}
_GUARD: _Rules = {
    **_EXPRESSION,
    ast.Constant: _guard_constant,
    ast.Name: _guard_name,
    ast.Subscript: _subscript,
    ast.Attribute: _attribute,
    ast.Call: _guard_call,
}
