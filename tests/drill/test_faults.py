"""Fault hooks in a process: the stand-in must be invisible until armed, and look like the real code when it raises.

The engine is a module of the standard library here; with a real vLLM the same is seen in tests/drill/test_vllm.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from lifesign.vllm_plugin import faults


def spec(**changes: Any) -> dict[str, Any]:
    """A fault for this process: json's decoder raises an out-of-memory error below a frame that isn't installed."""
    base: dict[str, Any] = {
        "process": "api",
        "targets": ["json.decoder:JSONDecoder.decode"],
        "at": "self.raw_decode",
        "frames": [["somewhere/else.py", "deep_function", "assert len(a) == b", 410]],
        "armed_by": None,
        "fired": None,
        "actions": [
            ["raise", "torch_not_installed:OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"]
        ],
    }
    return base | changes


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a fault through the environment, and take the stand-in out again afterwards."""
    real = json.JSONDecoder.decode

    def install(fault: dict[str, Any]) -> None:
        monkeypatch.setenv(faults.VARIABLE, json.dumps(fault))
        faults.install()

    yield install
    json.JSONDecoder.decode = real  # type: ignore[method-assign]


def test_the_exception_has_the_real_name_text_and_frames(place: Any) -> None:
    place(spec())
    with pytest.raises(RuntimeError) as caught:
        json.loads("{}")
    shown = traceback.format_exception(caught.value)
    assert shown[-1] == "torch_not_installed.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    text = "".join(shown)
    assert "in decode\n    obj, end = self.raw_decode(" in text
    assert "somewhere/else.py" in text
    assert "line 410, in deep_function\n    assert len(a) == b" in text
    assert "lifesign/vllm_plugin" not in text, "a diagnosis could recognise a drill by this frame"
    assert "^^^" not in text.split("in decode")[1]


def test_once_means_once(place: Any) -> None:
    place(spec())
    with pytest.raises(RuntimeError):
        json.loads("{}")
    assert json.loads('{"a": 1}') == {"a": 1}


def test_nothing_happens_until_it_is_armed(place: Any, tmp_path: Path) -> None:
    armed, fired = tmp_path / "armed", tmp_path / "fired"
    place(spec(armed_by=str(armed), fired=str(fired), after=2))
    assert json.loads("[1]") == [1]
    armed.touch()
    assert json.loads("[2]") == [2], "the second armed call is meant"
    assert not fired.exists()
    with pytest.raises(RuntimeError):
        json.loads("[3]")
    pid, when = fired.read_text().split()
    assert int(pid) > 0
    assert float(when) > 0


@pytest.mark.parametrize("change", [{"process": "worker"}, {"process": "core"}])
def test_a_fault_for_another_process_is_not_placed(place: Any, change: dict[str, Any]) -> None:
    place(spec(**change))
    assert json.loads("{}") == {}


def test_without_the_variable_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    before = json.JSONDecoder.decode
    faults.install()
    assert json.JSONDecoder.decode is before


def test_a_fault_that_cannot_be_placed_says_so_and_raises(place: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError):
        place(spec(targets=["json.decoder:NoSuchClass.decode", "no_such_module:f"]))
    assert "could not be placed" in capsys.readouterr().err


def test_real_types_keep_their_identity(place: Any) -> None:
    place(spec(actions=[["raise", "KeyError", "layers.0.weight_scale"]]))
    with pytest.raises(KeyError) as caught:
        json.loads("{}")
    assert traceback.format_exception_only(caught.value) == ["KeyError: 'layers.0.weight_scale'\n"]


class Fussy(Exception):
    """Like Triton's OutOfResources: its text needs what only its constructor sets."""

    def __init__(self, required: int) -> None:
        self.required = required

    def __str__(self) -> str:
        return f"required {self.required}"


def test_a_type_that_builds_its_own_text_prints_the_drills(place: Any) -> None:
    place(spec(actions=[["raise", f"{__name__}:Fussy", "out of resource: shared memory"]]))
    with pytest.raises(Fussy) as caught:
        json.loads("{}")
    assert str(caught.value) == "out of resource: shared memory"
    assert traceback.format_exception_only(caught.value)[0].endswith("Fussy: out of resource: shared memory\n")


def test_empty_text_stays_empty(place: Any) -> None:
    place(spec(actions=[["raise", "MemoryError", ""]]))
    with pytest.raises(MemoryError) as caught:
        json.loads("{}")
    assert str(caught.value) == ""


@pytest.mark.parametrize(
    ("action", "code"),
    [(["leave", "exit", 17], 17), (["leave", "signal", 6], -6), (["leave", "null", 0], -11)],
)
def test_leaving_really_ends_the_process(action: list[Any], code: int) -> None:
    program = f"import sys, json; from lifesign.vllm_plugin import faults; faults.perform({action!r}, 1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert done.returncode == code


def test_cut_closes_connections_and_nothing_else(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far, (tmp_path / "file").open("w") as file:
            program_is_us = faults.perform(["cut"], 1)
            assert program_is_us is None
            assert near.recv(1) == b""
            file.write("still open")


def test_an_unknown_action_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown action"):
        faults.perform(["explode"], 1)


def test_set_changes_the_object_whose_method_is_called() -> None:
    from types import SimpleNamespace

    scheduler = SimpleNamespace(max_num_scheduled_tokens=256)
    assert faults.perform(["set", "max_num_scheduled_tokens", 0], 1, (scheduler, "more")) is None
    assert scheduler.max_num_scheduled_tokens == 0


def test_the_stand_in_hands_the_object_to_the_fault(place: Any) -> None:
    place(spec(targets=["json.decoder:JSONDecoder.decode"], actions=[["set", "strict", "changed"]]))
    decoder = json.JSONDecoder()
    assert decoder.decode("[1]") == [1]
    assert decoder.strict == "changed"
