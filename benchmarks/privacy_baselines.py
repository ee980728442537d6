"""Four ways to have somebody else evaluate a network, side by side: what each costs and hides.

    python benchmarks/privacy_baselines.py [--seeds N] [--width H] [--json]

scikit-learn's digits, a perceptron 64-H-10 in float32, CPU time of one thread:

* plain: inputs and parameters as they are;
* keyed: inputs and parameters moved along the symmetry orbit, by the protocol of section IV, in
  which the evaluator owns the parameters, and with an evaluator who never saw them;
* CKKS: homomorphic encryption by TenSEAL, of a network with squares for activations, trained as
  such (left out with the reason where TenSEAL is not installed);
* noise: Gaussian noise on the inputs, so strong that it costs one point of accuracy: on a network
  that was trained without it, and on one that was trained with it.

Times are of computing and of writing and reading bytes; there is no network between the two sides.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import privacy_encryption
import privacy_measures as measures
import torch
from privacy_ways import State, Way, by_tensors, size
from sklearn.datasets import load_digits
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.algebra import GeneralLinear, Group, Orthogonal, SignedPermutation
from paramsym.privacy import Key, decode_outputs, encode, encode_inputs

TRAINED, PAIRS = 1297, 200
EPOCHS, BATCH, RATE = 40, 32, 2e-3
POINT = 0.01  # of accuracy
DRAWS = 10  # of noise, for an accuracy
Record = dict[str, Any]


class Square(nn.Module):
    """z ↦ z², the activation that costs one multiplication under encryption."""

    def forward(self, z: Tensor) -> Tensor:
        return z * z


@dataclass(frozen=True)
class Data:
    """Digits in [0, 1]: what everybody may have (the training images), and what is asked."""

    x: Tensor
    y: Tensor
    asked: Tensor
    labels: Tensor


def digits() -> Data:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return Data(x[:TRAINED], y[:TRAINED], x[TRAINED:], y[TRAINED:])


def trained(data: Data, width: int, seed: int, activation: nn.Module, noise: float) -> nn.Module:
    """A perceptron, by Adam with a rate that falls to zero; `noise` is drawn anew in each step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, width), activation, nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(TRAINED).split(BATCH):
            optimizer.zero_grad()
            x = data.x[batch] + noise * torch.randn(len(batch), 64)
            nn.functional.cross_entropy(model(x), data.y[batch]).backward()
            optimizer.step()
        schedule.step()
    return model.eval().requires_grad_(False)


def accuracy(model: nn.Module, data: Data, noise: float = 0.0) -> float:
    """Of all asked images; with noise, a mean over draws."""
    generator = torch.Generator().manual_seed(1)
    shares = []
    for _ in range(DRAWS if noise else 1):
        x = data.asked + noise * torch.randn(data.asked.shape, generator=generator)
        shares.append(share(model(x).argmax(1) == data.labels))
    return statistics.fmean(shares)


def share(right: Tensor) -> float:
    return float(right.double().mean())


