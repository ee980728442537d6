"""Recognisers of the normalising stage, one module per form that they lead to."""
