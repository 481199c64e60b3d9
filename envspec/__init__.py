"""Turns a version matrix into pinned, probed and published training images.

matrix → plan → lock → render → image → verdict → publication; one module a stage.
"""
