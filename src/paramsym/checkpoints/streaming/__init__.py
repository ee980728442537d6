"""Weights moved from files to files, in one pass that is bounded by what must be together.

layout    which files are written, and which bytes of them each tensor gets
job       what is done to each tensor: read some rows, act, write them to their place
journal   what has been done, so that a run that was killed goes on where it ended
stream    the pieces of a job on an engine, and everything that gets its name at the end
"""
