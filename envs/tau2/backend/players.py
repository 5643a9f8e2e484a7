"""The menu, which has a word for each call, and the players that use it: the expert and the scripts."""

import json
import re
from pathlib import Path

import toml

from .calls import Call, read_text
from .world import parameters

TABLES = toml.load(Path(__file__).with_name("menu.toml"))
MENU: dict[str, Call] = {name.replace("_", ""): (name, {}) for name, names in parameters().items() if not names}
MENU |= {word: read_text(call, parameters())[0] for word, call in TABLES["calls"].items()}
CHECKS = [word for word in MENU if word.startswith(("check", "run", "can"))]
_TO_BE_OFF = ("toggleairplanemode", "toggledatasavermode", "togglewificalling")
_SHOWN_BY_NETWORK = ("toggleairplanemode", "reseatsimcard", "rebootdevice", "toggleroaming", "toggledata", "newmode")


class Script:
    """Plays a list of words. A toggle that shows the wrong state is repeated; nothing else is read."""

    def __init__(self, name: str) -> None:
        self._left = TABLES["scripts"][name].split()

    def see(self, word: str, answer: str) -> None:
        """Goes on to the next word."""
        wrong = word.startswith("toggle") and f"is now {'ON' if word in _TO_BE_OFF else 'OFF'}" in answer
        if self._left[:1] == [word] and not wrong:
            del self._left[0]

    def next(self) -> str:
        """The next word."""
        return self._left[0] if self._left else "done"


class _Next(Exception):
    pass


class Expert:
    """Checks, repairs what a check shows, and checks again. It reads the ticket and the answers."""

    def __init__(self, ticket: str) -> None:
        self._abroad, self._mms, self._speed = (name in ticket for name in ("abroad", "MMS", "speed test"))
        self._known: dict[str, str] = {}
        self._did: set[str] = set()

    def see(self, word: str, answer: str) -> None:
        """Takes note of an answer, and forgets what a repair may have changed."""
        if word.startswith(("check", "run", "can", "get", "permissions", "customer", "bills", "line")):
            self._known[word] = answer
            return
        self._did.add(word)
        if word == "resumeline":
            self._did.discard("rebootdevice")
        self._known.pop("cansendmms", None)
        if self._speed or "failed" in self._known.get("runspeedtest", ""):
            self._known.pop("runspeedtest", None)
        if word in _SHOWN_BY_NETWORK:
            self._known.pop("checknetworkstatus", None)

    def next(self) -> str:
        """The next word."""
        try:
            return "done" if "transfer" in self._did or self._is_solved() else "transfer"
        except _Next as word:
            return str(word)

    def _ask(self, word: str) -> str:
        if word not in self._known:
            raise _Next(word)
        return self._known[word]

    def _repair(self, check: str, pattern: str, repairs: str) -> None:
        if re.search(pattern, self._ask(check)):
            for word in repairs.split():
                if word not in self._did:
                    raise _Next(word)

    def _is_solved(self) -> bool:
        """Raises _Next if there is something to do, which may be in vain."""
        network = "checknetworkstatus"
        for row in TABLES["repairs"]["phone"]:
            self._repair(*row)
        if re.search("Card Status: active(.|\n)*Signal: none", self._ask(network)):
            self._repair(network, "", "resetapnsettings rebootdevice")
            self._look_up()
            date = re.search('contract_end_date": "(.*?)"', self._ask("linetwo"))
            if date and date[1] >= "2025-02-25":  # tau2's today
                self._repair("bills", "Overdue", "pay makepayment")
                self._repair("linetwo", "Suspended", "resumeline rebootdevice")
        if not self._mms and not self._speed:
            return "Signal: none" not in self._ask(network)
        if self._abroad:
            self._repair(network, "Roaming Enabled: No", "toggleroaming")
        self._repair(network, "Data Enabled: No", "toggledata")
        if self._mms and "cannot" not in self._ask("cansendmms"):
            return True
        if "failed" in self._ask("runspeedtest"):
            self._look_up()
            if self._abroad:
                self._repair("linetwo", 'roaming_enabled": false', "enableroaming")
            usage = json.loads(self._ask("getdatausage"))
            if usage["data_used_gb"] >= usage["data_limit_gb"] + usage["data_refueling_gb"]:
                self._repair("getdatausage", "", "refuel")
        if "(Excellent)" in self._ask("runspeedtest") and self._speed:
            return True
        for row in TABLES["repairs"]["mms" if self._mms else "speed"]:
            self._repair(*row)
        return False

    def _look_up(self) -> None:
        for word in ("customer", "lineone", "linetwo"):  # the ticket's line is the customer's second
            self._ask(word)
