"""The terminal belongs to the VM's program while that runs, and to whoever started us when it has ended."""

from __future__ import annotations

import os
import signal
import termios

_STDIN = 0


def terminal_is_ours() -> bool:
    """Whether we are in the foreground of a terminal, so that we have it to give."""
    try:
        return os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:
        return False


class Terminal:
    """The terminal as it was when we came."""

    def __init__(self) -> None:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we take it back from the background
        self._modes = termios.tcgetattr(_STDIN)

    def suspend(self) -> None:
        """Stop with the program, as one job of the user's shell; come back to the foreground with it."""
        program, modes = os.tcgetpgrp(_STDIN), termios.tcgetattr(_STDIN)
        self.take_back()
        os.killpg(os.getpgrp(), signal.SIGTSTP)  # a shell that knows jobs continues us; without one nothing stops
        if os.tcgetpgrp(_STDIN) == os.getpgrp():
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, modes)
            os.tcsetpgrp(_STDIN, program)

    def take_back(self) -> None:
        try:
            os.tcsetpgrp(_STDIN, os.getpgrp())
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._modes)
        except (OSError, termios.error):
            pass  # the terminal has gone
