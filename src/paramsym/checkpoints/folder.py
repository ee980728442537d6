"""Hugging Face folders: `config.json` beside safetensors."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.asking import loaded_without_numbers
from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.configuration import (
    bounded,
    check_size,
    model_class,
    numbers_in,
    read_configuration,
)
from paramsym.checkpoints.errors import CheckpointError, few, first_line
from paramsym.checkpoints.inputs import inputs_from_config
from paramsym.checkpoints.layout import WEIGHTS, files_of, others_in, write_like
from paramsym.checkpoints.quieting import quiet
from paramsym.checkpoints.source import Inputs, Source, Weights, aliases, check_model
from paramsym.checkpoints.streaming.spelling import PACKED, spelling
from paramsym.checkpoints.streaming.windows import windows_of
from paramsym.checkpoints.tensors import INDEX, parsed_index, read_index, require_file
from paramsym.formats.header import read_header

_EXPERTS = "_experts_implementation"


@dataclass
class FolderSource(Source):
    """A folder; it is written back with all its other files."""

    def save(self, draft: Path, state: Mapping[str, torch.Tensor]) -> None:
        source = self.files[0]
        prefix = getattr(self.model, "base_model_prefix", "")
        draft.mkdir(exist_ok=True)
        with quiet():
            write_like(
                source, draft, state, aliases(self.model), f"{prefix}." if prefix else "",
                lambda folder: self._save(folder, state),
            )  # fmt: skip
        for name in others_in(source):  # the configuration, too, stays as it was
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, draft / name)

    def _save(self, folder: Path, state: Mapping[str, torch.Tensor]) -> None:
        """As transformers itself writes the model, in shards no larger than those of the source."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(state[name])
        _, *shards = reversed(files_of(self.files[0]))
        largest = max((path.stat().st_size for path in shards), default=1 << 50)
        self.model.save_pretrained(folder, max_shard_size=largest)  # type: ignore[operator]

    def streamable(self) -> Weights | None:
        return self._streamable

    @cached_property
    def _streamable(self) -> Weights | None:
        """The headers of all files are read for it, which may be many."""
        folder = self.files[0]
        if not any(folder.glob("*.safetensors")):
            return None
        checkpoint = Checkpoint.open(folder)
        state, ties = self.model.state_dict(keep_vars=True), aliases(self.model)
        prefix = getattr(self.model, "base_model_prefix", "")
        names = spelling(checkpoint, state, f"{prefix}." if prefix else "")
        if not quantised_by(folder):
            return self._as_loaded(checkpoint, names, ties)
        if {alias for name in names.values() for alias in ties[name]} < set(state):
            return None  # names are others: what reads them has to join or to divide tensors
        plain = {n: own for n, own in names.items() if not n.endswith(f".{PACKED}")}
        shapes = {name: tuple(state[own].shape) for name, own in plain.items()}
        if any(checkpoint.entries[name].shape != shape for name, shape in shapes.items()):
            return None  # loading says what is wrong
        return Weights(checkpoint, names, self._skeleton)

    def _as_loaded(
        self, checkpoint: Checkpoint, spelled: Mapping[str, str], ties: Mapping[str, list[str]]
    ) -> Weights | None:
        """The files as from_pretrained reads them, which is asked."""
        state = loaded_without_numbers(self.model, checkpoint)
        found = None if state is None else windows_of(state, checkpoint.entries)
        if found is None:
            return None
        names, windows = found
        extra = set(checkpoint) - set(names)
        again = {n: m for n, m in spelled.items() if n in extra and len(ties[m]) > 1}
        if not self._ignores(extra - set(again)):
            return None
        return Weights(checkpoint, {**names, **again}, self._skeleton, windows)

    @property
    def _skeleton(self) -> Callable[[], torch.nn.Module]:
        return partial(_bare, type(self.model), self.model.config)

    def _ignores(self, extra: Collection[str]) -> bool:
        """Whether all of these names are known to be of no tensor of the model, or of a buffer that
        it computes itself."""
        ignored = getattr(self.model, "_keys_to_ignore_on_load_unexpected", None) or ()
        computed = {name for name, _ in self.model.named_buffers()} - set(self.model.state_dict())
        last = {name.rpartition(".")[2] for name in computed}
        return all(
            name.rpartition(".")[2] in last or any(re.search(each, name) for each in ignored)
            for name in extra
        )

    def loaded(self) -> FolderSource:
        return self if self.has_weights else open_folder(self.files[0], self.inputs)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ()

    def reload(self, draft: Path) -> torch.nn.Module:
        return _load(draft, type(self.model), None)

    def planned(self, out: Path) -> dict[str, int]:
        source = self.files[0]
        names = [path.name for path in files_of(source)] + others_in(source)
        return {name: (source / name).stat().st_size for name in names}


