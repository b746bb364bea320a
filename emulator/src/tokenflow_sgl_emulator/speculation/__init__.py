"""Speculative decoding on the CPU platform: torch twins of the kernels that SGLang launches.

Drafts are chains (topk 1), EAGLE's trees, or those that NGRAM finds in its corpus. A verification
is greedy, as it is on SGLang's own CPU.
"""
