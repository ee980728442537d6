"""Training curves with and without rebalancing, and the pieces of benchmarks/training.py."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from paramsym import Rebalance, balance, find_symmetry

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
STEPS = 60


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts by the ends of their names."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    parts = ("_networks", "_methods", "_runs", "_estimates")
    return {part[1:]: importlib.import_module(f"training{part}") for part in parts}


def small(study: dict[str, ModuleType], name: str = "ReLU"):
    """A case of the study with narrower layers, in double precision."""
    networks = study["networks"]
    make: dict[str, Callable[[], nn.Sequential]] = {
        "ReLU": lambda: networks.perceptron(4, 6, 5, 3).double(),
        "squared ReLU": lambda: networks.squared(4, 6, 5, 3).double(),
        "CNN": lambda: networks.convolutional().double(),
    }
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 64 if name == "CNN" else 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (80,), generator=generator)
    degree = 2 if name == "squared ReLU" else 1
    return networks.Case(name, make[name], (x, y), (x, y), batch=16, degree=degree)


def curve(study: dict[str, ModuleType], every: int, rate: float, path: bool) -> Tensor:
    """Losses of the batches, each before its step."""
    methods, case = study["methods"], small(study)
    model = case.started(1, "rescaled")
    optimiser = torch.optim.SGD(model.parameters(), rate)
    divided = methods.PathSGD(model) if path else methods.Hook()
    if every:
        Rebalance(case.symmetry, optimiser, every, model=model)
    generator, losses = torch.Generator().manual_seed(0), []
    (x, y), criterion = case.train, nn.CrossEntropyLoss()
    for _ in range(STEPS):
        chosen = torch.randint(len(x), (case.batch,), generator=generator)
        optimiser.zero_grad()
        loss = criterion(model(x[chosen]), y[chosen])
        loss.backward()
        divided.before()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("every", [1, 7])
def test_path_sgd_does_not_see_rebalancing_and_sgd_does(
    study: dict[str, ModuleType], every: int
) -> None:
    plain, rebalanced = (curve(study, n, 0.02, path=True) for n in (0, every))
    assert float(plain[0] - plain[-1]) > 0.1  # it learns
    assert float((rebalanced - plain).abs().max()) < 1e-9
    plain, rebalanced = (curve(study, n, 0.1, path=False) for n in (0, every))
    assert float((rebalanced - plain).abs().max()) > 1e-3


def test_weights_of_paths_are_sums_over_paths(study: dict[str, ModuleType]) -> None:
    """γ of each edge beside the sum over all paths, one by one."""
    model = study["networks"].perceptron(3, 4, 2, 3).double()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    study["methods"].PathSGD(model).before()
    layers = [m for m in model if isinstance(m, nn.Linear)]
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for first in range(3):  # the layer at which a path begins: at an input, or at a constant
        nodes = [range(m.out_features) for m in layers[first:]]
        sources: list[int | None] = [None] if first else [None, *range(layers[0].in_features)]
        for source, places in itertools.product(sources, itertools.product(*nodes)):
            edges = []
            for k, place in enumerate(places, first):
                before = source if k == first else places[k - first - 1]
                edges.append((2 * k + 1, (place,)) if before is None else (2 * k, (place, before)))
            params = [*model.parameters()]
            sizes = [float(params[k].detach()[at] ** 2) for k, at in edges]
            for spot, (k, at) in enumerate(edges):
                others = [s for n, s in enumerate(sizes) if n != spot]
                sums[k][at] += torch.tensor(others, dtype=torch.float64).prod()
    for p, total in zip(model.parameters(), sums, strict=True):
        torch.testing.assert_close(p.grad, 1 / total)


@pytest.mark.parametrize("name", ["ReLU", "squared ReLU", "CNN"])
def test_cycles_of_enorm_end_at_the_least_norm(study: dict[str, ModuleType], name: str) -> None:
    case, methods = small(study, name), study["methods"]
    model = case.started(0, "rescaled")
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    enorm = methods.ENorm(methods.exchanges(model), optimiser, case.degree)
    x = case.train[0]
    with torch.no_grad():
        before = model.eval()(x)
        for _ in range(60):
            enorm.after()
        assert float((model(x) - before).abs().max()) < 1e-12 * float(before.abs().max())
    least = balance(case.symmetry, dict(model.state_dict()), shifts=False)
    assert least.before == pytest.approx(least.value, rel=1e-9)
    start = dict(case.started(0, "rescaled").state_dict())
    assert balance(case.symmetry, start, shifts=False).before > 1.1 * least.value


def test_scales_before_a_batch_norm_change_what_is_trained(study: dict[str, ModuleType]) -> None:
    """They keep what is evaluated, so that the study asks for the symmetry of training."""
    case = small(study, "CNN")
    model, x = case.network(0), case.train[0]
    state = {n: p.clone() for n, p in model.state_dict().items()}
    changes = {}
    for kind in (False, True):
        symmetry = find_symmetry(case.network(0).train(kind), (x[:4],), training=kind)
        found = balance(symmetry, state, shifts=False)
        for training in (False, True):
            made = []
            for params in (state, found.params):
                model.load_state_dict(params)
                made.append(model.train(training)(x).detach())
            changes[kind, training] = float((made[1] - made[0]).abs().max())
    assert changes[True, True] < 1e-12 and changes[True, False] < 1e-12
    assert changes[False, False] < 1e-12 and changes[False, True] > 1e-2


def test_the_ratio_of_eigenvalues_is_that_of_the_gauss_newton_matrix(
    study: dict[str, ModuleType],
) -> None:
    case = small(study)
    model, x = case.network(0), case.train[0][:6]
    rows = []
    for k in range(18):
        model.zero_grad()
        model(x).flatten()[k].backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    jacobian = torch.stack(rows)
    values = torch.linalg.eigvalsh(jacobian.mT @ jacobian)[-18:]
    top, ratio = study["runs"].spectrum(model, x)
    assert top == pytest.approx(float(values[-1]) / 6, rel=1e-10)
    assert ratio == pytest.approx(float(values[-1] / values[9]), rel=1e-8)


def test_runs_are_functions_of_their_seeds_and_are_kept(
    study: dict[str, ModuleType], tmp_path: Path
) -> None:
    runs = study["runs"]
    case = small(study)
    cell = runs.Cell("ReLU", "SGD", "every 10", "rescaled", 0.05)
    first = runs.records(case, cell, [0, 1], tmp_path)
    again = runs.run(case, cell, 1)
    assert again["curve"] == first[1]["curve"] != first[0]["curve"]
    assert runs.records(case, cell, [1, 0], tmp_path) == first[::-1]  # with the same times: read
    assert [p.name for p in tmp_path.iterdir()] == ["ReLU-SGD-every_10-rescaled-0.05.json"]


def test_a_run_that_diverges_says_so(study: dict[str, ModuleType]) -> None:
    runs = study["runs"]
    for method in ("plain", "every 1"):
        record = runs.run(
            small(study, "squared ReLU"),
            runs.Cell("squared ReLU", "SGD", method, "usual", 1e300), 0,
        )  # fmt: skip
        assert record["diverged"] and "loss" not in record


# -- tables ------------------------------------------------------------------------------------


def test_differences_are_paired_and_leave_out_what_diverged(study: dict[str, ModuleType]) -> None:
    estimates = study["estimates"]
    plain = [{"seed": k, "diverged": False, "loss": 10.0**k} for k in range(4)]
    found = [{"seed": k, "diverged": k == 2, "loss": 0.9 * 10.0**k} for k in range(4)]
    ratio = estimates.ratio(found, plain, "loss")
    assert ratio.seeds == 3
    assert estimates.percent(ratio) == "**−10.0 ± 0.0 %**"
    assert estimates.lost(found) == " (1 of 4 diverged)" and not estimates.lost(plain)
    other = [{**r, "loss": r["loss"] * (2.0 if r["seed"] % 2 else 0.5)} for r in plain]
    assert estimates.percent(estimates.ratio(other, plain, "loss")) == "+0 ± 40 %"  # not in bold
    none = estimates.ratio([], plain, "loss")
    assert estimates.percent(none) == "–"
    both = estimates.pooled(
        [estimates.Estimate(0.3, 0.03, 5), estimates.Estimate(0.1, 0.04, 5), none]
    )
    assert both == pytest.approx((0.2, 0.025, 2))


def test_rates_are_chosen_on_seeds_that_are_not_reported(
    study: dict[str, ModuleType], tmp_path: Path
) -> None:
    runs, estimates = study["runs"], study["estimates"]
    own = {"network": "ReLU", "optimiser": "SGD", "method": "plain", "start": "usual"}
    for rate, chosen, reported in ((0.1, 1.0, 0.1), (0.3, 0.5, 9.0)):
        seeds = {100: chosen, 101: chosen, 0: reported}
        content = [{**own, "rate": rate, "seed": k, "diverged": False, "loss": x}
                   for k, x in seeds.items()]  # fmt: skip
        runs.written(tmp_path / runs.Cell(**own, rate=rate).file, content)
    results = estimates.Results(tmp_path)
    assert estimates.best_rate(results, **own) == 0.3  # though 0.1 is better on what is reported
    assert [r["seed"] for r in results.of(**own)] == [0, 0]
