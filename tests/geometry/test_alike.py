"""What is refused before two points are compared, each time with what came, what was expected,
where, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramsym import align, same_orbit
from paramsym.geometry.alike import alike
from paramsym.geometry.reading import Reading
from paramsym.structure.axes import parse_axis
from paramsym.structure.patterns import UnknownName
from tests.geometry.orbits import State, moved, of_zoo

NAME = "2.weight"
Change = Callable[[State, State], Any]


def without(a: State, b: State) -> None:
    del b[NAME]


def without_first(a: State, b: State) -> None:
    del a[NAME]


def without_either(a: State, b: State) -> None:
    del a[NAME], b[NAME]


def with_more(a: State, b: State) -> None:
    b["head.weight"] = torch.zeros(2)


def of_another_width(a: State, b: State) -> None:
    b[NAME] = b[NAME][:, :-1]


def of_another_architecture(a: State, b: State) -> None:
    a[NAME] = b[NAME] = b[NAME][:, :-1]


def in_single(a: State, b: State) -> None:
    b[NAME] = b[NAME].float()


def with_nan(a: State, b: State) -> None:
    a[NAME] = a[NAME].clone()
    a[NAME][1, 2] = float("nan")


def with_infinity(a: State, b: State) -> None:
    b[NAME] = b[NAME] / 0


def as_list(a: State, b: State) -> None:
    b[NAME] = b[NAME].tolist()  # type: ignore[assignment]


def on_meta(a: State, b: State) -> None:
    b[NAME] = b[NAME].to("meta")


# What is done to the two points, and the parts of the message: what came, what was expected, and
# what to do instead. Where it is, is the name of the tensor.
REFUSED: dict[str, tuple[Change, list[str]]] = {
    "missing in b": (without, ["missing in b", "of type (mlp.2, mlp*)", "model class"]),
    "missing in a": (without_first, ["missing in a", "of type (mlp.2, mlp*)", "model class"]),
    "missing in both": (without_either, ["missing", "state_dict()"]),
    "left over": (with_more, ["'head.weight' is in b alone", "two state dicts", "Leave it out"]),
    "shape": (of_another_width, ["(6, 7) in a and (6, 6) in b", "one shape", "one architecture"]),
    "shape of both": (of_another_architecture, ["(6, 6)", "(6, 7)"]),
    "dtype": (in_single, ["float64 in a and torch.float32 in b", "one precision", "Convert one"]),
    "NaN": (with_nan, ["of a has entries that are not finite", "finite numbers", "diverged"]),
    "infinity": (with_infinity, ["of b has entries that are not finite", "diverged"]),
    "no tensor": (as_list, ["of b is a list", "a tensor", "model.state_dict()"]),
    "no numbers": (on_meta, ["meta"]),
}


@pytest.mark.parametrize("call", [align, same_orbit], ids=["align", "same_orbit"])
@pytest.mark.parametrize("case", REFUSED)
def test_points_that_are_not_alike_are_refused_in_four_parts(case: str, call: Any) -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    a, b = dict(params), moved(symmetry, params)
    alike(symmetry, a, b, "align")  # the control
    change, parts = REFUSED[case]
    change(a, b)
    with pytest.raises(ValueError) as caught:
        call(symmetry, a, b)
    message = str(caught.value)
    assert call.__name__ in message
    assert [part for part in parts if part not in message] == [], message
    assert NAME in message or "head.weight" in message


@pytest.mark.parametrize("side", ["a", "b"])
def test_what_is_no_dict_is_refused(side: str) -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    given: Any = {"a": params, "b": params, side: list(params.values())}
    with pytest.raises(ValueError, match=rf"{side} is a list; .* model.state_dict\(\)"):
        same_orbit(symmetry, given["a"], given["b"])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "restarts -1": ({"restarts": -1}, r"restarts=-1.*number was expected, zero.*restarts= out"),
    "restarts 1.5": ({"restarts": 1.5}, r"restarts=1\.5.*whole number.*restarts= out"),
    "sweeps -2": ({"sweeps": -2}, r"sweeps=-2.*whole number.*sweeps= out"),
    "sweeps None": ({"sweeps": None}, r"sweeps=None.*whole number.*sweeps= out"),
    "restarts True": ({"restarts": "two"}, r"restarts='two'.*whole number.*restarts= out"),
    "no generator": ({"restarts": 2}, r"restarts=2.*without a generator.*manual_seed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_counts_are_refused(case: str) -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    given, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        align(symmetry, params, params, **given)


@pytest.mark.parametrize("tol", [0.0, -1.0, float("inf"), float("nan")])
def test_a_tolerance_is_a_positive_number(tol: float) -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    with pytest.raises(ValueError, match=r"tol=.*positive number.*root mean square.*tol= out"):
        same_orbit(symmetry, params, moved(symmetry, params), tol)


def test_a_tolerance_that_is_no_number_is_refused() -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    wrong: Any = "small"
    with pytest.raises(ValueError, match=r"tol='small'.*positive number"):
        same_orbit(symmetry, params, moved(symmetry, params), wrong)


def test_a_pattern_that_names_nothing_is_refused() -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    with pytest.raises(UnknownName, match="no_such_space"):
        align(symmetry, params, params, spaces=["no_such_space"])


def test_readings_that_do_not_fit_are_refused() -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    axis = parse_axis("mlp")
    one = {"1": Reading(axis, torch.ones(9, 7).double())}
    for other in ({}, {"1": Reading(axis, torch.ones(8, 7).double())}):
        with pytest.raises(ValueError, match=r"the reading '1' of b .*same was expected.*readings"):
            align(symmetry, params, params, data=(one, other))


def test_neither_point_is_modified() -> None:
    symmetry, params = of_zoo("convolutions")
    a, b = dict(params), moved(symmetry, params)
    before = [{n: p.clone() for n, p in side.items()} for side in (a, b)]
    align(symmetry, a, b)
    same_orbit(symmetry, a, b)
    for side, kept in zip((a, b), before, strict=True):
        assert {*side} == {*kept}
        assert all(torch.equal(side[n], kept[n]) for n in kept)
