import hashlib

import pytest

from eh_gym.errors import ConfigError
from harness.records.files import DiskFull, lock_folder, room_for, sha256


@pytest.mark.parametrize("begun", [True, False])
def test_a_full_disk_is_named_and_leaves_no_half_a_folder(tmp_path, begun):
    half = tmp_path / "half"
    if begun:
        half.mkdir()
    with pytest.raises(DiskFull, match="run was not written"), room_for("run", half):
        raise OSError("No space left on device")
    assert not half.exists()


def test_a_folder_that_can_t_be_locked_says_why(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/run can't be made \(Not a directory\); give another --out"):
        lock_folder(tmp_path / "file" / "run", "busy").__enter__()
    monkeypatch.setattr("harness.records.files.os.open", full)
    with pytest.raises(DiskFull, match="run was not written"):
        lock_folder(tmp_path / "run", "busy").__enter__()


def test_the_digest_is_that_of_all_files_together(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text(file.name)
    assert sha256(*files) == hashlib.sha256(b"ab").hexdigest()
