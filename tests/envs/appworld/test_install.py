import functools
import re
import shutil
import sys
import threading
import time
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import appworld_root
import pytest
from appworld_root import write_world

from eh_gym.errors import EHError
from envs import backends
from envs.appworld import data, install
from envs.commands import run
from envs.description import Description

BUNDLE = "data-0.1.0.bundle"
SPLITS = {"train": 3, "dev": 1}

# What the real builder and the real bundle hold is theirs to test.
WRITE_WORLD = Path(appworld_root.__file__).read_text()
BUILDER = (
    WRITE_WORLD
    + """
import os, sys
Path(os.environ["HOME"], "left").touch()
write_world(sys.argv[1], mini=2)
"""
)
# Stands for AppWorld's own unpacking, which needs its packages; the encryption is left out.
UNPACKER = """
import sys, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache; AppWorld's virtualenv is played by this Python."""
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("EH_APPWORLD_DATA_URL", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(backends, "install", lambda name, force, say: Path(sys.executable))
    monkeypatch.setattr(data, "BENCHMARK", SPLITS)
    monkeypatch.setattr(data, "SPLITS", (*SPLITS, "mini"))
    monkeypatch.setattr(install, "isolation", lambda _: [])
    monkeypatch.setattr(install, "_BASE", "http://127.0.0.1:1/")  # nobody listens there
    here = tmp_path / "appworld"
    (here / "backend").mkdir(parents=True)
    (here / "backend" / "unpack.py").write_text(UNPACKER)
    monkeypatch.setattr(install, "_HERE", here)
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "appworld"


@pytest.fixture(autouse=True)
def builder(tmp_path, monkeypatch):
    def replace(source):
        (tmp_path / "mini").mkdir(exist_ok=True)
        (tmp_path / "mini" / "build.py").write_text(source)

    replace(BUILDER)
    monkeypatch.setattr(data, "BUILDER", tmp_path / "mini" / "build.py")
    return replace


@pytest.fixture
def said():
    return []


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder that a web server on the loopback offers, standing for AppWorld's; ``served.asked`` counts requests."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    asked, folder = [], tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setattr(install, "_BASE", f"http://127.0.0.1:{server.server_port}/")
        yield type("Served", (), {"folder": folder, "asked": asked, "url": install._BASE})
        server.shutdown()


def pack(path, root):
    with zipfile.ZipFile(path, "w") as bundle:
        for file in sorted(root.rglob("*")):
            bundle.write(file, file.relative_to(root).as_posix())
    return path


@pytest.fixture
def bundle(tmp_path):
    write_world(tmp_path / "whole", **SPLITS)
    return lambda path: pack(path, tmp_path / "whole")


def there(cache):
    return sorted(path.name for path in cache.iterdir() if not (path.is_dir() and not any(path.iterdir())))


# The mini world.


def test_builds_the_mini_world(cache, builder, said):
    install.install(benchmark=False, say=said.append)
    world = data.mini_dir()
    assert there(cache) == [world.name]
    assert data.task_ids("mini") == ("mini_0", "mini_1")
    root = data.root_of("mini")
    assert (root / "data" / "tasks" / "mini_0" / "ground_truth").is_dir()
    assert root.stat().st_mode & 0o777 == 0o700
    assert re.fullmatch(r"root-[0-9a-f]{32}", root.name)  # which an agent's code can't guess
    assert list(world.iterdir()) == [root]
    assert str(world) in said[0]
    assert "--no-data" in said[2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; print('no such model'); sys.exit(1)", "no such model"),
        (
            WRITE_WORLD + "import sys; write_world(sys.argv[1], mini=2); sys.exit('one solution fails')",
            "one solution fails",
        ),
    ],
)
def test_a_mini_world_that_cannot_be_built_leaves_nothing(cache, builder, said, source, message):
    builder(source)
    with pytest.raises(EHError, match=message):
        install.install(say=said.append)
    assert list(cache.iterdir()) == []
    assert "MISSING" in install.report(sys.executable)[1][0]


def test_a_failed_rebuilding_keeps_what_was_there(cache, builder, said, monkeypatch):
    install.install(benchmark=False, say=said.append)
    world = data.mini_dir()
    monkeypatch.setattr(data, "mini_dir", lambda: world)  # the same sources fail now
    builder("raise SystemExit('out of memory')")
    with pytest.raises(EHError, match="out of memory"):
        install.install(force=True, benchmark=False, say=said.append)
    assert there(cache) == [world.name]
    assert data.task_ids("mini") == ("mini_0", "mini_1")


