"""Kinds of files that start vLLM, as people write them: words, lines, settings and release; and their neighbours that don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.remedies.lint import check, readers
from lifesign.remedies.lint.model import Invocation


def read(folder: Path, name: str, text: str) -> list[Invocation]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return readers.read_path(str(path))


def words(invocation: Invocation) -> list[tuple[str, int]]:
    return [(word.text, word.line) for word in invocation.words]


def settings(invocation: Invocation) -> dict[str, tuple[str, int]]:
    return {setting.name: (setting.value, setting.line) for setting in invocation.settings}


UNIT = """[Unit]
Description=vLLM serve model and more
[Service]
Environment=VLLM_A=1 "VLLM_B=x y"
ExecStartPre=-/usr/bin/docker rm -f vllm
ExecStart=/bin/bash -lc 'source venv && vllm serve ${M} \\
  --a 1'
"""


def test_systemd(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "v.service", UNIT)
    assert words(found) == [("${M}", 6), ("--a", 7), ("1", 7)]
    assert settings(found) == {"VLLM_A": ("1", 4), "VLLM_B": ("x y", 4)}
    quadlet = "[Container]\nImage=docker.io/vllm/vllm-openai:v0.9.2\nEnvironment=VLLM_A=1\nExec=--model x \\\n  --b\n"
    (found,) = read(tmp_path, "v.container", quadlet)
    assert words(found) == [("--model", 4), ("x", 4), ("--b", 5)]
    assert (found.image_version, settings(found)) == ("0.9.2", {"VLLM_A": ("1", 3)})
    assert read(tmp_path, "n.container", "[Container]\nImage=nginx\nExec=--b\n") == []


def test_supervisord(tmp_path: Path) -> None:
    text = (
        "[supervisord]\nnodaemon=true\n[program:vllm]\ncommand=/opt/vllm serve m --a 1\n    --b ; comment\n"
        'environment=VLLM_A="true",HF_HOME="/data,x"\n[program:nginx]\ncommand=nginx\nenvironment=VLLM_B=1\n'
    )
    (found,) = read(tmp_path, "s.conf", text)
    assert words(found) == [("m", 4), ("--a", 4), ("1", 4), ("--b", 5)]
    assert settings(found) == {"VLLM_A": ("true", 6), "HF_HOME": ("/data,x", 6)}


def test_markdown(tmp_path: Path) -> None:
    text = (
        "Use vllm serve to start it, --bad.\n```bash\n$ vllm serve m \\\n    --a 1\n```\n"
        "```python\nvllm serve --bad\n```\n~~~\ndocker run vllm/vllm-openai:latest --b\n~~~\n"
    )
    first, second = read(tmp_path, "README.md", text)
    assert words(first) == [("m", 3), ("--a", 4), ("1", 4)]
    assert words(second) == [("--b", 10)]


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("$ vllm serve m", 1),
        ("user@host:~$ vllm serve m", 1),
        ("(venv) root@x:/srv# vllm serve m", 1),
        ("# then vllm serve is up with more", 0),
        ("X=$ vllm", 0),
        ("vllm serve m", 1),
    ],
)
def test_prompts_in_markdown(tmp_path: Path, line: str, starts: int) -> None:
    found = read(tmp_path, "a.md", f"```console\n{line}\n```\n")
    assert [words(item) for item in found] == [[("m", 2)]] * starts


def test_placeholders_are_no_stray_words(tmp_path: Path) -> None:
    found = read(tmp_path, "a.md", "```\nvllm serve MODEL ...\nvllm serve $MODEL x\n```\n")
    assert check(found, "0.32.0").problems == []


def test_windows_and_fish(tmp_path: Path) -> None:
    power = '$env:VLLM_A = "true"\ndocker run `\n  -e VLLM_B=2 `\n  vllm/vllm-openai:v0.9.2 `\n  --a 1\nvllm serve m\n'
    container, local = read(tmp_path, "run.ps1", power)
    assert (words(container), container.image_version) == ([("--a", 5), ("1", 5)], "0.9.2")
    assert settings(container) == {"VLLM_B": ("2", 3)}
    assert settings(local) == {"VLLM_A": ("true", 1)}
    (found,) = read(tmp_path, "run.bat", "@echo off\nrem vllm serve --bad\nset VLLM_A=1\nvllm serve m ^\n  --a 1\n")
    assert (words(found), settings(found)) == ([("m", 4), ("--a", 5), ("1", 5)], {"VLLM_A": ("1", 3)})
    fish = "set -gx VLLM_A true\nset model x\nvllm serve $model --a 1\n"
    (found,) = read(tmp_path, "run.fish", fish)
    assert settings(found) == {"VLLM_A": ("true", 1)}


def test_env_files_with_comments(tmp_path: Path) -> None:
    text = (
        "VLLM_A=40   # GiB\nVLLM_B=\"0\" # quoted\nexport VLLM_C='a # b'\nVLLM_D=a#b\nVLLM_E=\nVLLM_F=# all comment\n"
    )
    (found,) = read(tmp_path, "my.env", text)
    values = {name: value for name, (value, _) in settings(found).items()}
    assert values == {"VLLM_A": "40", "VLLM_B": "0", "VLLM_C": "a # b", "VLLM_D": "a#b", "VLLM_E": "", "VLLM_F": ""}


def test_slurm_with_a_document(tmp_path: Path) -> None:
    text = (
        '#!/bin/bash\n#SBATCH --gres=gpu:4\nexport VLLM_A=1\nARGS="--a $N --b"\n'
        'srun --ntasks=1 apptainer exec --nv x.sif \\\n  vllm serve "$M" $ARGS 2>&1 | tee log &\n'
        "srun bash <<EOF\nvllm serve n\nEOF\nssh h <<'E'\nvllm serve o\nE\ncat <<EOF > f\nvllm serve p\nEOF\n"
    )
    first, second, third = read(tmp_path, "job.slurm", text)
    assert words(first) == [("$M", 6), ("--a", 4), ("$N", 4), ("--b", 4)]
    assert (words(second), set(settings(second))) == ([("n", 8)], {"VLLM_A"})
    assert (words(third), set(settings(third))) == ([("o", 11)], set())


def test_python_that_runs_commands(tmp_path: Path) -> None:
    text = (
        'import os, subprocess\nos.environ["VLLM_A"] = "1"\ncmd = ["vllm", "serve", model, "--a"]\n'
        'subprocess.run("vllm serve m --b", shell=True)\nnames = ["vllm", "x"]\nprint("vllm serve m")\n'
    )
    first, second = read(tmp_path, "a.py", text)
    assert [(word.text, word.literal) for word in first.words] == [("$", False), ("--a", True)]
    assert words(second) == [("m", 4), ("--b", 4)]
    assert settings(first) == {"VLLM_A": ("1", 2)}


# -- manifests ---------------------------------------------------------------------------------------------------------

COMPOSE = """services:
  latest:
    image: vllm/vllm-openai:latest
    command: >
      --model m
      --a 1
  first:
    image: vllm/vllm-openai:${TAG:-v0.9.2}
    command: m --a 1
  shell:
    image: vllm/vllm-openai:v0.11.0
    entrypoint: ["/bin/sh", "-c"]
    command: ["pip install x && vllm serve m --a 1"]
  router:
    image: foo/vllm-router:1
    command: ["--policy", "rr"]
  shell-without-vllm:
    image: vllm/vllm-openai:latest
    command: ["bash", "-c", "nvidia-smi"]
