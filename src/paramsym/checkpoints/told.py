"""What a command did, as numbers under names: one mechanism for every result that is written."""

from __future__ import annotations

import abc
import json
import math
from typing import Any


class Told(abc.ABC):
    """A result with `numbers`, by which its JSON text is made."""

    @abc.abstractmethod
    def numbers(self) -> dict[str, Any]:
        """The result as plain numbers, texts, lists and tables."""

    def to_json(self) -> str:
        """The numbers as JSON text; what is no finite number is null."""
        return json.dumps(_plain(self.numbers()), indent=1, allow_nan=False)


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(value) for value in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item
