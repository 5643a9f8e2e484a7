"""Unpacks AppWorld's encrypted bundles: ``python -I unpack.py [BUNDLE FOLDER]``, in AppWorld's virtualenv.

Without arguments, it unpacks the apps into the package itself. It calls the same function as ``appworld install``; that
command is not used, because AppWorld's command line needs six more packages. With arguments, it unpacks a data bundle
into a folder.
"""

import compileall
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    """Runs the command."""
    # appworld loads the first .env that it finds between its own folder, or the working directory, and the file
    # system's root. Without this empty file it could load the user's own, which may set APPWORLD_ROOT or worse.
    Path(sys.prefix, ".env").touch()
    from appworld.common.constants import PASSWORD, SALT
    from appworld.common.utils import unpack_bundle
    from appworld.install import install_package

    if not arguments:
        install_package()
        compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2)
    else:
        bundle, folder = arguments
        unpack_bundle(bundle, folder, password=PASSWORD, salt=SALT)


if __name__ == "__main__":
    main(sys.argv[1:])
