"""The ledger: what SGD makes of conserved quantities is foreseen to rounding, or refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.dynamics.changes import places_of
from paramsym.dynamics.descent import LedgerError
from paramsym.dynamics.ledger import ConservationLedger
from paramsym.recording.record import floating_outputs
from tests.tracing.random_networks import STEPS, RandomNetwork

RATE = 0.05


class Convolutional(nn.Module):
    """Batch norm about running statistics: laws that mix scales and shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 5, 3), nn.Linear(5, 3)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(x)).mean((2, 3)))


class Origins(nn.Module):
    """A gain stored as γ − 1 and a matrix stored as W − I, about which decay does not shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.gain = nn.Parameter(0.3 * torch.randn(6))
        self.matrix = nn.Parameter(0.3 * torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = (self.first(x) * (1 + self.gain)) @ (self.matrix + torch.eye(6, dtype=x.dtype))
        return self.last(torch.relu(x))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 4), nn.Linear(4, 3)
    )


class Gpt(nn.Module):
    """Two layers of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.inner = GPT2LMHeadModel(GPT2Config(
            n_layer=2, n_head=2, n_embd=8, n_positions=8, vocab_size=11, bos_token_id=0,
            eos_token_id=0, use_cache=False, attn_implementation="eager",
        ))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(input_ids=x).logits[:, -1, :3]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "relu": (perceptron, lambda: torch.randn(8, 5)),
    "batch norm": (Convolutional, lambda: torch.randn(8, 1, 7, 7)),
    "origins": (Origins, lambda: torch.randn(8, 4)),
    "gpt": (Gpt, lambda: torch.randint(0, 11, (8, 5))),
}
SYMMETRIES: dict[str, ParameterSymmetry] = {}  # it costs more than the training runs
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02},
    "Nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
    "in place": {"momentum": 0.9, "nesterov": True, "foreach": True},
    "fused": {"momentum": 0.9, "nesterov": True, "fused": True},
    "coupled": {"weight_decay": 0.02},
    "decoupled": {"momentum": 0.9, "decoupled": 0.1},
    "both": {"decoupled": 0.1, "weight_decay": 0.02},
    "maximise": {"momentum": 0.5, "maximize": True, "weight_decay": 0.02},
}


class Run:
    """A model in training with a ledger."""

    def __init__(
        self, name: str, dtype: torch.dtype = torch.float64, groups: str = "one", **options: Any
    ):
        torch.manual_seed(0)
        make, data = MODELS[name]
        self.model, self.x = make().to(dtype).eval(), data()
        self.x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        self.y = torch.arange(len(self.x)) % 3
        if name not in SYMMETRIES:
            SYMMETRIES[name] = find_symmetry(self.model, (self.x,))
        self.decay, self.sign = options.pop("decoupled", 0.0), 1.0
        self.sign = -1.0 if options.get("maximize") else 1.0
        made = [{"params": [*self.model.parameters()], "decay": self.decay}]
        if groups != "one":
            flat = [p for p in self.model.parameters() if p.ndim < 2]
            deep = [p for p in self.model.parameters() if p.ndim >= 2]
            made = [{"params": deep, "decay": self.decay},
                    {"params": flat, "decay": 0.1 * self.decay, "weight_decay": 0.0}]  # fmt: skip
        if groups == "rates":
            made[1]["lr"] = RATE / 3
        self.optimizer = torch.optim.SGD(made, lr=RATE, **options)
        self.ledger = ConservationLedger(
            SYMMETRIES[name], self.model, self.optimizer, decoupled="decay" if self.decay else 0.0
        )

    def loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y)

    def descend(self) -> None:
        self.optimizer.zero_grad()
        (self.sign * self.loss()).backward()
        with torch.no_grad():
            for group in self.optimizer.param_groups if self.decay else ():
                for p in group["params"]:
                    p.mul_(1.0 - group["lr"] * group["decay"])
        self.optimizer.step()

    def __call__(self, steps: int) -> ConservationLedger:
        for _ in range(steps):
            self.descend()
            self.ledger.step()
        return self.ledger


