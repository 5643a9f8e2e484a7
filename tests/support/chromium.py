"""A headless Chromium for the tests that look at pages; they are skipped where there is none."""

import importlib.util
import shutil
from contextlib import contextmanager

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium():
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium is installed (looked for {', '.join(_NAMES)}); on Debian: apt-get install chromium")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed; pip install -e '.[test]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, timeout=300_000)
        yield browser
        browser.close()
