"""Where things are; unsafe folders are refused, and a write-ahead log goes only where it works."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuspool.spool import folders as layout
from gpuspool.spool.config import Config, load
from gpuspool.spool.errors import StoreUnavailable, UnsafeFolder
from gpuspool.spool.folders import Folders, file_system_in, resolve


class Home:
    """A home folder and the environment that names it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"HOME": str(root), "TMPDIR": str(root / "tmp")}
        (root / "tmp").mkdir(mode=0o777)

    def resolve(self, **variables: str) -> Folders:
        """The folders with these variables set, too."""
        env = {**self.env, **variables}
        return resolve(self.config(env), env)

    def config(self, env: dict[str, str]) -> Config:
        """The configuration by an environment alone."""
        return load(
            {**env, "GPUSPOOL_CFG_FILE": str(self.root / "none.toml")},
            system_file=str(self.root / "none.toml"),
        )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def mode(path: str) -> int:
    """The mode bits of a path."""
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_defaults_stand_below_the_home_and_are_private(home: Home) -> None:
    before = os.umask(0)
    try:
        found = home.resolve()
    finally:
        os.umask(before)
    assert found.state == found.run == f"{home.root}/.local/state/gpuspool"
    assert found.runtime.startswith(f"{home.root}/tmp/gpuspool-{os.getuid()}/")
    for path in (found.state, os.path.dirname(found.state), found.runtime, os.path.dirname(found.runtime)):
        assert mode(path) == 0o700, path


def test_xdg_and_settings_over_defaults(home: Home) -> None:
    root = home.root
    (root / "run").mkdir(mode=0o700)
    xdg = {"XDG_STATE_HOME": f"{root}/xdg", "XDG_RUNTIME_DIR": f"{root}/run"}
    assert home.resolve(**xdg).state == f"{root}/xdg/gpuspool"
    assert home.resolve(**xdg).runtime.startswith(f"{root}/run/gpuspool/")
    chosen = home.resolve(**xdg, GPUSPOOL_CFG_STATE_DIR=f"{root}/s", GPUSPOOL_CFG_RUN_DIR=f"{root}/r")
    assert (chosen.state, chosen.run) == (f"{root}/s", f"{root}/r")
    assert home.resolve(XDG_STATE_HOME="relative").state == f"{root}/.local/state/gpuspool"


def test_jobs_go_to_scratch_where_there_is_one(home: Home) -> None:
    root = home.root
    for name in ("scratch", "work", "closed"):
        (root / name).mkdir()
    assert home.resolve(SCRATCH=f"{root}/scratch", WORK=f"{root}/work").run == f"{root}/scratch/gpuspool"
    assert home.resolve(WORK=f"{root}/work").run == f"{root}/work/gpuspool"
    assert home.resolve(SCRATCH=f"{root}/gone").run == f"{root}/.local/state/gpuspool"
    assert home.resolve(SCRATCH="relative").run == f"{root}/.local/state/gpuspool"
    assert mode(f"{root}/scratch/gpuspool") == 0o700


def test_two_spools_never_share_jobs(home: Home) -> None:
    """Each counts its jobs from 1, so folders of jobs must be apart, on a shared scratch as well."""
    root = home.root
    (root / "scratch").mkdir()
    env = {"SCRATCH": f"{root}/scratch"}
    spools = [
        home.resolve(**env),
        *(home.resolve(**env, GPUSPOOL_CFG_STATE_DIR=f"{root}/{name}") for name in "ab"),
    ]
    assert len({spool.run for spool in spools}) == 3
    assert len({spool.runtime for spool in spools}) == 3
    assert home.resolve(**env, GPUSPOOL_CFG_STATE_DIR=f"{root}/a") == spools[1], "the same one each time"


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777, 0o1777])
def test_folders_that_others_can_write_to_are_refused(home: Home, bits: int) -> None:
    state = home.root / "state"
    state.mkdir()
    state.chmod(bits)
    with pytest.raises(UnsafeFolder, match=r"others can write to it\. Type: chmod go-w .*state"):
        home.resolve(GPUSPOOL_CFG_STATE_DIR=str(state))
    state.chmod(0o750)
    assert home.resolve(GPUSPOOL_CFG_STATE_DIR=str(state)).state == str(state), "to read is another matter"


