"""The corpus: programs that are wrong and want a pass. Only a sandbox runs them."""

from __future__ import annotations

from . import equality, exits, lane, link, names, reach
from .attack import Attack

CORPUS: tuple[Attack, ...] = (
    *exits.ATTACKS,
    *reach.ATTACKS,
    *equality.ATTACKS,
    *names.ATTACKS,
    *link.ATTACKS,
    *lane.ATTACKS,
)
"""Every attack, by mechanism."""

MECHANISMS: tuple[str, ...] = tuple(dict.fromkeys(attack.mechanism for attack in CORPUS))
