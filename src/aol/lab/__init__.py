"""The lab: trains many runs as one network, and judges them in studies."""
