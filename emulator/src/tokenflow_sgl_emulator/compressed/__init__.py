"""DeepSeek V4 on the CPU platform: its pools are SGLang's, what computes in them is torch.

Each layer attends to a window of the last tokens, and most layers also to compressed rows, one for
every 4 or 128 tokens; with ratio 4 an indexer chooses the best of them. The tokens of a group that
is not complete yet are kept as a state. Windows, compressed rows, the indexer's rows and the states
have pools of their own, in the packed formats that SGLang's kernels read.
"""

OVERLAPPING = 4
"""The ratio of compression whose groups reach into the group before them; it has an indexer."""