"""


def test_compose(tmp_path: Path) -> None:
    found = read(tmp_path, "compose.yml", COMPOSE)
    assert [[word.text for word in item.words] for item in found] == [
        ["--model", "m", "--a", "1"],
        ["m", "--a", "1"],
        ["m", "--a", "1"],
    ]
    assert [item.image_version for item in found] == ["", "0.9.2", "0.11.0"]


def test_kubernetes(tmp_path: Path) -> None:
    text = (
        "spec:\n  containers:\n  - image: vllm/vllm-openai:latest\n    command: [sleep, inf]\n"
        "  - image: vllm/vllm-openai:latest\n    command: [/bin/sh, -c]\n    args: ['vllm serve m --a 1']\n"
        "  - image: x/y:1\n    command: [vllm]\n    args: [serve, n]\n"
        "---\nkind: ConfigMap\ndata:\n  run.sh: |\n    #!/bin/sh\n    vllm serve o\n  note: vllm serve p\n"
    )
    found = read(tmp_path, "k.yaml", text)
    assert [words(item) for item in found] == [[("m", 7), ("--a", 7), ("1", 7)], [("n", 10)], [("o", 16)]]


def test_steps_of_a_workflow(tmp_path: Path) -> None:
    text = (
        "envs: {VLLM_A: 1}\njobs:\n- name: Run vllm serve now\n  run: |\n    pip install 'vllm==0.11.0'\n"
        "    vllm serve m --a 1\n- run: echo vllm serve\n"
    )
    first, second = read(tmp_path, "w.yml", text)
    assert settings(first) == {"VLLM_A": ("1", 1)}
    assert (words(second), second.image_version) == ([("m", 6), ("--a", 6), ("1", 6)], "0.11.0")


KSERVE = """kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: %s}
      args: [--model_name=l, --model_id, meta/x, --task=text_generation, --max_num_seqs=0, --use-deepgemm]
      env: [{name: VLLM_A, value: "1"}]
