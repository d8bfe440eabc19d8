"""Traces: one example's recorded calls, kept; those of many, merged into a minibatch."""
