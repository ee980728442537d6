"""Numbers: what is derived is tried, proved, and measured against the truth."""
