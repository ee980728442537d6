"""The table of rules: how each operator is expressed in primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paramsym.lowering.builder import Builder
from paramsym.recording.graph import Call, canonical_name

Rule = Callable[[Builder, Call], Any]
RULES: dict[str, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register how an operator is expressed in primitives.

    `targets` are operators (`torch.ops.aten.cumsum.default`, `torch.cumsum`) or their names. The
    rule receives a `Builder` and the `Call`, and returns the output tensor, or one per output. A
    later registration replaces an earlier one.

        @rule(torch.ops.aten.cumsum.default)
        def cumsum(build, call):
            x, dim = build.arguments(call, "x", "dim")
            return build.mix(x, [dim], x.shape)
    """

    def register(function: Rule) -> Rule:
        for target in targets:
            RULES[canonical_name(target)] = function
        return function

    return register
