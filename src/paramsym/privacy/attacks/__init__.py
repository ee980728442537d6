"""Attacks against one's own job, one file each: mathematics on tensors, and an attempt with it."""
