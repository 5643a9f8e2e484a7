"""A rank of the check "sharded update", which torchrun starts: ``-m harness.diagnostics.sharded DEVICE GPUS BYTES FOLDER``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from harness.diagnostics.lab import Lab
from harness.diagnostics.probes import sharded_update
from harness.policy.ranks import join

__all__ = ["main"]


def main() -> None:
    """Measures, and writes what rank 0 found into the folder."""
    device, gpus, size, folder = sys.argv[1:]
    lab = Lab(device, int(gpus), int(size), Path(folder))
    ranks = join(device=device, timeout_s=300)
    found = sharded_update(lab, ranks)
    if ranks.first:
        lab.folder.mkdir(parents=True, exist_ok=True)
        (lab.folder / "measured.json").write_text(json.dumps([dataclasses.asdict(one) for one in found]))
    ranks.close()


if __name__ == "__main__":
    main()
