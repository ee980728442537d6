"""A `.pt2` file may not run anything when it is read; ordinary programs are read as ever.

Every attack here is a real exported program with one entry changed. Its payload creates an empty
file; the negative control is `torch.export.load` itself, which does create it.
"""

import contextlib
import io
import json
import sys
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export, save
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

from paramsym.checkpoints import CheckpointError
from paramsym.cli import app
from paramsym.formats.expressions import Untrusted, check_expression
from paramsym.formats.guards import check_guard
from paramsym.formats.operators import check_operator
from paramsym.formats.programs import load_program
from paramsym.formats.trees import check_tree
from tests.archives import MODEL, edited, entries, renamed, write

pytestmark = pytest.mark.filterwarnings("ignore")


class Sized(nn.Module):
    """A ReLU network on half as many rows as it is given, called with a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0] // 2
        hidden = torch.relu(self.first(x).reshape(rows, 2, 6).mean(1))
        return self.last(hidden)[: (rows * rows + 1) // 3] * y


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "sized.pt2"
    rows = 2 * Dim("half", min=2, max=32)
    shapes = {"x": {0: rows}, "y": None}
    inputs = (torch.randn(8, 4),), {"y": torch.ones(1)}
    save(export(Sized().eval(), *inputs, dynamic_shapes=shapes), path)
    return path


def graph(table: Any) -> Any:
    return table["graph_module"]["graph"]


def size(table: Any, text: Any) -> None:
    graph(table)["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text


def symbol(table: Any, text: str) -> None:
    name = next(iter(graph(table)["sym_int_values"]))
    graph(table)["sym_int_values"][name]["as_expr"]["expr_str"] = text


def everywhere(old: str, new: str) -> Callable[[Any], None]:
    def change(table: Any) -> None:
        found = renamed(table, old, new)
        table.clear()
        table.update(found)

    return change


def spec(table: Any, change: Callable[[Any], None], which: str = "in_spec") -> None:
    signature = table["graph_module"]["module_call_graph"][0]["signature"]
    protocol, tree = json.loads(signature[which])
    change(tree)
    signature[which] = json.dumps([protocol, tree])


def enumeration(tree: Any) -> None:
    tree["context"] = json.dumps({"__enum__": True, "fqn": "payload_module:Kind", "name": "x"})


def factory(tree: Any) -> None:
    names = {"default_factory_module": "payload_module", "default_factory_name": "make"}
    tree["type"], tree["context"] = "collections.defaultdict", {**names, "dict_context": []}


def keyword(tree: Any, text: str) -> None:
    tree["children_spec"][1]["context"] = json.dumps([f"y':{text},'z"])


def opened(table: Any, name: str) -> None:
    """The first node maps a file into memory, which creates the file."""
    node = graph(table)["nodes"][0]
    node["target"] = "torch.ops.aten.from_file.default"
    given = {"filename": {"as_string": name}, "shared": {"as_bool": True}, "size": {"as_int": 8}}
    node["inputs"] = [{"name": n, "arg": arg, "kind": 1} for n, arg in given.items()]


def quoteless(mark: str) -> str:
    """A payload that can stand between any quotes."""
    return f"open(bytes({list(mark.encode())}),chr(119))"


# How a program is changed (table, payload, file that it creates), and the field that is named.
ATTACKS: dict[str, tuple[Callable[[Any, str, str], None], str]] = {
    "a size": (lambda t, p, m: size(t, p), "tensor_values['x'].sizes[0].as_expr.expr_str"),
    "a symbol": (lambda t, p, m: symbol(t, p), ".as_expr.expr_str"),
    "a nested call": (lambda t, p, m: size(t, f"Mul(Integer(2), {p})"), "as_expr.expr_str"),
    "an argument": (lambda t, p, m: everywhere("y", f"y={p}")(t), "a name: letters"),
    "a guard": (lambda t, p, m: t["guards_code"].append(p), "guards_code["),
    "a guard's text": (
        lambda t, p, m: t["guards_code"].append(f"2 > 1 or '\" + str({quoteless(m)}) + \"'"),
        "guards_code[",
    ),
    "a module of a tree": (lambda t, p, m: spec(t, enumeration), "in_spec"),
    "a factory of a tree": (lambda t, p, m: spec(t, factory, "out_spec"), "out_spec"),
    "a keyword": (lambda t, p, m: spec(t, lambda tree: keyword(tree, quoteless(m))), "in_spec"),
    "a file": (lambda t, p, m: opened(t, m), "nodes[0].target"),
}  # fmt: skip


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a payload creates; also the module that one imports creates it."""
    mark = tmp_path / "mark"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "payload_module", raising=False)
    source = f"import pathlib; pathlib.Path({str(mark)!r}).touch(); make = list"
    (tmp_path / "payload_module.py").write_text(source)
    return mark