def open_folder(path: Path, inputs: Inputs | None, weights: bool = True) -> FolderSource:
    """Read a folder. Without `weights` only the structure is built, on the meta device."""
    config = _config(path)
    kind = model_class(path / "config.json", config)
    if weights:
        headers = _check_files(path)
        check_size(path / "config.json", _empty(path, kind, config, headers), numbers_in(headers))
        model = _load(path, kind, config)
        check_model(model, str(path))
    else:
        if hasattr(config, _EXPERTS):  # grouped products of matrices ask for bfloat16
            setattr(config, _EXPERTS, "batched_mm")
        model = _empty(path, kind, config, None)
    if inputs is None:
        inputs = dict(inputs_from_config(model, config))
    return FolderSource(path.resolve().name, model, inputs, [path], weights)


def is_configuration_alone(path: Path) -> bool:
    """Whether there are no weights in a folder, in whatever format."""
    return not any(item.name.endswith(WEIGHTS) for item in path.iterdir())


def quantised_by(path: Path) -> str:
    """The method by which the weights in a folder are quantised, as its configuration says it."""
    if not (path / "config.json").is_file():
        return ""
    said = read_configuration(path / "config.json")
    found = said.get("quantization_config") or said.get("compression_config")
    return str(found.get("quant_method", "some method")) if isinstance(found, dict) else ""


def _config(path: Path) -> Any:
    _refuse_adapter(path)
    require_file(path / "config.json")
    expected = "the configuration of a model in transformers"
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise CheckpointError(
            str(path), "transformers is not installed", "it, to build the model of a folder",
            "Install it: pip install 'paramsym[hf]'",
        ) from error  # fmt: skip
    read_configuration(path / "config.json")
    try:
        with quiet():
            return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(
            str(path / "config.json"), f"it cannot be used ({first_line(error)})", expected,
            "Code that a folder brings along is never run here; where the model has its own, "
            "write a factory: package.module:factory --weights FILE",
        ) from error  # fmt: skip


def _refuse_adapter(path: Path) -> None:
    file = path / "adapter_config.json"
    if file.is_file() and not (path / "config.json").is_file():
        base = read_configuration(file).get("base_model_name_or_path", "")
        raise CheckpointError(
            str(path), f"an adapter on top of {str(base)[:100]!r}", "a model with its own weights",
            "Name the folder of that model, or merge the adapter into it: peft's merge_and_unload, "
            "then save_pretrained",
        )  # fmt: skip


def _check_files(path: Path) -> dict[str, Any]:
    """The headers of all safetensors files, each complete, before anything is built."""
    indices = sorted(path.glob(f"*{INDEX}"))
    files = sorted(path.glob("*.safetensors"))
    for index in indices:
        for shard in sorted(set(read_index(index).values())):
            require_file(path / shard)
    headers = {name: entry for file in files for name, entry in read_header(file).items()}
    headers.pop("__metadata__", None)
    if not files:
        others = sorted(p.name for p in path.iterdir() if p.name.endswith(WEIGHTS))
        raise CheckpointError(
            str(path), f"no safetensors in it{', only ' + few(others) if others else ''}",
            "model.safetensors, or its shards and their index",
            "Convert the weights with save_pretrained; or inspect the structure alone, from "
            "config.json, with --no-verify",
        )  # fmt: skip
    return headers


