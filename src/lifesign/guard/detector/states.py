"""The two tables of the detector: what is found in which state leads where, and what entering a state asks for.

Every look at the engine yields exactly one `Finding`; `next_state(state, finding)` is total. The diagram in
docs/detector.md is drawn from these tables by `mermaid()`, and a test compares the two.
"""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """What the detector believes. A person sees one of three words: see `VIEW`."""

    __hash__ = str.__hash__  # that of Enum is a Python function, and these are looked up at every look

    STARTING = "STARTING"
    IDLE = "IDLE"
    OK = "OK"
    SLOW = "SLOW"
    SUSPECT = "SUSPECT"
    STOPPED = "STOPPED"
    BLIND = "BLIND"
    DEAD = "DEAD"


VIEW = {
    State.STARTING: "HEALTHY",
    State.IDLE: "HEALTHY",
    State.OK: "HEALTHY",
    State.SLOW: "UNHEALTHY",
    State.SUSPECT: "UNHEALTHY",
    State.STOPPED: "UNHEALTHY",
    State.BLIND: "UNHEALTHY",
    State.DEAD: "DEAD",
}


class Finding(str, Enum):
    """The one thing that a look found, in the order of precedence."""

    __hash__ = str.__hash__  # that of Enum is a Python function, and these are looked up at every look

    EXITED = "a process exited"
    STOPPED_TOO_LONG = "stopped too long"
    HALTED = "stopped (state T)"
    STARTING = "starting"
    START_STUCK = "start-up stuck"
    NO_DEMAND = "no demand"
    PROGRESS = "progress"
    STUCK_TOO_LONG = "stuck too long"
    SILENT_TOO_LONG = "silent too long, nothing known"
    WORKING_TOO_LONG = "working, but beyond all measure"
    LATE_WORKING = "late, works"
    LATE_UNSEEN = "late, can't see"
    LATE = "late, doesn't work"
    STUCK_EARLY = "looks stuck"
    IN_TIME = "in time"


DEADLY = (
    Finding.EXITED,
    Finding.STOPPED_TOO_LONG,
    Finding.START_STUCK,
    Finding.STUCK_TOO_LONG,
    Finding.SILENT_TOO_LONG,
    Finding.WORKING_TOO_LONG,
)

_LEADS_TO = {
    Finding.HALTED: State.STOPPED,
    Finding.STARTING: State.STARTING,
    Finding.NO_DEMAND: State.IDLE,
    Finding.PROGRESS: State.OK,
    Finding.LATE_WORKING: State.SLOW,
    Finding.LATE_UNSEEN: State.BLIND,
    Finding.LATE: State.SUSPECT,
    Finding.STUCK_EARLY: State.SUSPECT,
    Finding.IN_TIME: State.OK,
    **dict.fromkeys(DEADLY, State.DEAD),
}

_EXCEPTIONS = {
    # Suspicion is withdrawn by progress or by work, not by evidence that merely fades.
    (State.SUSPECT, Finding.IN_TIME): State.SUSPECT,
    (State.SLOW, Finding.IN_TIME): State.SLOW,
}


def _table() -> dict[tuple[State, Finding], State]:
    table: dict[tuple[State, Finding], State] = {}
    for state in State:
        for finding in Finding:
            table[state, finding] = _EXCEPTIONS.get((state, finding), _LEADS_TO[finding])
            if state is State.DEAD:
                table[state, finding] = State.DEAD
    return table


TRANSITIONS = _table()


class Action(str, Enum):
    """What entering a state asks for. The owner of the engine may refuse: `watch` does nothing but report."""

    ROUTE_AWAY = "route new work elsewhere"
    ROUTE_BACK = "route work to it again"
    CAPTURE = "capture evidence"
    KILL = "end the engine"


ON_ENTRY: dict[State, tuple[Action, ...]] = {
    State.STARTING: (),
    State.IDLE: (Action.ROUTE_BACK,),
    State.OK: (Action.ROUTE_BACK,),
    State.SLOW: (Action.ROUTE_AWAY,),
    State.SUSPECT: (Action.ROUTE_AWAY, Action.CAPTURE),
    State.STOPPED: (Action.ROUTE_AWAY, Action.CAPTURE),
    State.BLIND: (),
    State.DEAD: (Action.CAPTURE, Action.KILL),
}


def next_state(state: State, finding: Finding) -> State:
    """Where `finding` leads from `state`. DEAD is final until a new engine begins."""
    return TRANSITIONS[state, finding]


def mermaid() -> str:
    """The state diagram, drawn from the tables. Edges that every living state has are drawn once, from `any`."""
    alive: list[State] = [state for state in State if state is not State.DEAD]
    lines = ["stateDiagram-v2", "    [*] --> STARTING : begin"]
    common: dict[State, list[str]] = {}
    single: dict[tuple[State, State], list[str]] = {}
    for finding in Finding:
        targets = {TRANSITIONS[state, finding] for state in alive}
        if len(targets) == 1:
            common.setdefault(targets.pop(), []).append(finding.value)
            continue
        for state in alive:
            target = TRANSITIONS[state, finding]
            if target is not state:
                single.setdefault((state, target), []).append(finding.value)
    lines.append("    state any <<choice>>")
    lines.extend(f"    {state.value} --> any" for state in alive)
    lines.extend(f"    any --> {target.value} : {' / '.join(names)}" for target, names in common.items())
    lines.extend(f"    {a.value} --> {b.value} : {' / '.join(names)}" for (a, b), names in single.items())
    lines.append("    DEAD --> [*]")
    lines.append("")
    for state in State:
        asks = ", ".join(action.value for action in ON_ENTRY[state]) or "nothing"
        lines.append(f"    note right of {state.value} : {VIEW[state]}; entry asks for: {asks}")
    return "\n".join(lines) + "\n"


def redraw(text: str) -> str:
    """`text` with the content of its first Mermaid block replaced by the diagram."""
    head, mark, rest = text.partition("```mermaid\n")
    if not mark:
        return text
    return head + mark + mermaid() + "```" + rest.partition("```")[2]


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(redraw(page.read_text(encoding="utf-8")), encoding="utf-8")
