"""Entrywise functions and the affine maps of the line that they carry over to affine maps."""
