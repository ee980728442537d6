"""The classes of the atlas: every one that the tables of installed packages name, by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

TABLES = {
    "causal": ("CAUSAL_LM",),
    "masked": ("MASKED_LM",),
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "vision": (
        "IMAGE_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION",
        "MASKED_IMAGE_MODELING", "VIDEO_CLASSIFICATION", "UNIVERSAL_SEGMENTATION",
    ),
    "audio": (
        "AUDIO_CLASSIFICATION", "CTC", "SPEECH_SEQ_2_SEQ", "TEXT_TO_WAVEFORM",
        "TEXT_TO_SPECTROGRAM", "RNNT",
    ),
    "multimodal": (
        "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "ZERO_SHOT_IMAGE_CLASSIFICATION",
        "VISUAL_QUESTION_ANSWERING",
    ),
}  # fmt: skip
FAMILIES = (*TABLES, "diffusers", "graph", "adapters", "plain")


@dataclass(frozen=True)
class Case:
    """A class by its name, and how its tiny model is built with example inputs."""

    name: str
    family: str
    build: Callable[[], tuple[Any, Any]]


def cases(families: Iterator[str] | tuple[str, ...] = FAMILIES) -> dict[str, Case]:
    """All classes of some families by name; each stands in the first family that names it."""
    found: dict[str, Case] = {}
    for family in families:
        for case in _of_transformers(family) if family in TABLES else _others(family):
            found.setdefault(case.name, case)
    return found


def _of_transformers(family: str) -> Iterator[Case]:
    from transformers.models.auto import modeling_auto

    for table in TABLES[family]:
        names = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {})
        for model_type, classes in names.items():
            for name in (classes,) if isinstance(classes, str) else classes:
                yield Case(name, family, partial(_twin, model_type, name))


def _twin(model_type: str, name: str) -> tuple[Any, Any]:
    import transformers

    from paramsym import twin

    return twin(transformers.CONFIG_MAPPING[model_type](), kind=name)


def _others(family: str) -> Iterator[Case]:
    import atlas_models

    for name, build in atlas_models.TABLES[family]().items():
        yield Case(name, family, build)
