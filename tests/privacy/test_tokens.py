"""Orders of tokens: the vocabulary is numbered anew, and the tables with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, act_inputs, act_outputs, find_symmetry
from paramsym.algebra import GeneralLinear, Permutation
from paramsym.privacy import Key, decode, encode, renumber, with_tokens
from paramsym.recording.outputs import named_outputs
from paramsym.recording.refusals import TraceError
from paramsym.structure.axes import carried, spaces_of
from paramsym.structure.feature import Feature
from paramsym.structure.space import Space

V, LENGTH = 13, 7


def ids(seed: int = 0, batch: int = 5) -> Tensor:
    return torch.randint(V, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))


class Bag(nn.Module):
    """A classifier of bags of tokens: means of rows of a table, then two layers."""

    def __init__(self, padding: int | None = None, mode: str = "mean"):
        super().__init__()
        self.table = nn.EmbeddingBag(V, 6, mode=mode, padding_idx=padding)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.table(input_ids))))


class Reads(nn.Module):
    """Whatever is done with tokens, a table and a head."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], padding: int | None = None):
        super().__init__()
        self.function = function
        self.table, self.short = nn.Embedding(V, 6, padding), nn.Embedding(V - 2, 6)
        self.head = nn.Linear(6, V)
        self.register_buffer("pattern", torch.eye(V)[3], persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.function(self, input_ids)


def _gpt(tied: bool) -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_embd=8, n_head=2, n_positions=9, vocab_size=V, tie_word_embeddings=tied,
        use_cache=False, bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _llama(tied: bool) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=12, vocab_size=V, tie_word_embeddings=tied, use_cache=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _t5() -> nn.Module:
    import transformers

    config = transformers.T5Config(
        num_layers=1, d_model=8, num_heads=2, d_kv=4, d_ff=12, vocab_size=V, use_cache=False
    )
    return transformers.T5ForConditionalGeneration(config)


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=12,
        vocab_size=V, max_position_embeddings=9, pad_token_id=0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


BOTH = ("input_ids", "decoder_input_ids")
# network, inputs that hold tokens, what moves with them by the axis of its type
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], dict[str, str]]] = {
    "GPT-2, tied": (
        lambda: _gpt(True), BOTH[:1],
        {"transformer.wte.weight": "tokens", "logits": "scale tokens"},
    ),
    "GPT-2, untied": (
        lambda: _gpt(False), BOTH[:1],
        {"transformer.wte.weight": "tokens", "lm_head.weight": "tokens", "logits": "tokens"},
    ),
    "Llama, tied": (
        lambda: _llama(True), BOTH[:1],
        {"model.embed_tokens.weight": "tokens", "logits": "scale tokens"},
    ),
    "Llama, untied": (
        lambda: _llama(False), BOTH[:1],
        {"model.embed_tokens.weight": "tokens", "lm_head.weight": "tokens", "logits": "tokens"},
    ),
    "BERT, whose padding is held": (
        _bert, BOTH[:1],
        {
            "bert.embeddings.word_embeddings.weight": "scale.3 (1 + tokens)",
            "logits": "scale.3⊙scale.4 (1 + tokens)",
            "cls.predictions.bias": "scale.3⊙scale.4 (1 + tokens)",
        },
    ),
    "T5": (_t5, BOTH, {"shared.weight": "tokens", "logits": "scale tokens"}),
    "a bag of tokens": (Bag, BOTH[:1], {"table.weight": "tokens"}),
    "a bag with a last token of padding": (
        lambda: Bag(V - 1, "sum"), BOTH[:1], {"table.weight": "tokens + 1"},
    ),
    "rows by number": (
        lambda: Reads(lambda m, x: m.head(m.table.weight[x.flatten()])), BOTH[:1],
        {"table.weight": "tokens", "head.weight": "tokens", "head.bias": "tokens",
         "output": "tokens"},
    ),
    "tokens cut and joined": (
        lambda: Reads(lambda m, x: m.head(
            m.table(torch.cat([x[:, 2:], x[:, :2].int()], 1).reshape(-1, 1)) * 2.0
        )), BOTH[:1],
        {"table.weight": "tokens", "head.weight": "tokens", "head.bias": "tokens",
         "output": "tokens"},
    ),
    "a comparison with padding, which is held": (
        lambda: Reads(lambda m, x: m.head(m.table(x) * (x != 0).unsqueeze(-1)), 0), BOTH[:1],
        {"table.weight": "1 + tokens", "head.weight": "1 + tokens", "head.bias": "1 + tokens",
         "output": "1 + tokens"},
    ),
}  # fmt: skip


