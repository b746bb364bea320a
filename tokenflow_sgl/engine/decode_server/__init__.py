"""The scheduler of a disaggregated pair's decode server.

Prefills happen elsewhere: a request comes with its KV. SGLang has queues of its own for that, and
keeps the KV of what it retracts on the host. Streams are paused and resumed by the same means.
"""
