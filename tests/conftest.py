"""For all tests: the signals that a program started from a terminal has.

`nohup make test &` in a script starts everything with SIGINT ignored, and what our tests start would inherit that: a
test of Ctrl-C would then test the shell that started pytest.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