def _axes(symmetry: ParameterSymmetry) -> dict[str, str]:
    """The printed types that carry tokens, by parameter or output."""
    typed = {n: axes for n, axes in symmetry.signature.items()}
    typed |= {n: (feature.type,) for n, feature in symmetry.outputs.items()}
    carrying = {n: a for n, axes in typed.items() for a in axes if "tokens" in spaces_of(a)}
    return {n: str(a).removeprefix("(").removesuffix(")") for n, a in carrying.items()}


@cache
def _built(name: str) -> tuple[nn.Module, dict[str, Tensor], ParameterSymmetry]:
    torch.manual_seed(0)
    build, names, _ = MODELS[name]
    model = build().double().eval()
    inputs = {n: ids(k) for k, n in enumerate(names)}
    outputs = _logits if name == "T5" else None
    found = find_symmetry(model, inputs, outputs, free_outputs=name[:5] != "a bag")
    return model, inputs, with_tokens(found, model, inputs, names, outputs)


def _logits(returned: Any) -> dict[str, Tensor]:
    return {"logits": returned.logits}


def _run(model: nn.Module, state: dict[str, Tensor], inputs: dict[str, Tensor]) -> Any:
    with torch.no_grad():
        returned = torch.func.functional_call(model, state, (), inputs, tie_weights=False)
    returned = _logits(returned) if hasattr(returned, "logits") else returned
    return dict(named_outputs(returned))


