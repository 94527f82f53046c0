"""What leaves in a report: secrets don't, places to fill in and names of variables do, and commands stay pasteable."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths
from lifesign.report.redact import redact
from lifesign.report.render import render

UNKNOWN_NAME = """\
(APIServer pid=1) INFO 03-02 09:20:11 [utils.py:261] non-default args: {'model_tag': 'example-org/chat-8b-awq', 'model': 'example-org/chat-8b-awq', 'port': 8100}
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/local/lib/python3.12/dist-packages/vllm/transformers_utils/config.py", line 521, in get_config
(APIServer pid=1)     config_dict, _ = PretrainedConfig.get_config_dict(
(APIServer pid=1) OSError: example-org/chat-8b-awq is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'
"""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv vllm serve m", "HF_TOKEN=<redacted> vllm serve m"),
        ("HF_TOKEN=my-own-secret vllm serve m", "HF_TOKEN=<redacted> vllm serve m"),
        ("export HF_TOKEN=hf_...", "export HF_TOKEN=hf_..."),
        ("HF_TOKEN=*** vllm serve m", "HF_TOKEN=*** vllm serve m"),
        ("docker run -e HF_TOKEN=$HF_TOKEN image", "docker run -e HF_TOKEN=$HF_TOKEN image"),
        ('api_key="${VLLM_API_KEY}"', 'api_key="${VLLM_API_KEY}"'),
        ("api_key=$ecret-of-mine", "api_key=<redacted>"),
        ("api_key=$ecret", "api_key=<redacted>"),
        ("api_key: None", "api_key: None"),
    ],
)
def test_secrets_go_and_places_stay(text: str, left: str) -> None:
    assert redact(text) == left


def test_the_command_names_the_token_s_place_and_the_reader_s_model(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(UNKNOWN_NAME)
    shown = render(diagnose_paths([str(log)]), "terminal", "en")
    assert "HF_TOKEN=hf_... vllm serve example-org/chat-8b-awq" in shown
    assert "hf download example-org/chat-8b-awq config.json" in shown
    assert "<redacted>" not in shown
