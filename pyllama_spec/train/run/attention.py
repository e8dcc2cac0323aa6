"""Attention for many drafts: each over the features up to its start and its own rows.

All drafts of a sequence share its features, so that their keys are multiplied once for all queries;
a draft's own rows add a few scores. No matrix over all pairs of drafts and rows is ever built.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Span:
    """The drafts of one sequence."""

    drafts: slice  # a slice of the drafts
    rows: slice  # a slice of the features, up to the last one that a draft sees
    seen: Tensor  # [c] int64, the last place in `rows` that each draft sees


def spans_of(owner: Tensor, starts: Tensor, ends: Tensor) -> list[Span]:
    """The drafts by sequence.

    Of each draft `owner` is its sequence and `starts` the last feature that it sees, both [c] int64
    and ascending; `ends` are the ends of the sequences.
    """
    counts = torch.bincount(owner, minlength=len(ends)).tolist()
    all_ends, spans, at = ends.tolist(), [], 0
    for sequence, n in enumerate(counts):
        if n:
            drafts = slice(at, at + n)
            begin = all_ends[sequence - 1] if sequence else 0
            # Features after the last start are seen by no draft.
            seen = starts[drafts] - begin
            spans.append(Span(drafts, slice(begin, begin + int(seen[-1]) + 1), seen))
            at += n
    return spans


def attend(
    q: Tensor,  # [c, b, n_head, size], the queries of b rows of each draft
    features: tuple[Tensor, Tensor],  # keys and values of features, each [n, n_head_kv, size]
    # keys and values of the drafts' own rows, each [c, e, n_head_kv, size]
    own: tuple[Tensor, Tensor] | None,
    spans: list[Span],  # drafts and features by sequence
) -> Tensor:
    """Attention of every draft over features up to its start and its own rows.

    Returns:
        [c, b, n_head, size].
    """
    c, b, n_head, size = q.shape
    groups = n_head // features[0].shape[1]
    scale = size**-0.5

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(groups, dim=-2) if groups > 1 else x

    by_head = q.transpose(1, 2)  # [c, n_head, b, size]
    own_scores = q.new_empty(c, n_head, b, 0, dtype=torch.float32)
    if own is not None:
        own_values = spread(own[1]).transpose(1, 2)  # [c, n_head, e, size]
        own_scores = (by_head @ spread(own[0]).permute(0, 2, 3, 1)).float() * scale
    out: list[Tensor] = []
    for span in spans:
        keys = spread(features[0][span.rows]).permute(1, 2, 0)  # [n_head, size, m]
        values = spread(features[1][span.rows]).transpose(0, 1)  # [n_head, m, size]
        m, n = values.shape[1], span.drafts.stop - span.drafts.start
        flat = by_head[span.drafts].permute(1, 0, 2, 3).reshape(n_head, n * b, size)
        scores = (flat @ keys).float() * scale  # [n_head, n * b, m]
        late = torch.arange(m, device=q.device) > span.seen[:, None]
        scores = scores.view(n_head, n, b, m).masked_fill(late[:, None], float("-inf"))
        drafted_scores = own_scores[span.drafts].transpose(0, 1)  # [n_head, n, b, e]
        weights = torch.cat([scores, drafted_scores], dim=-1).softmax(-1).to(q.dtype)
        mixed = weights[..., :m].reshape(n_head, n * b, m) @ values
        mixed = mixed.view(n_head, n, b, size).transpose(0, 1)  # [n, n_head, b, size]
        if own is not None:
            mixed = mixed + weights[..., m:].transpose(0, 1) @ own_values[span.drafts]
        out.append(mixed.transpose(1, 2))
    return torch.cat(out)