def _error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max(
        float((found[n] - y).abs().max() / y.abs().max()) for n, y in expected.items()
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_tokens_numbered_anew_give_the_logits_of_the_tokens(name: str) -> None:
    model, inputs, symmetry = _built(name)
    assert _axes(symmetry) == MODELS[name][2]
    state = dict(model.state_dict())
    plain = _run(model, state, inputs)
    tolerance = 1e-6 if name[:5] in ("Llama", "T5") else 1e-12  # their norms compute in float32
    for only in ("tokens", None):
        g = symmetry.sample(torch.Generator().manual_seed(3), only=only)
        moved = act(symmetry, g, state)
        there = act_inputs(symmetry, g, inputs)
        expected = act_outputs(symmetry, g, plain, state) if symmetry.outputs else plain
        assert _error(_run(model, moved, there), expected) <= tolerance
        assert _error(_run(model, moved, inputs), expected) > 1e-3  # tokens left behind
        assert _error(_run(model, state, there), expected) > 1e-3  # tables left behind
        assert any(not torch.equal(there[n], inputs[n]) for n in inputs)


@pytest.mark.parametrize("name", ["GPT-2, untied", "BERT, whose padding is held"])
def test_rows_and_labels_are_where_a_loop_over_tokens_puts_them(name: str) -> None:
    model, inputs, symmetry = _built(name)
    g = symmetry.sample(torch.Generator().manual_seed(1), only="tokens")
    state = dict(model.state_dict())
    moved = act(symmetry, g, state)
    new = renumber(symmetry, g, torch.arange(V)).tolist()
    assert sorted(new) == [*range(V)] and new != [*range(V)]
    table = next(iter(MODELS[name][2]))
    for old in range(V):
        assert torch.equal(moved[table][new[old]], state[table][old])
    marked = torch.tensor([[3, -100], [-1, V - 1]])
    assert renumber(symmetry, g, marked).tolist() == [[new[3], -100], [-1, new[V - 1]]]
    assert torch.equal(renumber(symmetry, ~g, renumber(symmetry, g, ids())), ids())
    assert torch.equal(act_inputs(symmetry, g, inputs)["input_ids"], renumber(symmetry, g, ids()))


@pytest.mark.parametrize("name", ["GPT-2, tied", "GPT-2, untied"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
def test_training_on_renumbered_tokens_retraces(name: str, make: Any) -> None:
    model, inputs, _ = _built(name)
    found = find_symmetry(model, inputs, free_outputs=True, training=True)
    symmetry = with_tokens(found, model, inputs)
    loss = nn.CrossEntropyLoss()
    key = Key.generate(symmetry, torch.Generator().manual_seed(0), make, loss)
    assert key.acting.spaces["tokens"].group == Permutation(V)
    targets = ids(9)
    encoded = encode(model, (inputs, targets), key, loss)

    def trained(state: dict[str, Tensor], x: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        made = MODELS[name][0]().double().train()
        made.load_state_dict(state)
        optimizer = make(made.parameters(), 0.01)
        for _ in range(12):
            optimizer.zero_grad()
            loss(made(**x).logits.flatten(0, 1), t.flatten()).backward()
            optimizer.step()
        return {n: p.detach() for n, p in made.state_dict().items()}

    plain = trained(dict(model.state_dict()), inputs, targets)
    assert isinstance(encoded.inputs, dict) and encoded.targets is not None
    back = decode(trained(encoded.state_dict, encoded.inputs, encoded.targets), key)
    assert _error(back, plain) <= 1e-8
    wrong = decode(trained(encoded.state_dict, encoded.inputs, targets), key)
    assert _error(wrong, plain) > 1e-3  # targets left behind


def test_a_row_of_padding_that_moved_would_not_retrace() -> None:
    torch.manual_seed(0)
    model, inputs = Bag(0).double(), {"input_ids": ids()}
    found = find_symmetry(model, inputs, training=True)
    symmetry = with_tokens(found, model, inputs)
    axes = (carried("tokens"), symmetry.signature["table.weight"][1])
    loose = replace(
        symmetry,
        spaces={**symmetry.spaces, "tokens": Space("tokens", Permutation(V))},
        signature={**symmetry.signature, "table.weight": axes},
        inputs={"input_ids": Feature(carried("tokens"))},
    )
    held = _drift(model, symmetry, inputs["input_ids"])
    assert held <= 1e-12 < 1e-3 < _drift(model, loose, inputs["input_ids"])


def _drift(model: nn.Module, symmetry: ParameterSymmetry, x: Tensor) -> float:
    """How far training on tokens that are numbered anew is from plain training."""
    g = symmetry.sample(torch.Generator().manual_seed(0), only="tokens")

    def trained(state: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        made = Bag(0).double()
        made.load_state_dict(state)
        for _ in range(10):
            made.zero_grad()
            made(x).square().sum().backward()
            torch.optim.SGD(made.parameters(), 0.05).step()
        return {n: p.detach() for n, p in made.state_dict().items()}

    start = dict(model.state_dict())
    moved = trained(act(symmetry, g, start), renumber(symmetry, g, x))
    return _error(act(symmetry, ~g, moved), trained(start, x))


# (what the model does with the tokens, words of the refusal)
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[str, ...]]] = {
    "a token by its number": (
        lambda m, x: m.head(m.table(x) * (x == 4).unsqueeze(-1)), ("eq", "held=("),
    ),
    "arithmetic": (lambda m, x: m.head(m.table(x) + x.unsqueeze(-1) * 0.1), ("'mul'", "meaning")),
    "arithmetic in integers": (lambda m, x: m.head(m.table((x + 1) % V)), ("'add'",)),
    "a token in front": (
        lambda m, x: m.head(m.table(F.pad(x, (1, 0), value=2))), ("'pad'",),
    ),
    "two lengths": (
        lambda m, x: m.head(m.table(x) + m.short(x)), ("[11, 13]", "one length"),
    ),
    "rows by number besides": (
        lambda m, x: m.head(m.table(x) + m.table.weight[4]), ("also reads by number",),
    ),
    "logits by number": (
        lambda m, x: F.linear(m.table(x), m.table.weight) * (1 + m.pattern),
        ("generic weights", "hold it by held=("),
    ),
    "a table that sums along tokens": (
        lambda m, x: F.embedding(x, m.table.weight.cumsum(0)), ("generic weights",),
    ),
    "one table at other tokens": (
        lambda m, x: m.head(m.table(x) + m.table(torch.arange(LENGTH))), ("generic weights",),
    ),
    "no table": (lambda m, x: m.head(m.table.weight[: x.shape[1]]), ("no table",)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_computes_with_tokens_is_refused(name: str) -> None:
    torch.manual_seed(0)
    function, words = REFUSED[name]
    model, inputs = Reads(function).double(), {"input_ids": ids(batch=11)[:, :LENGTH]}
    found = find_symmetry(model, inputs)
    with pytest.raises(TraceError) as refused:
        with_tokens(found, model, inputs)
    for word in (*words, "with_tokens(symmetry, Reads", "expected"):
        assert word in str(refused.value)


def test_inputs_that_hold_no_tokens_are_refused() -> None:
    model, inputs, _ = _built("a bag of tokens")
    found = find_symmetry(model, inputs)
    with pytest.raises(ValueError, match=r"'x' is missing, and integers.*\['input_ids'\]"):
        with_tokens(found, model, inputs, "x")
    dense = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"'input' is torch.float32"):
        with_tokens(find_symmetry(dense, (torch.ones(5, 3),)), dense, (torch.ones(5, 3),), "input")
    for held in ((6, 7), (V,)):
        with pytest.raises(ValueError, match="Number the special tokens first or last"):
            with_tokens(found, model, inputs, held=held)
    with pytest.raises(ValueError, match="orders the tokens of"):
        renumber(found, found.identity(), ids())


def test_rows_that_no_example_reads_stay_where_they_were() -> None:
    model, inputs, symmetry = _built("GPT-2, tied")
    assert symmetry.unreached == {"transformer.wpe.weight": (LENGTH, LENGTH + 1)}
    longer = {"input_ids": torch.randint(V, (2, LENGTH + 2))}
    g = symmetry.sample(torch.Generator().manual_seed(2))
    state = dict(model.state_dict())
    moved = _run(model, act(symmetry, g, state), act_inputs(symmetry, g, longer))
    expected = act_outputs(symmetry, g, _run(model, state, longer), state)
    assert _error(moved, expected) <= 1e-12
    rare = {"input_ids": torch.zeros_like(inputs["input_ids"])}  # one row is read, all move
    again = with_tokens(find_symmetry(model, rare, free_outputs=True), model, rare)
    assert again.spaces["tokens"] == symmetry.spaces["tokens"]


def test_integers_number_units_as_one_hot_vectors_do() -> None:
    space = Space("s", Permutation(V))
    symmetry = ParameterSymmetry({"s": space}, {}, inputs={"x": Feature(carried("s"))})
    g = symmetry.sample(torch.Generator().manual_seed(0))
    moved = act_inputs(symmetry, g, ids())
    vectors = act_inputs(symmetry, g, F.one_hot(ids(), V).double())
    assert torch.equal(F.one_hot(moved, V).double(), vectors)
    mixing = replace(symmetry, spaces={"s": Space("s", GeneralLinear(V))})
    with pytest.raises(ValueError, match="one-hot"):
        act_inputs(mixing, mixing.sample(torch.Generator().manual_seed(0)), ids())
