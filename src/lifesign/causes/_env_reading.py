"""What messages of env-install ask for: the package to install, the versions that differ."""

from __future__ import annotations

import re
import shlex

from msgspec.structs import replace

from lifesign.causes import _env_advice as advice
from lifesign.causes.model import Finding
from lifesign.remedies.model import Remedy

_WANTED = re.compile(
    r"(?:[Pp]lease |[`'\" ])install (?:it (?:via|with|by) )?[`'\"]?(?:pip install (?:-U )?)?([A-Za-z][\w.\-]{1,40}[><=~!]=?[\w.]{1,20})"
)
_PAIR = re.compile(
    r"([A-Za-z][\w.\-]{1,40}) version \(([\w.+]{1,30})\) does not match ([A-Za-z][\w.\-]{1,40}) version \(([\w.+]{1,30})\)"
)
_MODULE = re.compile(r"No module named '([A-Za-z_][\w]{0,60})")
_RAY = re.compile(r"Ray: ([\w.]{1,20})\s{1,20}Python: ([\w.]{1,20})")


def name_the_package(finding: Finding, usual: tuple[Remedy, ...]) -> None:
    """Puts what the message asks for into the command: a requirement, or the module that is missing."""
    text = finding.event.text[:4000]
    if "libatb.so" in text:
        finding.remedies = (advice.SOURCE_NNAL, advice.INSTALL_MISSING)
        return
    pair = _PAIR.search(text)
    if pair is not None:
        # The second is the package that vLLM asks for; the first comes with it, and wasn't pinned.
        command = f"pip install {shlex.quote(f'{pair[1]}=={pair[4]}')}"
        finding.remedies = (replace(advice.SAME_VERSION, command=command), advice.REINSTALL, advice.CLEAN_ENV)
        return
    wanted, module = _WANTED.search(text), _MODULE.search(text)
    name = wanted[1] if wanted else module[1] if module else ""
    if not name:
        return
    command = f"pip install {shlex.quote(name)}" + ("" if wanted else "   # or the package that ships this module")
    remedies = finding.remedies or usual
    finding.remedies = tuple(
        replace(one, command=command) if one.slug == advice.INSTALL_MISSING.slug else one for one in remedies
    )


def name_the_versions(finding: Finding) -> None:
    """The two pairs of versions stand in the lines below the message."""
    pairs = _RAY.findall(finding.event.text[:2000])[:2]
    finding.values["versions"] = (
        f" (Ray {pairs[0][0]}, Python {pairs[0][1]} / Ray {pairs[1][0]}, Python {pairs[1][1]})"
        if len(pairs) == 2
        else ""
    )
