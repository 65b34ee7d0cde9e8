"""Tokens per second of forward-serve, of onnxruntime-genai and of a bare onnxruntime loop.

    python benchmarks/speed.py PACK [--rounds 5] [--prompt 1024] [--new 256]

PACK is a CPU pack of SmolLM2-135M: `python tests/oracle/smollm2.py OUT` makes the fp32 one, and
onnxruntime-genai's builder with `-p int4` the other. Each is a process of its own (in one process
the session that was made first was up to 9 % slower, whichever it was); all three live at once and
take turns, 64 new tokens each, as what else the machine does changes from second to second. The
bare loop has every input and output bound once, at the most that it can: its ids and its mask are
written in place, the mask at its full length. Limits: decode 1.4 x and prefill 1.5 x
onnxruntime-genai's, decode 0.97 x the bare loop's; of the medians of all rounds.
`--threads 1` with `--clock cpu` measures on a machine that is busy with something else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_genai as og

# New tokens of a turn, and seconds before each: the threads of the last engine spin for a while.
BURST, PAUSE = 64, 0.03
LIMITS = {"decode": 1.4, "prefill": 1.5, "bare": 0.97}
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Ours:
    def __init__(self, pack: Path, threads: int | None, room: int) -> None:
        # Not benchmarks/forward.py, which lies in the folder of this script.
        from forward.genai_config import read_decoder
        from forward.runner import open_runner
        from forward.session import Settings
        from packimport.pack.container import open_container

        container = open_container(pack)
        settings = Settings(threads=threads)
        self._runner = open_runner(container, read_decoder(container), settings)
        self._room = room

    def prefill(self, ids: np.ndarray) -> None:
        """As `--generate` does it: of all chunks but the last no logits are needed."""
        self._run = self._runner.begin(self._room)
        starts = range(0, len(ids), self._runner.chunk or len(ids))
        for start in starts[:-1]:
            self._run.skip(ids[start : start + starts.step])
        self._token = self._run.feed(ids[starts[-1] :])[-1].argmax()

    def decode(self, count: int) -> None:
        for _ in range(count):
            self._token = self._run.feed(np.array([self._token]))[-1].argmax()


class Genai:
    def __init__(self, pack: Path, threads: int | None, room: int) -> None:
        config = og.Config(str(pack))
        if threads is not None:
            options = {"intra_op_num_threads": threads}
            config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = og.Model(config)
        self._room = room

    def prefill(self, ids: np.ndarray) -> None:
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self._room, do_sample=False)
        self._generator = og.Generator(self._model, parameters)
        self._generator.append_tokens(ids[None].astype(np.int32))
        self._generator.generate_next_token()

    def decode(self, count: int) -> None:
        for _ in range(count):
            self._generator.generate_next_token()


class Bare:
    """Decoding alone."""

    def __init__(self, pack: Path, threads: int | None, room: int) -> None:
        options = ort.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(
            pack / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
        self._room = room

    def prefill(self, ids: np.ndarray) -> None:
        self._buffers = {
            port.name: ort.OrtValue.ortvalue_from_numpy(
                np.zeros((1, port.shape[1], self._room, 64), np.float32)
            )
            for port in self._session.get_inputs()
            if port.name.startswith("past")
        }
        self._bind(ids, len(ids))
        self._session.run_with_iobinding(self._binding)
        self._bind(self._logits.numpy()[0, -1:].argmax(1), len(ids) + 1)
        self._length = len(ids) + 1

    def decode(self, count: int) -> None:
        for _ in range(count):
            self._mask[0, : self._length] = 1
            self._session.run_with_iobinding(self._binding)
            self._ids[0, 0] = self._logits.numpy()[0, 0].argmax()
            self._length += 1

    def _bind(self, ids: np.ndarray, length: int) -> None:
        self._binding = self._session.io_binding()
        self._ids = ids[None].astype(np.int64)
        self._mask = np.zeros((1, length if len(ids) > 1 else self._room), np.int64)
        self._mask[0, :length] = 1
        vocab = self._session.get_outputs()[0].shape[2]
        self._logits = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, len(ids), vocab), np.float32))
        self._values = {
            "input_ids": ort.OrtValue.ortvalue_from_numpy(self._ids),
            "attention_mask": ort.OrtValue.ortvalue_from_numpy(self._mask),
        }
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._buffers.items():
            self._binding.bind_ortvalue_input(name, value)
            self._binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        self._binding.bind_ortvalue_output("logits", self._logits)


ENGINES: dict[str, Callable[[Path, int | None, int], Ours | Genai | Bare]] = {
    "forward-serve": Ours,
    "onnxruntime-genai": Genai,
    "bare loop": Bare,
}


def measure(options: argparse.Namespace) -> None:
    """One engine: the seconds of a prefill or of BURST new tokens, for each line of input."""
    sys.path[0] = str(Path(__file__).parent.parent)
    clock = CLOCKS[options.clock]
    ids = np.random.default_rng(0).integers(3, 49152, options.prompt)
    room = options.prompt + options.new + 8
    engine = ENGINES[options.engine](options.pack, options.threads, room)
    engine.prefill(ids[:64])  # the first run of a session plans its memory
    engine.decode(4)
    for line in sys.stdin:
        start = clock()
        if line == "prefill\n":
            engine.prefill(ids)
        else:
            engine.decode(BURST)
        print(clock() - start, flush=True)


def one_round(options: argparse.Namespace, names: list[str]) -> dict[str, tuple[float, float]]:
    """Tokens per second of prefill and decode: new processes, which take turns."""
    with ExitStack() as stack:
        engines = {name: stack.enter_context(_engine(name)) for name in names}

        def seconds(name: str, job: str) -> float:
            time.sleep(PAUSE)
            print(job, file=engines[name].stdin, flush=True)
            return float(engines[name].stdout.readline())

        prefill = {name: seconds(name, "prefill") for name in names}
        bursts: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(options.new // BURST):
            for name in names[turn % 3 :] + names[: turn % 3]:
                bursts[name].append(seconds(name, "decode"))
    return {
        name: (options.prompt / prefill[name], BURST / float(np.median(bursts[name])))
        for name in names
    }


def _engine(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--engine", choices=ENGINES, help="measure this one alone, in this process")
    options = parser.parse_args()
    if options.engine:
        measure(options)
        return 0
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ENGINES}
    names = list(ENGINES)
    for number in range(options.rounds):
        found = one_round(options, names[number % 3 :] + names[: number % 3])
        for name, speed in found.items():
            seen[name].append(speed)
    speeds = {name: np.median(rounds, axis=0) for name, rounds in seen.items()}
    for name, rounds in seen.items():
        prefill, decode = np.array(rounds).T
        print(
            f"{name:18} prefill {np.median(prefill):6.1f} ({prefill.min():.1f} - "
            f"{prefill.max():.1f})   decode {np.median(decode):6.1f} ({decode.min():.1f} - "
            f"{decode.max():.1f})"
        )
    ours, theirs, bare = speeds.values()
    ratios = {
        "decode": ours[1] / theirs[1],
        "prefill": ours[0] / theirs[0],
        "bare": ours[1] / bare[1],
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f} x, wanted {LIMITS[name]} x or more")
    return 0 if all(ratios[name] >= limit for name, limit in LIMITS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
