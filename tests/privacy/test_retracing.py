"""Training in a key retraces plain training exactly where the step commutes with the key."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.algebra import Permutation
from paramsym.privacy import Expected, Key, Retraced, expectation, retrace, retracing_table
from paramsym.privacy.retracing.runs import Factory, step

CROSS, SQUARE = nn.CrossEntropyLoss(), nn.MSELoss()
STEPS = 40


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def perceptron() -> tuple[nn.Module, Tensor, Tensor, ParameterSymmetry]:
    """A classifier of clusters, with inputs and outputs freed."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5)
    ).double()
    labels = torch.randint(0, 5, (96,), generator=generator(1))
    centres = torch.randn(5, 12, generator=generator(2), dtype=torch.float64)
    x = centres[labels] + 0.5 * torch.randn(96, 12, generator=generator(3), dtype=torch.float64)
    symmetry = find_symmetry(model, (x[:8],), training=True, free_inputs=True, free_outputs=True)
    return model, x, labels, symmetry


def one_hot(labels: Tensor) -> Tensor:
    return nn.functional.one_hot(labels).double()


def run(key: Key, optimizer: Factory, loss: nn.Module = SQUARE, **more: object) -> Retraced:
    model, x, labels, _ = perceptron()
    targets = labels if loss is CROSS else one_hot(labels)
    options = {"steps": STEPS, "batch": 32, "loss": loss, **more}
    return retrace(model, (x, targets), key, optimizer, **options)  # type: ignore[arg-type]


OPTIMIZERS: dict[str, Factory] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum-with-decay": lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=1e-3),
    "Nesterov": lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True),
    "SGD-foreach": lambda p: torch.optim.SGD(p, 0.05, 0.9, foreach=True),
    "SGD-fused": lambda p: torch.optim.SGD(p, 0.05, 0.9, fused=True),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.05, t0=10),
    "Adam": lambda p: torch.optim.Adam(p, 3e-3),
    "Adam-fused": lambda p: torch.optim.Adam(p, 3e-3, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 3e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "Rprop": lambda p: torch.optim.Rprop(p, 1e-3),
    "L-BFGS": lambda p: torch.optim.LBFGS(p, 0.5, max_iter=2),
}
DENSE = ("SGD", "momentum-with-decay", "Nesterov", "SGD-foreach", "SGD-fused", "ASGD")
ENTRYWISE = tuple(name for name in OPTIMIZERS if name not in DENSE)


@pytest.mark.parametrize("loss", [CROSS, SQUARE], ids=["classes", "regression"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_commuting_key_is_retraced_to_rounding(name: str, loss: nn.Module) -> None:
    model, _, _, symmetry = perceptron()
    made = OPTIMIZERS[name]([*model.parameters()])
    found = run(Key.generate(symmetry, generator(), made, loss), OPTIMIZERS[name], loss)
    assert found.expected is Expected.RETRACES
    assert found.largest < 1e-12 and found.travelled > 1e-2
    assert found.losses[0] == pytest.approx(found.losses[1], rel=1e-10)


@pytest.mark.parametrize("name", ["SGD", "ASGD"])
def test_steps_of_inner_products_retrace_rotations_of_inputs_and_outputs(name: str) -> None:
    *_, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "sgd", SQUARE)
    assert str(key.acting.spaces["input"].group) == "Orthogonal(12)"
    assert str(key.acting.spaces["output"].group) == "Orthogonal(5)"
    found = run(key, OPTIMIZERS[name])
    assert 0 < found.largest < 1e-12


@pytest.mark.parametrize("name", ENTRYWISE)
def test_entrywise_steps_part_from_rotations(name: str) -> None:
    *_, symmetry = perceptron()
    found = run(Key.generate(symmetry, generator(), "sgd", SQUARE), OPTIMIZERS[name], steps=60)
    assert found.expected is Expected.PARTS
    assert found.largest > 0.1


def test_even_plain_descent_parts_from_maps_that_are_not_orthogonal() -> None:
    *_, symmetry = perceptron()
    key = Key.generate(symmetry, generator())  # for inference alone
    found = run(key, OPTIMIZERS["SGD"], steps=100)
    assert found.expected is Expected.PARTS
    assert found.largest > 0.1
    assert found.drift[0] == (0, found.drift[0][1]) and found.drift[0][1] < 1e-12


@pytest.mark.parametrize("name", ["momentum-with-decay", "Adam", "RMSprop", "Adagrad"])
def test_scales_are_retraced_with_the_rates_that_tell_them(name: str) -> None:
    model, *_, symmetry = perceptron()
    made = OPTIMIZERS[name]([*model.parameters()])
    key = Key.generate(symmetry, generator(), made, SQUARE, scalings=True)
    assert key.learning_rates is not None and key.learning_rates.scales
    assert run(key, OPTIMIZERS[name]).largest < 1e-12
    untold = Key.of(symmetry, {n: key.element[n] for n in key.acting.spaces})  # tells no rates
    assert run(untold, OPTIMIZERS[name]).largest > 0.01


def test_decay_that_no_rates_undo_is_refused_with_scales() -> None:
    *_, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "adam", SQUARE, scalings=True)
    with pytest.raises(ValueError, match="weight_decay=0"):
        run(key, OPTIMIZERS["AdamW"])