def test_every_folder_is_looked_at(home: Home) -> None:
    for name in ("s", "r", "x"):
        (home.root / name).mkdir(mode=0o700)
    (home.root / "x" / "gpuspool").mkdir()
    good = {
        "GPUSPOOL_CFG_STATE_DIR": f"{home.root}/s",
        "GPUSPOOL_CFG_RUN_DIR": f"{home.root}/r",
        "XDG_RUNTIME_DIR": f"{home.root}/x",
    }
    home.resolve(**good)
    for name in ("s", "r", "x/gpuspool"):
        (home.root / name).chmod(0o777)
        with pytest.raises(UnsafeFolder, match="others can write"):
            home.resolve(**good)
        (home.root / name).chmod(0o700)


def test_a_file_in_the_place_of_a_folder_names_the_setting(home: Home) -> None:
    (home.root / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be made: File exists.*GPUSPOOL_CFG_STATE_DIR"):
        home.resolve(GPUSPOOL_CFG_STATE_DIR=f"{home.root}/file")
    with pytest.raises(StoreUnavailable, match="cannot be made: Not a directory.*GPUSPOOL_CFG_RUN_DIR"):
        home.resolve(GPUSPOOL_CFG_RUN_DIR=f"{home.root}/file/below")


def test_a_link_to_a_folder_elsewhere_is_fine_but_not_in_the_temp_folder(home: Home) -> None:
    (home.root / "disk").mkdir(mode=0o700)
    (home.root / "state").symlink_to("disk")
    assert home.resolve(GPUSPOOL_CFG_STATE_DIR=f"{home.root}/state").state == f"{home.root}/state"
    # Anybody can put a link into the temp folder, to a folder of ours that is private and yet not the one meant.
    os.rename(home.root / "tmp" / f"gpuspool-{os.getuid()}", home.root / "elsewhere")
    (home.root / "tmp" / f"gpuspool-{os.getuid()}").symlink_to(home.root / "elsewhere")
    with pytest.raises(UnsafeFolder, match="it is a link"):
        home.resolve()


def test_a_name_that_the_database_cannot_hold_is_refused(home: Home) -> None:
    with pytest.raises(StoreUnavailable, match="no UTF-8 text"):
        home.resolve(GPUSPOOL_CFG_STATE_DIR=os.fsdecode(os.fsencode(home.root) + b"/\xff"))
    weird = f"{home.root}/a b'c\"d\né$x;"
    (home.root / "config.toml").touch()
    config = home.config(home.env)
    config.values["spool.state_dir"] = weird
    assert resolve(config, home.env).state == weird


@pytest.mark.root
def test_a_folder_of_somebody_else_is_refused(home: Home) -> None:
    if os.geteuid() != 0:
        pytest.fail(
            "needs root to make a folder of another user; run the tests as root or deselect with -m 'not root'"
        )
    (home.root / "state").mkdir(mode=0o700)
    os.chown(home.root / "state", 12345, -1)
    with pytest.raises(UnsafeFolder, match="it belongs to user 12345"):
        home.resolve(GPUSPOOL_CFG_STATE_DIR=f"{home.root}/state")


def test_paths(tmp_path: Path) -> None:
    found = Folders("/s", "/r", "/t")
    assert found.database == "/s/spool.db"
    assert found.owner == "/s/owner.json"
    assert found.job(12) == "/r/jobs/12"
    assert found.attempt(12, 3) == "/r/jobs/12/attempts/3"
    assert found.checkpoints(12) == "/r/jobs/12/checkpoints"
    assert {os.path.dirname(path) for path in (found.wake, found.daemon_lock, found.tick_lock)} == {"/t"}


# -- file systems ----------------------------------------------------------------------------------------

#: Lines as /proc/self/mountinfo has them (proc(5)).
MOUNTS = [
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro",
    "23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw",
    "24 22 0:25 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64",
    "30 22 0:40 / /home rw,relatime shared:30 - nfs4 server:/home rw,vers=4.2,rsize=1048576,addr=10.0.0.1",
    "31 30 8:2 / /home/local rw,relatime - xfs /dev/sdb1 rw,attr2",
    "32 22 0:41 / /scratch rw,relatime - lustre 10.0.0.2@o2ib:/scratch rw,flock,lazystatfs",
    "33 22 0:42 / /gpfs/data rw,relatime - gpfs data rw",
    "34 22 0:43 / /beegfs rw,relatime - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs.conf",
    "35 22 0:44 / /mnt/ssh rw,nosuid - fuse.sshfs me@host: rw,user_id=1000",
    "36 22 0:45 /@home /data rw,relatime - btrfs /dev/sdc rw,subvolid=256,subvol=/@home",
    "37 22 0:46 / /tank rw - zfs tank rw,xattr,posixacl",
    r"38 22 0:47 / /mnt/a\040b\134c rw - ext4 /dev/sdd rw",
    "39 22 0:48 / /auto rw,relatime shared:50 - autofs /etc/auto.misc rw,fd=6",
    "40 39 0:49 / /auto rw,relatime shared:51 - nfs server:/auto rw",
    "41 22 0:50 / /mnt/ü rw - xfs /dev/sde rw",
    "",
    "a line that is none",
]
#: A container's root: its upper layer on xfs, on nfs, and where the layer lies outside of what can be seen.
OVER_XFS = [
    "1 0 0:30 / / rw - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/data/up,workdir=/data/work",
    "2 1 8:1 / /data rw - xfs /dev/sda rw",
]
OVER_NFS = [
    "1 0 0:30 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/net/up,workdir=/net/w",
    "2 1 0:9 / /net rw - nfs4 s:/x rw",
]
OVER_UNSEEN = [
    "1 0 0:30 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/var/lib/docker/overlay2/x/diff,workdir=/w"
]
OVER_READ_ONLY = ["1 0 0:30 / / ro - overlay overlay ro,lowerdir=/l1:/l2"]
OVER_ESCAPED = [
    r"1 0 0:30 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/d\040x/up,workdir=/w",
    r"2 1 8:1 / /d\040x rw - btrfs /dev/sda rw",
]
OVER_OVER = [
    "1 0 0:30 / / rw - overlay a rw,lowerdir=/l,upperdir=/one/up,workdir=/one/w",
    "2 1 0:31 / /one rw - overlay b rw,lowerdir=/l,upperdir=/two/up,workdir=/two/w",
    "3 1 8:1 / /two rw - ext4 /dev/sda rw",
]


@pytest.mark.parametrize(
    ("path", "mounts", "kind", "wal"),
    [
        ("/var/spool", MOUNTS, "ext4", True),
        ("/", MOUNTS, "ext4", True),
        ("/dev/shm/x", MOUNTS, "tmpfs", True),
        ("/home/ann/.local/state/gpuspool/spool.db", MOUNTS, "nfs4", False),
        ("/home/local/ann", MOUNTS, "xfs", True),
        ("/home/localhost", MOUNTS, "nfs4", False),  # a name that only begins alike
        ("/scratch/ann", MOUNTS, "lustre", False),
        ("/gpfs/data/x", MOUNTS, "gpfs", False),
        ("/gpfs/other", MOUNTS, "ext4", True),
        ("/beegfs", MOUNTS, "beegfs", False),
        ("/mnt/ssh/x", MOUNTS, "fuse.sshfs", False),
        ("/data/x", MOUNTS, "btrfs", True),
        ("/tank/x", MOUNTS, "zfs", True),
        ("/mnt/a b\\c/x", MOUNTS, "ext4", True),
        ("/auto/x", MOUNTS, "nfs", False),  # the later mount on a place covers the earlier
        ("/mnt/ü/x", MOUNTS, "xfs", True),
        ("/x", OVER_XFS, "xfs", True),
        ("/x", OVER_NFS, "nfs4", False),
        ("/x", OVER_UNSEEN, "overlay", False),
        ("/x", OVER_READ_ONLY, "overlay", False),
        ("/x", OVER_ESCAPED, "btrfs", True),
        ("/x", OVER_OVER, "ext4", True),
        ("/x", [], "", False),
    ],
)
def test_file_systems(path: str, mounts: list[str], kind: str, wal: bool) -> None:
    assert file_system_in(path, mounts) == kind
    assert (kind in layout.WAL_FILE_SYSTEMS) is wal


def test_mount_points_that_are_no_text(tmp_path: Path) -> None:
    raw = os.fsdecode(b"5 1 8:1 / /mnt/\xff\\040x rw - xfs /dev/sda rw")
    assert file_system_in(os.fsdecode(b"/mnt/\xff x/y"), ["1 0 8:2 / / rw - ext4 /dev/sdb rw", raw]) == "xfs"


def test_this_machine_knows_its_own() -> None:
    assert layout.file_system("/proc") == "proc"
    assert not layout.wal_works("/proc/self")
    if os.path.ismount("/dev/shm"):
        assert layout.wal_works("/dev/shm/x")


# -- room ------------------------------------------------------------------------------------------------


def test_room(tmp_path: Path) -> None:
    free, size = layout.free_mib(str(tmp_path))
    assert 0 <= free <= size
    assert layout.short_of_space(str(tmp_path), 0) == ""
    assert f"MiB are free there, {size + 1} MiB are kept" in layout.short_of_space(str(tmp_path), size + 1)
    wanted = min(layout.FREE_SPACE_MIB, int(size * layout.FREE_SPACE_SHARE))
    assert (layout.short_of_space(str(tmp_path), -1) == "") is (free >= wanted)
