"""Pooling: how DeepSeek V4 compresses windows of tokens into one entry each.

Every channel of a window is the mean of its tokens, weighted by the softmax,
over the window, of a gate plus a learned bias per place in the window:

    weight[t, c] = exp(gate[t, c] + bias[t, c]) / Σ_u exp(gate[u, c] + bias[u, c])
    entry[c]     = Σ_t weight[t, c] · kv[t, c]

The model then normalises an entry and rotates its end by the position of the
window's first token: `norm.rms_norm_rotate` with the rows at `window_positions`.
Source: DeepseekV4HCACompressor, DeepseekV4CSACompressor and DeepseekV4Indexer
of transformers 5.24.0, models/deepseek_v4.

dtypes: float16, bfloat16, float32, float64; computed in float32, or in float64
where an input is, and rounded once to kv's dtype. ScheduleError names the
argument that does not fit.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from packimport.errors import ScheduleError
from packimport.rope.precision import Values, Wide, widen

Scalar = TypeVar("Scalar", bound=np.generic)


def pool(kv: npt.NDArray[Scalar], gate: Values, bias: Values) -> npt.NDArray[Scalar]:
    """One entry per window; windows follow each other without overlap.

    kv, gate: [batch, seq, head_dim].
    bias:     [rate, head_dim]; its rows are the length of a window (128 in V4's
              heavily compressed layers).

    Returns [batch, seq // rate, head_dim]. The seq % rate tokens after the last
    whole window are left out: give them again, with those that follow.
    """
    _check(kv, gate, bias)
    values, logits, offsets = widen(kv=kv, gate=gate, bias=bias)
    rate = len(bias)
    return _mean(_windows(values, rate), _windows(logits, rate) + offsets).astype(kv.dtype)


def pool_overlapping(
    kv: npt.NDArray[Scalar],
    gate: Values,
    bias: Values,
    *,
    prior: tuple[npt.NDArray[Scalar], Values] | None = None,
) -> npt.NDArray[Scalar]:
    """One entry per window, from two series: the window before gives one, the window the other.

    kv, gate: [batch, seq, 2·head_dim]; the first head_dim channels of a token
              count in the window after its own, the others in its own.
    bias:     [rate, 2·head_dim] (rate 4 in V4's compressed sparse layers).
    prior:    kv and gate, [batch, rate, 2·head_dim] each, of the window before
              the first one here; None at the start of a text, where the first
              entry comes from its own window alone.

    Returns [batch, seq // rate, head_dim]; the softmax runs over 2·rate tokens.
    Tokens after the last whole window are left out, as in `pool`.
    """
    _check(kv, gate, bias)
    rate, width = bias.shape
    if width % 2:
        raise ScheduleError(
            "kv", "two series lie side by side", found=width, allowed="an even last axis"
        )
    if prior is not None:
        _check_prior(prior, kv, gate, rate)
        kv = np.concatenate([prior[0], kv], axis=1)
        gate = np.concatenate([prior[1], gate], axis=1)
    values, logits, offsets = widen(kv=kv, gate=gate, bias=bias)
    values, logits = _windows(values, rate), _windows(logits, rate) + offsets
    # A window that does not exist weighs nothing: exp(−inf) = 0.
    paired = _beside_previous(values, 0.0), _beside_previous(logits, -np.inf)
    entries = _mean(*paired).astype(kv.dtype)
    return entries if prior is None else entries[:, 1:]


def window_positions(windows: int, rate: int, first: int = 0) -> npt.NDArray[np.int64]:
    """Where the entries of `windows` windows are rotated: at each window's first token.

    rate: tokens per window. first: the position of the first window's first
    token, a multiple of rate. Returns int64 [windows]. ScheduleError for a
    negative count, a rate below 1, or a first token within a window.
    """
    if windows < 0 or rate < 1:
        raise ScheduleError(
            "windows", "windows are counted", found=(windows, rate), allowed=">= 0, rate >= 1"
        )
    if first < 0 or first % rate:
        raise ScheduleError(
            "first", "a window starts at a multiple of its length", found=first, allowed=f"k·{rate}"
        )
    return first + rate * np.arange(windows, dtype=np.int64)


def _windows(array: Wide, rate: int) -> Wide:
    """[batch, seq, width] as [batch, seq // rate, rate, width]."""
    batch, seq, width = array.shape
    count = seq // rate
    return array[:, : count * rate].reshape(batch, count, rate, width)


def _beside_previous(windows: Wide, absent: float) -> Wide:
    """[batch, count, rate, 2·head_dim] as [batch, count, 2·rate, head_dim].

    First the previous window's first series (`absent` before the first
    window), then this window's second series.
    """
    head_dim = windows.shape[-1] // 2
    previous = np.full_like(windows[..., :head_dim], absent)
    previous[:, 1:] = windows[:, :-1, :, :head_dim]
    return np.concatenate([previous, windows[..., head_dim:]], axis=2)


def _mean(values: Wide, logits: Wide) -> Wide:
    """The mean over axis 2, weighted by the softmax of the logits over that axis."""
    weights: Wide = np.exp(logits - logits.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    mean: Wide = (weights * values).sum(axis=2)
    return mean


def _check(kv: Values, gate: Values, bias: Values) -> None:
    """Refuse shapes that are not [batch, seq, width] twice and [rate, width]."""
    if kv.ndim != 3:
        raise ScheduleError("kv", "three axes", found=kv.shape, allowed="[batch, seq, width]")
    if gate.shape != kv.shape:
        raise ScheduleError(
            "gate", "kv and gate differ in shape", found=gate.shape, allowed=f"{kv.shape}, as kv"
        )
    if bias.ndim != 2 or bias.shape[0] < 1 or bias.shape[1] != kv.shape[2]:
        raise ScheduleError(
            "bias",
            "one row per place in a window",
            found=bias.shape,
            allowed=f"[rate, {kv.shape[2]}]",
        )


def _check_prior(prior: tuple[Values, Values], kv: Values, gate: Values, rate: int) -> None:
    """Refuse a previous window that is not one window of the same batch, width and dtypes."""
    expected = (kv.shape[0], rate, kv.shape[2])
    if (prior[0].shape, prior[1].shape) != (expected, expected):
        raise ScheduleError(
            "prior",
            "the window before is not one window of kv and gate",
            found=(prior[0].shape, prior[1].shape),
            allowed=f"{expected} twice",
        )
    if (prior[0].dtype, prior[1].dtype) != (kv.dtype, gate.dtype):
        raise ScheduleError(
            "prior",
            "the window before has other dtypes",
            found=f"{prior[0].dtype.name}, {prior[1].dtype.name}",
            allowed=f"{kv.dtype.name}, {gate.dtype.name}, as kv and gate",
        )
