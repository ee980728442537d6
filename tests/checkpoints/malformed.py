"""Malformed inputs: valid files and texts, changed at random from a fixed seed.

Each case is a folder with a changed file and the arguments of one command. Changes are made where a
format has structure (a value of its JSON becomes another, a key goes or comes twice, an entry of an
archive is exchanged) and where it has none (bytes flipped, cut, added).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.archives import entries, write
from tests.models import Small

SMALL = "tests.models:Small"
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]
GARBAGE: list[Any] = [
    None, True, -1, 0, 1, 3, 10**9, 10**23, -(10**15), 0.5, 1e308, float("nan"), float("inf"), "",
    "x", "0", "é\u0000", "__import__('os')", "../x", "a" * 300, [], {}, [5], ["__dict__"], [[], {}],
    {"a": 1}, DEEP,
]  # fmt: skip
INPUTS = ["2", "x", "5", ":", "int64", "bool", "float16", "<", ",", "=", "a", "99999999999", "-3",
          "0", "1" * 25, " ", "uint8", "complex64", "é", "²"]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One command on one changed input."""

    name: str
    arguments: list[str]


class Seeds:
    """Valid files, each small, that are changed."""

    def __init__(self, folder: Path, llama: Path):
        self.llama = llama
        self.state = Small().state_dict()
        self.weights = folder / "small.safetensors"
        save_file(self.state, self.weights)
        self.archive = folder / "small.pt"
        torch.save(self.state, self.archive)
        model = Small().eval()
        self.program = folder / "small.pt2"
        batch = torch.export.Dim("batch", min=2, max=64)
        program = torch.export.export(
            model, model.example_inputs(), dynamic_shapes={"x": {0: batch}}
        )
        torch.export.save(program, self.program)
        self.shards = folder / "shards"
        self.shards.mkdir()
        names = list(self.state)
        for k, part in enumerate((names[:4], names[4:])):
            save_file({n: self.state[n] for n in part}, self.shards / f"{k}.safetensors")
        table = {n: f"{int(k >= 4)}.safetensors" for k, n in enumerate(names)}
        self.index = self.shards / "model.safetensors.index.json"
        self.index.write_text(json.dumps({"metadata": {"total_size": 9}, "weight_map": table}))


def cases(seeds: Seeds, folder: Path, count: int, seed: int) -> Iterator[Case]:
    """So many cases, the kinds in turn, each in a folder of its own."""
    draw = random.Random(seed)
    kinds = [header, body, archive, index, configuration, weights_of_folder, program, program_bytes,
             tables, inputs]  # fmt: skip
    for k in range(count):
        kind = kinds[k % len(kinds)]
        place = folder / f"{k}"
        place.mkdir()
        arguments = kind(draw, seeds, place)
        command = "transform" if k % 7 == 0 and kind is not inputs else "inspect"
        if command == "transform":
            arguments.insert(1, str(place / "out") + (".pt2" if ".pt2" in arguments[0] else ""))
        else:
            arguments.append("--no-verify")
        yield Case(f"{k}: {kind.__name__}", [command, *arguments])


def paths_in(value: Any, path: tuple = ()) -> list[tuple]:
    """The places of all values in JSON."""
    found = [path]
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += paths_in(value[key], (*path, key))
    return found


def changed(draw: random.Random, value: Any) -> str:
    """The JSON with one to three of its values exchanged, taken out, or written twice."""
    value = json.loads(json.dumps(value))
    twice = ""
    for _ in range(draw.randint(1, 3)):
        path = draw.choice(paths_in(value)[1:] or [()])
        owner = value
        for key in path[:-1]:
            owner = owner[key]
        kind = draw.random()
        if not path:
            return json.dumps(draw.choice(GARBAGE))
        if kind < 0.75:
            owner[path[-1]] = draw.choice(GARBAGE)
        elif kind < 0.9:
            del owner[path[-1]]
        elif isinstance(value, dict) and value:
            twice = json.dumps(draw.choice(list(value)))
        if not isinstance(value, (dict, list)) or not value:
            break
    text = json.dumps(value)
    return f"{text[:-1]}, {twice}: 3}}" if twice and text.endswith("}") else text


