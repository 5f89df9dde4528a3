"""Write `v<number>.sql`: the schema as it is now, with rows of every kind, for the tests of later versions.

    python tests/migration/make_dump.py

Run it once for each new schema, before that is released; the dump of a released schema is never made again.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from spools import finish, make_folders, start, submission, tell  # noqa: E402

from gpuspool.spool.endrules import EndFacts  # noqa: E402
from gpuspool.spool.lifecycle import Room  # noqa: E402
from gpuspool.spool.migrations import VERSION  # noqa: E402
from gpuspool.spool.model import GpuRow, JobSpec, Node, Project, Stop  # noqa: E402
from gpuspool.spool.store import Store, open_store  # noqa: E402


def fill(store: Store) -> None:
    """Jobs in every state and for every reason, and a row in every table."""
    store.set_project(Project("lab", 8.0, 16.0, 2.0, ""))
    store.set_project(Project("vision", 4.0, None, 1.0, "lab"))
    gpus = [GpuRow(f"GPU-{n}", "node1", n, "NVIDIA H100", "h100", 81559, "up", "") for n in range(4)]
    store.note_node(Node("node1", "node1", "boot", 64, 512000, "up", "", 1000.0), gpus)
    store.set_gpu_state("GPU-3", "drained", "a process cannot be killed")
    store.note_tick(1000.0)

    weird = JobSpec(
        ["python", "a b'c\"d\né$x;.py", "{resume}"], "/home/é", {"SECRET": "x\ny"}, checkpoint_dir="/c"
    )
    jobs = store.submit(
        [submission(spec=weird, name=f"w{n}", gpus=1, project="vision", walltime_s=3600) for n in range(9)],
        1000.0,
    )
    done, failed, cancelled, running, stopping, starting, backing, stopped, heir = jobs
    start(store, done, 1001.0, "GPU-0")
    finish(store, done, EndFacts(exit_code=0), 1100.0, gpu_seconds=99.0, checkpoint="/c/9", checkpoint_step=9)
    for attempt in range(4):
        start(store, failed, 1100.0 + attempt, "GPU-0")
        finish(store, failed, EndFacts(signal=11), 1101.0 + attempt, gpu_seconds=1.0)
    start(store, cancelled, 1200.0, "GPU-0")
    store.cancel((cancelled,), 1201.0, "ann")
    finish(store, cancelled, EndFacts(exit_code=75, stop=Stop.CANCEL), 1202.0)
    tell(store, start(store, running, 1300.0, "GPU-0"), "checkpoint", 1310.0, path="/c/5", step=5)
    start(store, stopping, 1300.0, "GPU-1")
    start(store, starting, 1300.0, "GPU-2", running=False)
    start(store, backing, 1300.0)
    finish(store, backing, EndFacts(exit_code=1), 1301.0)
    start(store, stopped, 1300.0)
    store.stop((stopped,), 1301.0, "ann")
    finish(store, stopped, EndFacts(exit_code=0, stop=Stop.USER_STOP), 1302.0)
    store.request_stops(
        [(store.job(stopping), Stop.PREEMPT, "preempted for job 9")],
        [Room(heir, "node1", ("GPU-1",), 1, 0, 2000.0)],
        1400.0,
    )
    store.submit([submission(hold="user"), submission(begin_at=5000.0)], 1500.0)
    store.note_reasons({heir: ("Resources", "needs 1 GPU, 0 free")})


def main() -> None:
    """Write the dump."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(make_folders(Path(folder)))
        fill(store)
        store.close()
        database = sqlite3.connect(Path(folder) / "state" / "spool.db")
        database.execute("UPDATE attempts SET token = 'token-' || job_id || '-' || number")
        database.commit()
        lines = [*database.iterdump(), f"PRAGMA user_version = {VERSION};"]
        database.close()
    (HERE / f"v{VERSION}.sql").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
