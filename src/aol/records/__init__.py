"""What is written down of a run, and how it is read again: plain CSV, JSON and safetensors, whole or not there.

Knows files and tensors. Engine and `Recorder` write by it and the report reads by it; docs/records.md describes it.
"""