# -- parts of steps --------------------------------------------------------------------------------

CLIPS: dict[str, tuple[Callable, str]] = {
    "norm": (partial(clip_grad_norm_, max_norm=0.05), "sgd"),
    "norm-foreach": (partial(clip_grad_norm_, max_norm=0.05, foreach=True), "sgd"),
    "value": (partial(clip_grad_value_, clip_value=0.005), "adam"),
    "largest-entry": (partial(clip_grad_norm_, max_norm=0.01, norm_type=float("inf")), "adam"),
    "sum-of-entries": (partial(clip_grad_norm_, max_norm=0.2, norm_type=1.0), "adam"),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipping_commutes_with_what_its_norm_does_not_see(name: str) -> None:
    *_, symmetry = perceptron()
    clip, commuting = CLIPS[name]
    descent = partial(torch.optim.SGD, lr=0.5, momentum=0.9)
    found = {
        each: run(Key.generate(symmetry, generator(), each, SQUARE), descent, clip=clip)
        for each in ("sgd", "adam")
    }
    assert found["adam"].largest < 1e-12
    assert (found["sgd"].largest < 1e-12) is (commuting == "sgd")
    assert (found["sgd"].expected is Expected.RETRACES) is (commuting == "sgd")
    if commuting == "adam":
        assert found["sgd"].largest > 0.01


def test_the_first_step_of_lbfgs_is_what_does_not_commute_with_rotations() -> None:
    """Its length is min(1, 1/‖g‖₁)·lr: where ‖g‖₁ < 1 all that is left are inner products."""
    model, x, labels, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "sgd", SQUARE)
    exact = partial(torch.optim.LBFGS, lr=1.0, max_iter=4, tolerance_grad=0, tolerance_change=0)

    def scaled(scale: float) -> Retraced:
        loss = lambda y, t: scale * SQUARE(y, t)  # noqa: E731
        return retrace(model, (x, one_hot(labels)), key, exact, 6, loss=loss)

    def gradient(scale: float) -> float:
        made = copy.deepcopy(model)
        (scale * SQUARE(made(x), one_hot(labels))).backward()
        return sum(float(p.grad.abs().sum()) for p in made.parameters() if p.grad is not None)

    assert gradient(1e-2) < 1 < gradient(1.0)
    assert scaled(1e-2).largest < 1e-11
    assert scaled(1.0).largest > 1e-2


def test_muon_parts_from_rotations_by_its_half_precision_alone() -> None:
    model, x, labels, symmetry = perceptron()
    names = [n for n, p in model.named_parameters() if p.ndim == 2]
    key = Key.generate(
        symmetry, generator(), "muon", SQUARE, trainable=names, inexact=True
    )  # fmt: skip
    found = run(key, lambda p: torch.optim.Muon(p, lr=1e-2))
    assert found.expected is Expected.EXACT_ONLY
    assert 1e-4 < found.largest < 0.5
    assert run(key, lambda p: torch.optim.SGD(p, lr=1e-2)).largest < 1e-12


# -- other models ----------------------------------------------------------------------------------


def convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 4),
    ).double()  # fmt: skip
    x = torch.randn(48, 3, 8, 8, generator=generator(4), dtype=torch.float64)
    labels = torch.randint(0, 4, (48,), generator=generator(5))
    return model, x + 0.3 * labels[:, None, None, None], labels


