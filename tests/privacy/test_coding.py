"""Encoding and decoding: the function is kept, training retraces, strangers are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.algebra import Orthogonal
from paramsym.privacy import (
    Key,
    decode,
    decode_outputs,
    decode_state,
    encode,
    encode_inputs,
    encode_state,
    encode_targets,
)

OPTIM = torch.optim
SAMPLES, INPUTS, CLASSES = 40, 6, 4
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, CLASSES)
    return nn.Sequential(*layers).double()


def freed(model: nn.Module, training: bool = True) -> ParameterSymmetry:
    x = torch.randn(7, INPUTS, dtype=torch.float64)
    return find_symmetry(model, (x,), free_inputs=True, free_outputs=True, training=training)


@pytest.fixture(scope="module")
def symmetry() -> ParameterSymmetry:
    return freed(mlp())


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained(
    model: nn.Module,
    x: torch.Tensor,
    t: torch.Tensor,
    make: Callable,
    loss: nn.Module,
    steps: int = 30,
) -> nn.Module:  # fmt: skip
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), t).backward()
        optimizer.step()
    return model


def drift(found: dict, expected: dict) -> float:
    """The largest relative difference of a tensor."""
    return max(float((found[n] - p).norm() / p.norm()) for n, p in expected.items())


# -- the function ------------------------------------------------------------------------------


def test_the_function_is_kept_and_comes_back(symmetry: ParameterSymmetry) -> None:
    model, (x, _) = mlp(), data()
    key = Key.generate(symmetry, generator())
    encoded = encode(model, x, key)
    answers = encoded.load_into(model)(encoded.inputs)
    assert torch.allclose(decode_outputs(answers, key), model(x), rtol=0, atol=1e-12)
    assert not torch.allclose(answers, model(x), atol=0.1)
    assert not torch.allclose(encoded.load_into(model)(x), model(x), atol=0.1)
    back = decode(encoded.state_dict, key)
    assert drift(back, model.state_dict()) < 1e-13


def test_nothing_is_changed_in_place(symmetry: ParameterSymmetry) -> None:
    model, (x, t) = mlp(), data()
    before = copy.deepcopy((model.state_dict(), x, t))
    key = Key.generate(symmetry, generator(), "sgd", "cross-entropy")
    encoded = encode(model, (x, t), key)
    decode(encoded.state_dict, key)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before[0].values(), model.state_dict().values(), strict=True)
    )
    assert torch.equal(before[1], x) and torch.equal(before[2], t)


# -- targets and losses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(
            label_smoothing=0.2, weight=torch.tensor([1.0, 2.0, 0.5, 3.0]).double()
        ),
        nn.CrossEntropyLoss(ignore_index=2),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.MSELoss(),
        nn.L1Loss(reduction="sum"),
        nn.HuberLoss(delta=0.3),
        nn.BCEWithLogitsLoss(pos_weight=WEIGHTS),
    ],
)
def test_a_moved_loss_compares_moved_targets(symmetry: ParameterSymmetry, loss: nn.Module) -> None:
    model, (x, t) = mlp(), data()
    labels = isinstance(loss, nn.CrossEntropyLoss)
    targets = t if labels else torch.rand(SAMPLES, CLASSES, dtype=torch.float64)
    for seed in range(5):
        key = Key.generate(symmetry, generator(seed), "sgd", loss)
        encoded = encode(model, (x, targets), key, loss)
        assert encoded.loss is not None and encoded.targets is not None
        moved = encoded.loss(encoded.load_into(model)(encoded.inputs), encoded.targets)
        assert torch.allclose(moved, loss(model(x), targets), rtol=1e-12)


def test_weights_of_classes_that_stay_behind_are_seen(symmetry: ParameterSymmetry) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 30.0]).double())
    model, (x, t) = mlp(), data()
    encoded = encode(model, (x, t), Key.generate(symmetry, generator(2), "sgd", loss), loss)
    left = loss(encoded.load_into(model)(encoded.inputs), encoded.targets)
    assert not torch.allclose(left, loss(model(x), t), rtol=1e-3)


def test_marks_outside_the_classes_stay(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(2), "sgd", "cross-entropy")
    moved = encode_targets(torch.tensor([-100, 0, 1, 2, 3]), key)
    assert moved[0] == -100 and sorted(moved[1:].tolist()) == [0, 1, 2, 3]
    assert moved[1:].tolist() != [0, 1, 2, 3]


def test_labels_are_refused_where_classes_mix(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "sgd", "mse")
    with pytest.raises(ValueError, match="the targets are labels, and the key mixes"):
        encode(mlp(), data(), key)


def test_another_loss_is_refused(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "sgd", "cross-entropy")
    with pytest.raises(ValueError, match="made for the loss 'cross-entropy'"):
        encode(mlp(), data(), key, nn.NLLLoss())


# -- training ----------------------------------------------------------------------------------

STEPS = {
    "momentum with decay": lambda p: OPTIM.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: OPTIM.Adam(p, 0.01),
    "adafactor": lambda p: OPTIM.Adafactor(p, 0.02),
}


@pytest.mark.parametrize("name", STEPS)
def test_training_retraces(symmetry: ParameterSymmetry, name: str) -> None:
    model, (x, t), loss = mlp(), data(), nn.CrossEntropyLoss()
    key = Key.generate(symmetry, generator(), STEPS[name](mlp().parameters()), loss)
    encoded = encode(model, (x, t), key, loss)
    remote = trained(encoded.load_into(model), encoded.inputs, encoded.targets, STEPS[name], loss)
    plain = trained(mlp(), x, t, STEPS[name], loss)
    assert drift(decode(remote.state_dict(), key), plain.state_dict()) < 1e-11
    assert drift(dict(model.state_dict()), plain.state_dict()) > 0.05  # it has trained


def test_training_with_a_key_for_nobody_does_not_retrace(symmetry: ParameterSymmetry) -> None:
    model, (x, t), loss = mlp(), data(), nn.CrossEntropyLoss()
    hidden = {n: s.group for n, s in symmetry.spaces.items() if n != "output"}
    key = Key.generate(symmetry.restrict(spaces=[*hidden], groups=Orthogonal), generator())
    encoded = encode(model, (x, t), key)
    remote = trained(encoded.load_into(model), encoded.inputs, t, STEPS["adam"], loss)
    plain = trained(mlp(), x, t, STEPS["adam"], loss)
    assert drift(decode(remote.state_dict(), key), plain.state_dict()) > 0.05


def test_a_run_that_began_plainly_goes_on_encoded(symmetry: ParameterSymmetry) -> None:
    (x, t), loss, make = data(), nn.CrossEntropyLoss(), STEPS["adam"]
    key = Key.generate(symmetry, generator(), "adam", loss)

    def steps(
        model: nn.Module, optimizer: OPTIM.Optimizer, x: torch.Tensor, t: torch.Tensor
    ) -> None:
        for _ in range(10):
            optimizer.zero_grad()
            loss(model(x), t).backward()
            optimizer.step()

    plain = mlp()
    first = make(plain.parameters())
    steps(plain, first, x, t)
    names = dict(plain.named_parameters())
    state = {n: copy.deepcopy(first.state[p]) for n, p in names.items()}
    encoded = encode(plain, (x, t), key, loss)
    remote = encoded.load_into(plain)
    second = make(remote.parameters())
    for n, p in remote.named_parameters():
        second.state[p] = encode_state(state, key)[n]
    steps(plain, first, x, t)
    steps(remote, second, encoded.inputs, encoded.targets)
    assert drift(decode(remote.state_dict(), key), plain.state_dict()) < 1e-11
    moments = {n: second.state[p] for n, p in remote.named_parameters()}
    back = decode_state(moments, key)
    for n, p in names.items():
        assert torch.allclose(
            back[n]["exp_avg_sq"], first.state[p]["exp_avg_sq"], rtol=1e-9, atol=0
        )


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
def test_scalings_retrace_with_their_rates(symmetry: ParameterSymmetry, name: str) -> None:
    """The loop is plain PyTorch: gradients times D² for SGD, one entry at a time for the others."""
    model, (x, t), loss = mlp(), data(), nn.CrossEntropyLoss()
    key = Key.generate(symmetry, generator(), name, loss, scalings=True)
    rates, encoded = key.learning_rates, encode(model, (x, t), key, loss)
    assert rates is not None
    plain, remote = mlp(), encoded.load_into(model)
    told, ignored = _scaled_steps(remote, encoded, rates, name), encoded.load_into(model)
    trained(plain, x, t, _MAKE[name], loss, 20)
    trained(ignored, encoded.inputs, encoded.targets, _MAKE[name], loss, 20)
    assert drift(decode(told.state_dict(), key), plain.state_dict()) < 1e-11
    assert drift(decode(ignored.state_dict(), key), plain.state_dict()) > 0.01


_MAKE = {
    "sgd": lambda p: OPTIM.SGD(p, 0.1, momentum=0.9, weight_decay=1e-2),
    "adam": lambda p: OPTIM.Adam(p, 0.01, eps=1e-3),
    "rmsprop": lambda p: OPTIM.RMSprop(p, 0.01, eps=1e-3),
}


def _scaled_steps(model: nn.Module, encoded, rates, name: str) -> nn.Module:
    loss = nn.CrossEntropyLoss()
    if name == "sgd":
        for n, p in model.named_parameters():
            p.register_hook(lambda grad, n=n: grad * rates.learning_rate(n, 1.0))
        return trained(model, encoded.inputs, encoded.targets, _MAKE["sgd"], loss, 20)
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in model.named_parameters()}
    for step in range(1, 21):
        model.zero_grad()
        loss(model(encoded.inputs), encoded.targets).backward()
        for n, p in model.named_parameters():
            m, v = moments[n]
            square = 0.99 if name == "rmsprop" else 0.999
            m.lerp_(p.grad, 1.0 if name == "rmsprop" else 0.1)
            v.mul_(square).add_((1 - square) * p.grad.square())
            first, second = (1, 1) if name == "rmsprop" else (1 - 0.9**step, 1 - 0.999**step)
            size = (v / second).sqrt() + rates.epsilon(n, 1e-3)
            p.data -= rates.learning_rate(n, 0.01) * (m / first) / size
    return model


# -- what is refused ---------------------------------------------------------------------------


def test_parameters_of_another_key_are_refused(symmetry: ParameterSymmetry) -> None:
    first, second = (Key.generate(symmetry, generator(seed), "sgd") for seed in (1, 2))
    encoded = encode(mlp(), data()[0], first)
    decode(encoded.state_dict, first, fingerprint=encoded.fingerprint)
    with pytest.raises(ValueError, match=f"{first.fingerprint[:12]}.*{second.fingerprint[:12]}"):
        decode(encoded.state_dict, second, fingerprint=encoded.fingerprint)


def test_incomplete_and_foreign_parameters_are_refused(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "sgd")
    state = encode(mlp(), data()[0], key).state_dict
    with pytest.raises(ValueError, match=r"'4.bias' is missing"):
        decode({n: t for n, t in state.items() if n != "4.bias"}, key)
    with pytest.raises(ValueError, match="has shape"):
        decode(state | {"4.bias": torch.zeros(5)}, key)


def test_integers_are_refused_where_inputs_mix(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "sgd")
    with pytest.raises(ValueError, match=r"holds torch\.int64.*linear combinations"):
        encode_inputs(torch.ones(3, INPUTS, dtype=torch.int64), key)


def test_numbers_that_are_not_finite_are_refused(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "sgd")
    with pytest.raises(ValueError, match="not finite"):
        encode_inputs(torch.full((2, INPUTS), float("nan")), key)


def test_a_model_that_is_not_that_of_the_key_is_refused(symmetry: ParameterSymmetry) -> None:
    other = mlp()
    other[1] = nn.GELU()  # of the same shapes
    key = Key.generate(symmetry, generator(), "sgd", "mse")
    encode(mlp(), data()[0], key)
    scaled = Key.generate(symmetry, generator(), None)
    with pytest.raises(ValueError, match="differs from the moved one"):
        encode(other, data()[0], scaled)


def test_batch_statistics_that_do_not_go_along_are_found() -> None:
    """In evaluation mode a batch norm of the inputs is diagonal; in training it is not linear."""
    model = nn.Sequential(nn.BatchNorm1d(INPUTS, affine=False), nn.Linear(INPUTS, CLASSES)).double()
    x = data()[0]
    evaluated = freed(model.eval(), training=False)
    assert "input" in evaluated.spaces
    key = Key.generate(evaluated, generator(), None)
    encode(model, x, key)
    with pytest.raises(ValueError, match="another mode"):
        encode(model.train(), x, key)


def test_tied_tensors_that_came_apart_are_refused() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(INPUTS, 5), nn.Linear(5, INPUTS, bias=False)
            self.again = nn.Linear(INPUTS, 5)
            self.again.weight = self.into.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.out(self.into(x).relu())).relu()

    model = Tied().double()
    found = freed(model)
    assert found.ties
    key = Key.generate(found, generator(), "sgd", "mse")
    state = encode(model, data()[0], key).state_dict
    decode(state, key)
    with pytest.raises(ValueError, match="are one tensor in the model"):
        decode(state | {next(iter(found.ties)): torch.zeros(5, INPUTS).double()}, key)
