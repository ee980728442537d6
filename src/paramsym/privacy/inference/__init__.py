"""Obfuscated inference: a model owner and a data owner, each with a key for one session."""
