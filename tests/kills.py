"""Runs actions in child processes that are killed during their writes."""

import os
import random
import signal
import sys
import time
import traceback
import warnings
from itertools import count

DISK = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}
"""Audit events of disk operations; `os.fsync` counts as well."""


def fork(action):
    """Runs an action in a child process, whose exit code is 0, or 1 on failure; returns its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about threads, which the child does not use
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def end_of(child):
    """Waits for a child; returns its exit code, negative for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(step, action):
    """Kills an action before its disk operation number `step`; returns whether it got that far."""

    def run_until_step():
        steps = count(1)

        def on_event(event, _arguments=()):
            if event in DISK and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(on_event)
        os.fsync = lambda number: on_event("open")  # a kill does not lose unflushed data
        action()

    code = end_of(fork(run_until_step))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def kills(action):
    """Kills an action at each of its disk operations in turn, until it completes.

    Yields:
        The number of completed operations, after each kill and after the action's end.
    """
    for step in count(1):
        killed = killed_at(step, action)
        yield step - 1
        if not killed:
            return


def random_kills(action, *, times, max_length):
    """Kills an endlessly repeated action after random times of at most `max_length` seconds.

    Yields:
        The number of earlier kills, after each kill.
    """
    rng = random.Random(0)

    def forever():
        for turn in count():
            action(turn)

    for number in range(times):
        child = fork(forever)
        time.sleep(rng.uniform(0, max_length))
        os.kill(child, signal.SIGKILL)
        assert end_of(child) == -signal.SIGKILL
        yield number
