"""Processes that are killed while they write."""

import os
import random
import signal
import sys
import time
import traceback
import warnings
from itertools import count

DISK = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}
"""What Python announces before it does it; `os.fsync` counts as well."""


def fork(action):
    """Runs an action in a child and returns the child's number; it ends with 0 or, failing, 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child leaves be
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
    """Waits for a child; its exit code, or less than zero for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(step, action):
    """Kills an action before its operation of that number on the disk; whether it got so far."""

    def until_then():
        steps = count(1)

        def announce(event, _arguments=()):
            if event in DISK and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(announce)
        os.fsync = lambda number: announce("open")  # a kill leaves what is not on the disk yet
        action()

    code = end_of(fork(until_then))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def kills(action):
    """Kills an action at each of its operations on the disk in turn, until it gets through.

    Yields:
        The number of operations that were done, after each kill and after the action's end.
    """
    for step in count(1):
        killed = killed_at(step, action)
        yield step - 1
        if not killed:
            return


def random_kills(action, *, times, max_length):
    """Kills an action that is repeated without end, after random times of `max_length` seconds.

    Yields:
        The number of kills before, after each kill.
    """
    chance = random.Random(0)

    def forever():
        for turn in count():
            action(turn)

    for number in range(times):
        child = fork(forever)
        time.sleep(chance.uniform(0, max_length))
        os.kill(child, signal.SIGKILL)
        assert end_of(child) == -signal.SIGKILL
        yield number
