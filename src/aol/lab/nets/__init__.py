"""Networks by name, each initialised from an explicit seed; `Stacked` turns R of them into one.

Every network ends in a linear layer called `head`.
"""