def _load(path: Path, kind: Any, config: Any) -> torch.nn.Module:
    for index in sorted(path.glob(f"*{INDEX}")):
        _require_metadata(index)
    try:
        with quiet():
            model, info = kind.from_pretrained(
                path, config=config, local_files_only=True, use_safetensors=True,
                output_loading_info=True, ignore_mismatched_sizes=True, dtype="auto",
                trust_remote_code=False,
            )  # fmt: skip
    except CheckpointError:
        raise
    except Exception as error:
        method = quantised_by(path)
        raise CheckpointError(
            str(path), f"from_pretrained stopped with {first_line(error)}",
            f"weights that fit {kind.__name__}",
            f"The weights are quantised by {method}: take those that they were made from, or ask "
            "what needs no weights (inspect --no-verify, export, check-mapping)"
            if method else "Check that config.json belongs to the weights",
        ) from error  # fmt: skip
    _check_loading(path, kind, info)
    return model.eval()


def _require_metadata(index: Path) -> None:
    """Raise where an index lacks what from_pretrained asks of it."""
    said = parsed_index(index.read_text(encoding="utf-8"), str(index))
    if not isinstance(said.get("metadata"), Mapping):
        raise CheckpointError(
            str(index), f"its 'metadata' is {said.get('metadata')!r:.40}",
            "an object, which may be empty, beside 'weight_map'",
            'Add "metadata": {}, or write the checkpoint anew with save_pretrained',
        )  # fmt: skip


def _check_loading(path: Path, kind: Any, info: Mapping[str, Any]) -> None:
    wrong: list[Any] = sorted(info.get("mismatched_keys") or (), key=str)
    if wrong:
        name, came, wanted = wrong[0]
        more = f" (and {len(wrong) - 1} more of another shape)" if len(wrong) > 1 else ""
        raise CheckpointError(
            str(path), f"{name!r} has shape {tuple(came)}{more}",
            f"the shape {tuple(wanted)} that config.json asks for",
            "Check that config.json belongs to the weights",
        )  # fmt: skip
    missing = sorted(info.get("missing_keys") or ())
    extra = sorted(info.get("unexpected_keys") or ())
    if missing or extra:
        parts = [f"{few(missing)} missing"] if missing else []
        parts += [f"{few(extra)} unknown to the model"] if extra else []
        raise CheckpointError(
            str(path), " and ".join(parts), f"exactly the tensors of {kind.__name__}",
            "Check 'architectures' in config.json: it names the class that the weights belong to",
        )  # fmt: skip


def _bare(kind: Any, config: Any) -> torch.nn.Module:
    """The model with its parameters on the meta device, and its buffers in memory."""
    register = torch.nn.Module.register_parameter

    def without_numbers(self: torch.nn.Module, name: str, param: Any) -> None:
        if param is not None and param.device.type != "meta":
            param = torch.nn.Parameter(param.to("meta"), param.requires_grad)
        register(self, name, param)

    build = getattr(kind, "_from_config", None) or kind.from_config
    config = copy.deepcopy(config)  # building writes into it
    if hasattr(config, _EXPERTS):  # one after the other, and none that no token is sent to
        setattr(config, _EXPERTS, "eager")
    torch.nn.Module.register_parameter = without_numbers
    try:
        with quiet():
            model = build(config).eval()
    finally:
        torch.nn.Module.register_parameter = register
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model


def _empty(path: Path, kind: Any, config: Any, headers: Any) -> torch.nn.Module:
    build = getattr(kind, "_from_config", None) or kind.from_config
    config = copy.deepcopy(config)  # building writes into it
    try:
        with quiet(), torch.device("meta"), bounded(path / "config.json", headers):
            return build(config).eval()
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            str(path / "config.json"), f"building the model stopped with {first_line(error)}",
            "a complete configuration", "Check config.json",
        ) from error  # fmt: skip
