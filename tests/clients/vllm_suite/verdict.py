"""What came out, beside what is listed."""

from typing import NamedTuple

from tests.clients.vllm_suite.listing import Listing


class Verdict(NamedTuple):
    """What to print, and the exit status: 1 where a test that is listed as passing did not pass."""

    report: str
    status: int


def verdict(listing: Listing, tests: list[str], outcomes: dict[str, str]) -> Verdict:
    """`tests`: those that were asked for; one that brought no outcome did not pass."""
    passed = [test for test in tests if outcomes.get(test) == "passed"]
    broken = [test for test in tests if test in listing.passes and test not in passed]
    mended = [test for test in passed if test in listing.fails]
    failing = [test for test in tests if test in listing.fails and test not in passed]
    lines = [f"{len(passed)} of {len(tests)} tests passed; {len(listing.excluded)} lines exclude others"]
    lines += [f"fails as listed: {test}  # {listing.fails[test]}" for test in failing]
    lines += [f"PASSES, but is listed as failing: {test}" for test in mended]
    lines += [f"FAILS, but is listed as passing: {test} ({outcomes.get(test, 'did not run')})" for test in broken]
    return Verdict("\n".join(lines), 1 if broken else 0)
