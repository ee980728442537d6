"""One door for every kind of source."""

from __future__ import annotations

from pathlib import Path

from paramsym.checkpoints.errors import CheckpointError, first_line
from paramsym.checkpoints.factory import open_factory
from paramsym.checkpoints.folder import is_configuration_alone, open_folder
from paramsym.checkpoints.inputs import parse_inputs
from paramsym.checkpoints.program import open_program
from paramsym.checkpoints.source import Inputs, Source
from paramsym.recording.running import uncollected

_EXPECTED = "a .pt2 file, a folder with config.json and safetensors, or package.module:factory"


@uncollected()  # importing transformers makes 4·10⁵ objects, which stay
def open_checkpoint(
    source: str, weights: str | None = None, inputs: str | None = None,
    structure_only: bool = False, key: str | None = None,
) -> Source:  # fmt: skip
    """Build the model of a source and load its weights.

    Args:
        source: a `.pt2` file, a Hugging Face folder, or `package.module:factory`.
        weights: a weights file for a factory.
        inputs: a description for `parse_inputs`; by default the source says what it takes.
        structure_only: where the source allows it, build on the meta device and read no weights.
        key: the path to the state dict in `weights`, where that is an archive of nested
            dictionaries; dots between the keys.

    Raises:
        CheckpointError: whatever is wrong with the source, in four parts.
    """
    if "://" in source:
        raise CheckpointError(
            source, "a URL, from which no model is built", _EXPECTED,
            "Download the folder; or move its weights alone, by an element of the model: "
            "checkpoints.transform(url, target, element)",
        )  # fmt: skip
    path = path_of(source)
    given: Inputs | None = None if inputs is None else parse_inputs(inputs)
    if weights is not None and (path.exists() or ":" not in source):
        raise CheckpointError(
            f"--weights {weights}", f"the source {source!r} brings its own weights",
            "--weights only beside package.module:factory", "Leave --weights out",
        )  # fmt: skip
    if key is not None and weights is None:
        raise CheckpointError(
            f"--key {key}", "there is no --weights FILE", "a key into a file of weights",
            "Give --weights FILE beside package.module:factory, or leave --key out",
        )  # fmt: skip
    if path.is_dir():
        opened: Source = open_folder(path, given, not structure_only)
    elif path.suffix == ".pt2":
        opened = open_program(path, given)
    elif path.exists():
        raise CheckpointError(
            source, "a file of weights alone, which do not say what is computed with them"
            if path.suffix in (".safetensors", ".pt", ".pth", ".bin") else "a file",
            _EXPECTED, f"Name the model: paramsym … package.module:factory --weights {source}",
        )  # fmt: skip
    elif ":" in source:
        opened = open_factory(
            source, None if weights is None else Path(weights).expanduser(), given, key
        )
    else:
        raise CheckpointError(
            source, "there is no such file or folder", _EXPECTED,
            "Check the spelling and the folder that the command runs in",
        )  # fmt: skip
    if inputs is not None:
        opened.inputs = _in_dtype(inputs, opened)
    return opened


@uncollected()
def open_movable(
    source: str, weights: str | None = None, inputs: str | None = None, key: str | None = None
) -> Source:
    """Build the model of a source; its weights are read only where they cannot be streamed.

    Arguments and errors are those of `open_checkpoint`.
    """
    if path_of(source).is_dir():
        opened = open_checkpoint(source, weights, inputs, True, key)
        if opened.streamable() is not None:
            return opened
    return open_checkpoint(source, weights, inputs, False, key)


def needs_weights(source: str, verify: bool, audit: bool, limit: int) -> bool:
    """Whether the weights of a source have to be read to prove or audit its symmetry as asked.

    Not where a folder has none, or its model exceeds the limit of an audit, which then goes through
    a twin: the configuration alone says all that is needed.
    """
    folder = path_of(source)
    if not audit or not (folder / "config.json").is_file():
        return verify or audit
    if is_configuration_alone(folder):
        return False
    return verify or open_folder(folder, None, weights=False).parameters <= limit


def path_of(source: str) -> Path:
    """The source as a path, if it can be one."""
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            source[:100], f"it can be no name of a file ({first_line(error)})", _EXPECTED,
            "Check the spelling",
        ) from error  # fmt: skip
    return path


def _in_dtype(inputs: str, opened: Source) -> Inputs:
    """Inputs without a dtype get the model's."""
    from paramsym.checkpoints.inputs import floating_dtype

    return parse_inputs(inputs, floating_dtype(opened.model))
