"""A checkpoint as a service for inputs in somebody else's basis, and questions to such a service.

Who asks needs the symmetry of the network, from its model class or from a file that whoever
published the network wrote: not from the service, which could name one that hides less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.algebra import GeneralLinear, Orthogonal
from paramsym.checkpoints.data import read_arrays
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.keys import NONE, Freeing
from paramsym.checkpoints.samples import SUFFIXES, write_arrays
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.sources import open_checkpoint
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import check_name, check_place, refuse_source, staged
from paramsym.formats.errors import reading
from paramsym.privacy.inference.client import query
from paramsym.privacy.inference.messages import Refusal
from paramsym.privacy.inference.server import serve
from paramsym.recording.freed import named_arguments
from paramsym.recording.running import split_inputs
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

Progress = Callable[[str], None]
_OF_SERVICE = "the address of a service: http://127.0.0.1:8765, as protect serve prints it"


@dataclass(frozen=True)
class Queried(Told):
    """The outputs of a service that were written: how many samples, and the tensors by shape."""

    path: Path
    samples: int
    outputs: dict[str, tuple[int, ...]]
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """What was written."""
        shapes = {name: list(shape) for name, shape in self.outputs.items()}
        return {
            "written": str(self.path), "samples": self.samples, "outputs": shapes,
            "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True)
class Published:
    """What who asks knows of a network: its symmetry, and the names of its inputs.

    Where only the symmetry is known, the inputs are those that it frees.
    """

    symmetry: ParameterSymmetry
    inputs: tuple[str, ...]

    def chosen(
        self, arrays: Mapping[str, torch.Tensor], where: str
    ) -> tuple[dict[str, torch.Tensor], list[str]]:
        """The arrays that are sent, and what is to be said of them; no others leave the house.

        Raises:
            CheckpointError: an input that a key should move is missing.
        """
        freed = [*self.symmetry.inputs]
        if len(arrays) == len(self.inputs) == 1:  # of one input any name will do
            return {self.inputs[0]: next(iter(arrays.values()))}, []
        found = {name: arrays[name] for name in self.inputs if name in arrays}
        if missing := [name for name in freed if name not in found]:
            raise CheckpointError(
                where, f"the file holds {few(sorted(arrays))}: no input {few(missing)}",
                f"the inputs of the network by name: {few(self.inputs)}",
                f"Save them by name: numpy.savez(path, {missing[0]}=…)",
            )  # fmt: skip
        left, plain = sorted(arrays.keys() - found.keys()), [n for n in found if n not in freed]
        notes = [f"{few(left)} stay behind: no input of that name"] if left else []
        notes += [f"{few(plain)} are sent as they are: no key moves them"] if plain else []
        return found, notes


def serve_checkpoint(
    checkpoint: Source,
    host: str = "127.0.0.1",
    port: int = 8765,
    freeing: Freeing | None = None,
    masks: bool = True,
    beyond_loopback: bool = False,
    symmetry_file: Path | None = None,
    force: bool = False,
    progress: Progress = silent,
    ready: Callable[[str, str], None] | None = None,
) -> None:
    """Serve a checkpoint until interrupted; see `paramsym.privacy.inference.server`.

    Args:
        checkpoint: with weights.
        host: the address to listen on.
        port: 0 for any that is free.
        freeing: what data owners may move; by default all inputs and no outputs.
        masks: send polarity masks.
        beyond_loopback: listen where other machines reach it, by plain HTTP.
        symmetry_file: where the symmetry is written as JSON, for data owners.
        force: replace what stands at `symmetry_file`.
        progress: is told each step when it begins.
        ready: is told the address and the fingerprint of the symmetry once the server listens.

    Raises:
        CheckpointError: there are no weights, no input moves, the address is taken or is another
            one than that of the loopback interface, or a package is missing.
    """
    if not checkpoint.has_weights:
        raise CheckpointError(
            checkpoint.label, "a model on the meta device, without numbers", "weights to serve",
            "Give --weights FILE",
        )  # fmt: skip
    if symmetry_file is not None:
        _check_symmetry_file(symmetry_file, checkpoint, force)
    progress("deriving the symmetry")
    symmetry = (freeing or Freeing(False, outputs=NONE)).symmetry(checkpoint)
    if symmetry_file is not None:
        with staged(symmetry_file, force) as draft:
            draft.write_text(symmetry.to_json(), encoding="utf-8")
    model = checkpoint.model if checkpoint.fixed_mode else checkpoint.model.eval()
    try:
        with refused(f"serving {checkpoint.label}", "a model that can be served", "See there"):
            serve(
                model, symmetry, _example(checkpoint), host, port, masks=masks,
                beyond_loopback=beyond_loopback,
                ready=lambda url: ready(url, symmetry.fingerprint) if ready else None,
            )  # fmt: skip
    except ImportError as error:
        raise CheckpointError(
            "paramsym protect serve", f"{error.name} is not installed", "starlette and uvicorn",
            "Install them: pip install 'paramsym[web]'",
        ) from error  # fmt: skip
    except OSError as error:
        raise CheckpointError(
            f"--host {host} --port {port}", f"nothing can listen there ({error.strerror or error})",
            "a free port of this machine", "Choose another one; 0 takes any that is free",
        ) from error  # fmt: skip


def query_service(
    url: str,
    network: Published,
    data: Path,
    out: Path,
    orthogonal: bool = False,
    dtype: torch.dtype | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Queried:
    """Ask a service for the outputs on the samples of a file, in a basis of one's own.

    Args:
        url: of the service.
        network: that it serves, from `published`.
        data: `.npz`, `.safetensors` or `.pt` with one array for each input.
        out: where the outputs are written, in one of these formats.
        orthogonal: draw rotations for inputs, which lose no digits and show all lengths.
        dtype: convert real inputs to it.
        force: replace what stands at `out`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: the samples do not fit, or the service does not answer, refuses, or serves
            another network (fingerprints are named).
    """
    check_name(out, SUFFIXES)
    refuse_source(out, [data])
    check_place(out, force)
    where = f"--data {data}"
    arrays = read_arrays(data, where)
    if not arrays or any(not x.ndim for x in arrays.values()):
        raise CheckpointError(
            where, "no arrays in it, or numbers without a first axis", "one array for each input, "
            "samples along the first axis", "Save them: numpy.savez(path, x=…)",
        )  # fmt: skip
    if dtype is not None:
        arrays = {n: x.to(dtype) if x.is_floating_point() else x for n, x in arrays.items()}
    symmetry = network.symmetry
    sent, notes = network.chosen(arrays, where)
    given = next(iter(sent.values())) if len(sent) == len(symmetry.inputs) == 1 else sent
    groups = {s: Orthogonal(symmetry.sizes[s]) for s in _of_inputs(symmetry)}
    progress(f"asking {url}")
    with _answered(url, where):
        returned = query(url, given, symmetry, groups=groups if orthogonal else None)
    outputs = {"output": returned} if isinstance(returned, torch.Tensor) else dict(returned)
    with staged(out, force) as draft:
        write_arrays(outputs, draft)
    shapes = {name: tuple(y.shape) for name, y in outputs.items()}
    return Queried(out, len(next(iter(sent.values()))), shapes, tuple(notes))


def published(
    source: str, inputs: str | None = None, freeing: Freeing | None = None,
    progress: Progress = silent,
) -> Published:  # fmt: skip
    """What is known of a network that others serve: from a source, without its weights, or a file.

    Args:
        source: what `open_checkpoint` takes, or a `.json` file that `serve_checkpoint` wrote.
        inputs: a description of example inputs.
        freeing: what may move; by default all inputs and no outputs.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: the source cannot be used, or the file is no symmetry.
    """
    path = Path(source).expanduser()
    if path.suffix == ".json" and path.is_file():
        expected = "a symmetry as protect serve --symmetry wrote it"
        with refused(source, expected, "Copy it again"), reading(path, expected):
            symmetry = ParameterSymmetry.from_json(path.read_text(encoding="utf-8"))
            return Published(symmetry, tuple(symmetry.inputs))
    checkpoint = open_checkpoint(source, inputs=inputs, structure_only=True)
    progress("deriving the symmetry")
    symmetry = (freeing or Freeing(False, outputs=NONE)).symmetry(checkpoint)
    named = named_arguments(checkpoint.model, *split_inputs(checkpoint.inputs))
    return Published(symmetry, tuple(n for n, x in named.items() if isinstance(x, torch.Tensor)))


def _check_symmetry_file(path: Path, checkpoint: Source, force: bool) -> None:
    check_name(path, (".json",))
    refuse_source(path, checkpoint.files)
    check_place(path, force)


def _example(checkpoint: Source) -> torch.Tensor | Mapping[str, torch.Tensor]:
    """An input as queries have it: the one there is, or all by name."""
    args, kwargs = split_inputs(checkpoint.inputs)
    named = named_arguments(checkpoint.model, args, kwargs)
    tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    if len(tensors) < len(named) or not tensors:
        raise CheckpointError(
            checkpoint.label, f"inputs {[*named]}, not all of which are tensors", "tensors alone",
            "Write a factory whose model takes tensors",
        )  # fmt: skip
    return args[0] if len(args) == len(named) == 1 else tensors


def _of_inputs(symmetry: ParameterSymmetry) -> Iterator[str]:
    """The spaces of freed inputs that a rotation can move."""
    for feature in symmetry.inputs.values():
        for space in feature.spaces:
            if isinstance(symmetry.spaces[space].group, GeneralLinear):
                yield space


@contextmanager
def _answered(url: str, where: str) -> Iterator[None]:
    """Inside, what a service says or does not say becomes an error about its address."""
    try:
        yield
    except Refusal as error:
        raise CheckpointError(
            url, f"{str(error).rstrip('.')} (HTTP {error.status})", "an answer",
            "See what the service says; where the fingerprints differ, give the source that is "
            "served, and the same --free-inputs and --free-outputs",
        ) from error  # fmt: skip
    except OSError as error:
        raise CheckpointError(
            url, f"it does not answer ({error.strerror or error})", _OF_SERVICE,
            "Start paramsym protect serve, or compare the address",
        ) from error  # fmt: skip
    except ValueError as error:
        raise CheckpointError(
            f"{url}, {where}", str(error).rstrip("."), "samples as the network takes them, and "
            + _OF_SERVICE, "Compare the samples with the example inputs",
        ) from error  # fmt: skip
