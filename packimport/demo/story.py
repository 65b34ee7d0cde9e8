"""The story: a faulty pack is made, checked, mended, checked again and proved."""

from __future__ import annotations

import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import packimport
from packimport.audit.report import Report
from packimport.demo.pack import write_pack
from packimport.demo.proof import DECODE, Proof, prove, table
from packimport.demo.reference import Reference, load_reference
from packimport.errors import ContainerError
from packimport.wrapping import wrapped

WIDTH = 80
FAULTY, MENDED = "faulty", "mended"

Echo = Callable[[str], None]

INTRODUCTION = """\
packimport demo: a RoPE fault is found, mended and proved, without a download.

A small Llama with seeded weights is now an ONNX pack, laid out as
onnxruntime-genai does it. Its config.json declares llama3 scaling, but the
table in its graph is plain: the exporter dropped the scaling. The pack runs,
without a warning.
"""

LEGEND = """\
KL: how far next-token probabilities are from the reference's, 0 where equal.
same top-1: share of positions with the same most likely token.
"""

NEXT = """\
Your own pack:
  packimport CONTAINER                what is baked, and what is declared
  packimport patch CONTAINER -o OUT   a copy with the declared table
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What the demo saw: the two reports and the two proofs."""

    checked: Report
    rechecked: Report
    before: Proof
    after: Proof

    @property
    def proved(self) -> bool:
        """Whether the fault was found and seen in the logits, and is gone from both."""
        found = self.checked.verdict == "mismatch" and not self.before.passed
        return found and self.rechecked.verdict == "ok" and self.after.passed


def run(folder: Path | None, echo: Echo) -> int:
    """Play the demo; the exit code: 0 where it proved its case, 4 where it did not."""
    return 0 if play(folder, echo).proved else 4


def play(folder: Path | None, echo: Echo) -> Outcome:
    """Play the demo and print it through `echo`, which takes one text of whole lines.

    folder: where the packs stay, a folder that does not exist yet; None leaves nothing.

    Raises DependencyError without onnxruntime, ContainerError where `folder` is taken.
    """
    if folder is not None:
        return _kept(folder, echo)
    # On Windows a file that onnxruntime still maps can't be deleted; that is no failure.
    with tempfile.TemporaryDirectory(prefix="packimport-", ignore_cleanup_errors=True) as made:
        return _acts(Path(made), echo, kept=False)


def _kept(folder: Path, echo: Echo) -> Outcome:
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ContainerError(
            "the folder for the demo's packs exists",
            place=str(folder),
            fix="Name a folder that does not exist yet.",
        ) from error
    try:
        return _acts(folder, echo, kept=True)
    except BaseException:
        # Half a demo would only stand in the way of the next try.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _acts(folder: Path, echo: Echo, *, kept: bool) -> Outcome:
    faulty, mended = folder / FAULTY, folder / MENDED
    reference = load_reference()
    write_pack(faulty)
    # First of all: without onnxruntime it stops here, before anything is printed.
    before = prove(faulty, reference)

    echo(INTRODUCTION)
    checked = packimport.check(faulty)
    echo(_command(f"packimport {FAULTY}", _report_lines(checked, FAULTY)))
    packimport.patch(faulty, mended)
    echo(_command(f"packimport patch {FAULTY} -o {MENDED}", _changes(faulty, mended)))
    rechecked = packimport.check(mended)
    echo(_command(f"packimport {MENDED}", _report_lines(rechecked, MENDED)))
    outcome = Outcome(
        checked=checked, rechecked=rechecked, before=before, after=prove(mended, reference)
    )
    echo(_proof_text(outcome, reference))
    if kept:
        echo(f"Both packs are kept in {folder}\n")
    echo(NEXT.rstrip("\n"))
    return outcome


def _command(line: str, output: Iterator[str]) -> str:
    return "\n".join([f"$ {line}", *output, ""])


def _report_lines(report: Report, name: str) -> Iterator[str]:
    """The report as the command prints it in the pack's parent folder, wrapped."""
    yield from wrapped(replace(report, path=name).text(), WIDTH).split("\n")


def _changes(faulty: Path, mended: Path) -> Iterator[str]:
    """What differs between the two packs on disk, file by file."""
    for path in sorted(mended.iterdir()):
        new, source = path.read_bytes(), faulty / path.name
        if not source.exists():
            yield f"  {path.name:<20}new: the manifest"
            continue
        old = source.read_bytes()
        same = np.frombuffer(old, np.uint8) == np.frombuffer(new, np.uint8)
        changed = int(np.count_nonzero(~same))
        what = f"{changed:,} of {len(old):,} bytes changed" if changed else "identical"
        yield f"  {path.name:<20}{what}"


def _proof_text(outcome: Outcome, reference: Reference) -> str:
    count = len(reference.tokens)
    made_by = reference.made_by.split(",")[0]
    head = (
        f"Proof: {count} tokens through onnxruntime, {count - DECODE} at once and {DECODE} one by"
        f" one through the KV cache, against logits of {made_by} for the same weights and config."
    )
    before, after = outcome.before.overall, outcome.after.overall
    if outcome.proved:
        verdict = (
            f"Proved: mean KL {before.kl_mean:.2g} before, {after.kl_mean:.2g} after; the same"
            f" most likely token at {100 * before.same_top1:.1f} % of the positions before, at"
            f" {100 * after.same_top1:.1f} % after. Short prompts hide the fault: look at the"
            " first rows."
        )
    else:
        verdict = (
            "NOT PROVED: the mended pack should check ok, with a mean KL of at most 1e-8 and the"
            " same most likely token everywhere. This is a fault of packimport or of this"
            " installation: please report it with the lines above."
        )
    lines = [*textwrap.wrap(head, WIDTH), "", *table(outcome.before, outcome.after), ""]
    return "\n".join([*lines, LEGEND, *textwrap.wrap(verdict, WIDTH), ""])