# The benchmark.


def test_downloads_checks_and_splits_the_benchmark(cache, served, bundle, said):
    bundle(served.folder / BUNDLE)
    install.install(say=said.append)
    root = data.root_of("train")
    assert root.parent == data.benchmark_dir()
    assert root.name.startswith("root-")
    assert len(data.task_ids("train")) == 3
    assert (root / "data" / "tasks" / "dev_0" / "ground_truth" / "evaluation.py").is_file()
    assert there(cache) == sorted([data.benchmark_dir().name, data.mini_dir().name])
    told = ["mini world: 2 tasks", f"benchmark: train 3, dev 1, in {data.benchmark_dir()}"]
    assert install.report(sys.executable) == (True, told)


def test_without_a_network_only_a_note_tells_how_to_have_the_benchmark(cache, said):
    started = time.monotonic()
    install.install(say=said.append)
    assert time.monotonic() - started < 60
    assert data.task_ids("mini")
    assert there(cache) == [data.mini_dir().name]
    assert any("EH_APPWORLD_DATA_URL=" in line for line in said)
    assert Description(data.SPLITS, data.task_ids).counts() == {"train": 0, "dev": 0, "mini": 2}


def test_a_benchmark_that_is_not_where_the_user_says_is_an_error(cache, said, bundle, monkeypatch, tmp_path):
    damaged(bundle, tmp_path / "cut.bundle")
    write_world(tmp_path / "theirs", train=1)
    for url, message in (
        (str(tmp_path / "none.bundle"), r"none\.bundle is neither"),
        ("http://127.0.0.1:1/x", "http://127.0.0.1:1/x.*cannot be downloaded"),
        (str(tmp_path / "cut.bundle"), "Bad CRC"),
        (str(tmp_path / "theirs"), "incomplete"),
    ):
        monkeypatch.setenv("EH_APPWORLD_DATA_URL", url)
        with pytest.raises(EHError, match=message):
            install.install(say=said.append)
    assert there(cache) == [data.mini_dir().name]
    assert (tmp_path / "cut.bundle").is_file()


def damaged(bundle, path):
    bundle(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"0.1.0")  # within a file's own bytes
    content[at : at + 5] = b"0.1.1"
    path.write_bytes(content)


def test_a_damaged_download_is_dropped_and_the_next_run_downloads_again(cache, served, bundle, said):
    damaged(bundle, served.folder / BUNDLE)
    install.install(say=said.append)
    assert any("the benchmark could not be installed" in line for line in said)
    assert not data.benchmark_dir().exists()
    assert there(cache) == [data.mini_dir().name]
    bundle(served.folder / BUNDLE)
    install.install(say=said.append)
    assert len(data.task_ids("train")) == 3


def test_a_folder_that_holds_the_data_is_copied_and_not_written_to(cache, served, said, monkeypatch, tmp_path):
    write_world(tmp_path / "theirs", **SPLITS)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "theirs").rglob("*"))
    monkeypatch.setenv("EH_APPWORLD_DATA_URL", str(tmp_path / "theirs"))
    install.install(say=said.append)
    assert served.asked == []
    assert len(data.task_ids("train")) == 3
    assert sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "theirs").rglob("*")) == before


# With AppWorld itself.

PACK = """
import sys
from appworld.common.constants import PASSWORD, SALT
from appworld.common.utils import pack_bundle
pack_bundle(sys.argv[1], sys.argv[2], ["data"], PASSWORD, SALT, include_license=False)
"""


def test_unpacks_a_bundle_as_appworld_packs_it(appworld_python, cache, said, monkeypatch, tmp_path):
    write_world(tmp_path / "whole", **SPLITS)
    run([str(appworld_python), "-B", "-c", PACK, str(tmp_path / BUNDLE), str(tmp_path / "whole")], home=tmp_path)
    monkeypatch.setattr(install, "_HERE", Path(install.__file__).parent)
    cache.mkdir()
    monkeypatch.setenv("EH_APPWORLD_DATA_URL", str(tmp_path / BUNDLE))
    install._install_benchmark(appworld_python, True, said.append)
    assert len(data.task_ids("train")) == 3
    shutil.rmtree(data.benchmark_dir())
    content = (tmp_path / BUNDLE).read_bytes()
    (tmp_path / BUNDLE).write_bytes(content[: len(content) // 2])
    with pytest.raises(EHError, match="BadZipFile"):
        install._install_benchmark(appworld_python, True, said.append)
    assert list(cache.iterdir()) == []