def bent(draw: random.Random, data: bytes) -> bytes:
    """The bytes with some flipped, cut off, or added."""
    content = bytearray(data)
    kind = draw.random()
    if kind < 0.25:
        del content[draw.randrange(len(content)) :]
    elif kind < 0.35:
        content += draw.randbytes(draw.randint(1, 40))
    elif kind < 0.45:
        start = draw.randrange(len(content))
        del content[start : start + draw.randint(1, 20)]
    else:
        for _ in range(draw.randint(1, 20)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def safetensors(header: str, body: bytes) -> bytes:
    data = header.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "little") + data + body


def split(path: Path) -> tuple[Any, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def header(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    table, body = split(seeds.weights)
    (place / "w.safetensors").write_bytes(safetensors(changed(draw, table), body))
    return [SMALL, "--weights", str(place / "w.safetensors")]


def body(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    (place / "w.safetensors").write_bytes(bent(draw, seeds.weights.read_bytes()))
    return [SMALL, "--weights", str(place / "w.safetensors")]


def archive(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    path = place / "w.pt"
    if draw.random() < 0.4:
        path.write_bytes(bent(draw, seeds.archive.read_bytes()))
    else:
        state: dict[Any, Any] = dict(seeds.state)
        for name in draw.sample(list(state), draw.randint(1, 3)):
            state[name] = odd_tensor(draw, state[name])
        if draw.random() < 0.2:
            state[draw.choice([3, ("a", 1), "more", ""])] = torch.ones(2)
        torch.save(state, path)
    return [SMALL, "--weights", str(path)]


def odd_tensor(draw: random.Random, tensor: torch.Tensor) -> Any:
    """A tensor of another kind than the model's."""
    real = tensor.double()
    options: list[Callable[[], Any]] = [
        lambda: real.to(torch.int8), lambda: real.to(torch.float8_e4m3fn), lambda: real.bool(),
        lambda: torch.quantize_per_tensor(real.float(), 0.1, 3, torch.qint8),
        lambda: real.to("meta"), lambda: real.half(), lambda: real.bfloat16(),
        lambda: real.to(torch.complex64), lambda: torch.zeros(()).expand(tensor.shape),
        lambda: real.float().to_sparse(), lambda: real[None], lambda: real.float() * float("nan"),
        lambda: torch.zeros(0), lambda: 3, lambda: "x", lambda: [real], lambda: None,
        lambda: torch.zeros(()).expand(10**6, 10**6), lambda: real,
    ]  # fmt: skip
    return draw.choice(options)()


def index(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    shutil.copytree(seeds.shards, place / "s")
    target = place / "s" / seeds.index.name
    text = changed(draw, json.loads(target.read_text()))
    target.write_text(text, encoding="utf-8")
    return [SMALL, "--weights", str(target)]


def configuration(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    shutil.copytree(seeds.llama, place / "f")
    target = place / "f" / "config.json"
    target.write_text(changed(draw, json.loads(target.read_text())), encoding="utf-8")
    if draw.random() < 0.3:
        (place / "f" / "model.safetensors").unlink()
    return [str(place / "f")]


def weights_of_folder(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    shutil.copytree(seeds.llama, place / "f")
    target = place / "f" / "model.safetensors"
    table, numbers = split(target)
    data = safetensors(changed(draw, table), numbers)
    target.write_bytes(data if draw.random() < 0.6 else bent(draw, target.read_bytes()))
    return [str(place / "f")]


def program(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    content = entries(seeds.program)
    content["models/model.json"] = changed(draw, json.loads(content["models/model.json"])).encode()
    return [str(write(place / "p.pt2", content))]


def program_bytes(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    path = place / "p.pt2"
    if draw.random() < 0.5:
        path.write_bytes(bent(draw, seeds.program.read_bytes()))
        return [str(path)]
    content = entries(seeds.program)
    name = draw.choice(list(content))
    kind = draw.random()
    if kind < 0.4:
        content[name] = bent(draw, content[name] or b"x")
    elif kind < 0.7:
        del content[name]
    else:
        content[draw.choice(list(content))] = content[name]
    return [str(write(path, content))]


def tables(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    content = entries(seeds.program)
    name = "data/weights/model_weights_config.json"
    content[name] = changed(draw, json.loads(content[name])).encode()
    return [str(write(place / "p.pt2", content))]


def inputs(draw: random.Random, seeds: Seeds, place: Path) -> list[str]:
    parts = [draw.choice(INPUTS) for _ in range(draw.randint(1, 6))]
    text = "".join(parts)
    if draw.random() < 0.4:
        text = f"{draw.choice(['2', '0', '4', '9999999999'])}x{draw.choice(['5', '0', '6'])}{text}"
    return [SMALL, f"--inputs={text}"]
