"""Print the lowest version that pyproject.toml admits of each package, as constraints for pip.

`python .ci/lowest.py [EXTRA]`; `make minimum` installs them and runs the tests.
"""

import re
import sys
import tomllib
from pathlib import Path


def lowest(project: dict[str, dict[str, list[str]]], extra: str = "") -> dict[str, str]:
    """Return package -> lowest version, of the core and of an extra with all that it holds.

    Raises:
        ValueError: for a requirement without a lowest version.
    """
    found = {}
    lines = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]
    while lines:
        line = lines.pop(0)
        if own := re.fullmatch(r"fedrepro\[(\w+)\]", line):
            lines += project["optional-dependencies"][own[1]]
        elif match := re.match(r"([\w.-]+)>=([\w.]+)", line):
            found[match[1]] = match[2]
        else:
            raise ValueError(f"pyproject.toml gives no lowest version: {line!r}; write NAME>=VERSION")
    return found


if __name__ == "__main__":
    pyproject = Path(__file__).resolve().parents[1] / "pyproject.toml"
    versions = lowest(tomllib.loads(pyproject.read_text("utf-8"))["project"], *sys.argv[1:])
    print("\n".join(f"{name}=={version}" for name, version in versions.items()))
