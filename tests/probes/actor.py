"""The same actor in Python, for behaviours of an interpreter: `python actor.py BEHAVIOUR` (see actor.c)."""

import json
import os
import signal
import sys
import threading
import time

told = False


def on_signal(number, frame):
    global told
    told = True


def parse_something():
    text = json.dumps([{"id": i, "tokens": list(range(40)), "text": "word " * 30} for i in range(400)])
    return sum(len(one["tokens"]) for one in json.loads(text))


def heartbeat():
    while True:
        time.sleep(0.2)


def behave(name):
    if name == "python":
        while True:
            parse_something()
    if name == "python-spin":
        while True:
            pass
    if name == "python-lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if name == "python-poll":
        while True:
            time.sleep(0.001)
    raise SystemExit(2)


def main():
    signal.signal(signal.SIGUSR1, on_signal)
    threading.Thread(target=heartbeat, daemon=True).start()
    while not told:
        for _ in range(5):
            parse_something()
        os.write(1, b"s\n")
    behave(sys.argv[1])


main()
