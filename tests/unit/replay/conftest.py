from replaying.fixtures import ask, on_stub, rows, stub, stub_process, trace_of

__all__ = ["ask", "on_stub", "rows", "stub", "stub_process", "trace_of"]
