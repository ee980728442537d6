"""Reading a model: one forward pass on fake tensors becomes a graph of functions."""
