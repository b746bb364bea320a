import pytest

from tokenflow_sgl.demo.client import StreamRecord, StreamRequest


@pytest.fixture
def make_record():
    """A record of a stream that was served completely, tokens `gap_s` apart."""

    def make(ttft_s=1.0, gap_s=0.05, tokens=20, rate=10.0, sent_s=0.0, first_id=100):
        request = StreamRequest(prompt_ids=(5, 6, 7), max_new_tokens=tokens, rate=rate)
        times = [sent_s + ttft_s + gap_s * number for number in range(tokens)]
        ids = list(range(first_id, first_id + tokens))
        return StreamRecord(request, sent_s, times, ids, finish_reason="length")

    return make
