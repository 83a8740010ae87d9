"""The ways in which the program itself can fail, each with the exit code that tells them apart.

The message is one sentence for the person at the keyboard: what was found, where, and what to do.
"""

from __future__ import annotations


class Failure(Exception):
    """A failure the user can act on; shown as its sentence, never as a traceback."""

    exit_code = 2


class UsageError(Failure):
    """The command line or the configuration asks for something that is not possible."""

    exit_code = 2


class MachineError(Failure):
    """This machine cannot do it: no space, no permission, no interpreter."""

    exit_code = 4
