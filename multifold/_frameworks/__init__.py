"""Frameworks: which backend an array or a model belongs to, and recording for one of them."""
