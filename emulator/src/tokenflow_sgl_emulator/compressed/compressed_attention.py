"""Reference attention of DeepSeek V4: plain torch over SGLang's own pools, as `attention` is.

Each request is computed by itself, in float64. All that is read comes from the pools, but for the
states of this step's own tokens: a page that was lost or is another one's changes the text.
"""

from typing import Any, NamedTuple

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from tokenflow_sgl_emulator.compressed import OVERLAPPING
from tokenflow_sgl_emulator.compressed.packed_rows import index_rows, rows

PADDING = 0
"""The row of SGLang's table that only fills a batch up: with DP attention, to another rank's."""


class Span(NamedTuple):
    """The new tokens of a request.

    Attributes:
        row: Of SGLang's table of places.
        before: Tokens that have been computed.
        length: Tokens with the new ones.
        at: Where the new ones are among those of all requests.
    """

    row: int
    before: int
    length: int
    at: slice


class CompressedRows(NamedTuple):
    """Groups of tokens that end in this step, compressed.

    Attributes:
        values: [groups, width], before normalisation and rotation.
        places: Of each in the pool of compressed rows.
        starts: Position of each group's first token.
    """

    values: torch.Tensor
    places: torch.Tensor
    starts: torch.Tensor


class CompressedAttention(AttentionBackend):
    """What the model `archs/deepseek_v4.py` computes with.

    Args:
        model_runner: SGLang's.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._window = int(model_runner.model_config.window_size)
        self._spans: list[Span] = []
        self._verifies = False

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Length of rows that only pad a batch."""
        return 1

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A forward pass begins."""
        self._spans = []
        mode = forward_batch.forward_mode
        self._verifies = mode.is_target_verify()
        if mode.is_idle():
            return
        lengths = forward_batch.seq_lens.tolist()
        if self._verifies:
            drafts = int(forward_batch.spec_info.draft_token_num)
            new = [drafts] * len(lengths)
            lengths = [length + drafts for length in lengths]
        else:
            new = [1] * len(lengths) if mode.is_decode() else forward_batch.extend_seq_lens.tolist()
        at = 0
        requests = zip(forward_batch.req_pool_indices.tolist(), lengths, new, strict=True)
        for row, length, count in requests:
            if row != PADDING:
                self._spans.append(Span(row, length - count, length, slice(at, at + count)))
            at += count

    def store_window(self, layer: int, kv: torch.Tensor, forward_batch: Any) -> None:
        """Keep the new tokens' own rows, of which the window has the last."""
        pool = self.token_to_kv_pool
        places = pool.translate_loc_from_full_to_swa(forward_batch.out_cache_loc.long())
        pool.set_swa_key_buffer_radix_fused(layer, places, kv)

    def compress(
        self, layer: int, kept: torch.Tensor, bias: torch.Tensor, ratio: int, *, index: bool
    ) -> CompressedRows | None:
        """Compress the groups that end in this step, and keep the state of those that do not.

        A group's row is the mean of its tokens' values, weighed by the softmax of their scores.

        Args:
            layer: Its number.
            kept: Values and scores of the new tokens, side by side, [tokens, 2 * width]; twice as
                wide where groups overlap: as a part of the next group, and of its own.
            bias: Of the scores, by the place in a group, [ratio, width] likewise.
            ratio: Tokens of a group.
            index: Whether these are the indexer's.
        """
        pool = self.token_to_kv_pool
        get = pool.get_indexer_compress_states if index else pool.get_attention_compress_states
        states = get(layer)
        buffer = states.kv_score_buffer.kv_score
        found: list[CompressedRows] = []
        for span in self._spans:
            mine = kept[span.at]
            positions = torch.arange(span.before, span.length)
            ends = positions[(positions + 1) % ratio == 0]
            if len(ends):
                values = self._groups(span, states, buffer, mine, ends, ratio)
                found.append(
                    CompressedRows(
                        _weighed(values, ends, bias, ratio),
                        self._places(span.row, ends) // ratio,
                        ends + 1 - ratio,
                    )
                )
            written = positions
            if not self._verifies:  # else it may be any of them that the next group goes on from
                kept_ones = _is_kept(positions, span.length, ratio, pool.swa_page_size)
                written = positions[kept_ones]
            if len(written):
                places = self._state_places(states, span.row, written)
                buffer[places] = mine[written - span.before].to(buffer.dtype)
        if not found:
            return None
        return CompressedRows(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        index_query: torch.Tensor | None,
        ratio: int,
        best: int,
    ) -> torch.Tensor:
        """Attend the new tokens to their window and to what is compressed; [tokens, heads, 512].

        Args:
            layer: Its number.
            query: [tokens, heads, 512].
            index_query: The indexer's, [tokens, heads, 128]; None: there is no indexer.
            ratio: Tokens of a compressed row; 0: there is none.
            best: Compressed rows that the indexer chooses for each token.
        """
        output = torch.zeros_like(query)
        for span in self._spans:
            first = max(span.before - self._window + 1, 0)
            positions = torch.arange(span.before, span.length)[:, None]
            keys, at = (
                self._window_rows(layer, span.row, first, span.length),
                torch.arange(first, span.length),
            )
            seen = (at <= positions) & (at > positions - self._window)
            if ratio and span.length >= ratio:
                more = self._compressed(layer, span, ratio)
                known = torch.arange(len(more)) < (positions + 1) // ratio
                if index_query is not None and len(more) > best:
                    known &= self._chosen(layer, span, ratio, index_query[span.at], known, best)
                keys, seen = torch.cat([keys, more]), torch.cat([seen, known], 1)
            output[span.at] = _attend(query[span.at], keys.double(), seen)
        return output

    def _places(self, row: int, positions: torch.Tensor) -> torch.Tensor:
        return self.req_to_token_pool.req_to_token[row, positions].long()

    def _window_places(self, row: int, positions: torch.Tensor) -> torch.Tensor:
        """Places in the windows' pool.

        Raises:
            RuntimeError: A token that is still needed has none any more.
        """
        places: torch.Tensor = self.token_to_kv_pool.translate_loc_from_full_to_swa(
            self._places(row, positions)
        )
        if bool((places <= 0).any()):
            raise RuntimeError(f"of row {row} tokens that a window needs are not in its pool")
        return places

    def _window_rows(self, layer: int, row: int, first: int, last: int) -> torch.Tensor:
        pool = self.token_to_kv_pool
        places = self._window_places(row, torch.arange(first, last))
        return rows(pool.get_swa_key_buffer_radix(layer), places, pool.swa_page_size)

    def _state_places(self, states: Any, row: int, positions: torch.Tensor) -> torch.Tensor:
        places: torch.Tensor
        if states.request_scoped:
            of_row = torch.full_like(positions, row)
            places = states.translate_from_req_position_to_state_loc(of_row, positions)
        else:
            at = self._window_places(row, positions)
            places = states.translate_from_swa_loc_to_state_loc(at)
        return places

    def _groups(
        self,
        span: Span,
        states: Any,
        buffer: torch.Tensor,
        mine: torch.Tensor,
        ends: torch.Tensor,
        ratio: int,
    ) -> torch.Tensor:
        """What the groups that end there have of each token, [groups, tokens, width], float64."""
        reach = ratio * (1 + (ratio == OVERLAPPING))
        positions = ends[:, None] + torch.arange(1 - reach, 1)
        values = torch.zeros(*positions.shape, mine.shape[-1])
        new = positions >= span.before
        values[new] = mine[positions[new] - span.before]
        old = ~new & (positions >= 0)
        if bool(old.any()):
            values[old] = buffer[self._state_places(states, span.row, positions[old])].float()
        return values.double()

    def _compressed(self, layer: int, span: Span, ratio: int) -> torch.Tensor:
        pool = self.token_to_kv_pool
        places = self._places(span.row, torch.arange(ratio - 1, span.length, ratio)) // ratio
        return rows(pool.get_extra_key_buffer(layer), places, pool.get_extra_key_page_size(layer))

    def _chosen(
        self,
        layer: int,
        span: Span,
        ratio: int,
        index_query: torch.Tensor,
        known: torch.Tensor,
        best: int,
    ) -> torch.Tensor:
        """Which compressed rows the indexer takes for each token, [tokens, rows]."""
        pool = self.token_to_kv_pool
        places = self._places(span.row, torch.arange(ratio - 1, span.length, ratio)) // ratio
        buffer = pool.get_index_k_with_scale_buffer(layer)
        keys = index_rows(buffer, places, pool.get_index_k_page_size(ratio)).double()
        scores = torch.einsum("qhd,kd->qk", index_query.double(), keys)
        scores = scores.masked_fill(~known, float("-inf"))
        return torch.zeros_like(known).scatter_(1, scores.topk(best, 1).indices, value=True)


