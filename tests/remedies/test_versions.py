"""Release numbers compare as vLLM's releases followed each other, development builds before their release."""

from __future__ import annotations

import itertools

import pytest

from lifesign.errors import UsageError
from lifesign.remedies import versions
from lifesign.remedies.catalog import load

ASCENDING = (
    "0.8.5", "0.8.5.post1", "0.9.0", "0.9.0.1", "0.9.1", "0.10.0.dev3", "0.10.0rc1", "0.10.0", "0.10.1.1", "0.11.1rc2.dev3+g12",
    "0.11.1", "0.33.0", "1.0",
)  # fmt: skip


@pytest.mark.parametrize(("older", "newer"), list(itertools.combinations(ASCENDING, 2)))
def test_order(older: str, newer: str) -> None:
    first, second = versions.key(older), versions.key(newer)
    assert first is not None
    assert second is not None
    assert first < second


@pytest.mark.parametrize("same", ["v0.9.2", "0.9.2+cpu", " 0.9.2 ", "0.9.2+g12ab.d20250102"])
def test_prefix_and_local_part_do_not_count(same: str) -> None:
    assert versions.key(same) == versions.key("0.9.2")


@pytest.mark.parametrize("text", ["", "banana", "dev", "v", "7", "x.y.z", "-1.2"])
def test_what_is_no_version(text: str) -> None:
    assert versions.key(text) is None
    assert versions.within(text, "0.9.0", None) is None


def test_a_nightly_build_is_newer_than_every_release() -> None:
    assert versions.at_least("nightly", "99.0.0") is True
    assert versions.within("nightly", "0.9.2", "0.33.0") is False


@pytest.mark.parametrize(
    "text", ["0.32.0", "v0.11.2", "0.11.1rc2", "0.11.1rc2.dev3+g12ab.d2025", "0.8.5.post1", "0.9.0.1", "0.32.0+cpu", "nightly", "main"]
)  # fmt: skip
def test_versions_that_a_reader_may_give(text: str) -> None:
    versions.known_or_refuse(text)


@pytest.mark.parametrize("text", ["", "banana", "0.9.2banana", "latest", "0.9 2", "1", "--lang"])
def test_texts_that_are_no_version_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no vLLM release"):
        versions.known_or_refuse(text)


def test_within_is_inclusive_on_both_ends() -> None:
    assert versions.within("0.9.2", "0.9.2", "0.10.2")
    assert versions.within("0.10.2", "0.9.2", "0.10.2")
    assert not versions.within("0.9.1", "0.9.2", "0.10.2")
    assert not versions.within("0.11.0", "0.9.2", "0.10.2")


def test_nearest_lower_release_of_a_development_build() -> None:
    releases = load().releases
    assert versions.nearest_lower("0.11.1rc2.dev3+g12", releases) == "0.11.0"
    assert versions.nearest_lower("0.9.0.2", releases) == "0.9.0.1"
    assert versions.nearest_lower("0.5.0", releases) is None


def test_a_hostile_version_text_is_cut() -> None:
    assert versions.key("1." * 5000) is not None
    assert versions.key("9" * 5000) is None
