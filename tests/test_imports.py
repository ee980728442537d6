"""No module of the library imports itself by way of others when it is loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def run_time(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is loaded: no functions, nothing for type checkers."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from run_time(getattr(node, field, []) or [])


def imports(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules of the library that a module names in its imports."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in run_time(ast.parse(path.read_text(encoding="utf-8")).body):
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


def test_no_import_goes_round() -> None:
    modules = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    assert len(modules) > 100 and "paramsym.tracing.infer" in modules
    graph = {name: imports(name, path, modules) for name, path in modules.items()}
    assert "paramsym.tracing.spaces" in graph["paramsym.tracing.infer"]
    assert not cycles(graph), cycles(graph)


def test_a_cycle_would_be_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert not cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()})
