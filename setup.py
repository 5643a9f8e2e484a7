"""Puts recipes/*.toml of a checkout into the package harness of a wheel, as harness/recipes. All else is in
setup.cfg.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithRecipes(build_py):
    """Copies the recipes after the packages. An editable installation has those of the checkout."""

    def run(self) -> None:
        """Builds."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "harness" / "recipes"
            self.mkpath(str(folder))
            for recipe in Path("recipes").glob("*.toml"):
                self.copy_file(str(recipe), str(folder))


setup(cmdclass={"build_py": WithRecipes})