"""


def test_kserve(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "k.yaml", KSERVE % "huggingface")
    assert [word.text for word in found.words] == ["--max_num_seqs=0", "--use-deepgemm"]
    assert [problem.code for problem in check([found], "0.32.0").problems] == [
        "out-of-range",
        "invented-name",
        "unknown-variable",
    ]
    (other,) = read(tmp_path, "k.yaml", KSERVE % "sklearn")
    assert other.words == []


CHART = """servingEngineSpec:
  modelSpec:
  - repository: vllm/vllm-openai
    tag: v0.9.2
    vllmConfig:
      enablePrefixCaching: false
      maxNumSeqs: 0
      extraArgs: ["--a", "1"]
    env: [{name: VLLM_A, value: "1"}]
routerSpec:
  repository: lmcache/lmstack-router
  extraArgs: ["--log-level", "x"]
"""


def test_values_of_the_production_stack(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "values.yaml", CHART)
    assert words(found) == [("--max-num-seqs=0", 7), ("--a", 8), ("1", 8)]
    assert (found.image_version, set(settings(found))) == ("0.9.2", {"VLLM_A"})
    nested = "image: {repository: vllm/vllm-openai, tag: v0.11.0}\nextraArgs: [--b]\n"
    (found,) = read(tmp_path, "values.yaml", nested)
    assert (words(found), found.image_version) == ([("--b", 2)], "0.11.0")


def test_a_config_file_with_nested_keys(tmp_path: Path) -> None:
    text = (
        "model: m\ncompilation-config:\n  foo: 1\n  pass_config: {nope: true}\nserved-model-name: [a, b]\n"
        "enforce-eager: false\ntrust-remote-code: yes\nmax-num-seqs: null\n"
    )
    (found,) = read(tmp_path, "conf.yaml", text)
    assert words(found) == [
        ("--model=m", 1),
        ("--compilation-config", 2),
        ('{"foo": 1, "pass_config": {"nope": true}}', 2),
        ("--served-model-name", 5),
        ("a", 5),
        ("b", 5),
        ("--trust-remote-code", 7),
    ]
    messages = [problem.message.en for problem in check([found], "0.32.0").problems]
    assert [message.partition("` in")[0] for message in messages] == ["no key `foo", "no key `pass_config.nope"]


def test_a_config_file_whose_names_are_mostly_not_right(tmp_path: Path) -> None:
    # Names with underscores work in such a file, and names that were never right are what lint is asked about.
    text = (
        "model: m\ncompilation_config: {level: 9}\nuse-deepgemm: true\nengine_rpc_timeout: 5\ntensor-parallel-sise: 2\n"
    )
    (found,) = read(tmp_path, "conf.yaml", text)
    problems = [(problem.line, problem.instead) for problem in check([found], "0.32.0").problems]
    assert problems == [
        (2, "mode"),
        (3, "VLLM_USE_DEEP_GEMM=0"),
        (4, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=600"),
        (5, "--tensor-parallel-size"),
    ]
    assert read(tmp_path, "other.yaml", "model: m\nlearning_rate: 1\nepochs: 3\noptimizer: adam\n") == []


def test_a_config_file_of_aliases_ends(tmp_path: Path) -> None:
    lines = ["model: m", "a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 25)]
    text = "\n".join(lines) + "\ncompilation-config: {foo: *a24}\n"
    for keys in ("", "".join(f"{name}: 1\n" for name in ("port", "seed", "host"))):
        read(tmp_path, "conf.yaml", keys + text)
    (found,) = read(tmp_path, "conf.yaml", "compilation-config: {x: &a [1, &b [2]], foo: [*a, *a]}\n")
    assert found.words[1].text == '{"x": [1, [2]], "foo": [[1, [2]], [1, [2]]]}'


@pytest.mark.parametrize("value", ['"true"', "maybe"])
def test_a_switch_of_a_config_file_that_is_no_yaml_bool(tmp_path: Path, value: str) -> None:
    found = read(tmp_path, "conf.yaml", f"enforce-eager: {value}\n")
    assert [problem.code for problem in check(found, "0.32.0").problems] == ["value-on-flag"]
