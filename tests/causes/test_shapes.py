"""Each positive case of each page in the process prefixes of every generation of vLLM: the cause must stay the same.

0.8 gave a prefix to workers only, 0.10 and 0.11 numbered the engine cores, 0.18 took the numbers away where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lifesign.causes import pages, registry
from lifesign.report.diagnose import diagnose_paths

CAUSES, _ = registry.load()
HEAD = re.compile(
    r"^\((APIServer|EngineCore|VllmWorker|Worker)(?:_?DP(\d{1,3})|_(\d{1,3}))?(?:[_ ](?:TP|rank=)(\d{1,3}))? pid=(\d{1,7})\) ",
    re.MULTILINE,
)


def _dress(api: str, core: str, worker: str) -> Callable[[str], str]:
    def dressed(log: str) -> str:
        def head(match: re.Match[str]) -> str:
            kind, dp, number, rank, pid = match.groups()
            pattern = api if kind == "APIServer" else core if kind == "EngineCore" else worker
            return pattern.format(pid=pid, engine=dp or number or "0", rank=rank or "0")

        return HEAD.sub(head, log)

    return dressed


GENERATIONS = {
    "0.8": _dress("", "", "(VllmWorker rank={rank} pid={pid}) "),
    "0.10": _dress("(APIServer pid={pid}) ", "(EngineCore_{engine} pid={pid}) ", "(VllmWorker TP{rank} pid={pid}) "),
    "0.11": _dress("(APIServer pid={pid}) ", "(EngineCore_DP{engine} pid={pid}) ", "(Worker_TP{rank} pid={pid}) "),
    "0.18": _dress("(APIServer pid={pid}) ", "(EngineCore pid={pid}) ", "(Worker_TP{rank} pid={pid}) "),
    "one card": _dress("(APIServer pid={pid}) ", "(EngineCore pid={pid}) ", "(Worker pid={pid}) "),
}
POSITIVE = [case for cause in CAUSES for case in pages.cases(cause) if case.expect.startswith(cause.slug + "/")]


def test_dressing_changes_every_prefix() -> None:
    log = "(APIServer pid=1) a\n(EngineCore_DP1 pid=2) b\n(Worker_TP3 pid=4) c\n(VllmWorker rank=3 pid=4) d\n(EngineCore_0 pid=2) e"
    assert GENERATIONS["0.8"](log) == "a\nb\n(VllmWorker rank=3 pid=4) c\n(VllmWorker rank=3 pid=4) d\ne"
    assert GENERATIONS["0.18"](log).count("(EngineCore pid=2) ") == 2
    assert sum(1 for case in POSITIVE if HEAD.search(case.log)) >= 100


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("case", POSITIVE, ids=[f"{case.cause}: {case.name}" for case in POSITIVE])
def test_prefixes_of_another_generation_keep_the_cause(case: pages.Case, generation: str, tmp_path: Path) -> None:
    dressed = GENERATIONS[generation](case.log)
    if dressed == case.log:
        pytest.skip("the case has these prefixes already, or none")
    log = tmp_path / "case.log"
    log.write_text(dressed, encoding="utf-8")
    verdict = diagnose_paths([str(log)]).verdict
    assert verdict.cause == case.expect.partition("/")[0], (verdict.cause, verdict.subtype)
