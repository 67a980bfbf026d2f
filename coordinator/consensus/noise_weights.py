"""How much each ballot counts: log-odds of its bits, from the flip rates that silos declare.

Ballots are decoded by summing their bits. Where every silo declares the same flip rates, the plain sum is as
good as any and every ballot counts 1. Where they differ, a bit counts what it says about the truth:

    one_hot          ln[q1 (1 − q0) / (q0 (1 − q1))]    every bit by itself
    index, scored    ln[q1 / q0]                        one class per row, so a vote says it all

q1 and q0 are the chances of a one for the true class and for another class: the declared chances, compounded
with an expert who is right with probability `EXPERT` and else names any other class. Without that assumption a
ballot without noise would count infinitely much.

Only declarations are looked at, never ballots. A silo that declares less noise than it adds gains by it at most
`HEAVIEST` : `LIGHTEST` = 8 : 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from wire.ballot import Encoding
from wire.privacy.declaration import BILLION, Declaration

EXPERT: Final = 0.8
"""How often an expert is assumed to be right before noise; public and the same for every silo."""
HEAVIEST: Final = 64
"""Weight of the most telling ballot; one bit, so that the tally adds it once."""
LIGHTEST: Final = 8
"""Weight of a ballot that says anything at all."""


def ballot_weights(
    declared: Sequence[Declaration], classes: int, encoding: Encoding
) -> tuple[int, ...]:
    """One integer weight per declaration, in the same order.

    All 1 if all declare the same rates. Otherwise the largest is at most HEAVIEST, nothing that counts is below
    an eighth of it, and a ballot whose ones do not favour what its silo voted for counts 0.
    """
    if len({_rates(one) for one in declared}) <= 1:
        return (1,) * len(declared)
    odds = [log_odds(one, classes, encoding) for one in declared]
    best = max(odds)
    if best <= 0:
        return (1,) * len(declared)
    weights = [max(LIGHTEST, round(HEAVIEST * each / best)) if each > 0 else 0 for each in odds]
    common = math.gcd(*weights)
    return tuple(weight // common for weight in weights)


def log_odds(declared: Declaration, classes: int, encoding: Encoding) -> float:
    """What a one says for its class, in nats; not above 0 if it speaks against it."""
    voted, other = _rates(declared)
    astray = (1 - EXPERT) / max(1, classes - 1)
    true = EXPERT * voted + (1 - EXPERT) * other
    false = astray * voted + (1 - astray) * other
    if true <= false:
        return 0.0
    # Here 0 < false < true < 1: an expert is neither always nor never right, and rates are not finer than 10⁻⁹.
    match encoding:
        case Encoding.ONE_HOT:
            return math.log(true) - math.log1p(-true) - math.log(false) + math.log1p(-false)
        case Encoding.INDEX | Encoding.SCORED:
            return math.log(true) - math.log(false)


def _rates(declared: Declaration) -> tuple[float, float]:
    """As precise as the wire carries them: what differs by less is alike."""
    voted, other = round(declared.one_if_voted * BILLION), round(declared.one_if_not * BILLION)
    return voted / BILLION, other / BILLION
