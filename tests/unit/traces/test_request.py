from tokenflow_sgl.lab.traces.request import PrefixBlock, TraceRequest, continues


def request(tokens, *blocks):
    return TraceRequest(0.0, tokens, 5, prefix=tuple(PrefixBlock(*block) for block in blocks))


def test_turns_continue_where_the_blocks_agree():
    a, b = (1, 8), (2, 8)
    assert continues(request(20), request(40))
    assert continues(request(20, a), request(40))
    assert continues(request(20, a), request(40, a, b))
    assert not continues(request(20, a, b), request(40, a))
    assert not continues(request(20, a), request(40, b))
