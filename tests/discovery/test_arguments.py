"""What no action of GL_h can take is refused by name, at the door of each public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym.discovery import (
    Degenerate,
    HouseholderFrame,
    SphericalFrame,
    change_between,
    cocycle,
    data_dependent_action,
    lipschitz_bound,
    move_layers,
    move_two_layers,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


G, OUTER, INNER, X, Z = (
    torch.eye(5).double() + 0.1,
    normal(2, 5),
    normal(5, 3),
    normal(3),
    normal(5, 2),
)

Call = Callable[..., Any]


def two(**other: Any) -> Any:
    given = {"g": G, "outer": OUTER, "inner": INNER, "inputs": X, **other}
    return move_two_layers(function=torch.tanh, **given)


def bound(**other: Any) -> Any:
    given = {"g": G, "outer": OUTER, "inner": INNER, "inputs": X, **other}
    return lipschitz_bound(function=torch.tanh, **given)


def many(**other: Any) -> Any:
    given = {"g": G, "outer": OUTER, "inner": INNER, "inputs": X, "bias": normal(5), **other}
    return move_layers(
        [given["g"]], [given["inner"], given["outer"]], [given["bias"], None], given["inputs"],
        [torch.tanh],
    )  # fmt: skip


def of_cocycle(**other: Any) -> Any:
    return cocycle(**{"g": G, "before": Z, "function": torch.tanh, **other})


def between(**other: Any) -> Any:
    return change_between(**{"before": Z, "moved": G @ Z, "function": torch.tanh, **other})


NAMES = {"g": "elements[0]", "outer": "weights[1]", "inner": "weights[0]", "bias": "biases[0]"}
ARGUMENTS = [
    *((call, name, value) for call in (two, bound, many)
      for name, value in (("g", G), ("outer", OUTER), ("inner", INNER), ("inputs", X))),
    (many, "bias", normal(5)), (of_cocycle, "g", G), (of_cocycle, "before", Z),
    (between, "before", Z), (between, "moved", G @ Z),
]  # fmt: skip
IDS = [f"{call.__name__}-{name}" for call, name, _ in ARGUMENTS]


def test_what_fits_is_taken() -> None:
    """The control of all that follows."""
    for call in (two, bound, many, of_cocycle, between):
        call()


@pytest.mark.parametrize(("call", "name", "value"), ARGUMENTS, ids=IDS)
def test_other_kinds_of_numbers_are_refused_by_name(call: Call, name: str, value: Tensor) -> None:
    said = (NAMES.get(name, name) if call is many else name).replace("[", r"\[").replace("]", r"\]")
    for bad, why in (
        (value + 0j, f"{said} came in torch.complex128 on cpu, and real"),
        (value.long(), f"{said} came in torch.int64 on cpu, and real"),
        (value.tolist(), f"{said} came as a list, and a tensor was expected"),
        (value.to("meta"), f"{said} came in torch.float64 on meta"),
        (value.to_sparse(), f"{said} came in torch.float64 on cpu .torch.sparse_coo., and real"),
        (value.float(), r"in torch.float(32|64) on cpu beside \S+ in torch.float(32|64)"),
    ):
        with pytest.raises(ValueError, match=why):
            call(**{name: bad})


@pytest.mark.parametrize(("call", "name", "value"), ARGUMENTS, ids=IDS)
def test_other_shapes_and_empty_ones_are_refused(call: Call, name: str, value: Tensor) -> None:
    longer = torch.cat([value, value], -1 if name == "outer" else 0)
    for bad in (value[..., :0], value[None, ..., None], longer):
        with pytest.raises(ValueError, match=r"of shape \([\d, ]*\) came"):
            call(**{name: bad})


@pytest.mark.parametrize(("call", "name", "value"), ARGUMENTS, ids=IDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinities_are_refused(call: Call, name: str, value: Tensor, bad: float) -> None:
    broken = value.clone()
    broken.view(-1)[0] = bad
    with pytest.raises(ValueError, match="not finite"):
        call(**{name: broken})


def test_a_function_that_is_not_entrywise_is_refused() -> None:
    for function in (lambda z: z.sum(0), lambda z: z.float(), lambda z: (z, z), lambda z: z + 0j):
        with pytest.raises(
            ValueError, match="the function gave .*one number for each was expected"
        ):
            of_cocycle(function=function)


def test_limits_constants_and_margins_that_are_none() -> None:
    for limit in (float("nan"), -1, 0.5):
        with pytest.raises(ValueError, match=f"limit={limit} came, and a condition number"):
            between(limit=limit)
    for constant in (float("nan"), 0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match=f"constant={constant}: a positive number"):
            bound(constant=constant)
    for frame in (HouseholderFrame, SphericalFrame):
        for margin in (float("nan"), -1.0, 3.0):
            with pytest.raises(ValueError, match=f"Frame.margin={margin}.: a distance"):
                frame(margin=margin)


@pytest.mark.parametrize("form", ["cocycle", "least-change"])
def test_products_with_other_sizes_are_refused(form: str) -> None:
    change = between(form=form)
    for name, bad in (("times", normal(4, 2)), ("undone", normal(2, 4)), ("redone", normal(5))):
        with pytest.raises(ValueError, match=rf"change\.{name}\(\w+\): \w+ of shape"):
            getattr(change, name)(bad)
    assert change.times(Z).shape == Z.shape


# the same of a traced model


def model_and_batch() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    for seed, p in enumerate(model.parameters()):
        p.data = normal(*p.shape, seed=seed)
    return model, normal(3, 3, seed=9)


def test_batches_that_hold_nothing_in_place_are_refused() -> None:
    model, x = model_and_batch()
    action = data_dependent_action(model, "mlp", (x,))
    calls: tuple[Call, ...] = (lambda b: data_dependent_action(model, "mlp", b), action.on)
    for call in calls:
        with pytest.raises(ValueError, match=r"tensor 0 of the batch has shape \(0, 3\)"):
            call((x[:0],))
        with pytest.raises(ValueError, match="tensor 0 of the batch, of shape .*, has NaN"):
            call((x * torch.nan,))
        call((x,))
    for batch in ((x.long(),), (x + 0j,), (normal(3, 4),), (x, x), (None,)):
        with pytest.raises(ValueError, match="Sequential does not run on this batch"):
            data_dependent_action(model, "mlp", batch)


def test_it_works_in_inference_mode() -> None:
    model, x = model_and_batch()
    params = {n: t.detach() for n, t in model.state_dict().items()}
    wanted = data_dependent_action(model, "mlp", (x,))(G, params)
    other = data_dependent_action(model, "mlp", (x,)).on((x[:2],))(G, params)
    with torch.inference_mode():
        action = data_dependent_action(model, "mlp", (x * 1,))
        found, again = action(G * 1, params), action.on((x[:2] * 1,))(G, params)
    for name in params:
        assert torch.equal(found[name], wanted[name])
        assert torch.equal(again[name], other[name])


def test_one_sample_without_an_axis_of_samples_is_one_sample() -> None:
    model, x = model_and_batch()
    params = {n: t.detach() for n, t in model.state_dict().items()}
    made = [data_dependent_action(model, "mlp", (b,))(G, params) for b in (x[0], x[:1])]
    for name in params:
        assert torch.equal(made[0][name], made[1][name])
    moved = torch.func.functional_call(model, made[0], (x[0],))
    assert (moved - model(x[0])).abs().max() <= 1e-13


def test_elements_and_parameters_that_do_not_fit_a_model_are_refused() -> None:
    model, x = model_and_batch()
    action = data_dependent_action(model, "mlp", (x,))
    params = {n: t.detach() for n, t in model.state_dict().items()}
    action(G, params)
    elements: list[tuple[Any, str]] = [
        (G + 0j, "g came in torch.complex128"), (G.long(), "g came in torch.int64"),
        (G.tolist(), "g came as a list"), (None, "g came as a NoneType"),
        ({"mlp": G.numpy()}, "g came as a ndarray"), (G[None], r"g of shape \(1, 5, 5\)"),
    ]  # fmt: skip
    for g, why in elements:
        for call in (action, action.condition):
            with pytest.raises(ValueError, match=why):
                call(g, params)
    inner, outer = params["0.weight"], params["2.weight"]
    others: list[tuple[dict[str, Any], str]] = [
        ({"0.weight": normal(5, 4)}, r"params\['0.weight'\] of shape \(5, 4\) came"),
        ({"2.weight": normal(2, 6)}, r"params\['2.weight'\] of shape \(2, 6\) came"),
        ({"2.weight": outer * torch.nan}, r"params\['2.weight'\] has entries that are not finite"),
        ({"0.weight": inner + 0j}, r"params\['0.weight'\] came in torch.complex128"),
        ({"0.bias": params["0.bias"].tolist()}, r"params\['0.bias'\] came as a list"),
    ]
    for other, why in others:
        with pytest.raises(ValueError, match=why):
            action(G, {**params, **other})
    no_params: Any = None
    with pytest.raises(ValueError, match="params came as a NoneType"):
        action(G, no_params)


def test_what_is_no_model_with_numbers_is_refused() -> None:
    model, x = model_and_batch()
    function: Any = lambda z: z  # noqa: E731
    with pytest.raises(ValueError, match="a function came, and an nn.Module was expected"):
        data_dependent_action(function, "mlp", (x,))
    meta = nn.Sequential(nn.Linear(3, 5, device="meta"), nn.Tanh(), nn.Linear(5, 2, device="meta"))
    with pytest.raises(ValueError, match="'0.weight' of Sequential is on the meta device"):
        data_dependent_action(meta, "mlp", (x,))
    with pytest.raises(ValueError, match=r"space=\[\].*a space of the model"):
        data_dependent_action(model, [], (x,))
    with pytest.raises(ValueError, match="limit=nan came"):
        data_dependent_action(model, "mlp", (x,), limit=float("nan"))


def test_features_without_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"before of shape \(5, 0\) came"):
        cocycle(G, Z[:, :0], torch.tanh)
    with pytest.raises(Degenerate, match="a batch of 6 samples came for 5 units"):
        cocycle(G, normal(5, 6), torch.tanh)
