"""Random specs that are valid, and what must hold of each of them.

`strategies` writes them, `differ` compiles and compares; `kept` holds specs that once showed a bug."""

import sys
from pathlib import Path

from archdsl.ir import verify

# The tools of the tests, where this is run as a program: python -m tests.random_specs.differ
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
verify.enabled = True
