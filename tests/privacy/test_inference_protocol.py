"""The three steps of obfuscated inference: exact, checked on both sides, and what they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.algebra import Orthogonal
from paramsym.privacy.inference import DataOwner, Message, ModelOwner, Refusal

from .served import NAMES, Served, mlp, served


def owner_of(case: Served, masks: bool = True) -> ModelOwner:
    return ModelOwner.of(case.model, case.symmetry, case.example, masks=masks)


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_the_plain_network(name: str) -> None:
    case = served(name)
    owner = owner_of(case)
    offer = owner.offer(seed(1))
    session, reply = DataOwner(case.symmetry).reply(offer, seed(2))
    query = session.query(case.example)
    wanted = case.outputs()
    assert apart(session.answer(owner.accept(reply).answer(query)), wanted) <= 1e-10
    # the key does something, both sides moved the parameters, and another session's key is no use
    (sent,), plain = query.tensors.values(), case.example
    assert apart(sent, plain if isinstance(plain, Tensor) else next(iter(plain.values()))) > 1e-2
    other = DataOwner(case.symmetry).reply(offer, seed(3))[0]
    assert apart(session.answer(owner.accept(reply).answer(other.query(plain))), wanted) > 1e-3
    assert any(not torch.equal(t, offer.tensors[n]) for n, t in reply.tensors.items())
    before = case.model.state_dict()
    assert any(not torch.equal(t, before[n]) for n, t in offer.of("parameters").items())


def test_single_precision_is_answered_in_single_precision() -> None:
    torch.manual_seed(0)
    model, x = mlp(nn.GELU()), torch.randn(5, 6)
    symmetry = find_symmetry(model, (x,), free_inputs=True)
    owner = ModelOwner.of(model, symmetry, x)
    session, reply = DataOwner(symmetry).reply(owner.offer(seed(1)), seed(2))
    found = session.answer(owner.accept(reply).answer(session.query(x)))
    assert found.dtype == torch.float32 and apart(found, model(x).detach()) <= 1e-4


def test_masks_go_along_with_the_order_of_their_units() -> None:
    case = served("relu")
    owner = owner_of(case)
    session, reply = DataOwner(case.symmetry).reply(owner.offer(seed(1)), seed(2))
    stale = {**reply.tensors, "masks/mlp": reply.tensors["masks/mlp"].flip(0)}
    found = owner.accept(Message(reply.header, stale)).answer(session.query(case.example))
    assert apart(session.answer(found), case.outputs()) > 1e-3


def test_without_masks_the_same_is_answered() -> None:
    case = served("relu")
    owner = owner_of(case, masks=False)
    offer = owner.offer(seed(1))
    assert not offer.of("masks")
    session, reply = DataOwner(case.symmetry).reply(offer, seed(2))
    found = session.answer(owner.accept(reply).answer(session.query(case.example)))
    assert apart(found, case.outputs()) <= 1e-10


def test_what_is_offered_is_the_network_that_the_data_owner_can_run_alone() -> None:
    # the masks are part of what is sent, and hide nothing from her
    case = served("relu")
    owner = owner_of(case)
    offer = owner.offer(seed(1))
    assert owner.polarity is not None
    alone = owner.polarity.evaluator(offer.of("parameters"), offer.of("masks"))
    assert apart(alone(case.example), case.outputs()) <= 1e-12


def test_outputs_that_are_freed_move_and_are_undone() -> None:
    case = served("relu")
    x = case.example
    assert isinstance(x, Tensor)
    freed = find_symmetry(case.model, (x,), free_inputs=True, free_outputs=True)
    owner = ModelOwner.of(case.model, freed, x)
    session, reply = DataOwner(freed).reply(owner.offer(seed(1)), seed(2))
    answer = owner.accept(reply).answer(session.query(x))
    assert apart(answer.of("outputs")["output"], case.outputs()) > 1e-2
    assert apart(session.answer(answer), case.outputs()) <= 1e-10


def test_a_model_owner_who_chooses_what_he_offers_reads_the_key_off_through_freed_outputs() -> None:
    # W₁ = (I; I) with biases β and γ: what comes back has rows dᵢaᵢ and dⱼaᵢ of A⁻¹ in some order.
    # Parallel rows are pairs, (b/‖row‖) of one over the other is βᵢ/γᵢ, which says i, and b/β is d.
    n = 6
    model = nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, 3)).double()
    x = torch.randn(4, n, dtype=torch.float64, generator=seed(0))
    freed = find_symmetry(model, (x,), free_inputs=True, free_outputs=True)
    beta = torch.linspace(1.0, 2.0, n, dtype=torch.float64)
    chosen = {**dict(model.state_dict()), "0.weight": torch.eye(n).double().repeat(2, 1),
              "0.bias": torch.cat([beta, 1 / beta])}  # fmt: skip

    def recovered(params: dict[str, Tensor]) -> float:
        tensors = {f"parameters/{name}": tensor for name, tensor in params.items()}
        session, reply = DataOwner(freed).reply(
            Message({"fingerprint": freed.fingerprint}, tensors), seed(2)
        )
        rows, bias = reply.tensors["parameters/0.weight"], reply.tensors["parameters/0.bias"]
        lengths = rows.norm(dim=1)
        cosines = (rows @ rows.mT / lengths[:, None] / lengths).fill_diagonal_(-1)
        other = cosines.argmax(1)
        ratio = (bias / lengths) / (bias / lengths)[other]  # βᵢ² or its inverse
        inverse = torch.zeros(n, n, dtype=torch.float64)
        for k in range(2 * n):
            i = int((beta**2 - ratio[k]).abs().argmin())
            if ratio[k] > 1 - 1e-9 and (ratio[k] > 1 + 1e-9 or not inverse[i].any()):
                inverse[i] = rows[k] * beta[i] / bias[k]
        matrix = session.key.element["input"].matrix
        return apart(inverse, torch.linalg.inv(matrix))

    assert recovered(chosen) <= 1e-10
    assert recovered(dict(model.state_dict())) > 1e-2  # parameters that were not chosen for it


def test_a_smaller_group_may_be_asked_for() -> None:
    case = served("relu")
    data = DataOwner(case.symmetry, {"input": Orthogonal(6)})
    session, _ = data.reply(owner_of(case).offer(seed(1)), seed(2))
    sent = session.query(case.example).of("inputs")["input"]
    assert isinstance(case.example, Tensor)
    torch.testing.assert_close(sent @ sent.mT, case.example @ case.example.mT)


def test_each_session_has_keys_of_its_own() -> None:
    case = served("relu")
    owner = owner_of(case)
    one, other = owner.offer(), owner.offer()
    assert not torch.equal(one.tensors["parameters/2.weight"], other.tensors["parameters/2.weight"])
    data = DataOwner(case.symmetry)
    keys = [data.reply(one)[0].key.fingerprint for _ in range(2)]
    assert keys[0] != keys[1]


def changed(message: Message, name: str, change: Callable[[Tensor], Tensor]) -> Message:
    return replace(message, tensors={**message.tensors, name: change(message.tensors[name])})


WEIGHT = "parameters/0.weight"
WRONG: dict[str, tuple[Callable[[Message], Message], str]] = {
    "NaN": (lambda m: changed(m, WEIGHT, lambda t: t * torch.nan), "not finite"),
    "infinity": (lambda m: changed(m, WEIGHT, lambda t: t * torch.inf), "not finite"),
    "a dtype": (lambda m: changed(m, WEIGHT, lambda t: t.long()), "the dtype int64"),
    "a shape": (lambda m: changed(m, WEIGHT, lambda t: t[:-1]), r"the shape \(7, 6\)"),
    "an axis more": (lambda m: changed(m, WEIGHT, lambda t: t[None]), r"the shape \(1, 8, 6\)"),
    "a mask of zeros": (lambda m: changed(m, "masks/mlp", lambda t: t * 0), "than 1 and -1"),
    "a name less": (
        lambda m: replace(m, tensors={n: t for n, t in m.tensors.items() if n != WEIGHT}),
        "lacks 'parameters/0.weight'",
    ),
    "a name more": (
        lambda m: replace(m, tensors={**m.tensors, "parameters/w": torch.ones(1)}),
        "has 'parameters/w', which nobody reads",
    ),
    "a word more": (lambda m: replace(m, header={**m.header, "run": "rm"}), "has 'run'"),
    "another network": (
        lambda m: replace(m, header={"fingerprint": "0" * 64}), "belong to the symmetry '0000"
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_both_sides_check_what_they_are_sent(wrong: str) -> None:
    change, said = WRONG[wrong]
    case = served("relu")
    owner, data = owner_of(case), DataOwner(case.symmetry)
    offer = owner.offer(seed(1))
    with pytest.raises(Refusal, match=said) as refused:
        data.reply(change(offer), seed(2))
    assert refused.value.status == 422
    with pytest.raises(Refusal, match=said):
        owner.accept(change(data.reply(offer, seed(2))[1]))


def test_queries_are_checked() -> None:
    case = served("relu")
    owner = owner_of(case)
    session, reply = DataOwner(case.symmetry).reply(owner.offer(seed(1)), seed(2))
    evaluator = owner.accept(reply)
    query = session.query(case.example)
    for change, said in (
        (lambda t: t * torch.nan, "not finite"),
        (lambda t: t.float(), "the dtype float32"),
        (lambda t: t[:0], "1 to 4096"),
        (lambda t: t[0], "the shape"),
        (lambda t: t.expand(5, 5, 6), "the shape"),
        (lambda t: t * 1e308, "not finite"),
    ):
        with pytest.raises(Refusal, match=said):
            evaluator.answer(changed(query, "inputs/input", change))
    with pytest.raises(Refusal, match="not finite"):  # the sum overflows in the network
        evaluator.answer(changed(query, "inputs/input", lambda t: t.sign() * 1.7e308))


def test_what_a_model_raises_is_told_as_a_refusal() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 3:
                raise IndexError("three are too many")
            return self.outer(torch.relu(self.inner(x)))

    model, x = Picky().double(), torch.randn(2, 6, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,), free_inputs=True)
    owner = ModelOwner.of(model, symmetry, x)
    session, reply = DataOwner(symmetry).reply(owner.offer())
    with pytest.raises(Refusal, match="three are too many"):
        owner.accept(reply).answer(session.query(x[[0, 0, 0]]))


def test_a_symmetry_by_which_no_input_moves_is_refused() -> None:
    case = served("relu")
    held = find_symmetry(case.model, (case.example,))
    with pytest.raises(ValueError, match="no input moves by this symmetry"):
        ModelOwner.of(case.model, held, case.example)
    with pytest.raises(ValueError, match="no input moves by this symmetry"):
        DataOwner(held)


def test_the_symmetry_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="of which the symmetry says nothing"):
        ModelOwner.of(served("relu").model, served("swish").symmetry, served("relu").example)
