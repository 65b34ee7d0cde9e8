"""The process of a worker; `workers.py` starts it as a script, alone.

The first line of standard input is the list of folders to import from, each other one a
stretch, as JSON. The answer is MARK, the length of the figures in 8 bytes, little-endian, and
the figures. It ends when its input does, and at any error: who asked meets that itself.
"""

from __future__ import annotations

import json
import signal
import sys


def main() -> None:
    """Answer every request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked to end, and ends this
    requests = sys.stdin.buffer
    sys.path[:] = json.loads(requests.readline())
    from forward.stretch import requested, to_bytes
    from forward.workers import MARK

    for line in requests:
        answer = to_bytes(requested(json.loads(line)).figures())
        sys.stdout.buffer.write(MARK + len(answer).to_bytes(8, "little") + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
