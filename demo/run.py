"""The guided example: a real network, every way its weights can change, and what that is good for.

    python demo/run.py        (or `make demo`)

It trains small ReLU networks on scikit-learn's digits, asks the command for their symmetries, and
then puts each application to work on them. `demo/output/index.html` shows all of it again.
"""

from __future__ import annotations

import os
import shutil

os.environ["COLUMNS"] = "100"  # before the command is loaded, which asks once how wide it may be

import numpy as np
import torch
from digits import Network, accuracy, digits, initialised, train
from safetensors.torch import load_file, save_file
from tour import HERE, Tour

from paramsym import check_gradients, find_symmetry, teleport
from paramsym.quantize.grids import Grid

OUT = HERE / "output"
OF_FIRST = ("digits:Network", "--weights", "output/first.safetensors")


def loaded(name: str) -> Network:
    """A network with weights from the output of the demo."""
    model = Network()
    model.load_state_dict(load_file(OUT / f"{name}.safetensors"))
    return model


@torch.no_grad()
def differences(before: Network, after: Network, images: torch.Tensor) -> str:
    """Two files of weights, one function."""
    pairs = list(zip(before.parameters(), after.parameters(), strict=True))
    total = sum(a.numel() for a, _ in pairs)
    changed = sum(int((a != b).sum()) for a, b in pairs)
    a, b = before(images), after(images)
    rows = ("first weight", *pairs[0]), ("first logit", a, b)
    error = float((a - b).abs().max())
    return "\n".join(
        [
            f"{changed:,} of {total:,} numbers changed: not the {total - changed} output biases.",
            *(f"{name:14}{float(x[0, 0]):18.12f}{float(y[0, 0]):18.12f}" for name, x, y in rows),
            f"largest difference of a logit on {len(images)} images: {error:.1e}",
        ]
    )


def rounded(model: Network, bits: int) -> Network:
    """Its weights on a grid of so many bits; biases stay."""
    state = model.state_dict()
    for name, tensor in state.items():
        if tensor.ndim == 2:
            state[name] = Grid(bits).rounded(tensor)
    model.load_state_dict(state)
    return model


def mean(a: Network, b: Network) -> Network:
    """Averaged number by number."""
    other, found = b.state_dict(), Network()
    found.load_state_dict({n: (x + other[n]) / 2 for n, x in a.state_dict().items()})
    return found


def find_and_prove(tour: Tour, test: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The main job."""
    tour.ask("In how many ways can its weights change while its function stays the same?")
    tour.say(
        "The command traces the network, derives its symmetry, proves it with random moves, and "
        "audits it: the Jacobian says how many redundant directions there really are."
    )
    tour.run("inspect", *OF_FIRST, "--audit", "--html", "output/report.html")
    tour.ask("Other numbers, the same network?")
    tour.say("Move along all of these freedoms at once, by a random amount, and write the result.")
    tour.run("transform", *OF_FIRST, "output/moved.safetensors", "--seed", "7")
    tour.say(differences(loaded("first"), loaded("moved"), test[0]))


def decide(tour: Tour) -> None:
    """Are these the same?"""
    files = "output/first.safetensors", "output/moved.safetensors"
    tour.ask("Are these two checkpoints the same model?")
    tour.run("compare", *files, "--model", "digits:Network")
    tour.run("compare", files[0], "output/second.safetensors", "--model", "digits:Network", code=1)
    tour.ask("Are they one function on all inputs, not only on samples?")
    tour.run("relu-equal", *files, "--certificate", "output/proof.json")
    tour.run("relu-verify", "output/proof.json", *files)


def improve(tour: Tour, test: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Better weights for the same function, and two networks made one."""
    tour.ask("Which equivalent weights are the smallest?")
    tour.run("balance", *OF_FIRST, "output/balanced.safetensors")
    tour.ask("Can it be rounded to four bits?")
    tour.say("Here is the copy of step 3, whose units have scales at random.")
    tour.run(
        "quantize-prep", "digits:Network", "--weights", "output/moved.safetensors",
        "output/ready.safetensors", "--bits", "4", "--data", "output/calibration.npz",
    )  # fmt: skip
    plain, ready = (accuracy(rounded(loaded(n), 4), *test) for n in ("moved", "ready"))
    tour.say(
        f"Rounded to four bits, the copy reads {plain:.1%} of the test images, the weights that "
        f"were written instead {ready:.1%}."
    )
    tour.ask("Can two runs be merged?")
    tour.run(
        "merge", "output/first.safetensors", "output/second.safetensors",
        "output/merged.safetensors", "--model", "digits:Network",
    )  # fmt: skip
    naive = accuracy(mean(loaded("first"), loaded("second")), *test)
    tour.say(
        f"The mean of the two as they are reads {naive:.1%} of the test images, the merged network "
        f"{accuracy(loaded('merged'), *test):.1%}."
    )
    tour.ask("My quantiser has no mapping for this model.")
    tour.run("export", "digits:Network", "--for", "awq", "--output", "output/recipe.yaml")
    tour.run("check-mapping", "digits:Network", "output/recipe.yaml", "--for", "awq")


def follow(tour: Tour, images: torch.Tensor, labels: torch.Tensor) -> None:
    """What symmetries say while a network is trained."""
    tour.ask("What is conserved while it is trained?")
    tour.run("watch", "--html", "output/ledger.html", "descent.py")
    model = initialised(4)
    symmetry = find_symmetry(model, (images[:7],))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, labels)

    tour.ask("Is there a better point to train from?")
    tour.say("`teleport(…)`: the same function, where the gradient is longer.")
    tour.say(str(teleport(model, symmetry, loss, (images,))))
    tour.ask("Is my backward pass right?")
    tour.say(
        "`check_gradients(…)`: a gradient that is not at right angles to every orbit is wrong."
    )
    tour.say(str(check_gradients(model, symmetry, loss, (images,))))


