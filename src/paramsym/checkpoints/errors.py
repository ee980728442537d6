"""The error of this layer, which is that of everything that reads a file."""

from paramsym.formats.errors import CheckpointError as CheckpointError
from paramsym.formats.errors import few as few
from paramsym.formats.errors import first_line as first_line
