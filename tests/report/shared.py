"""What the tests of pages share."""

from tests.toy import QUICK

HOSTILE = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "a%{x}<b>\u2028&'\"", "plain")
"""Names of classes that would do harm, were they not escaped."""
FLAGS = [word for name, value in (QUICK | {"baseline": False}).items() for word in (f"--{name}", str(value))]
SECTIONS = ("verdict", "next", "check", "map", "classes", "gallery", "course", "settings")
"""What every page of a run has, in this order."""
