"""Where starts of vLLM are found: every kind of file, with the right line, and what is not one stays unread."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.errors import SourceError
from lifesign.remedies.lint import readers
from lifesign.remedies.lint.model import Invocation


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def words(invocation: Invocation) -> list[tuple[str, int]]:
    return [(word.text, word.line) for word in invocation.words]


def settings(invocation: Invocation) -> dict[str, tuple[str, int]]:
    return {setting.name: (setting.value, setting.line) for setting in invocation.settings}


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m --a 1",
        "/opt/bin/vllm serve m --a 1",
        "python3 -m vllm.entrypoints.openai.api_server m --a 1",
        "python -m vllm.entrypoints.cli.main serve m --a 1",
        "exec nohup env X=1 vllm serve m --a 1 > log 2>&1 &",
        "lifesign guard -- vllm serve m --a 1",
        "docker run --gpus all vllm/vllm-openai:v0.9.1 m --a 1",
    ],
)
def test_ways_to_start(command: str) -> None:
    found = readers.script(command, "x")
    assert [[word.text for word in invocation.words] for invocation in found] == [["m", "--a", "1"]]


@pytest.mark.parametrize(
    "command", ["vllm bench serve --x", "echo vllm", "docker run nginx --foo", "pip install vllm", "ls"]
)
def test_what_starts_no_server(command: str) -> None:
    assert readers.script(command, "x") == []


def test_script(tmp_path: Path) -> None:
    text = '#!/bin/bash\nexport VLLM_X=1\nARGS=(\n --a 1\n)\nEXTRA=\'--b 2\'\nNCCL_DEBUG=INFO vllm serve "$M" \\\n  "${ARGS[@]}" $EXTRA $MORE\n'
    (found,) = readers.read_path(write(tmp_path, "run.sh", text))
    assert words(found) == [("$M", 7), ("--a", 4), ("1", 4), ("--b", 6), ("2", 6), ("$MORE", 8)]
    assert settings(found) == {"VLLM_X": ("1", 2), "NCCL_DEBUG": ("INFO", 7)}
    assert not found.complete


def test_exports_do_not_reach_into_a_container() -> None:
    text = "export VLLM_X=1\ndocker run -e VLLM_Y=2 --env VLLM_Z=3 vllm/vllm-openai:v0.9.1 --model m"
    (found,) = readers.script(text, "x")
    assert set(settings(found)) == {"VLLM_Y", "VLLM_Z"}
    assert found.image_version == "0.9.1"


def test_dockerfile(tmp_path: Path) -> None:
    text = 'FROM vllm/vllm-openai:v0.8.5\nENV VLLM_A=1 \\\n    VLLM_B="x y"\nENV VLLM_C old style\nENTRYPOINT ["vllm", "serve", "m", \\\n  "--a", "1"]\nCMD ["--b"]\n'
    (found,) = readers.read_path(write(tmp_path, "Dockerfile", text))
    assert words(found) == [("m", 5), ("--a", 6), ("1", 6), ("--b", 7)]
    assert settings(found) == {"VLLM_A": ("1", 2), "VLLM_B": ("x y", 3), "VLLM_C": ("old style", 4)}
    assert found.image_version == "0.8.5"


def test_dockerfile_with_the_entry_point_of_the_image(tmp_path: Path) -> None:
    (found,) = readers.read_path(
        write(tmp_path, "my.dockerfile", 'FROM vllm/vllm-openai:v0.11.0\nCMD ["--model", "m", "--a"]\n')
    )
    assert [word.text for word in found.words] == ["--model", "m", "--a"]
    assert readers.read_path(write(tmp_path, "other.dockerfile", 'FROM nginx\nCMD ["--foo"]\n')) == []


COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v0.11.0
    environment:
      - VLLM_A=1
      - "VLLM_B=${B}"
    command: >
      --model foo
      --a 1
  list:
    image: vllm/vllm-openai:v0.12.0
    environment: {VLLM_C: 3}
    command:
      - --model=bar
      - --b
  web:
    image: nginx
    command: ["--foo"]
"""


