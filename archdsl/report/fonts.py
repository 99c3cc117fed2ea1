"""How wide texts of a drawing are.

The widths are those of DejaVu Sans: of the fonts that a reader's program may take (Inter, Helvetica, Arial) it is the
widest, so that what fits here fits there.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

Kind = Literal["name", "detail", "title", "small"]
SIZES: dict[Kind, float] = {"name": 12.5, "detail": 10.5, "title": 11.0, "small": 9.0}
"""Pixels of an em."""
BOLD = frozenset({"name", "title"})

# fmt: off
# Characters by their width in thousandths of an em.
_PLAIN = {
    275: "'", 278: 'ijl', 295: 'IJ', 318: ' ,.·', 337: '/:;\\|', 352: 'f', 361: '-', 390: '()[]', 392: 't', 401: '!²',
    411: 'r', 460: '"', 500: '*_`–', 521: 's', 525: 'z', 531: '?', 550: 'c', 557: 'L', 575: 'F', 579: 'k', 592: 'vxy',
    603: 'P', 611: 'TY', 612: 'oθ', 613: 'a', 615: 'e', 632: 'E', 634: 'hnu', 635: 'Sbdgpq', 636: '$0123456789{}',
    637: '√', 656: 'K', 684: 'AV', 685: 'XZ', 686: 'B', 695: 'R', 698: 'C', 732: 'U', 748: 'N', 752: 'H', 770: 'D',
    775: 'G', 780: '&', 787: 'OQ', 818: 'w', 838: '#+<=>^~×÷−≤≥→', 863: 'M', 950: '%', 974: 'm', 989: 'W', 1000: '@…',
}
_BOLD = {
    306: "'", 343: 'ijl', 348: ' ', 365: '/\\|', 372: 'IJ', 380: ',.·', 400: ':;', 415: '-', 435: 'f', 438: '²',
    456: '!', 457: '()[]', 478: 't', 493: 'r', 500: '_`–', 521: '"', 523: '*', 580: '?', 582: 'z', 593: 'c', 595: 's',
    637: 'L', 645: 'x', 652: 'vy', 665: 'k', 667: '√', 675: 'a', 678: 'e', 682: 'T', 683: 'EF', 687: 'oθ',
    696: '$0123456789', 712: 'hnu{}', 716: 'bdgpq', 720: 'S', 724: 'Y', 725: 'Z', 733: 'P', 734: 'C', 762: 'B',
    770: 'R', 771: 'X', 774: 'AV', 775: 'K', 812: 'U', 821: 'G', 830: 'D', 837: 'HN', 838: '#+<=>^~×÷−≤≥→', 850: 'OQ',
    872: '&', 924: 'w', 995: 'M', 1000: '@…', 1002: '%', 1042: 'm', 1103: 'W',
}
# fmt: on


@cache
def _width(character: str, bold: bool) -> int:
    table = _BOLD if bold else _PLAIN
    return next((width for width, characters in table.items() if character in characters), 1100)


def width_of(text: str, kind: Kind) -> float:
    """The width of a text in pixels."""
    return sum(_width(character, kind in BOLD) for character in text) * SIZES[kind] / 1000
