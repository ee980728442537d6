"""The guided example: a real network, every way its weights can change, and the proof.

    python demo/run.py        (or `make demo`)

It trains a small ReLU network on scikit-learn's digits, asks the command `paramsym inspect` for
its symmetries, lets `paramsym transform` write an equivalent copy, and compares the two.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
OUT = HERE / "output"


class Network(torch.nn.Module):
    """64-20-12-10 with ReLU: small enough to count its redundant directions exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 20, dtype=torch.float64)
        self.second = torch.nn.Linear(20, 12, dtype=torch.float64)
        self.digit = torch.nn.Linear(12, 10, dtype=torch.float64)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(image))
        hidden = torch.relu(self.second(hidden))
        return self.digit(hidden)

    def example_inputs(self) -> tuple[torch.Tensor]:
        """What the command traces the network with."""
        return (digits()[0][:7],)


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images in [0, 1] and labels: 1,297 to train with and 500 to test with."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float64) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[500:], order[:500]
    return images[train], labels[train], images[test], labels[test]


def train(images: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    """Adam, full batches, one generator."""
    generator = torch.Generator().manual_seed(1)
    model = Network()
    for parameter in model.parameters():
        bound = (3 / parameter.shape[-1]) ** 0.5 if parameter.ndim > 1 else 0.1
        with torch.no_grad():
            parameter.uniform_(-bound, bound, generator=generator)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(400):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return model


def command(*arguments: str) -> None:
    """Run `paramsym …` as a user would, and show what was typed."""
    print(f"\n$ paramsym {' '.join(arguments)}\n", flush=True)
    program = "import sys; from paramsym.cli import main; sys.argv[0] = 'paramsym'; main()"
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=HERE, check=True)


def title(text: str) -> None:
    """A headline."""
    print(f"\n── {text} " + "─" * max(2, 74 - len(text)), flush=True)


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that are read correctly."""
    return float((logits.argmax(1) == labels).double().mean())


@torch.no_grad()
def compare(before: Path, after: Path, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Two files of weights, one function."""
    first, second = Network(), Network()
    first.load_state_dict(load_file(before))
    second.load_state_dict(load_file(after))
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    total = sum(a.numel() for a, _ in pairs)
    changed = sum(int((a != b).sum()) for a, b in pairs)
    a, b = first(images), second(images)
    rows = [
        ("accuracy on 500 test images", f"{accuracy(a, labels):.1%}", f"{accuracy(b, labels):.1%}"),
        ("the first weight", *(f"{float(weight[0, 0]):.12f}" for weight in pairs[0])),
        ("the first logit", f"{float(a[0, 0]):.12f}", f"{float(b[0, 0]):.12f}"),
        ("largest difference of a logit", "", f"{float((a - b).abs().max()):.1e}"),
    ]  # fmt: skip
    print(f"\n  {'':34}{'before':>18}{'after':>18}")
    for name, left, right in rows:
        print(f"  {name:34}{left:>18}{right:>18}")
    print(
        f"\n{changed:,} of {total:,} numbers changed ({changed / total:.1%}): all but the "
        f"{total - changed} biases of the outputs,\nwhich are fixed because the outputs are."
    )


def main() -> None:
    """Everything, in the order in which it explains itself."""
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    start = time.perf_counter()
    title("1. A real network")
    images, labels, test_images, test_labels = digits()
    model = train(images, labels)
    weights = OUT / "digits.safetensors"
    save_file(model.state_dict(), weights)
    print(
        f"Trained 64-20-12-10 with ReLU on scikit-learn's digits in "
        f"{time.perf_counter() - start:.1f} s: {accuracy(model(test_images), test_labels):.1%} "
        f"of {len(test_labels)} test images correct."
    )
    title("2. In how many ways can its weights change while its function stays the same?")
    print("The command traces the network, derives its symmetry, proves it with random moves, and")
    print("audits it: the Jacobian says how many redundant directions there really are.")
    command(
        "inspect", "run:Network", "--weights", "output/digits.safetensors", "--audit",
        "--html", "report.html",
    )  # fmt: skip
    title("3. Other numbers, the same network")
    print("Now move along all of these freedoms at once, by a random amount, and write the result.")
    command(
        "transform", "run:Network", "output/moved.safetensors",
        "--weights", "output/digits.safetensors", "--seed", "7",
    )  # fmt: skip
    compare(weights, OUT / "moved.safetensors", test_images, test_labels)
    print(f"\nThe whole story as a page: demo/report.html   ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
