"""Scheduling: which calls share a launch, in which order, and how few launches there could be."""
