"""Training that knows its orbit: parameters that are moved to its least norm as they train."""
