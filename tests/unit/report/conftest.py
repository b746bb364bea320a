from made_runs.fixtures import hostile, one_request, pair, synthetic

__all__ = ["hostile", "one_request", "pair", "synthetic"]
