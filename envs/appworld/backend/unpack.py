"""Unpacks AppWorld's encrypted bundles: ``python -I unpack.py [BUNDLE FOLDER]``, in AppWorld's virtualenv.

Without arguments: the apps, into the package itself, as ``appworld install`` does. That command is left out because the
command line needs six more packages; it calls the same function. With arguments: a data bundle into a folder.
"""

import compileall
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

DAMAGED = "not a whole bundle"  # begins the last line about a file that is none


def main(arguments: Sequence[str]) -> None:
    """The command."""
    # appworld loads the first .env that it meets on the way from its own folder to the file system's root, or from the working
    # directory: without this empty one, the user's own, which may set APPWORLD_ROOT or worse.
    Path(sys.prefix, ".env").touch()
    from appworld.common.constants import PASSWORD, SALT
    from appworld.common.utils import unpack_bundle
    from appworld.install import install_package

    if not arguments:
        install_package()
        compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2)
    else:
        bundle, folder = arguments
        try:
            unpack_bundle(bundle, folder, password=PASSWORD, salt=SALT)
        except (OSError, MemoryError):  # the machine's fault
            raise
        except Exception as error:  # the cipher tells nothing; the archive within it has checksums
            raise SystemExit(f"{DAMAGED}: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