@pytest.mark.parametrize("name", ["momentum-with-decay", "Adam"])
def test_convolutions_retrace_mixed_channels_and_batch_statistics(name: str) -> None:
    model, x, labels = convolutional()
    symmetry = find_symmetry(
        model, (x[:8],), training=True, free_inputs={"input": 1}, free_outputs=True
    )
    made = OPTIMIZERS[name]([*model.parameters()])
    key = Key.generate(symmetry, generator(), made, CROSS)
    found = retrace(model, (x, labels), key, OPTIMIZERS[name], 30, loss=CROSS, batch=16)
    assert found.expected is Expected.RETRACES and "1.running_var" in found.differences
    # Adam divides the gradient of a bias before a norm, which is rounding, by its own size
    assert found.largest < (1e-8 if name == "Adam" else 1e-12)
    dense = Key.generate(symmetry, generator(), "sgd", CROSS)
    parted = retrace(model, (x, labels), dense, OPTIMIZERS["RMSprop"], 30, loss=CROSS, batch=16)
    assert parted.expected is Expected.PARTS and parted.largest > 0.01


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_transformers_retrace_heads_and_the_order_of_the_residual_stream(tied: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=7, n_positions=6, tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double().train()
    tokens = torch.randint(0, 7, (32, 7), generator=generator(6)).cumsum(1) % 7
    data = {"input_ids": tokens[:, :-1]}, tokens[:, 1:]
    logits = lambda found: found.logits  # noqa: E731
    few = {"input_ids": tokens[:3, :-1]}
    symmetry = find_symmetry(model, few, training=True, outputs=logits, check=False)
    for name, group in (("momentum-with-decay", "Orthogonal(4)"), ("Adam", "SignedPermu")):
        made = OPTIMIZERS[name]([*model.parameters()])
        key = Key.generate(symmetry, generator(), made)
        assert str(key.acting.spaces["h.0.attn.vo"].group).startswith(group)
        assert str(key.acting.spaces["residual"].group) == "Permutation(8)"
        found = retrace(
            model, data, key, OPTIMIZERS[name], 20, loss=next_token, batch=16, outputs=logits
        )
        assert found.expected is Expected.RETRACES and found.largest < 1e-9
        if name != "Adam":
            parted = retrace(
                model, data, key, OPTIMIZERS["Adam"], 20, loss=next_token, outputs=logits
            )
            assert parted.expected is Expected.PARTS and parted.largest > 0.1


def test_dropout_parts_from_orders_of_its_units() -> None:
    _, x, labels, _ = perceptron()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5)).double()
    symmetry = find_symmetry(model, (x[:8],), training=True)
    key = Key.generate(symmetry, generator(), groups=Permutation)
    descent, data = OPTIMIZERS["SGD"], (x, labels)
    with pytest.raises(ValueError, match="draws random numbers"):
        retrace(model, data, key, descent, STEPS, loss=CROSS)  # it is found before training
    model.eval()
    assert retrace(model, data, key, descent, STEPS, loss=CROSS).largest < 1e-12


# -- what a report says ----------------------------------------------------------------------------


