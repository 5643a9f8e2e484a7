"""Ids of gymnasium: MODULE:ID imports the module first, wherever an id is taken."""

from __future__ import annotations

import pytest

from eh_gym.errors import ConfigError
from envs.actors import in_actors
from envs.making import registered


def test_a_module_before_the_id_is_imported_also_for_actors() -> None:
    assert registered("eh_gym:EH-Cabinet-v0").id == "EH-Cabinet-v0"
    assert in_actors("eh_gym:EH-Cabinet-v0", None).id == "EH-Cabinet-v0"  # type: ignore[arg-type]  # no actor is asked


@pytest.mark.parametrize("env_id", ["Nope-v0", "no_such_module:EH-Cabinet-v0", "EH-Cabinet-v9"])
def test_an_unknown_id_is_named(env_id: str) -> None:
    with pytest.raises(ConfigError, match=f"gymnasium knows no {env_id} .*MODULE:ID"):
        registered(env_id)