def attack(name: str, program: Path, mark: Path) -> Path:
    change = ATTACKS[name][0]
    payload = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    return edited(
        program, mark.with_name("bad.pt2"), lambda table: change(table, payload, str(mark))
    )


def plainly(path: Path) -> None:
    """What torch does with the file, up to one call; most attacks end in an error somewhere."""
    x, y = torch.randn(8, 4), torch.ones(1)
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.export.load(path)
        loaded.graph_module(*loaded.state_dict.values(), x, y)
        loaded.module().forward(x, y=y)


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_runs_and_the_field_is_named(name: str, program: Path, mark: Path):
    bad = attack(name, program, mark)
    with pytest.raises(CheckpointError) as caught:
        load_program(bad)
    assert not mark.exists()
    assert MODEL in caught.value.where and "bad.pt2" in caught.value.where
    assert ATTACKS[name][1] in str(caught.value)
    assert "code of whoever wrote" in caught.value.instead
    plainly(bad)  # the negative control
    assert mark.exists(), f"{name}: torch.export.load does not run this payload"


def test_the_commands_refuse_it_alike(program: Path, mark: Path):
    bad = attack("a size", program, mark)
    for arguments in (
        ["inspect", bad, "--no-verify"],
        ["inspect", bad],
        ["transform", bad, mark.with_name("out.pt2")],
        ["relu-equal", bad, bad],
    ):
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 2 and "expr_str" in result.stderr, result.output
        assert not mark.exists() and not mark.with_name("out.pt2").exists()