def hide_and_discover(tour: Tour, test: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Machines of others, symmetries nobody wrote down, symmetry built in."""
    tour.ask("Can it run on a machine that I do not trust?")
    tour.run(
        "protect", "encode", *OF_FIRST, "output/sent.safetensors",
        "--key", "output/key.safetensors",
    )  # fmt: skip
    tour.run(
        "protect", "decode", "digits:Network", "--weights", "output/sent.safetensors",
        "output/back.safetensors", "--key", "output/key.safetensors",
    )  # fmt: skip
    tour.say(
        f"Without the key the weights that were sent read {accuracy(loaded('sent'), *test):.1%} of "
        f"the test images, those that came back {accuracy(loaded('back'), *test):.1%}."
    )
    tour.ask("Which symmetries has a layer that nobody derived?")
    tour.say("Attention scores see Q Kᵀ alone. By linear algebra, from the outputs:")
    tour.run("discover", "digits:Scores")
    tour.ask("Which linear autoencoders commute with shifts, and which is the best for digits?")
    tour.run(
        "equivariant", "--shift", "8x8", "--rank", "20", "--data", "output/images.npz",
        "--output", "output/equivariant",
    )  # fmt: skip
    tour.look(*sorted(f"equivariant/{p.name}" for p in OUT.glob("equivariant/*.png")))


def main() -> None:
    """Everything, in the order in which it explains itself."""
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    tour = Tour()
    images, labels, *test = digits()
    tour.ask("A real network")
    for seed, name in enumerate(("first", "second"), start=1):
        model = train(seed, images, labels)
        save_file(model.state_dict(), OUT / f"{name}.safetensors")
        tour.say(
            f"Trained 64-20-12-10 with ReLU on scikit-learn's digits, seed {seed}: "
            f"{accuracy(model, *test):.1%} of {len(test[1])} test images correct."
        )
    np.savez(OUT / "calibration.npz", image=images[:512].numpy())
    square = {"x_train": images.reshape(-1, 8, 8), "x_test": test[0].reshape(-1, 8, 8)}
    np.savez(OUT / "images.npz", **{name: x.numpy() for name, x in square.items()})
    find_and_prove(tour, test)
    decide(tour)
    improve(tour, test)
    follow(tour, images, labels)
    hide_and_discover(tour, test)
    tour.write(OUT / "index.html")
    print(f"\nAll of it on one page: demo/output/index.html   ({tour.seconds:.0f} s)")


if __name__ == "__main__":
    main()
