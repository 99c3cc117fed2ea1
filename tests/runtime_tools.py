"""Processes that see onnxruntime-genai and optimum, in a folder of their own: see constraints-runtimes.txt."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".runtimes"


def in_runtimes(script: str, *arguments: str) -> str:
    """What a script prints on standard output. Fails where it fails, or where the folder is missing."""
    assert FOLDER.is_dir(), f"{FOLDER} is missing: `make runtimes` makes it"
    path = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | settings,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
