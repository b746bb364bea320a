from busy_server import recorder
from made_runs.fixtures import in_this_process, pair, synthetic
from replaying.fixtures import ask, stub_process, trace_of

__all__ = ["ask", "in_this_process", "pair", "recorder", "stub_process", "synthetic", "trace_of"]
