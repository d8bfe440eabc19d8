"""Wiring: which rows go where between the results of launches; integers only."""