def test_compose(tmp_path: Path) -> None:
    first, second = readers.read_path(write(tmp_path, "compose.yml", COMPOSE))
    assert [word.text for word in first.words] == ["--model", "foo", "--a", "1"]
    assert settings(first) == {"VLLM_A": ("1", 5), "VLLM_B": ("${B}", 6)}
    assert [setting.literal for setting in first.settings] == [True, False]
    assert words(second) == [("--model=bar", 14), ("--b", 15)]
    assert (first.image_version, second.image_version) == ("0.11.0", "0.12.0")


K8S = """apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
      - {name: wait, image: busybox, command: [sh, -c, "sleep 1"]}
      containers:
      - name: v
        image: registry.example/team/vllm-openai:v0.19.1
        command: ["/bin/bash", "-c"]
        args:
        - |
          export VLLM_A=1
          vllm serve foo \\
            --a 1
        env:
        - name: VLLM_B
          value: "2"
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: a, key: b}}
---
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:latest
    args: ["--model", "m"]
"""


def test_kubernetes(tmp_path: Path) -> None:
    first, second = readers.read_path(write(tmp_path, "k8s.yaml", K8S))
    assert words(first) == [("foo", 15), ("--a", 16), ("1", 16)]
    assert settings(first)["VLLM_B"] == ("2", 18)
    assert settings(first)["VLLM_A"] == ("1", 14)
    assert not next(setting for setting in first.settings if setting.name == "HF_TOKEN").literal
    assert first.image_version == "0.19.1"
    assert [word.text for word in second.words] == ["--model", "m"]


def test_env_file_and_unit_and_config(tmp_path: Path) -> None:
    (env,) = readers.read_path(write(tmp_path, ".env", "# x\nVLLM_A=1\nexport VLLM_B='2'\n\nnot a line\n"))
    assert settings(env) == {"VLLM_A": ("1", 2), "VLLM_B": ("2", 3)}
    unit = '[Service]\nEnvironment="VLLM_A=1" VLLM_B=2\nExecStart=/usr/bin/vllm serve m \\\n  --a 1\n'
    (service,) = readers.read_path(write(tmp_path, "v.service", unit))
    assert words(service) == [("m", 3), ("--a", 4), ("1", 4)]
    assert set(settings(service)) == {"VLLM_A", "VLLM_B"}
    (config,) = readers.read_path(write(tmp_path, "conf.yaml", "model: m\nmax-num-seqs: 64\nenforce-eager: true\n"))
    assert words(config) == [("--model=m", 1), ("--max-num-seqs=64", 2), ("--enforce-eager", 3)]


def test_python(tmp_path: Path) -> None:
    text = 'import os\nos.environ["VLLM_A"] = "1"\nos.environ.setdefault("VLLM_B", "2")\nllm = LLM("m", max_num_seqs=4,\n  engine_rpc_timeout=9)\n'
    (found,) = readers.read_path(write(tmp_path, "a.py", text))
    assert settings(found) == {"VLLM_A": ("1", 2), "VLLM_B": ("2", 3)}
    assert [(argument.name, argument.line) for argument in found.arguments] == [
        ("max_num_seqs", 4),
        ("engine_rpc_timeout", 5),
    ]


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.yaml", "a: [1, 2", "isn't valid YAML"),
        ("a.yaml", "{{ .Values.x }}: {{ y }}\n  - :", "render Helm templates first"),
        ("a.py", "def (", "isn't valid Python"),
        ("a.sh", "x" * (readers.MAX_BYTES + 1), "too large"),
        ("a.sh", "a\0b", "binary"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, name: str, text: str, part: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(SourceError, match=part) as caught:
        readers.read_path(path)
    assert str(caught.value).startswith(path)


def test_missing_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="check the path"):
        readers.read_path(str(tmp_path / "none.sh"))
    with pytest.raises(SourceError, match="folder"):
        readers.read_path(str(tmp_path))


def test_yaml_that_explodes_is_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    assert readers.read_path(write(tmp_path, "bomb.yaml", "\n".join(lines))) == []
    deep = "[" * 3000 + "]" * 3000
    with pytest.raises(SourceError, match=r"deep|YAML"):
        readers.read_path(write(tmp_path, "deep.yaml", deep))
