"""Decides which live episodes may take their next turn, so that a sampler's cache holds the keys and values of all of them.

If more episodes play than the cache can hold, each turn evicts what another episode needs for its next turn, and whole
episodes are computed again at every turn: more than twenty times the unavoidable (benchmarks/results/cache-simulated.txt).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Admission"]

_HEADROOM = 0.25  # of the cache: room to grow in. Less holds episodes back more often; with more, fewer of them play


class Admission:
    """Admits an episode while the present tokens of those that play, its own, and some headroom fit into the cache.

    How long an episode will become isn't known, so those that play may outgrow the cache. Then the shortest are held back:
    computing these again costs least. They come back when they are admitted, the longest first and before any new episode.

    >>> admission = Admission()
    >>> admission.decide({0: 500, 1: 300, 2: 400}, cache_tokens=1000)  # 1 is held back
    False
    >>> admission.held
    {1}
    >>> admission.decide({1: 300, 2: 450}, cache_tokens=1000)  # 0 has ended: 450 + 300 and 250 of headroom fit
    True
    """

    def __init__(self) -> None:
        self.held: set[int] = set()

    def decide(self, present: Mapping[int, int], cache_tokens: int) -> bool:
        """Chooses who of the live episodes is held back, which is then `held`; at least one plays.

        Args:
            present: The number of tokens of each live episode, by its number. Numbers rise in the order of beginning.
            cache_tokens: The number of tokens that the cache holds; 0 for a sampler without a cache of fixed size.

        Returns:
            Whether another episode may begin.
        """
        if not cache_tokens:
            self.held = set()  # of servers, the last one that says what its cache holds may have died
            return True
        playing = {episode: tokens for episode, tokens in present.items() if episode not in self.held}
        total, room = sum(playing.values()), int(cache_tokens * (1 - _HEADROOM))
        while total > cache_tokens and len(playing) > 1:
            total -= playing.pop(min(playing, key=lambda episode: (playing[episode], -episode)))
        waiting = present.keys() - playing.keys()
        for episode in sorted(waiting, key=lambda episode: (-present[episode], episode)):
            if playing and total + present[episode] > room:
                break
            playing[episode] = present[episode]
            total += present[episode]
        self.held = set(present.keys() - playing.keys())
        return not self.held and (not playing or total <= room)