@pytest.mark.parametrize("groups", ["one", "decays", "rates"])
@pytest.mark.parametrize("options", OPTIMIZERS)
@pytest.mark.parametrize("name", ["relu", "batch norm", "origins"])
def test_steps_are_foreseen_to_rounding(name: str, options: str, groups: str) -> None:
    run = Run(name, groups=groups, **OPTIMIZERS[options])
    start = run.ledger.recursion.predicted.clone()
    report = run(12).report()
    moved = float((run.ledger.recursion.predicted - start).abs().max())
    assert report.steps == 12 and not report.broken
    assert report.residual <= 1e-14 * max(1.0, report.scale), report
    assert moved > 1e-6  # there was something to foresee


@pytest.mark.parametrize("options", ["momentum", "Nesterov", "decoupled"])
def test_a_transformer(options: str) -> None:
    report = Run("gpt", groups="decays", **OPTIMIZERS[options])(8).report()
    assert report.relative <= 1e-14 and not report.broken
    single = Run("gpt", torch.float32, **OPTIMIZERS[options])(8).report()
    assert single.relative <= 1e-6 and not single.broken


@pytest.mark.parametrize("name", ["relu", "batch norm", "origins"])
def test_what_is_measured_are_the_conserved_quantities(name: str) -> None:
    run = Run(name)
    ledger = run(3)
    params = dict(run.model.state_dict())
    wanted = ledger.laws.values(params)
    for family, found in ledger.measured.items():
        torch.testing.assert_close(found, wanted[family], rtol=1e-12, atol=1e-13)


def test_rates_weigh_the_quantities() -> None:
    run = Run("relu", groups="rates")
    own = run.model.state_dict()
    unit = own["0.weight"].square().sum(1) + 3 * own["0.bias"].square()
    wanted = unit - own["2.weight"].square().sum(0)
    torch.testing.assert_close(run.ledger.measured["mlp"], wanted)


def test_schedules_clipping_and_accumulation_need_nothing() -> None:
    run = Run("batch norm", groups="rates", momentum=0.9, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda k: min(1.0, k / 5))
    for _ in range(12):
        run.optimizer.zero_grad()
        for _ in range(2):
            run.loss().backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        run.optimizer.step()
        schedule.step()
        run.ledger.step()
    assert run.ledger.report().relative <= 1e-14


def test_skipped_steps_are_not_entered() -> None:
    run = Run("relu", torch.float32, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for k in range(6):
        run.optimizer.zero_grad()
        scaler.scale(run.loss() * (float("inf") if k == 3 else 1.0)).backward()
        scaler.step(run.optimizer)
        scaler.update()
        run.ledger.step()
    report = run.ledger.report()
    assert (report.steps, report.skipped) == (5, 1)
    assert report.relative <= 1e-6 and "1 skipped" in str(report)


def test_a_ledger_may_begin_amid_training() -> None:
    run = Run("relu", momentum=0.9)
    run(3).close()
    run.ledger = ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer)
    assert run(5).report().relative <= 1e-14


def test_a_ledger_that_is_dropped_says_nothing() -> None:
    run = Run("relu")
    run.descend()
    run.ledger = ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer)
    assert run(3).steps == 3


def test_frozen_and_tied_parameters() -> None:
    run = Run("relu")
    run.model[0].bias.requires_grad_(False)  # type: ignore[union-attr, index]
    own = ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer)
    assert "mlp" not in own.measured and "not trained" in own.laws.why["mlp"]
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.hidden = nn.Embedding(9, 4), nn.Linear(4, 6)
            self.back, self.head = nn.Linear(6, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.back(torch.relu(self.hidden(self.table(x)))))

    model, x = Tied().double(), torch.arange(9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    ledger = ConservationLedger(find_symmetry(model, (x,)), model, optimizer)
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x.flip(0)).backward()
        optimizer.step()
        ledger.step()
    assert ledger.report().relative <= 1e-14


