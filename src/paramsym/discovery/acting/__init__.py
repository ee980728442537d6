"""Actions that depend on the data: checked, inherited, and built."""
