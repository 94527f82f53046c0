"""`python -m lifesign`: for an environment whose scripts aren't on the PATH."""

from __future__ import annotations

from lifesign.cli.main import main

if __name__ == "__main__":
    main()
