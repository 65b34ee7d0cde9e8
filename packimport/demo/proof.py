"""Proof: a demo pack's logits against the stored reference, by position."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from forward.compare import compare
from forward.dump import Dump
from forward.figures import Figures
from forward.runner import run_logits
from packimport.demo.reference import Reference

DECODE = 64
EDGES = (0, 16, 32, 64, 128, 256, 512)
MAX_KL = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Figures of one run: over all positions, and over the ranges between `EDGES`."""

    overall: Figures
    buckets: tuple[Figures, ...]

    @property
    def passed(self) -> bool:
        """Whether the run is the reference up to float32 noise: mean KL at most 1e-8 nats,
        and the same most likely token at every position."""
        return self.overall.kl_mean <= MAX_KL and self.overall.same_top1 == 1.0


def prove(pack: Path, reference: Reference) -> Proof:
    """Run `pack` on onnxruntime over the reference's tokens, the last 64 one at a time.

    Raises DependencyError where onnxruntime is not installed.
    """
    run = run_logits(pack, reference.tokens, decode=DECODE)
    truth = Dump(
        name=reference.made_by,
        tokens=reference.tokens,
        logits=reference.logits,
        prefill=len(reference.tokens),
    )
    return Proof(
        overall=compare(truth, run).overall,
        buckets=tuple(
            compare(_part(truth, start, stop), _part(run, start, stop)).overall
            for start, stop in pairwise(EDGES)
        ),
    )


def _part(dump: Dump, start: int, stop: int) -> Dump:
    """The positions start … stop − 1 as a dump of their own."""
    return Dump(
        name=dump.name,
        tokens=dump.tokens[start:stop],
        logits=dump.logits[slice(start, stop)],
        prefill=stop - start,
    )


def table(before: Proof, after: Proof) -> list[str]:
    """Both proofs side by side, one line per range of positions, 73 columns wide."""
    columns = f"{'KL mean':>9}{'KL max':>9}{'same top-1':>12}"
    names = [f"{start}-{stop - 1}" for start, stop in pairwise(EDGES)]
    return [
        f"{'':<9}{'before':^30}    {'after':^30}".rstrip(),
        f"{'positions':<9}{columns}    {columns}",
        *map(_row, names, before.buckets, after.buckets),
        _row("all", before.overall, after.overall),
    ]


def _row(name: str, *sides: Figures) -> str:
    return f"{name:<9}" + "    ".join(_cells(figures) for figures in sides)


def _cells(figures: Figures) -> str:
    same = f"{100 * figures.same_top1:.1f} %"
    return f"{figures.kl_mean:>9.2g}{figures.kl_max:>9.2g}{same:>12}"
