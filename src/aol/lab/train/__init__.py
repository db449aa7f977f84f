"""Trains the missing runs of a folder: groups, checkpoints, resume."""
