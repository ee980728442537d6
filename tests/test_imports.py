"""No module imports itself by way of others: not even for types, or inside a function."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import paramsym

SOURCE = Path(__file__).parents[1] / "src"


def imports(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules of the library that a module names in its imports, wherever these stand."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*parts, *filter(None, [node.module])]) if node.level else node.module
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= names & modules.keys() | ({str(base)} if names - modules.keys() else set())
    return found & modules.keys() - {name}


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one module."""

    def reached(start: str) -> set[str]:
        seen, left = set(), [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        return seen

    ahead = {name: reached(name) for name in graph}
    found = {frozenset({n for n in ahead[name] if name in ahead[n]}) for name in graph}
    return [set(group) for group in found if group]


def imports_of_all(source: Path) -> dict[str, set[str]]:
    modules = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    return {name: imports(name, path, modules) for name, path in modules.items()}


def test_no_import_goes_round() -> None:
    graph = imports_of_all(SOURCE)
    assert len(graph) > 100
    assert "paramsym.tracing.spaces" in graph["paramsym.tracing.infer"]
    assert not cycles(graph), cycles(graph)


def test_a_cycle_by_types_and_functions_would_be_seen(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "value.py").touch()
    (room / "high.py").write_text("def f():\n    from . import low\n    import room.value\n")
    (room / "low.py").write_text("if TYPE_CHECKING:\n    from room.high import High\n")
    assert cycles(imports_of_all(tmp_path)) == [{"room.low", "room.high"}]
    (room / "low.py").write_text("from room.value import Value\n")
    assert imports_of_all(tmp_path)["room.high"] == {"room.low", "room.value"}
    assert not cycles(imports_of_all(tmp_path))


def test_a_cycle_would_be_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert not cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_the_public_names_are_those_that_a_type_checker_sees_and_nothing_else() -> None:
    tree = ast.parse((SOURCE / "paramsym" / "__init__.py").read_text(encoding="utf-8"))
    homes = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paramsym.")
        for alias in node.names
    }
    assert homes == paramsym._HOMES
    assert dir(paramsym) == sorted(paramsym.__all__) == sorted(homes)


LAZY = """
import sys
import paramsym
assert "torch" not in sys.modules and "numpy" not in sys.modules
names = dir(paramsym)
assert paramsym.Feature.__name__ == "Feature" and dir(paramsym) == names
import pickle
assert pickle.loads(pickle.dumps(paramsym.act)) is paramsym.act
"""


def test_importing_the_package_imports_no_torch_and_pickles_what_it_gives() -> None:
    subprocess.run([sys.executable, "-c", LAZY], check=True)


# the one door, and a reader that compares the header itself
_DOORS = {"formats/weights.py", "relu/files.py"}


def test_safetensors_are_opened_by_one_door() -> None:
    """Whatever else opened such a file would believe its header."""
    openers = {
        str(path.relative_to(SOURCE / "paramsym"))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("safetensors")
        and {alias.name for alias in node.names} & {"safe_open", "load_file", "load"}
    }
    assert openers == _DOORS
