"""Run: one sequence on its way through a graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forward.dump import Tokens
from forward.feeds import Feeds
from forward.genai_config import Decoder
from forward.kv_cache import GrowingCache, SharedCache
from forward.session import Session, Value
from packimport.errors import GraphError


class Run:
    """One sequence on its way through a graph.

    length: tokens fed so far.
    """

    def __init__(
        self,
        session: Session,
        decoder: Decoder,
        cache: GrowingCache | SharedCache,
        cached: bool,
        feeds: Feeds,
    ) -> None:
        self._session = session
        self._decoder = decoder
        self._cache = cache
        self._cached = cached
        self._feeds = feeds
        self.length = 0

    def feed(self, tokens: Tokens) -> npt.NDArray[np.generic]:
        """The logits after the next tokens, [rows, vocab]: a row per token, or the last alone.

        They may be a view of memory that the next feed overwrites.
        Raises GraphError where the run fails.
        """
        logits = self._step(tokens, self._decoder.logits)
        assert logits is not None
        return self._rows(logits)

    def skip(self, tokens: Tokens) -> None:
        """The same without the logits, which are not computed: only the cache moves on."""
        self._step(tokens, None)

    def _step(self, tokens: Tokens, logits: str | None) -> Value | None:
        if self.length and not self._cached:
            raise GraphError(
                "the graph takes no past, so its tokens can only be fed at once",
                place=self._session.place,
                fix="Leave --decode and --chunk out.",
            )
        start, stop = self.length, self.length + len(tokens)
        try:
            result = self._cache.run(self._feeds.step(tokens, start), logits, len(tokens))
        except GraphError as error:
            raise GraphError(
                f"{error.message} (positions {start} to {stop - 1})",
                place=error.place,
                fix=error.fix,
            ) from error
        self.length = stop
        return result

    def _rows(self, logits: Value) -> npt.NDArray[np.generic]:
        if len(logits.shape) != 3 or logits.shape[0] != 1:
            raise GraphError(
                "logits of an unknown layout",
                place=f"{self._session.place}: output {self._decoder.logits}",
                found=list(logits.shape),
                allowed="[1, positions, vocab]",
            )
        rows: npt.NDArray[np.generic] = logits.array()[0]
        return rows
