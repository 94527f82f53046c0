"""Makes the stories importable: they are a tool of these tests alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
