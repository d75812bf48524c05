"""How many hostile inputs are tried, and what none of them may do."""

import os
import random
import signal
import time
import traceback
from contextlib import contextmanager

FULL = "NGSAN_HOSTILE" in os.environ
"""Whether every input is tried, as `make test-hostile` does, rather than the first ones."""

SECONDS = 10
"""Limit of the time that one input may take."""

_SHARE = 25


def seeds(name, full):
    """Random numbers for each of `full` inputs of a kind, or for the first of them."""
    for number in range(full if FULL else -(-full // _SHARE)):
        yield number, random.Random(f"{name} {number}")


class HangError(BaseException):
    """An input took too long."""


@contextmanager
def bounded(name, *refusals):
    """Runs one input: it may succeed, or raise one of `refusals` with a message of few lines.

    Anything else is a failure of the test, with the name of the input.
    """

    def stop(_number, _frame):
        raise HangError(name)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(3 * SECONDS)  # machines may be busy
    start, refusal = time.process_time(), "fine"
    try:
        yield
    except refusals as error:
        refusal = str(error)
    except HangError:
        raise AssertionError(f"{name}: no end after {3 * SECONDS} s") from None
    except Exception as error:
        raise AssertionError(f"{name}: {traceback.format_exc()[-3000:]}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert refusal.strip(), f"{name}: an error without a message"
    assert refusal.count("\n") <= 3, f"{name}: {refusal[:500]}"
    assert "Traceback" not in refusal, f"{name}: {refusal[:500]}"
    assert time.process_time() - start < SECONDS, f"{name}: it takes too long"
