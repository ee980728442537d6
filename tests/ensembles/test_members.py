"""Members are evaluated together, like a loop over copies, without copies of what they share."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from paramsym import act, find_symmetry
from paramsym.ensembles import MemberEnsemble, OrbitEnsemble, majority_vote
from tests.ensembles.networks import HIDDEN, apart, convolutional, digits, seeded, trained


def looped(ensemble: MemberEnsemble, model: nn.Module, *inputs: Any) -> Tensor:
    """The obvious twin: a deep copy of the model for each member, one after the other."""
    answers = []
    for place in range(ensemble.count):
        member = copy.deepcopy(model).eval()
        member.load_state_dict(ensemble.member(place))
        answers.append(member(*inputs))
    return torch.stack(answers)


def storages(module: nn.Module) -> dict[int, int]:
    """Bytes by storage, each counted once."""
    tensors = [*module.parameters(), *module.buffers()]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


@pytest.mark.parametrize("method", ["group", "inverse", "random", "interpolated-permutation"])
@pytest.mark.parametrize("chunk", [None, 3])
def test_members_answer_as_a_loop_over_deep_copies(method: str, chunk: int | None) -> None:
    x, _ = digits()
    model, images = convolutional(), x[:200].reshape(-1, 1, 8, 8)
    ensemble = OrbitEnsemble(model, images, "mlp", 7, 0.3, method, generator=seeded(), chunk=chunk)
    wanted = looped(ensemble, model, images[:20])
    found = ensemble.logits(images[:20])
    assert apart(found, wanted) < 1e-12
    assert apart(found.roll(1, 0), wanted) > 1e-4  # members do differ
    assert apart(ensemble.mean_logits(images[:20]), wanted.mean(0)) < 1e-12
    assert torch.equal(ensemble(images[:20]), ensemble.mean_logits(images[:20]))


def test_hundred_members_hold_one_model_and_what_they_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 500), nn.Tanh(), nn.Linear(500, 8), nn.Tanh(),
                          nn.Linear(8, 10))  # fmt: skip
    symmetry = find_symmetry(model, (torch.randn(3, 64),))
    space = [name for name, s in symmetry.spaces.items() if s.size == 8][0]
    ensemble = OrbitEnsemble(model, torch.randn(100, 64), space, 100, generator=seeded())
    one, all_of_it = sum(storages(model).values()), storages(ensemble)
    own = sum(t.numel() * t.element_size() for t in ensemble.stacked().values())
    assert own == 4 * 100 * (8 * 500 + 8 + 10 * 8)  # V, b and U of each
    assert sum(all_of_it.values()) <= 1.2 * one + own
    assert {*storages(model)} <= {*all_of_it}  # and the one model is the given one
    copies = nn.ModuleList(copy.deepcopy(model) for _ in range(100))
    assert sum(storages(copies).values()) > 1.2 * one + own  # what the bound rules out


class Shapes(TorchDispatchMode):
    """How often each operation runs, by the sizes of what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        size = args[0].numel() if args and isinstance(args[0], Tensor) else 0
        self.seen[func.overloadpacket.__name__, size] += 1
        return func(*args, **(kwargs or {}))


def test_what_no_member_changes_is_computed_once() -> None:
    model = convolutional()
    images = torch.rand(40, 1, 8, 8).double()
    last = OrbitEnsemble(model, images, "mlp", 6, generator=seeded())
    states = [dict(model.state_dict()) for _ in range(6)]
    for place, state in enumerate(states):
        state["0.weight"] = state["0.weight"] + 0.1 * place
    first = MemberEnsemble(model, states)
    convolved = []
    for ensemble in (last, first):
        with Shapes() as shapes:
            ensemble.logits(images)
        convolved.append(
            sum(
                n * count for (name, n), count in shapes.seen.items() if name.startswith("max_pool")
            )
        )
    assert convolved[0] == 40 * 4 * 64  # one image of four channels for each sample, no member
    assert convolved[1] == 6 * convolved[0]  # and it does count members where they differ there


def test_exact_symmetries_give_one_network_and_no_ensemble() -> None:
    x, _ = digits()
    model = trained()
    symmetry = find_symmetry(model, (x[:13],))
    generator = seeded()
    states = [act(symmetry, symmetry.sample(generator), dict(model.state_dict())) for _ in range(9)]
    exact = MemberEnsemble(model, states)
    assert set(exact.names) == {"0.weight", "0.bias", "2.weight"}  # all of them have moved
    answers = exact.logits(x)
    assert apart(answers, model(x).expand_as(answers)) < 1e-12
    assert torch.equal(exact.vote(x), model(x).argmax(-1))
    other = OrbitEnsemble(model, x, "mlp", 9, 0.5, generator=generator)
    assert apart(other.logits(x), model(x).expand_as(answers)) > 1e-3  # data-dependent ones differ