def test_differences_are_those_of_two_loops_written_out() -> None:
    model, x, labels, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "sgd", SQUARE)
    found = run(key, OPTIMIZERS["RMSprop"], steps=3, batch=None)

    def trained(state: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> nn.Module:
        made = copy.deepcopy(model)
        made.load_state_dict(state)
        optimizer = torch.optim.RMSprop(made.parameters(), 1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            SQUARE(made(inputs), targets).backward()
            optimizer.step()
        return made

    matrix, turn = key.element["input"].matrix, key.element["output"].matrix
    assert matrix is not None and turn is not None
    plain = trained(model.state_dict(), x, one_hot(labels)).state_dict()
    remote = trained(
        act(key.acting, key.element, model.state_dict()), x @ matrix.T, one_hot(labels) @ turn.T
    ).state_dict()  # fmt: skip
    back = act(key.acting, ~key.element, remote)
    for name, difference in found.differences.items():
        expected = float((back[name] - plain[name]).norm() / plain[name].norm())
        assert difference == pytest.approx(expected, rel=1e-9)
    assert found.largest == max(found.differences.values())
    assert found.differences[found.worst] == found.largest


def test_where_training_is_chaotic_rounding_alone_parts_as_far_as_a_key() -> None:
    *_, symmetry = perceptron()
    wild = partial(torch.optim.SGD, lr=1.2, momentum=0.9)
    key = Key.generate(symmetry, generator(), "sgd", CROSS)
    chaos = run(key, wild, CROSS, steps=100, rounding=True)
    assert chaos.expected is Expected.RETRACES and chaos.rounding is not None
    assert chaos.largest > 0.1 and chaos.rounding > 0.1
    tame = run(key, OPTIMIZERS["SGD"], CROSS, steps=100, rounding=True)
    assert tame.largest < 1e-13 and tame.rounding is not None and 0 < tame.rounding < 1e-13


def test_biases_that_hold_rounding_alone_do_not_count_as_lost() -> None:
    """A bias in front of a norm over the batch has no gradient."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()
    nn.init.zeros_(model[0].bias)
    x, y = torch.randn(32, 4, dtype=torch.float64), torch.randn(32, 2, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,), training=True, free_inputs=True)
    key = Key.generate(symmetry, generator(), "sgd")
    found = retrace(model, (x, y), key, OPTIMIZERS["SGD"], 20, loss=SQUARE)
    assert 1e-13 < found.differences["0.bias"] < 1e-8  # of itself it is all of it
    assert max(found.differences[n] for n in found.differences if n != "0.bias") < 1e-13


def test_a_report_is_read_as_text_and_as_json() -> None:
    *_, symmetry = perceptron()
    found = run(Key.generate(symmetry, generator(), "sgd", SQUARE), OPTIMIZERS["SGD"], every=10)
    assert [count for count, _ in found.drift] == [0, 10, 20, 30, 40]
    text = str(found)
    assert "SGD, 40 steps" in text and found.fingerprint[:12] in text and found.worst in text
    read = json.loads(found.to_json())
    assert read["expected"] == "retraces" and read["largest"] == found.largest
    assert read["differences"] == found.differences and len(read["drift"]) == 5


def test_what_is_not_finite_is_the_largest_and_is_written_as_text() -> None:
    *_, symmetry = perceptron()
    explosive = partial(torch.optim.SGD, lr=1e9)
    found = run(Key.generate(symmetry, generator(), "sgd", SQUARE), explosive)
    assert not found.largest < 1 and json.loads(found.to_json())["largest"] in ("nan", "inf")


def test_a_table_holds_a_run_for_each_key_and_optimiser() -> None:
    model, x, labels, symmetry = perceptron()
    keys = {
        "dense": Key.generate(symmetry, generator(), "sgd", SQUARE),
        "orders": Key.generate(symmetry, generator(), "adam", SQUARE),
    }
    chosen = {name: OPTIMIZERS[name] for name in ("SGD", "Adam")}
    table = retracing_table(
        model, (x, one_hot(labels)), keys, chosen, 20, loss=SQUARE, batch=32
    )  # fmt: skip
    assert {*table.runs} == {(k, n) for k in keys for n in chosen}
    head, descent, adam, note = str(table).splitlines()
    assert head.split() == ["dense", "orders"] and "does not commute" in note
    assert "*" not in descent and adam.split()[1].endswith("*") and "*" not in adam.split()[2]
    assert [row["key"] for row in json.loads(table.to_json())] == ["dense"] * 2 + ["orders"] * 2


def test_of_an_unknown_step_nothing_is_expected() -> None:
    class Own(torch.optim.SGD):
        """Some step of one's own."""

    model, *_, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "sgd", SQUARE)
    own = Own(model.parameters(), 0.1)
    assert expectation(key, own, SQUARE) is Expected.UNKNOWN
    assert expectation(key, torch.optim.SGD(model.parameters(), 0.1), SQUARE, lambda p: None) is (
        Expected.UNKNOWN
    )


def test_a_step_is_the_loop_of_the_other_side() -> None:
    model, x, labels, _ = perceptron()
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.SGD(one.parameters(), 0.1)
    before = step(one, optimizer, x, labels, CROSS)
    CROSS(other(x), labels).backward()
    assert before == float(CROSS(model(x), labels).detach())
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert q.grad is not None
        assert torch.allclose(p, q - 0.1 * q.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("steps, batch", [(0, 8), (3, 0)], ids=["no-steps", "no-samples"])
def test_runs_without_steps_or_samples_are_refused(steps: int, batch: int) -> None:
    *_, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "sgd", SQUARE)
    with pytest.raises(ValueError, match="at least one step"):
        run(key, OPTIMIZERS["SGD"], steps=steps, batch=batch)


def test_runs_without_targets_are_refused() -> None:
    model, x, _, symmetry = perceptron()
    key = Key.generate(symmetry, generator(), "sgd", SQUARE)
    with pytest.raises(ValueError, match="targets NoneType came"):
        retrace(model, (x, None), key, OPTIMIZERS["SGD"], 3, loss=SQUARE)  # type: ignore[arg-type]
