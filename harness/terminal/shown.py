"""Prints episodes while they are played, turn by turn (`--show`)."""

from collections.abc import Sequence

from rich.console import Console

from harness.terminal.texts import say
from harness.types.trajectory import ENDS, Trajectory

_LONGEST = 1500  # characters of a text


class ShownEpisodes:
    """Prints the episodes of some seeds in their order. What is played meanwhile of the later ones follows."""

    def __init__(self, console: Console, seeds: Sequence[int]) -> None:
        self._console, self._seeds = console, list(seeds)
        self._played: dict[int, Trajectory] = {}
        self._ended: set[int] = set()
        self._shown: Trajectory | None = None  # another attempt is another trajectory
        self._turns = 0

    def went_on(self, t: Trajectory) -> None:
        self._played[t.seed] = t
        while self._seeds and (first := self._played.get(self._seeds[0])):
            if first.info:  # else its reset has not been answered
                self._print(first)
            if first.seed not in self._ended:
                break
            end = f"{ENDS[first.end]}: {'success' if first.success else 'no success'}, reward {first.reward:g}"
            self._say("; ".join(filter(None, [end, first.fault])) + "\n", "bold green" if first.success else "bold red")
            self._seeds.pop(0)

    def ended(self, t: Trajectory) -> None:
        self._ended.add(t.seed)
        self.went_on(t)

    def _print(self, t: Trajectory) -> None:
        if self._shown is not t:
            self._shown, self._turns = t, 0
            self._say(f"task {t.task_id}, K = {t.horizon}", "bold")
            self._say(t.prompt)
        for number, turn in enumerate(t.turns[self._turns :], start=self._turns + 1):
            self._say(f"step {number}, {t.horizon - number} left", "bold")
            self._say(turn.reasoning, "italic")
            self._say(f"> {turn.action}", "cyan")
            self._say("\n".join([*turn.results, turn.observation]))
        self._turns = t.length

    def _say(self, text: str, style: str = "") -> None:
        more = f" … ({len(text) - _LONGEST:,} more characters)" if len(text) > _LONGEST else ""
        shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text[:_LONGEST]) + more
        shown = shown.encode(self._console.encoding, "replace").decode(self._console.encoding)
        if shown:
            say(self._console, shown, style)
