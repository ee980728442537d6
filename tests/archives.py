"""Exported programs whose archives are changed entry by entry."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "models/model.json"


def entries(path: Path) -> dict[str, bytes]:
    """The entries of an archive by their names, without the folder that they are in."""
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def write(path: Path, content: dict[str, bytes]) -> Path:
    """An archive of these entries."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(f"{path.stem}/{name}", data)
    return path


def edited(source: Path, target: Path, change: Callable[[Any], None], entry: str = MODEL) -> Path:
    """A copy in which the JSON of one entry was changed."""
    content = entries(source)
    table = json.loads(content[entry])
    change(table)
    content[entry] = json.dumps(table).encode()
    return write(target, content)


def renamed(value: Any, old: str, new: str) -> Any:
    """JSON in which every text that equals `old`, keys included, is `new`."""
    if isinstance(value, dict):
        return {renamed(k, old, new): renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [renamed(part, old, new) for part in value]
    return new if value == old else value