class Surprise:
    """What a pickle could do."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("place", ["inputs", "weights", "constants", "an older file"])
def test_nothing_is_unpickled(place: str, program: Path, mark: Path):
    content, buffer = entries(program), io.BytesIO()
    torch.save(((torch.zeros(8, 4), Surprise(mark)), {}), buffer)
    table = f"data/{place}/model_{place}_config.json"
    if place == "inputs":
        content["data/sample_inputs/model.pt"] = buffer.getvalue()
    elif place == "an older file":
        content["data/weights/model.pt"] = buffer.getvalue()
    else:
        found = json.loads(content[table])
        meta = {"path_name": "tensor_9", "is_param": False, "use_pickle": True, "tensor_meta": None}
        found["config"]["more"] = meta
        content[table] = json.dumps(found).encode()
        content[f"data/{place}/tensor_9"] = buffer.getvalue()
    bad = write(mark.with_name("bad.pt2"), content)
    with pytest.raises(CheckpointError, match="pickle"):
        load_program(bad)
    assert not mark.exists()
    plainly(bad)
    assert mark.exists()


def test_two_entries_of_one_name_are_two_files(program: Path, tmp_path: Path):
    bad = tmp_path / "bad.pt2"
    write(bad, {**entries(program), MODEL.upper(): b"{}"})
    with pytest.raises(CheckpointError, match="two entries of one name"):
        load_program(bad)


# -- what is allowed ---------------------------------------------------------------------------


class Nested(nn.Module):
    """Takes and returns trees; branches, cumulates, and computes sizes from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"my-key x": nn.Linear(3, 3)})
        self.register_buffer("fixed", torch.ones(3), persistent=False)

    def forward(self, tree: Any, flag: bool = True, mode: str = "tanh") -> Any:
        x, (y, z) = tree["x"], tree["more"]
        h = self.layers["my-key x"](x) * self.fixed
        h = torch.cond(h.sum() > 0, lambda t: t + 1, lambda t: t - 1, (h,))
        n = x.shape[0]
        torch._check(n * n - n // 3 >= 0)
        steps = torch.arange(max(n // 2, 3))
        h = torch.nn.functional.gelu(h, approximate=mode) * (n / 2)
        h = h * ((h > -9) & (h < 9))
        grid = torch.nn.functional.interpolate(y[None, None], scale_factor=1.5)
        return OrderedDict(h=h, steps=steps, more=defaultdict(list, grid=[grid, (z + n**2,)]))


class Unbacked(nn.Module):
    """A size that depends on numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n: Any = x[0, 0].to(torch.int64).abs().item()
        torch._check(n >= 2)
        torch._check(n <= 60)
        return torch.zeros(n * 2 + 1) + x.sum() * (n**0.5)


def example(rows: int) -> tuple[Any, ...]:
    return ({"x": torch.randn(rows, 3), "more": (torch.randn(9), torch.randn(()))},)


def test_programs_with_arithmetic_and_trees_are_read(tmp_path: Path):
    shapes = {"tree": {"x": {0: Dim("n", min=6, max=64)}, "more": ({0: Dim("m", min=3)}, None)},
              "flag": None, "mode": None}  # fmt: skip
    model = Nested().eval()
    program = export(model, (*example(8), True, "tanh"), dynamic_shapes=shapes)
    save(program, tmp_path / "a.pt2")
    again = load_program(tmp_path / "a.pt2").module(check_guards=False)
    for rows in (8, 12):
        inputs = (*example(rows), True, "tanh")
        found, wanted = again(*inputs), model(*inputs)
        assert isinstance(found["more"], defaultdict) and list(found) == list(wanted)
        for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            assert torch.equal(a, b)


def test_programs_with_sizes_from_numbers_are_read(tmp_path: Path):
    save(export(Unbacked(), (torch.full((2, 2), 5.0),)), tmp_path / "a.pt2")
    again = load_program(tmp_path / "a.pt2").module(check_guards=False)
    assert again(torch.full((2, 2), 7.0)).shape == (15,)


# -- the rules, one by one ---------------------------------------------------------------------


def refused(rule: Callable[[Any], None], text: Any) -> bool:
    try:
        rule(text)
    except Untrusted:
        return True
    return False


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s6', positive=True, integer=True)",
        "Add(Mul(Integer(4), Pow(Symbol('s6', integer=True), Integer(2))), Integer(-1))",
        "FloorDiv(Add(Symbol('s0', integer=True), Integer(1)), Integer(3))",
        "Max(Integer(3), Mul(Rational(1, 2), Symbol('s6')))",
        "FloatTrueDiv(ToFloat(Symbol('s6')), Float('2.5', precision=53))",
        "OpaqueUnaryFn_sqrt(Symbol('u0'))",
        "Piecewise((Integer(1), GreaterThan(Symbol('u0'), Integer(2))), (Integer(0), true))",
        "And(Unequality(Symbol('u0'), Integer(0)), StrictLessThan(Symbol('u1'), int_oo))",
        "2*s0 + (s1 - 1)**2 // 3", "s0 >= 2", "Integer(9223372036854775807)", "-0.5*s0",
        "Pow(Symbol('s0'), Rational(1, 2))", "Float('0', precision=53)",
    ],
)  # fmt: skip
def test_arithmetic_of_sizes_is_allowed(text: str):
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "Integer(2).__class__", "S('print(1)')", "sympify('1')",
        "Symbol(print(1))", "(lambda: 1)()", "[c for c in (1,)]", "f'{print(1)}'", "print", "E.x",
        "Symbol('a b')", "Symbol('s0', **{})", "Symbol(*'ab')", "s0 if s1 else s2", "s0[0]", "'s0'",
        "Mul(Integer(2), evaluate=print(1))", "Lambda(s0, s0)", "Function('f')(s0)", "x := 1",
        "s0\n+ 1", "s0 # 1", "ѕ0", "", "s0 +", 3, None, ["s0"], b"s0", "s0" * 20_000,
        # texts that would take all memory, or all time
        "Pow(Integer(10), Integer(1000000000))", "10**10**10", "LShift(Integer(1), Integer(99999))",
        "Pow(Integer(2), Add(Symbol('s0'), Mul(Integer(-1), Symbol('s0')), Integer(999999)))",
        "Pow(Integer(2), Rational(999999999999, 1))", "Float('1e999999999', precision=53)",
        "1e-999999999", "Float('0.1', precision=100000000)", "Rational(1, 0)",
        "Pow(Add(Symbol('s0'), Symbol('s1'), Symbol('s2')), Integer(64))",
        "-(" * 150 + "1" + ")" * 150,
        "Pow(" * 8 + "Integer(99)" + ", Integer(9))" * 8, "-" * 500 + "1",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: Any):
    assert refused(check_expression, text)


def test_what_is_allowed_is_what_sympy_reads():
    """Every name that the rules allow is one that torch's reader of expressions knows."""
    import sympy
    from torch.utils._sympy import functions

    from paramsym.formats import expressions

    unknown = {n for n in expressions.FUNCTIONS if not (hasattr(functions, n) or hasattr(sympy, n))}
    assert not unknown
    code = {n for n in expressions.FUNCTIONS if getattr(sympy, n, None) in (sympy.sympify, sympy.S)}
    assert not code


def test_guards_compare_sizes():
    for good in ("L['x'].size()[0] % 2 == 0", "(6*L['tree']['x'].size()[1]) >= 2 or 3 > 2",
                 "L['flag'] == True", "L['flat_args'][1].stride()[0] != 1", "Eq(s0, 2)",
                 "math.isnan(L['a'])", "max(3, L['x'].size()[0] // 2) <= 6",
                 "L['m'] == 'tanh'"):  # fmt: skip
        check_guard(good)
    for bad in ("L['x'].data_ptr()", "L.__class__ == 1", "L['x'].size.__self__", "open('a')",
                "math.os", "L['\"'] == 1", "L[print(1)]", "__import__('os')",
                "L['x'].fill_(2) == 1",
                "1 == '\" + str(1) + \"'", "L['x'] == \"\\\"\"", "torch"):  # fmt: skip
        assert refused(check_guard, bad), bad


def test_operators_compute():
    for good in ("torch.ops.aten.linear.default", "torch.ops.aten.slice.Tensor", "_operator.add",
                 "torch.ops.higher_order.cond", "torch.sym_max", "math.trunc",
                 "torch.ops.aten.__and__.Tensor"):  # fmt: skip
        check_operator(good)
    for bad in ("torch.os.system", "torch.load", "torch.hub.load", "_operator.attrgetter", "math",
                "_operator.methodcaller", "torch.ops.aten.from_file.default",
                "torch.ops.aten.save",
                "torch.ops.image.write_file.default", "torch.ops.higher_order.call_torchbind",
                "torch.ops.aten.__class__", "torch.ops.load_library", "torch.ops.aten.a.b.c",
                "#a:b",
                "torch.ops.higher_order.triton_kernel_wrapper_functional", "", None,
                3):  # fmt: skip
        assert refused(check_operator, bad), bad


def test_trees_hold_keys_and_nothing_else():
    def tree(kind: str, context: Any) -> str:
        return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])

    check_tree(tree("builtins.dict", '["a", "b c", 3]'))
    default = {"default_factory_module": "builtins", "default_factory_name": "list"}
    check_tree(tree("collections.defaultdict", {**default, "dict_context": ["a"]}))
    for bad in (tree("builtins.dict", '["a\'"]'), tree("builtins.dict", "["), "[", "[1]", None, "3",
                tree("collections.defaultdict", {**default, "default_factory_name": "eval"}),
                tree("collections.defaultdict", None), json.dumps([1, {"type": "a"}]),
                tree("builtins.dict", '{"__enum__": true, "fqn": "this:A", "name": "b"}'),
                "[1," + "[" * 5000 + "]" * 5001):  # fmt: skip
        assert refused(check_tree, bad), bad
