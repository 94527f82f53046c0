"""Every remedy in every release: what it names exists there, is read, takes that value, and isn't one of the wrong names.

The library and all causes are included, so an author who names a knob that a release doesn't have learns it here.
"""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import lifesign.causes
from lifesign.facts.model import Life
from lifesign.remedies import overlay, versions
from lifesign.remedies.apply import form_is_valid, is_env, knob_is_valid, render, settings_exist
from lifesign.remedies.catalog import load
from lifesign.remedies.library import ALL
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

CATALOG = load()
WRONG_NAMES = re.compile(
    r"--cudagraph[_-]mode|--use-deep-?gemm|engine_rpc_timeout|NCCL_SOCKET_TIMEOUT|NCCL_TIMEOUT|VLLM_WATCHDOG_TIMEOUT|pkill -9 -f vllm"
)
FIGURES = {
    "free_gib": (1.25, 10), "tried_gib": (1.5, 10), "total_gib": (79.1, 10), "dummy_requests": (1024.0, 9), "vocab_size": (128256.0, 3),
    "kv_needed_gib": (10.1, 8), "kv_available_gib": (8.4, 8), "est_max_len": (184352.0, 8), "weights_gib": (20.0, 5), "lora_rank": (32.0, 4),
    "derived_max_len": (4096.0, 4), "suggested_kv_bytes": (5e9, 4), "ram_gib": (24.0, 2), "gpus_seen": (8.0, 1),
}  # fmt: skip


def every_remedy() -> dict[str, Remedy]:
    """All remedies of the library and of the modules of the causes, by where they stand."""
    found = {f"library.{remedy.slug}": remedy for remedy in ALL}
    for module in pkgutil.iter_modules(lifesign.causes.__path__):
        loaded = importlib.import_module(f"lifesign.causes.{module.name}")
        for name, value in vars(loaded).items():
            if isinstance(value, Remedy) and value not in ALL:
                found[f"{module.name}.{name}"] = value
    return found


REMEDIES = every_remedy()


def life(release: str, **changes: object) -> Life:
    made = Life(version=release, model="org/model", world_size=2, figures=dict(FIGURES))
    made.config = {
        "model": "org/model", "max_num_seqs": 1024, "max_model_len": 221000, "tensor_parallel_size": 2, "max_loras": 4,
        "gpu_memory_utilization": 0.9, "max_num_batched_tokens": 16384,
    }  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_there_is_something_to_test() -> None:
    assert len(ALL) >= 120
    assert len(REMEDIES) > len(ALL)
    assert len({remedy.slug for remedy in ALL}) == len(ALL)


@pytest.mark.parametrize("where", [key for key, remedy in REMEDIES.items() if remedy.forms])
def test_each_form_is_good_in_some_release(where: str) -> None:
    """A form that no release has is a wrong name, however it got there."""
    first = CATALOG.releases[0]
    for form in REMEDIES[where].forms:
        if form.until and versions.within(first, None, form.until) is False:  # of the time before the catalog
            assert settings_exist(form, first, CATALOG), form
            continue
        assert any(form_is_valid(form, release, CATALOG) for release in CATALOG.releases), form


@pytest.mark.parametrize("where", [f"library.{remedy.slug}" for remedy in ALL if remedy.forms])
def test_library_forms_claim_exactly_the_releases_where_they_are_good(where: str) -> None:
    from lifesign.remedies import versions

    for form in REMEDIES[where].forms:
        for release in CATALOG.releases:
            claimed = bool(versions.within(release, form.since, form.until))
            assert form_is_valid(form, release, CATALOG) == claimed, (form, release)


@pytest.mark.parametrize("where", list(REMEDIES))
def test_what_is_rendered_is_true_for_each_release(where: str) -> None:
    for release in CATALOG.releases:
        for platform in ("cuda", "cpu"):
            rendered = render(REMEDIES[where], life(release, platform=platform))
            if rendered is None:
                continue
            settings = [(rendered.knob, rendered.value or None), *rendered.also] if rendered.knob else []
            for knob, value in settings:
                assert knob_is_valid(knob, value, release, CATALOG), (release, knob, value)
                if not is_env(knob):
                    option = CATALOG.option(knob, release)
                    assert option is not None
                    assert option.takes_value == (value is not None), (release, knob, value)
            assert "{value}" not in rendered.command
            assert "{value}" not in rendered.value
            assert rendered.valid_in_version is True
            shown = " ".join([rendered.title.en, rendered.why.en, rendered.command, rendered.setting])
            assert not WRONG_NAMES.search(shown), shown


@pytest.mark.parametrize("where", list(REMEDIES))
def test_texts_are_bilingual_and_say_something(where: str) -> None:
    remedy = REMEDIES[where]
    for text in (remedy.title, remedy.why, *([remedy.cost] if remedy.cost else [])):
        assert isinstance(text, T)
        assert text.en.strip()
        assert re.search(r"[\u4e00-\u9fff\uff00-\uffef\u3000-\u303f]", text.zh), text.zh
    if where.startswith("library.") and not remedy.forms:
        assert remedy.command, f"{where} has nothing to type"


def test_no_remedy_sets_expandable_segments() -> None:
    for where, remedy in REMEDIES.items():
        values = [f"{form.knob}={form.value}" for form in remedy.forms]
        text = " ".join([*values, remedy.command or ""])
        assert "expandable_segments:True" not in text, where


@pytest.mark.parametrize(
    ("knob", "value", "release", "good"),
    [
        ("--cudagraph-mode", "NONE", "0.32.0", False),
        ("--compilation-config", '{"cudagraph_mode": "NONE"}', "0.10.0", False),
        ("--compilation-config", '{"cudagraph_mode": "NONE"}', "0.10.1", True),
        ("--compilation-config", '{"pass_config": {"no_such_key": 1}}', "0.32.0", False),
        ("VLLM_RPC_TIMEOUT", "1", "0.9.2", False),
        ("VLLM_ATTENTION_BACKEND", "X", "0.12.0", True),
        ("VLLM_ATTENTION_BACKEND", "X", "0.13.0", False),
        ("PYTORCH_ALLOC_CONF", "x", "0.11.0", False),
        ("PYTORCH_ALLOC_CONF", "x", "0.11.1", True),
        ("NCCL_SOCKET_TIMEOUT", "1", "0.32.0", False),
        ("NCCL_DEBUG", "INFO", "0.8.5", True),
        ("--swap-space", "4", "0.18.0", False),
    ],
)
def test_the_check_itself_can_say_no(knob: str, value: str, release: str, good: bool) -> None:
    assert knob_is_valid(knob, value, release, CATALOG) is good


def test_rights_of_wrong_names_are_right() -> None:
    """What lint offers instead of a wrong name must itself be good in each release for which it is offered."""
    from lifesign.remedies import versions

    rights = [right for entry in overlay.WRONG for right in entry.rights]
    rights += [right for renamed in overlay.RENAMED for right in renamed.rights]
    for right in rights:
        if not right.knob:
            assert right.note is not None
            continue
        form = Form(right.knob, right.value, right.since, right.until)
        for release in CATALOG.releases:
            if (
                versions.within(release, right.since, right.until)
                and right.value is not None
                and "{value}" not in right.value
            ):
                assert form_is_valid(form, release, CATALOG), (right, release)
