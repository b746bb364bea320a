from made_runs.fixtures import one_request, pair, synthetic

__all__ = ["one_request", "pair", "synthetic"]