def _is_kept(positions: torch.Tensor, length: int, ratio: int, page: int) -> torch.Tensor:
    """Of which new tokens the state is kept, as SGLang's kernels do.

    Those of the group that is not complete, and of the one before where groups overlap; there also
    the last of each page, which a stream that goes on from the page's end needs.
    """
    if ratio != OVERLAPPING:
        return positions >= length // ratio * ratio
    last = length // ratio * ratio - ratio
    return (positions >= last) | (positions % page >= page - ratio)


def _weighed(
    values: torch.Tensor, ends: torch.Tensor, bias: torch.Tensor, ratio: int
) -> torch.Tensor:
    """The compressed rows, [groups, width]."""
    reach = values.shape[1]
    positions = ends[:, None] + torch.arange(1 - reach, 1)
    kv, scores = values.chunk(2, -1)
    scores = scores + bias.double()[positions % ratio]
    scores = scores.masked_fill((positions < 0)[..., None], float("-inf"))
    if ratio == OVERLAPPING:
        kv, scores = (_own_parts(each, ratio) for each in (kv, scores))
    return (kv * scores.softmax(1)).sum(1).float()


def _own_parts(values: torch.Tensor, ratio: int) -> torch.Tensor:
    """Of overlapping groups: the first half of the former tokens', the second of the others'."""
    former, own = values[:, :ratio], values[:, ratio:]
    return torch.cat([former.chunk(2, -1)[0], own.chunk(2, -1)[1]], 1)


def _attend(query: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Of queries [tokens, heads, 512] to keys [rows, 512], which are the values, too."""
    scores = torch.einsum("qhd,kd->hqk", query.double(), keys) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,kd->qhd", weights, keys).to(query.dtype)
