"""Plays by words of the menu: the expert and the scripts."""

import json
import re
from pathlib import Path

import toml

TABLES = toml.load(Path(__file__).with_name("menu.toml"))


class Script:
    """Plays a list of words, and a toggle again that shows the wrong state."""

    def __init__(self, name: str) -> None:
        self._left = TABLES["scripts"][name].split()

    def see(self, word: str, answer: str) -> None:
        wrong = "OFF" if word in TABLES["repairs"]["to_be_on"] else "ON"
        if self._left[:1] == [word] and not (word.startswith("toggle") and f"is now {wrong}" in answer):
            del self._left[0]

    def next(self) -> str:
        return self._left[0] if self._left else "done"


class _Next(Exception):
    pass


class Expert:
    """Repairs what a check shows, and checks again. It reads ticket and answers."""

    def __init__(self, ticket: str) -> None:
        self._abroad, self._mms, self._speed = (name in ticket for name in ("abroad", "MMS", "speed test"))
        self._known: dict[str, str] = {}
        self._did: set[str] = set()

    def see(self, word: str, answer: str) -> None:
        self._did.add(word)
        if re.match("check|run|can|get|permissions|customer|bills|line", word):
            self._known[word] = answer
            return
        if word == "resumeline":
            self._did.discard("rebootdevice")
        self._known.pop("cansendmms", None)
        if self._speed or "failed" in self._known.get("runspeedtest", ""):
            self._known.pop("runspeedtest", None)
        if word in TABLES["repairs"]["in_status"]:
            self._known.pop("checknetworkstatus", None)

    def next(self) -> str:
        try:
            return "done" if "transfer" in self._did or self._is_solved() else "transfer"
        except _Next as word:
            return str(word)

    def _ask(self, word: str) -> str:
        if word not in self._known:
            raise _Next(word)
        return self._known[word]

    def _repair(self, check: str, pattern: str, repairs: str) -> None:
        if re.search(pattern, self._ask(check), re.DOTALL):
            for word in repairs.split():
                if word not in self._did:
                    raise _Next(word)

    def _is_solved(self) -> bool:
        network, look_up = "checknetworkstatus", "customer lineone linetwo"
        for row in TABLES["repairs"]["phone"]:
            self._repair(*row)
        if re.search("Card Status: active.*Signal: none", self._ask(network), re.DOTALL):
            self._repair(network, "", f"resetapnsettings rebootdevice {look_up}")
            if json.loads(self._ask("linetwo"))["contract_end_date"] >= "2025-02-25":  # tau2's today
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
            self._repair(network, "", look_up)
            if self._abroad:
                self._repair("linetwo", 'roaming_enabled": false', "enableroaming")
            usage = json.loads(self._ask("getdatausage"))
            if usage["data_used_gb"] >= usage["data_limit_gb"] + usage["data_refueling_gb"]:
                self._repair("getdatausage", "", "refuel")
        if self._speed and "(Excellent)" in self._ask("runspeedtest"):
            return True
        for row in TABLES["repairs"]["mms" if self._mms else "speed"]:
            self._repair(*row)
        return False
