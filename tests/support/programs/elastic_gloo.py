"""A rank that really meets the others by torch: sums the ranks over gloo and prints what it saw, one JSON line.

With the argument `fail-first` rank 1 then exits 3, unless its group has been started anew.
"""

import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
seen = {"rank": dist.get_rank(), "world": dist.get_world_size(), "sum": total.item()}
seen["port"] = os.environ["MASTER_PORT"]
# One write: the ranks share one pipe.
os.write(1, (json.dumps(seen) + "\n").encode())
dist.barrier()
if (
    sys.argv[1:] == ["fail-first"]
    and dist.get_rank() == 1
    and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
):
    os._exit(3)
# gloo sometimes aborts a process that ends in the ordinary way.
os._exit(0)
