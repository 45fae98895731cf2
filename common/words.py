"""Numbers in words, and cleaning of untrusted text."""

import re

# Control characters except tab and newline, bidirectional and zero-width characters, noncharacters and surrogates:
# terminals obey the first, the second can disguise a text, and XML 1.0 forbids the first and the last.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return a text with every unprintable character replaced by U+FFFD."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def count(number: float, noun: str, ending: str = "s") -> str:
    """Return e.g. "3 runs" or "1 run". ending: of the plural."""
    return f"{number} {noun}" + ("" if number == 1 else ending)


def duration(seconds: float) -> str:
    """Return e.g. "40 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def percent(share: float) -> str:
    """Return a share as a percentage with two significant digits: 0.0123 as "1.2%", 1.1 as "110%"."""
    return f"{float(f'{100 * share:.2g}'):g}%"