def test_tied_parameters_and_shared_members() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    model.get_submodule("2").register_parameter("weight", model.get_parameter("0.weight"))
    state = dict(model.state_dict())
    moved = 2 * state["0.weight"]
    ensemble = MemberEnsemble(model, [state, {"2.weight": moved, "0.weight": moved}, {}])
    assert ensemble.names == ("0.weight",)
    x = torch.randn(3, 5)
    assert apart(ensemble.logits(x), looped(ensemble, model, x)) < 1e-6
    assert torch.equal(ensemble.logits(x)[0], ensemble.logits(x)[2])
    same = MemberEnsemble(model, [state, {}])
    assert same.names == () and same.logits(x).shape == (2, 3, 5)


def test_the_network_keeps_its_mode_and_the_ensemble_is_in_evaluation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 6), nn.Dropout(0.5),
                          nn.BatchNorm1d(6), nn.Linear(6, 3))  # fmt: skip
    x = torch.randn(200, 6)
    model(x)
    ensemble = OrbitEnsemble(model, x, "mlp", 4, generator=seeded()).train()
    assert model.training and not ensemble.model.training
    mean = model.state_dict()["4.running_mean"].clone()
    answers = ensemble.logits(x)
    assert torch.equal(answers, ensemble.logits(x)) and torch.equal(
        mean, model.state_dict()["4.running_mean"]
    )
    assert apart(answers, looped(ensemble, model, x)) < 1e-5


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def test_a_layer_inside_a_transformer_and_positions_count_as_samples() -> None:
    torch.manual_seed(0)
    model, x = Encoder(), torch.randn(30, 5, 8)
    ensemble = OrbitEnsemble(model, x[:4], "mlp", 3, 0.5, generator=seeded())  # 20 for 16 units
    assert set(ensemble.names) == {f"layer.{n}" for n in (
        "linear1.weight", "linear1.bias", "linear2.weight")}  # fmt: skip
    with torch.no_grad():
        assert apart(ensemble.logits(x), looped(ensemble, model, x)) < 1e-5
    with pytest.raises(ValueError, match="15 samples came for the 16 units"):
        OrbitEnsemble(model, x[:3], "mlp", 3, generator=seeded())


def test_the_answer_can_be_differentiated_by_the_inputs() -> None:
    x, _ = digits()
    ensemble = OrbitEnsemble(trained(), x, "mlp", 5, 0.5, generator=seeded())
    given_ = x[:4].clone().requires_grad_()
    (found,) = torch.autograd.grad(ensemble.mean_logits(given_)[:, 3].sum(), given_)
    twin = x[:4].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(looped(ensemble, trained(), twin).mean(0)[:, 3].sum(), twin)
    assert apart(found, wanted) < 1e-12


def naive(logits: Tensor) -> list[int]:
    """The vote by counting, sample by sample."""
    winners = []
    for sample in range(logits.shape[1]):
        counts = Counter(int(member[sample].argmax()) for member in logits)
        top = max(counts.values())
        tied = [c for c, n in counts.items() if n == top]
        means = {c: float(logits[:, sample, c].mean()) for c in tied}
        winners.append(max(means, key=lambda c: means[c]))
    return winners


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(2, 5), st.integers(0, 10_000))
def test_the_vote_is_that_of_counting(members: int, batch: int, classes: int, seed: int) -> None:
    logits = torch.randn(members, batch, classes, generator=seeded(seed))
    assert majority_vote(logits).tolist() == naive(logits)


def test_a_vote_is_not_the_mean() -> None:
    logits = torch.tensor([[[1.0, 0, 0]], [[1.0, 0, 0]], [[0, 0, 9.0]]])
    assert majority_vote(logits).tolist() == [0] != logits.mean(0).argmax(-1).tolist()
    tie = torch.tensor([[[1.0, 0, 0]], [[0, 0, 2.0]]])
    assert majority_vote(tie).tolist() == [2]


def test_members_that_are_no_states_of_the_model() -> None:
    model = trained()
    state = dict(model.state_dict())
    for members, message in (
        ([], "no member came"),
        ([{"nothing": state["0.weight"]}], "'nothing'; parameters and buffers .* were expected"),
        ([{"0.weight": state["0.weight"][1:]}], r"shape \(15, 64\); \(16, 64\) was expected"),
        ([{"0.weight": state["0.weight"] / 0}], "member 0 has entries that are not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            MemberEnsemble(model, members)
