"""What a reader is told: titles of one line, advice that is said once, figures that follow from the log."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest
from rich.cells import cell_len

import lifesign.causes as package
from lifesign.causes import _config_advice, registry
from lifesign.causes.model import Subtype
from lifesign.facts.model import Life
from lifesign.remedies import library, sizing, wording
from lifesign.remedies.model import Remedy
from lifesign.report.diagnose import diagnose_paths

CAUSES, _ = registry.load()
LOWER = ("vLLM", "torch.compile", "--")
"""Names that a title may begin with as they are."""


def _remedies() -> list[Remedy]:
    found: dict[int, Remedy] = {id(remedy): remedy for remedy in library.ALL}
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Remedy):
                    found[id(each)] = each
    for cause in CAUSES:
        for subtype in cause.subtypes.values():
            found.update({id(remedy): remedy for remedy in subtype.remedies})
    return list(found.values())


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_titles_are_one_line(cause) -> None:  # type: ignore[no-untyped-def]
    for title in (cause.title, *(subtype.title for subtype in cause.subtypes.values())):
        assert title.en[0].isupper() or title.en.startswith(LOWER), title.en
        assert "\n" not in title.en + title.zh
        assert not title.en.endswith(".")
        assert not title.zh.endswith("。")
        assert len(title.en) <= 84, title.en
        assert cell_len(title.zh) <= 72, title.zh


def test_one_slug_is_one_intent() -> None:
    by_slug: dict[str, Remedy] = {}
    for remedy in _remedies():
        first = by_slug.setdefault(remedy.slug, remedy)
        assert (remedy.kind, remedy.forms) == (first.kind, first.forms), remedy.slug


def test_one_title_is_one_intent() -> None:
    by_title: dict[str, Remedy] = {}
    for remedy in _remedies():
        first = by_title.setdefault(remedy.title.en.lower(), remedy)
        assert remedy.slug == first.slug or remedy.forms != first.forms, remedy.title.en


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_no_subtype_gives_an_advice_twice(cause) -> None:  # type: ignore[no-untyped-def]
    for name, subtype in cause.subtypes.items():
        slugs = [remedy.slug for remedy in subtype.remedies]
        assert len(slugs) == len(set(slugs)), f"{cause.slug}/{name}"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_both_languages_name_the_same_values(cause) -> None:  # type: ignore[no-untyped-def]
    import re

    def names(text: str) -> set[str]:
        return {name.removesuffix("_zh") for name in re.findall(r"\{(\w+)\}", text)}

    subtype: Subtype
    for subtype in cause.subtypes.values():
        assert names(subtype.why.en) == names(subtype.why.zh), subtype.title.en


@pytest.mark.parametrize(
    ("heads", "asked", "stages", "ranks"), [(64, 3, 3, 1), (64, 6, 3, 2), (28, 8, 2, 4), (5, 7, 7, 1)]
)
def test_pipeline_uses_all_gpus_with_a_size_that_divides(heads: int, asked: int, stages: int, ranks: int) -> None:
    remedy = _config_advice.pipeline_for(heads, asked, 4)
    assert remedy.value is not None
    computed = remedy.value(Life())
    assert computed is not None
    assert (computed.value, remedy.forms[0].also) == (str(stages), (("--tensor-parallel-size", str(ranks)),))
    assert computed.lines == (4,)


READY = (
    "(APIServer pid=100) INFO 11-30 10:00:00 [api_server.py:1000] vLLM API server version 0.19.1",
    "(EngineCore pid=200) INFO 11-30 10:00:01 [core.py:90] Initializing a V1 LLM engine (v0.19.1) with config: model='/models/m'",
)


@pytest.mark.parametrize(
    ("waited", "en", "zh"),
    [(" Waited 1200s.", "waits 1200 s for", "1200 秒，"), ("", "600 s (the default)", "600 秒（默认值）")],
)
def test_a_limit_that_the_log_does_not_print_is_called_a_default(waited: str, en: str, zh: str, tmp_path: Path) -> None:
    log = tmp_path / "case.log"
    said = f"TimeoutError: Timed out waiting for engine core processes to start.{waited}"
    log.write_text(
        "\n".join(
            (
                *READY,
                "Traceback (most recent call last):",
                '  File "/x/vllm/v1/engine/core_client.py", line 9, in __init__',
                "    self.wait()",
                said,
            )
        ),
        "utf-8",
    )
    for lang, part in (("en", en), ("zh", zh)):
        verdict = diagnose_paths([str(log)], lang=lang).verdict  # type: ignore[arg-type]
        assert verdict.subtype == "engine-ready-timeout"
        assert part in verdict.why


@pytest.mark.parametrize(("hours", "asked"), [(0, False), (3, True)])
def test_a_kill_after_long_service_asks_for_growth(hours: int, asked: bool, tmp_path: Path) -> None:
    log = tmp_path / "case.log"
    lines = (
        *READY,
        "(APIServer pid=100) INFO:     Application startup complete.",
        "(APIServer pid=100) INFO 11-30 10:01:00 [loggers.py:100] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs",
        f"(APIServer pid=100) INFO 11-30 {10 + hours}:20:00 [loggers.py:100] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs",
        "[ 7250.1] Out of memory: Killed process 200 (VLLM::EngineCor) total-vm:90000000kB, anon-rss:60000000kB",
        f"(APIServer pid=100) ERROR 11-30 {10 + hours}:20:09 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    )
    log.write_text("\n".join(lines), "utf-8")
    verdict = diagnose_paths([str(log)]).verdict
    assert verdict.cause == "host-oom"
    assert any("grow without end" in advice.title for advice in verdict.remedies) is asked


TIMED_OUT = """(APIServer pid=1) INFO 06-14 {start} [utils.py:261] non-default args: {{'model_tag': '/m', 'model': '/m', 'max_num_seqs': 8}}
(EngineCore pid=88) INFO 06-14 {start} [core.py:105] Initializing a V1 LLM engine (v0.32.0) with config: model='/m', dtype=torch.bfloat16, device_config=cpu
(APIServer pid=1) INFO:     Application startup complete.
(APIServer pid=1) INFO:     10.0.3.9:51880 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(EngineCore pid=88) ERROR 06-14 09:30:00 [core.py:1108] EngineCore encountered a fatal error.
(EngineCore pid=88) ERROR 06-14 09:30:00 [core.py:1108] Traceback (most recent call last):
(EngineCore pid=88) ERROR 06-14 09:30:00 [core.py:1108]   File "/x/vllm/v1/executor/multiproc_executor.py", line 390, in get_response
(EngineCore pid=88) ERROR 06-14 09:30:00 [core.py:1108]     raise TimeoutError(f"RPC call to {{method}} timed out.") from e
(EngineCore pid=88) ERROR 06-14 09:30:00 [core.py:1108] TimeoutError: RPC call to execute_model timed out.
"""


@pytest.mark.parametrize(
    ("start", "said", "not_said"),
    [
        ("09:29:00", "a value below the default of 300 s: the engine lived for only 60 s", "unless set otherwise"),
        ("09:25:00", "300 s unless set otherwise", "below the default"),  # exactly the default
        ("08:00:00", "300 s unless set otherwise", "below the default"),
    ],
)
def test_an_engine_younger_than_the_limit_had_a_shorter_one(
    start: str, said: str, not_said: str, tmp_path: Path
) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(TIMED_OUT.format(start=start))
    verdict = diagnose_paths([str(log)]).verdict
    assert (verdict.cause, verdict.subtype) == ("timeout-hang", "execute-model-rpc")
    text = verdict.why + " ".join(remedy.why for remedy in verdict.remedies)
    assert said in text, text
    assert not_said not in text, text


@pytest.mark.parametrize(
    ("gib", "text"),
    [
        (1.25, "1.25 GiB"),
        (1.0, "1.00 GiB"),
        (0.999, "1023 MiB"),
        (0.125, "128 MiB"),
        (16 / 1024, "16 MiB"),
        (0.0039, "3.99 MiB"),
        (0.0, "0.00 GiB"),
    ],
)
def test_a_little_memory_is_not_shown_as_nothing(gib: float, text: str) -> None:
    assert wording.size_text(gib) == text


@pytest.mark.parametrize(
    ("env", "said"), [({}, "by default"), ({"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120"}, "now 120 s")]
)
def test_a_default_of_the_release_is_called_one(env: dict[str, str], said: str) -> None:
    assert said in sizing.step_limit_now(Life(version="0.19.1", env=env)).en


@pytest.mark.parametrize(("running", "offered"), [(1, False), (4, False), (5, True), (8, True)])
def test_fewer_sequences_only_if_the_step_held_more(running: int, offered: bool, tmp_path: Path) -> None:
    """The command allows 8; halving that is no advice for a step of 4."""
    stats = f"(APIServer pid=1) INFO 06-14 09:29:50 [loggers.py:271] Engine 000: Avg prompt throughput: 2.4 tokens/s, Avg generation throughput: 9.1 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 7.1%"
    log = tmp_path / "vllm.log"
    log.write_text(
        TIMED_OUT.format(start="08:00:00").replace(
            "(EngineCore pid=88) ERROR", stats + "\n(EngineCore pid=88) ERROR", 1
        )
    )
    verdict = diagnose_paths([str(log)]).verdict
    assert ("--max-num-seqs" in {remedy.knob for remedy in verdict.remedies}) is offered
