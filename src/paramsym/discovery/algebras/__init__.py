"""The Lie algebra of what was found: a basis to read, its name, and the comparison."""
