"""``python -m isograd``."""

from isograd.cli import main

main()