# -- negative controls -------------------------------------------------------------------------


class Leaking(torch.autograd.Function):
    """A ReLU whose gradient leaks 0.1 % below zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.where(ctx.saved_tensors[0] > 0, grads[0], 1e-3 * grads[0])


def _leaking(run: Run) -> Tensor:
    a, _, b, _, c, d = run.model  # type: ignore[misc]
    return nn.functional.cross_entropy(d(c(Leaking.apply(b(Leaking.apply(a(run.x)))))), run.y)


def _penalty(run: Run) -> Tensor:
    first = next(run.model.parameters())
    return nn.functional.cross_entropy(run.model(run.x), run.y) + 1e-3 * first.square().sum()


def _hooked(run: Run) -> Tensor:
    """The gradient of one weight is 1 % too long."""
    weight = run.model[2].weight  # type: ignore[index, union-attr]
    weight.register_hook(lambda g: 1.01 * g)
    return nn.functional.cross_entropy(run.model(run.x), run.y)


@pytest.mark.parametrize("wrong", [_leaking, _penalty, _hooked])
@pytest.mark.parametrize("options", ["plain", "momentum"])
def test_what_is_not_invariant_leaves_a_residual(wrong: Any, options: str) -> None:
    run = Run("relu", **OPTIMIZERS[options])
    run.loss = lambda: wrong(run)  # type: ignore[method-assign]
    report = run(5).report()
    assert report.relative >= 1e-7 and report.broken, report
    assert "not conserved: " in str(report)


# -- refusals ----------------------------------------------------------------------------------


def _adam(run: Run) -> None:
    ConservationLedger(SYMMETRIES["relu"], run.model, torch.optim.AdamW(run.model.parameters()))


def _clamped(run: Run) -> None:
    run(1)
    with torch.no_grad():
        next(run.model.parameters()).clamp_(-0.1, 0.1)
    run(1)


def _by_data(run: Run) -> None:
    run(1)
    next(run.model.parameters()).data.mul_(0.5)
    run(1)


def _training(run: Run) -> None:
    run.model.train()
    run(2)


def _zeroed(run: Run) -> None:
    run.descend()
    run.optimizer.zero_grad(set_to_none=False)
    run.ledger.step()


def _moved_after(run: Run) -> None:
    run(1)
    with torch.no_grad():
        next(run.model.parameters()).clamp_(-0.1, 0.1)
    run.ledger.report()


def _read_early(run: Run) -> None:
    run.descend()
    run.ledger.report()


def _forgotten(run: Run) -> None:
    run.descend()
    run.descend()


def _one_rate(run: Run) -> None:
    run(1)
    run.optimizer.param_groups[1]["lr"] *= 0.5
    run(1)


def _no_rate(run: Run) -> None:
    run.optimizer.param_groups[1]["lr"] = 0.0
    ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer)


def _momenta(run: Run) -> None:
    run.optimizer.param_groups[1]["momentum"] = 0.5
    run(1)


def _not_a_number(run: Run) -> None:
    run(1)
    run.loss = lambda: float("nan") * Run.loss(run)  # type: ignore[method-assign]
    run(1)


def _no_gradient(run: Run) -> None:
    run.optimizer.param_groups[0]["weight_decay"] = 0.1
    run.loss = lambda: next(run.model.parameters()).sum()  # type: ignore[method-assign]
    run(1)


def _loaded(run: Run) -> None:
    run(2)
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    for state in run.optimizer.state.values():
        state["momentum_buffer"].zero_()
    run(1)


def _other_decay(run: Run) -> None:
    run.ledger = ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer, decoupled=0.5)
    run(2)


def _nothing(run: Run) -> None:
    for p in run.model.parameters():
        p.requires_grad_(False)
    ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer)


def _frozen_later(run: Run) -> None:
    run(1)
    next(run.model.parameters()).requires_grad_(False)
    run(1)


def _wrapped(run: Run) -> None:
    ConservationLedger(SYMMETRIES["relu"], nn.Sequential(run.model), run.optimizer)


def _key(run: Run) -> None:
    ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer, decoupled="omega")


@pytest.mark.parametrize(
    ("wrong", "said", "made"),
    [
        (_adam, "only ⟨∇L, Xθ⟩ = 0 holds", {}),
        (_clamped, "'0.weight' was changed since the step before", {}),
        (_by_data, "'0.weight' was changed since the step before", {}),
        (_training, "the buffer 'norm.running_mean' was changed", {"name": "batch norm"}),
        (_moved_after, "ledger.measured: '0.weight' was changed", {}),
        (_read_early, "Call ledger.step() first", {}),
        (_zeroed, "was written since the step", {}),
        (_forgotten, "has not been entered", {}),
        (_one_rate, "as in the beginning", {"groups": "rates"}),
        (_no_rate, "Take parameters that are not trained out", {"groups": "rates"}),
        (_momenta, "Give all groups the same momentum", {"groups": "rates", "momentum": 0.9}),
        (_not_a_number, "is not finite, after 2 steps", {}),
        (_no_gradient, "has no gradient", {}),
        (_loaded, "the momentum of", {"momentum": 0.9}),
        (_other_decay, "1 − η ω times what the step before left", {"decoupled": 0.1}),
        (_nothing, "gives no conserved quantity", {}),
        (_wrapped, "Sequential has no '0.weight'", {}),
        (_key, "has no such key", {}),
        (_frozen_later, "was frozen after the ledger began", {}),
    ],
)
def test_what_the_recursion_does_not_describe_is_refused(
    wrong: Callable[[Run], None], said: str, made: dict[str, Any]
) -> None:
    run = Run(**{"name": "relu", **made})
    with pytest.raises(LedgerError) as error:
        wrong(run)
    assert said in str(error.value)


@pytest.mark.parametrize("options", ["plain", "nesterov"])
def test_new_gradients_do_not_take_the_place_of_those_of_a_step(options: str) -> None:
    run = Run("relu", **{"plain": {}, "nesterov": {"momentum": 0.9, "nesterov": True}}[options])
    run.loss().backward()
    for _ in range(5):
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.loss().backward()
        run.ledger.step()
    assert run.ledger.report().relative <= 1e-14


def test_rates_of_groups_may_begin_at_zero() -> None:
    run = Run("relu", groups="rates")
    scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: step / 5)
    run.ledger = ConservationLedger(SYMMETRIES["relu"], run.model, run.optimizer)
    for _ in range(10):
        run(1)
        scheduler.step()
    assert run.ledger.report().relative <= 1e-14


def test_entries_of_a_tensor_too_long_for_single_precision_to_count() -> None:
    embedding = torch.zeros(1).expand(38_597_376)  # 50,257 × 768
    assert int(places_of({"wte": embedding})["wte"][-1]) == 38_597_375


@pytest.mark.parametrize("wrong", [False, True])
def test_rounding_of_autocast_counts_in_the_floor(wrong: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    symmetry = find_symmetry(model, (torch.randn(2, 6),))
    ledger = ConservationLedger(symmetry, model, optimizer, precision=torch.bfloat16)
    for _ in range(20):
        x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        (loss + wrong * 1e-2 * model[0].weight.square().sum()).backward()
        optimizer.step()
        ledger.step()
    report = ledger.report()
    assert report.broken == (("mlp",) if wrong else ())
    assert report.residual > report.floor / 100  # more than single precision explains


def test_a_fused_step_takes_the_scale_off_gradients_by_itself() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    first, *others = model.parameters()
    groups = [{"params": [first], "decay": 0.0}, {"params": others, "decay": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1, fused=True)
    symmetry = find_symmetry(model, (torch.randn(2, 6),))
    ledger = ConservationLedger(symmetry, model, optimizer, "decay")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.arange(16) % 3)
        scaler.scale(loss * (float("inf") if k == 3 else 1.0)).backward()
        with torch.no_grad():
            for p in others:
                p.mul_(1.0 - 0.1 * 0.5)
        scaler.step(optimizer)
        scaler.update()
        ledger.step()
    report = ledger.report()
    assert report.skipped == 1 and report.broken == ()


# -- random networks and settings ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(14))
def test_random_networks_under_random_settings(seed: int) -> None:
    draw = random.Random(seed)
    steps = [(draw.choice(sorted(STEPS)), draw.randint(0, 7), draw.randint(0, 7)) for _ in "1234"]
    network = RandomNetwork(draw.choice("vsi"), steps, draw.randint(0, 3), seed)
    params = [*network.parameters()]
    draw.shuffle(params)
    rates = draw.choice([(1.0, 1.0), (1.0, 0.3)])
    decays = draw.choice([(0.0, 0.0), (0.1, 0.1), (0.1, 0.0)])
    halves = params[::2], params[1::2]
    momentum = draw.choice([0.0, 0.9])
    optimizer = torch.optim.SGD(
        [{"params": half, "lr": 1e-3 * rate, "weight_decay": decay}
         for half, rate, decay in zip(halves, rates, decays, strict=True) if half],
        momentum=momentum, nesterov=momentum > 0 and draw.random() < 0.5,
    )  # fmt: skip
    symmetry = find_symmetry(network, (network.inputs,), check=False)
    try:
        ledger = ConservationLedger(symmetry, network, optimizer)
    except LedgerError as error:
        assert "gives no conserved quantity" in str(error)
        return
    for _ in range(8):
        optimizer.zero_grad()
        outputs = floating_outputs(network(network.inputs.clone()))
        torch.stack([(o - 1.0).abs().square().mean() for o in outputs]).sum().backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        ledger.step()
    assert not ledger.report().broken, (network.taken, str(ledger))


def test_a_report_as_json() -> None:
    report = Run("relu")(2).report()
    found = json.loads(report.to_json())
    assert found["steps"] == 2 and found["relative"] == report.relative
    assert {row["name"] for row in found["families"]} == {*Run("relu").ledger.measured}


# -- closures and Lightning ----------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
def test_closures_with_gradients_that_are_overwritten(foreach: bool) -> None:
    run = Run("relu", momentum=0.9, nesterov=True, foreach=foreach)

    def closure() -> float:
        run.optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        return loss.item()

    for _ in range(6):
        run.optimizer.step(closure)
        run.ledger.step()
    assert run.ledger.report().relative <= 1e-14


def test_statistics_that_move_within_a_closure_are_noticed() -> None:
    run = Run("batch norm")
    run.model.train()

    def closure() -> float:
        run.loss().backward()
        return 0.0

    with pytest.raises(LedgerError, match="the buffer 'norm.running_mean' was changed"):
        run.optimizer.step(closure)


def test_the_callback_in_the_order_of_a_trainer() -> None:
    from paramsym.dynamics.lightning import LedgerCallback

    class Module(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net, self.logged = net, {}

        def log(self, name: str, value: float) -> None:
            self.logged[name] = value

    run = Run("relu", momentum=0.9)
    run.ledger.close()
    module = Module(run.model)

    class Trainer:
        optimizers = (run.optimizer,)

    callback = LedgerCallback(SYMMETRIES["relu"], "net")
    callback.on_train_start(Trainer(), module)
    for batch in range(6):
        if batch % 2 == 0:
            run.optimizer.zero_grad()
        run.loss().backward()
        if batch % 2:
            run.optimizer.step()
        callback.on_train_batch_end(Trainer(), module, None, None, batch)
    callback.on_train_epoch_end(Trainer(), module)
    callback.on_train_end(Trainer(), module)
    assert callback.ledger is not None and callback.ledger.report().steps == 3
    assert module.logged["ledger_residual"] <= 1e-14 and callback.ledger.skipped == 0