def at_equal_utility(lost: Callable[[float], float], steps: int) -> float:
    """The strength of noise that costs one point, by bisection of a mean over networks."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle) < POINT else (low, middle)
    return low


def keyed(name: str, model: nn.Module, x: Tensor, groups: Callable[[int], Group]) -> Way:
    """An evaluator who never saw θ has g·θ and is sent g·x; it answers g·y."""
    symmetry = find_symmetry(model, (x[:8],), free_inputs=True, free_outputs=True)
    key = Key.generate(symmetry, torch.Generator().manual_seed(7), groups=groups)
    held = encode(model, x[:8], key).state_dict
    return by_tensors(
        name, model, held, working="asker", set_up=size(held),
        encode=lambda x: encode_inputs(x, key), decode=lambda y: decode_outputs(y, key),
    )  # fmt: skip


def three_steps(model: nn.Module, x: Tensor) -> Way:
    """Section IV: the owner of θ sends g·θ, the owner of x sends back h·g·θ, and asks h·x."""
    symmetry = find_symmetry(model, (x[:8],), free_inputs=True)
    generator = torch.Generator().manual_seed(7)
    hidden = Key.generate(symmetry.restrict(spaces="mlp"), generator)
    before = encode(model, x[:8], hidden).state_dict
    key = Key.generate(symmetry, generator)
    sent = copy.deepcopy(model)
    sent.load_state_dict(before)
    held = encode(sent, x[:8], key).state_dict
    return by_tensors(
        "keyed, section IV", model, held, working="both", set_up=size(before) + size(held),
        encode=lambda x: encode_inputs(x, key), before=before,
    )  # fmt: skip


def noised(name: str, model: nn.Module, strength: float) -> Way:
    generator = torch.Generator().manual_seed(1)
    return by_tensors(
        name, model, model.state_dict(), working="evaluator", set_up=0,
        encode=lambda x: x + strength * torch.randn(x.shape, generator=generator),
    )  # fmt: skip


def seconds(call: Callable[[], Any], budget: float = 0.3) -> float:
    """CPU time of one call: the median over as many as fit the budget, but three, or one of 2 s."""
    found: list[float] = []
    while sum(found) < budget or (len(found) < 3 and sum(found) < 2):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return statistics.median(found)


def costs(way: Way, data: Data) -> Record:
    """Bytes and CPU-seconds per query, and the answers to all that is asked."""
    asked = data.asked[: way.batch]
    sent = way.send(asked)
    answer = way.answer(sent)
    return {
        "set-up bytes": way.set_up,
        "bytes sent": len(sent) / way.batch,
        "bytes back": len(answer) / way.batch,
        "seconds, owner": (seconds(lambda: way.send(asked)) + seconds(lambda: way.read(answer)))
        / way.batch,
        "seconds, evaluator": seconds(lambda: way.answer(sent)) / way.batch,
    }


def found_out(way: Way, data: Data, strength: float | None) -> Record:
    """What an evaluator learns, one measure each; None where it lacks what the attack needs.

    Each query is sent by itself, also those of `way.batch`: the bytes of several are no rows.
    """
    if way.batch > 1:
        return {}
    rows = [way.seen(way.send(x[None])) for x in torch.cat([data.x[:PAIRS], data.asked])]
    seen = torch.cat(rows)
    pairs, asked = seen[:PAIRS], seen[PAIRS:]
    x = data.asked.double()
    guess = data.x.double().mean(0).expand_as(x)
    wrong = measures.known_pairs(pairs.roll(1, 0), data.x[:PAIRS], asked)
    by_pairs = measures.error(measures.known_pairs(pairs, data.x[:PAIRS], asked), x)
    labelled = data.labels, data.x, data.y
    by_labels = measures.error(measures.by_labels(asked, *labelled), x)
    mistaken = measures.by_labels(asked, data.labels.roll(1), data.x, data.y)
    alone = None
    if way.before is not None:
        alone = measures.error(measures.by_owner(way.before, way.held, asked), x)
    elif strength is not None:
        alone = measures.error(measures.denoised(asked, data.x, strength), x)
        by_pairs, by_labels = min(by_pairs, alone), min(by_labels, alone)
    return {
        "x, alone": alone,
        "x, known pairs": by_pairs,
        "x, pairs in a wrong order": measures.error(wrong, x),
        "x, labelled public data": by_labels,
        "x, labels in a wrong order": measures.error(mistaken, x),
        "x, guessed": measures.error(guess, x),
        "Gram": measures.gram(asked, x),
        "neighbours": measures.neighbours(asked, data.labels),
        "neighbours, labels in a wrong order": measures.neighbours(asked, data.labels.roll(1)),
        "class": _class_read(way, data),
    }


def _class_read(way: Way, data: Data) -> float | None:
    """Share of queries whose class is the largest entry of the answer, as the evaluator has it."""
    if way.answers is None:
        return None
    answers = way.answers(way.answer(way.send(data.asked)))
    return share(answers.argmax(1) == way.read(way.answer(way.send(data.asked))).argmax(1))


def answered(way: Way, data: Data, model: nn.Module) -> Record:
    """Accuracy through the protocol, and its largest difference to the plain logits."""
    if way.name == "CKKS, one query":  # a second each: eight, and the accuracy from the batch
        x = data.asked[:8]
        logits = torch.cat([way.read(way.answer(way.send(row[None]))) for row in x])
        return {"logits apart": float((logits - model(x)).abs().max())}
    logits = way.read(way.answer(way.send(data.asked)))[: len(data.asked)]
    return {
        "accuracy": share(logits.argmax(1) == data.labels),
        "logits apart": float((logits - model(data.asked)).abs().max()),
    }


def usable(way: Way, model: nn.Module, data: Data) -> float:
    """Accuracy on plain inputs of the parameters that the evaluator computes with, as they are."""
    state: State = way.before if way.before is not None else way.held
    logits = torch.func.functional_call(model, dict(state), (data.asked,))
    return share(logits.argmax(1) == data.labels)


def measured(seeds: int, width: int) -> Record:
    data = digits()
    nets = [trained(data, width, s, nn.ReLU(), 0.0) for s in range(seeds)]
    squares = [trained(data, width, s, Square(), 0.0) for s in range(seeds)]
    base = statistics.fmean(accuracy(net, data) for net in nets)
    strength = at_equal_utility(
        lambda s: base - statistics.fmean(accuracy(net, data, s) for net in nets), steps=10
    )

    def by_noise(noise: float) -> list[nn.Module]:
        return [trained(data, width, s, nn.ReLU(), noise) for s in range(seeds)]

    used_to = at_equal_utility(
        lambda s: base - statistics.fmean(accuracy(net, data, s) for net in by_noise(s)), steps=6
    )
    noisy = by_noise(used_to)
    net, square = nets[0], squares[0]
    plain = by_tensors("plain", net, net.state_dict(), working="evaluator", set_up=0)
    ways: list[tuple[Way, nn.Module, list[nn.Module], float | None]] = [
        (plain, net, nets, 0.0),
        (three_steps(net, data.x), net, nets, None),
        (keyed("keyed, dense A", net, data.x, GeneralLinear), net, nets, None),
        (keyed("keyed, orthogonal A", net, data.x, Orthogonal), net, nets, None),
        (keyed("keyed, signed order A", net, data.x, SignedPermutation), net, nets, None),
        (noised("noise", net, strength), net, nets, strength),
        (noised("noise, trained with it", noisy[0], used_to), noisy[0], noisy, used_to),
    ]
    reason = privacy_encryption.reason()
    if reason is None:
        ways += [
            (make(square.state_dict()), square, squares, None)
            for make in (privacy_encryption.one_by_one, privacy_encryption.together)
        ]
    table = {
        way.name: {"working": way.working, "usable": usable(way, model, data)}
        | {"over seeds": [accuracy(one, data, noise or 0.0) for one in group]}
        | costs(way, data) | answered(way, data, model) | found_out(way, data, noise)
        for way, model, group, noise in ways
    }  # fmt: skip
    return {
        "width": width, "seeds": seeds, "noise": strength, "noise, trained with it": used_to,
        "left out": reason, "ways": table, "CPU-seconds": time.process_time(),
    }  # fmt: skip


def spread(values: list[float]) -> str:
    """Mean and standard error, in points."""
    wide = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{100 * statistics.fmean(values):.1f} ± {100 * wide:.1f}"


def amount(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000 or unit == "MB":
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def duration(of: float) -> str:
    return f"{of * 1e6:.0f} µs" if of < 1e-3 else f"{of * 1e3:.1f} ms" if of < 1 else f"{of:.1f} s"


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" if value else "0"


def show(found: Record) -> None:
    """Two tables: what it costs, and what the evaluator finds out."""
    ways: dict[str, Record] = found["ways"]
    if found["left out"]:
        print(found["left out"], file=sys.stderr)
    print(f"64-{found['width']}-10 on digits, {found['seeds']} seeds; noise of strength "
          f"{found['noise']:.3f}, and {found['noise, trained with it']:.3f} where it was trained "
          f"with; {found['CPU-seconds']:.0f} CPU-seconds\n")  # fmt: skip
    print("| way | set-up | sent | back | owner | evaluator | accuracy | logits apart |")
    print("|---" + "|---:" * 7 + "|")
    for name, row in ways.items():
        print(f"| {name} | {amount(row['set-up bytes'])} | {amount(row['bytes sent'])} "
              f"| {amount(row['bytes back'])} | {duration(row['seconds, owner'])} "
              f"| {duration(row['seconds, evaluator'])} | {spread(row['over seeds'])} "
              f"| {row['logits apart']:.0e} |")  # fmt: skip
    heads = ("x, alone", "x, known pairs", "x, labelled public data", "Gram", "neighbours", "class")
    print("\n| way | parameters | " + " | ".join(heads) + " | usable parameters |")
    print("|---|---" + "|---:" * (len(heads) + 1) + "|")
    for name, row in ways.items():
        if "Gram" in row:
            print(f"| {name} | {row['working']} | "
                  + " | ".join(number(row[head]) for head in heads)
                  + f" | {number(row['usable'])} |")  # fmt: skip
    kept = [row for row in ways.values() if "Gram" in row]
    wrong = min(row["x, pairs in a wrong order"] for row in kept)
    mistaken = min(row["x, labels in a wrong order"] for row in kept)
    chance = max(row["neighbours, labels in a wrong order"] for row in kept)
    print(f"\nControls: x guessed {number(kept[0]['x, guessed'])}; from pairs in a wrong order at "
          f"least {number(wrong)}; from labels in a wrong order at least {number(mistaken)}; "
          f"neighbours with labels in a wrong order at most {number(chance)}.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(options.seeds, options.width)
    print(json.dumps(found, indent=1)) if options.json else show(found)


if __name__ == "__main__":
    main()
