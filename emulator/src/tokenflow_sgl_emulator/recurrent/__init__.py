"""Models whose layers keep a state per request instead of KV.

Torch twins of the kernels that SGLang launches for them, in the order of the tokens and in float64,
so that a state does not depend on how a prompt is cut into chunks, and copies of states to the host
and back.
"""
