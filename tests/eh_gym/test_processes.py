import os

from eh_gym.processes import lock, unlock


def test_a_lock_has_one_holder_until_it_is_freed_or_all_who_inherited_it_have_closed_it(tmp_path):
    first, second = (tmp_path / "lock").open("w"), (tmp_path / "lock").open("w")
    with first, second:
        assert lock(first)
        assert not lock(second)
        inherited = os.dup(first.fileno())
        first.close()
        assert not lock(second)
        os.close(inherited)
        assert lock(second.fileno(), wait=True)
        with (tmp_path / "lock").open("w") as third:
            inherited = os.dup(second.fileno())
            unlock(second)
            assert lock(third)
            os.close(inherited)
