import resource

import pytest

MEMORY = 8 << 30
"""Bytes of address space; an input that takes more fails its test, not the machine."""


@pytest.fixture(autouse=True)
def _memory():
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (before, most))


@pytest.fixture
def tally(record_property):
    """Counts hostile inputs; the numbers of all tests are added up at the end."""

    def count(number):
        record_property("hostile inputs", number)

    return count


def pytest_terminal_summary(terminalreporter):
    total = sum(
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == "hostile inputs"
    )
    if total:
        terminalreporter.write_line(f"{total:,} hostile inputs")
