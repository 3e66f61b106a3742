# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A worker for torchrun that kills itself in its first life: the steps to die before are arguments.

    restart_worker.py ADDRESS FILE STEPS RANK:STEP ...     the n-th pair is for the n-th life
"""

import json
import os
import pathlib
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "client/examples", "tests/e2e"):
    sys.path.insert(0, str(ROOT / folder))

import torch.distributed as dist  # noqa: E402
import trainers  # noqa: E402


def main(address: str, file: str, steps: str, *deaths: str) -> None:
    dist.init_process_group("gloo")
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def maybe_die(step: int) -> None:
        if life < len(deaths) and deaths[life] == f"{rank}:{step}":
            os.kill(os.getpid(), signal.SIGKILL)

    run = trainers.train(rank, dist.get_world_size(), address, os.environ["TORCHELASTIC_RUN_ID"],
                         steps=int(steps), before_step=maybe_die)
    if rank == 0:
        last = {name: value.tobytes().hex() for name, value in run["params"][-1].items()}
        pathlib.Path(file).write_text(json.dumps(
            {"resumed_at": run["resumed_at"], "lives": life + 1, "calls": run["calls"], "params": last}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
