"""Bodies: what carries a decision out on each kind of server, built once for one scheduler.

`unified` prefills and decodes; `decode` is the decode server of a disaggregated pair; `placed` has
KV that is placed layer by layer.
"""
