"""What `Rebalance` refuses: with what came, what was expected, where, and what to do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

from paramsym import Rebalance, find_symmetry
from paramsym.structure.patterns import UnknownName
from tests.models import Tied
from tests.training.networks import Run


def run(name: str = "relu", **options: Any) -> Run:
    return Run(name, lambda p: optim.SGD(p, 0.01, momentum=0.9), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, r"Rebalance\(every=0\): a whole number of steps.*every=1"),
        ({"every": 2.5}, r"Rebalance\(every=2.5\): a whole number.*every=1"),
        ({"every": True}, r"Rebalance\(every=True\): a whole number"),
        ({"objective": "l3"}, r"objective='l3'.*none of \['l2', 'l1'\].*Pass one of the two"),
        ({"tolerance": 0.0}, r"tolerance=0.0.*positive number.*Pass for example"),
        ({"tolerance": "much"}, r"tolerance='much'.*positive number"),
        ({"entries": {"sum": "two"}}, r"entries=.*degrees was expected.*Pass for example"),
        ({"bounds": {"*": (2.0, 3.0)}}, r"exclude 1.*low ≤ 1 ≤ high"),
    ],
    ids=lambda item: "-".join(item) if isinstance(item, dict) else "",
)
def test_options_that_mean_nothing(options: dict[str, Any], words: str) -> None:
    made = run()
    with pytest.raises(ValueError, match=words):
        Rebalance(made.symmetry, made.optimizer, **{"model": made.model, **options})
    made.step()  # no hook is left behind
    with pytest.raises(UnknownName, match=r"Rebalance\(hold=…\).*no_such"):
        Rebalance(made.symmetry, made.optimizer, model=made.model, hold="no_such")


def test_parameters_without_names() -> None:
    made = run()
    with pytest.raises(ValueError, match=r"does not know the names.*one of both.*model=model"):
        Rebalance(made.symmetry, made.optimizer)
    Rebalance(made.symmetry, run(named=True).optimizer)


def test_buffers_need_the_model() -> None:
    made = run("convolutional", named=True)
    with pytest.raises(ValueError, match=r"optimiser has no 'norm.running_mean'.*model=model"):
        Rebalance(made.symmetry, made.optimizer)


def test_a_model_and_an_optimiser_that_do_not_belong_together() -> None:
    made, other = run(), run("squared")
    with pytest.raises(ValueError, match=r"none of the 6 parameters.*in the model.*Build it"):
        Rebalance(made.symmetry, made.optimizer, model=copy.deepcopy(made.model))
    with pytest.raises(ValueError, match=r"Sequential has no 'layer.*Pass model=model"):
        Rebalance(run("transformer").symmetry, other.optimizer, model=other.model)
    wide = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ValueError, match=r"'0.weight'.*\(13, 7\)"):
        Rebalance(made.symmetry, optim.SGD(wide.parameters(), 0.1), model=wide)


def test_numbers_of_half_precision() -> None:
    made = run(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"dtype torch.bfloat16.*float32 or float64.*autocast"):
        Rebalance(made.symmetry, made.optimizer, model=made.model)


def test_names_that_are_no_longer_tied() -> None:
    model = Tied()
    symmetry = find_symmetry(model, (torch.arange(5),), check=False)
    optimizer = optim.SGD(model.parameters(), 0.1)
    assert symmetry.ties
    Rebalance(symmetry, optimizer, model=model).remove()
    model.head.weight = nn.Parameter(model.table.weight.detach().clone())
    with pytest.raises(ValueError, match=r"two tensors, and tied.*one was expected"):
        Rebalance(symmetry, optimizer, model=model)


def test_state_that_is_not_known() -> None:
    made = run()
    optimizer = optim.Adadelta(made.model.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"Adadelta.*is not known.*entries="):
        Rebalance(made.symmetry, optimizer, every=1, model=made.model)
    made.loss().backward()
    optimizer.step()
    known = {"step": 0, "square_avg": 2, "acc_delta": -2}
    before = made.output()
    Rebalance(made.symmetry, optimizer, model=made.model, entries=known).now()
    assert float((made.output() - before).abs().max()) <= 1e-12
    factored = {"step": 0, "square_avg": 2, "acc_delta": 0}
    for state in optimizer.state.values():
        state["square_avg"] = state["square_avg"].sum(-1)
    with pytest.raises(ValueError, match=r"'square_avg', Tensor \(12,\) of"):
        Rebalance(made.symmetry, optimizer, model=made.model, entries=factored)


def test_training_that_has_broken() -> None:
    for dtype in (torch.float32, torch.float64):
        made = run(dtype=dtype)
        rebalance = Rebalance(made.symmetry, made.optimizer, model=made.model)
        rebalance.now()
        with torch.no_grad():
            made.model[2].weight[1, 1] = float("nan")  # type: ignore[index]
        with pytest.raises(ValueError, match=r"'2.weight' holds numbers that are not finite"):
            rebalance.now()


def test_numbers_that_single_precision_does_not_hold() -> None:
    """Their squares over- or underflow in float32, and the scales are found in double."""
    made = run(dtype=torch.float32)
    rebalance = Rebalance(made.symmetry, made.optimizer, model=made.model)
    value = rebalance.now().value
    before = made.output()
    with torch.no_grad():
        for layer, factor in ((0, 1e-25), (2, 1e25)):
            made.model[layer].weight *= factor  # type: ignore[operator]
        made.model[0].bias *= 1e-25  # type: ignore[operator]
    found = rebalance.now()
    assert found.before > 1e45 and found.value == pytest.approx(value, rel=1e-4)
    assert float((made.output() - before).abs().max() / before.abs().max()) <= 1e-6


@pytest.mark.parametrize("kind", [optim.ASGD, optim.Rprop, optim.LBFGS, optim.Adafactor])
def test_optimisers_whose_state_does_not_move_so_are_refused_at_once(kind: Any) -> None:
    made = run()
    with pytest.raises(ValueError, match=r"how all that it keeps moves.*is not known"):
        Rebalance(made.symmetry, kind(made.model.parameters(), lr=0.1), model=made.model)


def test_lbfgs_keeps_all_in_one_vector_whatever_is_said_of_it() -> None:
    made = run()
    optimizer = optim.LBFGS([torch.nn.Parameter(torch.ones(2)), *made.model.parameters()])
    with pytest.raises(ValueError, match="LBFGS.*is not known"):
        Rebalance(made.symmetry, optimizer, model=made.model, entries={"old_dirs": 0})


def test_what_another_optimiser_trains_does_not_move_without_its_state() -> None:
    made = run()
    first = [p for n, p in made.model.named_parameters() if n.startswith("0.")]
    with pytest.raises(ValueError, match=r"'2.weight' moves and has a gradient"):
        Rebalance(made.symmetry, optim.SGD(first, 0.1), model=made.model)
    for name, p in made.model.named_parameters():
        p.requires_grad_(name.startswith("0."))
    before = made.output()
    Rebalance(made.symmetry, optim.SGD(first, 0.1), model=made.model).now()
    assert float((made.output() - before).abs().max()) <= 1e-12


def test_packed_entries_are_refused_before_anything_moves() -> None:
    made = run()
    optimizer = optim.Adam(made.model.parameters(), 0.1)
    rebalance = Rebalance(made.symmetry, optimizer, model=made.model)
    made.loss().backward()
    optimizer.step()
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    last = [*made.model.parameters()][-2]
    optimizer.state[last]["exp_avg"] = torch.ones(last.shape, dtype=torch.int8)
    with pytest.raises(ValueError, match="'exp_avg', Tensor .* of torch.int8"):
        rebalance.now()
    assert all(torch.equal(before[n], p) for n, p in made.model.named_parameters())


def test_a_model_that_has_changed_is_said() -> None:
    made = run()
    rebalance = Rebalance(made.symmetry, made.optimizer, model=made.model)
    made.model.half()
    with pytest.raises(ValueError, match=r"of torch.float16 now; .*as it was when this was made"):
        rebalance.now()


def test_averages_of_squares_stay_numbers_at_sizes_whose_squares_overflow() -> None:
    made = run(dtype=torch.float32)
    state = dict(made.model.named_parameters())
    with torch.no_grad():
        state["0.weight"][0] *= 1e-20
        state["0.bias"][0] *= 1e-20
        state["2.weight"][:, 0] *= 1e20
    optimizer = optim.Adagrad(made.model.parameters(), 0.1)
    Rebalance(made.symmetry, optimizer, model=made.model).now()
    for state in optimizer.state.values():
        assert bool(state["sum"].isfinite().all())


@pytest.mark.parametrize("given", [{}, None])
def test_what_is_no_symmetry_or_optimiser(given: Any) -> None:
    made = run()
    with pytest.raises(ValueError, match=r"Rebalance\(symmetry=…\)"):
        Rebalance(given, made.optimizer, model=made.model)
    with pytest.raises(ValueError, match=r"Rebalance\(optimizer=…\)"):
        Rebalance(made.symmetry, given, model=made.model)
    with pytest.raises(ValueError, match="none of"):
        Rebalance(made.symmetry, made.optimizer, objective=["l2"], model=made.model)  # pyright: ignore[reportArgumentType]


def test_a_tensor_whose_entries_share_a_place_is_refused() -> None:
    made = run()
    shared = nn.Parameter(torch.ones(1, dtype=torch.float64).expand(12))
    made.model.get_submodule("0").bias = shared
    with pytest.raises(ValueError, match=r"'0.bias' has strides \(0,\)"):
        Rebalance(made.symmetry, optim.SGD(made.model.parameters(), 0.1), model=made.model)


@pytest.mark.parametrize("training", [False, True])
def test_a_symmetry_of_evaluation_is_not_that_of_training(training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(16, 5, dtype=torch.float64)
    model(3 * x)
    model.train(training)
    symmetry = find_symmetry(model, (x,), training=training)
    model.train()
    optimizer = optim.SGD(model.parameters(), 0.1)
    before = model(x).detach()
    if training:
        Rebalance(symmetry, optimizer, model=model).now()
        assert float((model(x).detach() - before).abs().max()) < 1e-12
    else:
        with pytest.warns(UserWarning, match="in training, where it reads the batch"):
            rebalance = Rebalance(symmetry, optimizer, model=model)
        rebalance.now()
        assert float((model(x).detach() - before).abs().max()) > 1e-3
