import pytest


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
