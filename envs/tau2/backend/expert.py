"""Players without a model: the expert, which reads only the ticket and the answers, and the scripts."""

from __future__ import annotations

import json
import re
from typing import Any

from .calls import Call

DONE: Call = ("done", {})
_TRANSFER: Call = ("transfer_to_human_agents", {"summary": "not fixed"})
_LINE = {"customer_id": "C1001", "line_id": "L1002"}
_OFF = ("toggle_airplane_mode", "toggle_data_saver_mode", "toggle_wifi_calling")  # the other toggles should be on
_MODE: Call = ("set_network_mode_preference", {"mode": "4g_5g_preferred"})
_NO_SIGNAL = (  # repairs that leave the signal as it is until a reboot
    *("toggle_wifi_calling", "grant_app_permission", "toggle_data_saver_mode", "disconnect_vpn"),
    *("reset_apn_settings", "send_payment_request", "make_payment", "resume_line"),
)
_READS = ("check_", "get_", "run_", "can_")


class _Next(Exception):
    pass


class Expert:
    """The policy's workflow: it checks, repairs what a check shows, and checks again."""

    def __init__(self, ticket: str) -> None:
        self._ticket = ticket
        self._known: dict[str, str] = {}
        self._did: set[str] = set()

    def see(self, name: str, arguments: dict[str, Any], answer: str) -> None:
        """Takes note of an answer, and forgets what a repair may have changed."""
        key = _key(name, arguments)
        if name.startswith(_READS):
            self._known[key] = answer
            return
        self._did.add(key)
        if name == "resume_line":
            self._did.discard("reboot_device{}")
        stale = ["can_send_mms"]
        if "speed test" in self._ticket or "failed" in self._known.get("run_speed_test{}", ""):
            stale.append("run_speed_test")
        stale += [] if name in _NO_SIGNAL else ["check_network_status"]
        for check in stale:
            self._known.pop(f"{check}{{}}", None)

    def next(self) -> Call:
        """The next call."""
        try:
            fixed = _key(*_TRANSFER) in self._did or self._fixed()
        except _Next as call:
            name, arguments = call.args
            return name, arguments
        return DONE if fixed else _TRANSFER

    def _ask(self, name: str, **arguments: Any) -> str:
        key = _key(name, arguments)
        if key not in self._known:
            raise _Next(name, arguments)
        return self._known[key]

    def _once(self, name: str, **arguments: Any) -> None:
        if _key(name, arguments) not in self._did:
            raise _Next(name, arguments)

    def _fixed(self) -> bool:
        network = self._ask("check_network_status")
        if "Airplane Mode: ON" in network:
            self._once("toggle_airplane_mode")
        if "SIM Card Status: missing" in network:
            self._once("reseat_sim_card")
        if "Signal: none" in network and "Status: active" in network:
            self._once("reset_apn_settings")
            self._once("reboot_device")
            self._resume()
        if "speed test" not in self._ticket and "MMS" not in self._ticket:
            return "Signal: none" not in network
        if "abroad" in self._ticket and "Roaming Enabled: No" in network:
            self._once("toggle_roaming")
        if "Data Enabled: No" in network:
            self._once("toggle_data")
        if "MMS" in self._ticket and "cannot" not in self._ask("can_send_mms"):
            return True
        if "failed" in self._ask("run_speed_test"):
            owner, line = self._line()
            if "abroad" in self._ticket and not line["roaming_enabled"]:
                self._once("enable_roaming", **owner)
            usage = json.loads(self._ask("get_data_usage", **owner))
            if usage["data_used_gb"] >= usage["data_limit_gb"] + usage["data_refueling_gb"]:
                self._once("refuel_data", **owner, gb_amount=2.0)
        return self._messages(network) if "MMS" in self._ticket else self._speed()

    def _line(self) -> tuple[dict[str, str], dict[str, Any]]:
        [phone] = re.findall(r"\d{3}-\d{3}-\d{4}", self._ticket)
        customer = json.loads(self._ask("get_customer_by_phone", phone_number=phone))
        lines = (json.loads(self._ask("get_details_by_id", id=name)) for name in customer["line_ids"])
        line = next(line for line in lines if line["phone_number"] == phone)
        return {"customer_id": customer["customer_id"], "line_id": line["line_id"]}, line

    def _resume(self) -> None:
        owner, line = self._line()
        customer = owner["customer_id"]
        if line["status"] != "Suspended" or line["contract_end_date"] < "2025-02-25":  # tau2's today
            return
        for bill in json.loads(self._ask("get_bills_for_customer", customer_id=customer)):
            if bill["status"] == "Overdue":
                self._once("send_payment_request", customer_id=customer, bill_id=bill["bill_id"])
                self._once("make_payment")
        self._once("resume_line", **owner)

    def _speed(self) -> bool:
        if "(Excellent)" in self._ask("run_speed_test"):
            return True
        if "ON" in self._ask("check_data_restriction_status"):
            self._once("toggle_data_saver_mode")
        if re.search("2g|3g", self._ask("check_network_mode_preference")):
            self._once(_MODE[0], **_MODE[1])
        if "ON" in self._ask("check_vpn_status"):
            self._once("disconnect_vpn")
        return False

    def _messages(self, network: str) -> bool:
        if "Type: 2G" in network:
            self._once(_MODE[0], **_MODE[1])
        if "ON" in self._ask("check_wifi_calling_status"):
            self._once("toggle_wifi_calling")
        granted = self._ask("check_app_permissions", app_name="messaging")
        for permission in ("sms", "storage"):
            if permission not in granted:
                self._once("grant_app_permission", app_name="messaging", permission=permission)
        if "messages): Not Set" in self._ask("check_apn_settings"):
            self._once("reset_apn_settings")
            self._once("reboot_device")
        return False


class Script:
    """A list of calls. A toggle that shows the wrong state is repeated; nothing else is read."""

    def __init__(self, name: str) -> None:
        self._left = list(SCRIPTS[name])

    def see(self, name: str, arguments: dict[str, Any], answer: str) -> None:
        """Goes on to the next call."""
        wrong = f"is now {'ON' if name in _OFF else 'OFF'}"
        if self._left[:1] == [(name, arguments)] and not (name.startswith("toggle_") and wrong in answer):
            del self._left[0]

    def next(self) -> Call:
        """The next call."""
        return self._left[0] if self._left else DONE


def _plain(names: str) -> list[Call]:
    return [(name, {}) for name in names.split()]


SCRIPTS: dict[str, list[Call]] = {
    "nothing": [],
    "transfer": [_TRANSFER],
    "blind": [  # every repair, with the ids that all tickets share
        *_plain("toggle_airplane_mode reseat_sim_card reset_apn_settings"),
        ("send_payment_request", {"customer_id": "C1001", "bill_id": "B1234321"}),
        *_plain("make_payment"),
        ("resume_line", _LINE),
        *_plain("reboot_device toggle_data toggle_roaming"),
        ("enable_roaming", _LINE),
        ("refuel_data", {**_LINE, "gb_amount": 2.0}),
        _MODE,
        *_plain("toggle_data_saver_mode disconnect_vpn toggle_wifi_calling"),
        *(("grant_app_permission", {"app_name": "messaging", "permission": name}) for name in ("sms", "storage")),
        _TRANSFER,
    ],
}


def _key(name: str, arguments: dict[str, Any]) -> str:
    return name + json.dumps(arguments, sort_keys=True)
