"""For all tests: the signals that a program started from a terminal has.

`nohup make test &` in a script starts everything with SIGINT ignored, and what our tests start would inherit that: a
test of Ctrl-C would then test the shell that started pytest. And a time limit around pytest (`timeout 600 make test`) sends
SIGTERM, which by default ends it without any clean-up: the engines that tests started would stay.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    # Like Ctrl-C: pytest takes its fixtures down, then leaves.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
