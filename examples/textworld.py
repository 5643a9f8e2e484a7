"""TextWorld 1.7.0 as an environment of your own: a house, things in it, and a goal whose steps the player must find
out.

`python -m envs check examples/textworld.py:TextWorldEnv` checks it, after `pip install textworld==1.7.0`, and
`python -m harness.grpo --recipe examples/textworld.toml --wrapper elastic` trains a tiny model in it.
"""

import functools
import re
from typing import Any

import gymnasium as gym
import numpy as np
from textworld import GameOptions
from textworld.generator import KnowledgeBase, make_game
from textworld.generator.game import GameProgression, gen_commands_from_actions

from eh_gym import UnicodeText
from eh_gym.errors import ConfigError

TASKS = {"train": range(400), "test": range(10_000, 10_064)}
RULES = "You are in a house. Reply with one command, such as: go east, open box0, take key1 from box0."
KINDS = {"c": "box", "d": "door", "f": "food", "k": "key", "o": "thing", "r": "room", "s": "shelf"}
knowledge = functools.cache(KnowledgeBase.load)  # this takes half a second, so all games share it


@functools.lru_cache(1024)
def game(number: int, rooms: int, shortest: int, longest: int) -> Any:
    """Makes a game. Its number draws the house and the quest, which has `shortest` to `longest` commands."""
    options = GameOptions()
    options.kb, options.seeds, options.nb_rooms, options.nb_objects = knowledge(), number, rooms, 4
    options.quest_length = shortest + number % (longest - shortest + 1)
    return make_game(options)


class TextWorldEnv(gym.Env[str, str]):
    """A game, which only success ends. An answer has what is new to the player, and that of ``look`` has all."""

    def __init__(self, split: str = "train", rooms: int = 3, shortest: int = 4, longest: int = 8) -> None:
        self.task_ids = [str(number) for number in TASKS[split]]
        self.observation_space, self.action_space = UnicodeText(4000), UnicodeText(100_000)
        self._size, self._task_id = (rooms, shortest, longest), ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the game that ``options={"task_id": …}`` names, or one that the seed draws."""
        super().reset(seed=seed)
        task_id = (options or {}).get("task_id", str(self.np_random.choice(self.task_ids)))
        if task_id not in {str(number) for numbers in TASKS.values() for number in numbers}:
            raise ConfigError(f"expected a task id such as {self.task_ids[0]!r}, got {task_id!r}")
        self._begin(task_id)
        plan = self._play.winning_policy
        room = _room(plan[-1].preconditions)  # a meal needs none
        goal = f"goal: {_commands(plan)[-1]}" + (_named(f" in {room.name}") if room else "")
        info = {"task_id": task_id, "system_prompt": RULES, "instruction": goal, "optimal_steps": len(plan)}
        return f"{goal}\n{self._news()}", info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command, if it is possible here."""
        if not self._task_id or self._play.completed:
            raise gym.error.ResetNeeded("no game is running; call reset() before step()")
        command, possible = " ".join(action.split()), self._play.valid_actions
        choices = dict(zip(_commands(possible), possible, strict=True))
        if command not in choices:
            return "impossible", 0.0, False, False, {"malformed": True}
        self._play.update(choices[command])
        self._past.append(command)
        won, self._known = self._play.completed, set() if command == "look" else self._known
        return self._news(), float(won), won, False, {"malformed": False, **({"success": True} if won else {})}

    def _begin(self, task_id: str) -> None:
        self._play = GameProgression(game(int(task_id), *self._size))
        self._task_id, self._past, self._known = task_id, [], set[str]()

    def _news(self) -> str:
        """What the player sees and did not see before the last command."""
        facts = sorted(self._play.state.facts, key=str)
        room = _room(facts)
        near = {f.arguments[0] for f in facts if f.name in ("at", "link") and f.arguments[1] == room} | {room}
        shut = {f.arguments[0] for f in facts if f.name in ("closed", "locked")}
        exits = sorted(c.removeprefix("go ") for c in _commands(self._play.valid_actions) if c.startswith("go "))
        seen = [f"{room.name}, exits {', '.join(exits)}"]
        for fact in facts:
            thing, *place = fact.arguments
            if fact.name in ("open", "closed", "locked") and thing in near:
                seen.append(f"{thing.name} is {fact.name}")
            elif fact.name in ("in", "on") and (place[0].name == "I" or place[0] in near - shut):
                seen.append(f"{thing.name} {fact.name} {place[0].name}")
            elif fact.name == "at" and place[0] == room and thing.type in "fkos":
                seen.append(f"{thing.name} here")
        news, self._known = [line for line in seen if line not in self._known], set(seen)
        return _named("; ".join(news)) or "nothing new"

    def expert(self) -> str:
        """The next command of the walkthrough from here. Once the quest is lost, nothing helps."""
        return (_commands(self._play.winning_policy or ()) or ["look"])[0]

    def random_action(self, rng: np.random.Generator) -> str:
        """A walk or a look, which takes a step and does no harm."""
        return str(rng.choice([c for c in _commands(self._play.valid_actions) if c.startswith(("go ", "look"))]))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_play": None}  # its facts have hashes that another process does not know

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._task_id:
            self._begin(self._task_id)
            for command in state["_past"]:
                self.step(command)


def _named(text: str) -> str:  # c_0 is box0, and I is the player's bag
    return re.sub(r"\b([a-z])_(\d+)", lambda match: KINDS[match[1]] + match[2], text).replace(" in I", " in bag")


def _commands(actions: Any) -> list[str]:
    return [_named(command) for command in gen_commands_from_actions(actions, knowledge())]


def _room(facts: Any) -> Any:  # where the player is, or must be
    return next((f.arguments[1] for f in facts if f.name == "at" and f.arguments[0].type == "P"), None)
