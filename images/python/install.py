"""Runs once, while the image is built: puts the packages in and compiles everything.

Official slim images come without bytecode, and the root of a lane is read-only, so every
container would compile what it imports again.
"""

import compileall
import os
import py_compile
import shutil
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
wanted = os.environ.get("PYTHON") or sys.version
if not sys.version.startswith(f"{wanted}.") and wanted != sys.version:
    sys.exit(f"the base has Python {sys.version.split()[0]} and this host {wanted}")

site = sysconfig.get_path("purelib")
shutil.copytree(HERE / "site", site, dirs_exist_ok=True)
for folder in dict.fromkeys((sysconfig.get_path("stdlib"), site)):
    compileall.compile_dir(
        folder,
        quiet=2,
        workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
shutil.rmtree(HERE)
