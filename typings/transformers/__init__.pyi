"""What this library takes from transformers, whose sources take a type checker half a minute."""

from typing import Any

def __getattr__(name: str) -> Any: ...
