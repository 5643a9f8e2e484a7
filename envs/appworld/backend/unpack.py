"""Unpacks AppWorld's encrypted bundles: ``python -I unpack.py [BUNDLE FOLDER]``, in AppWorld's virtualenv.

Without arguments, it unpacks the apps into the package. With arguments, it unpacks a data bundle into a folder.
``appworld install`` is not used, because AppWorld's command line needs six more packages.
"""

import compileall
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    # appworld loads the first .env in its own folder or the folders above. This keeps it from loading the user's.
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
