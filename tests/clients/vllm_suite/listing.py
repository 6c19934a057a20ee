"""`tests.txt`: which of vLLM's tests run, and what is expected of them."""

from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("tests.txt")
SECTIONS = ("passes", "fails", "excluded")


class Listing(NamedTuple):
    """Test ids with the reason beside them, which those that pass do not have."""

    passes: dict[str, str]
    fails: dict[str, str]
    excluded: dict[str, str]

    @property
    def run(self) -> list[str]:
        """The ids of the tests that are not excluded."""
        return [*self.passes, *self.fails]


def read_listing(file: Path = FILE) -> Listing:
    """ValueError names the line that is wrong."""
    sections: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
    section = ""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            _add(sections, section, line, f"{file.name}, line {number}")
    return Listing(**sections)


def _add(sections: dict[str, dict[str, str]], section: str, line: str, where: str) -> None:
    test, _, reason = (part.strip() for part in line.partition("  #"))
    if section not in sections:
        raise ValueError(f"{where}: no section {section!r}; there are {', '.join(SECTIONS)}")
    if any(test in tests for tests in sections.values()):
        raise ValueError(f"{where}: {test} is listed twice")
    if (section == "passes") == bool(reason):
        raise ValueError(f"{where}: a reason ('  # …') belongs to tests that fail or are excluded, and to no other")
    sections[section][test] = reason
