"""A file system that hangs: a FUSE mount whose server answers the handshake and then nothing any more. Needs root."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import threading
from pathlib import Path

import pytest

_MNT_DETACH = 2
_INIT, _GETATTR = 26, 3


class HungFolder:
    """Mounted at `path`; everything below it blocks until `close`, which aborts the connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        data = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"hung", str(path).encode(), b"fuse", 0, data):
            number = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(number, os.strerror(number))
        self.thread = threading.Thread(target=self._handshake, daemon=True)
        self.thread.start()
        self.thread.join(5)
        look = subprocess.Popen(
            ["stat", str(path / "x")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            look.wait(0.3)
            raise AssertionError(f"{path} does not hang")
        except subprocess.TimeoutExpired:
            look.kill()
            look.wait()

    def _handshake(self) -> None:
        request = os.read(self.fd, 1 << 17)
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        assert opcode == _INIT
        body = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 65536, 1, 1, 0, 0, *([0] * 7))
        os.write(self.fd, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)

    def close(self) -> None:
        """Let everybody that hangs there go, with an error."""
        os.close(self.fd)  # the last close aborts the connection
        ctypes.CDLL(None).umount2(str(self.path).encode(), _MNT_DETACH)


@pytest.fixture
def hung_folder(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A folder that can be made to hang: call it with a path; undone at the end of the test."""
    made: list[HungFolder] = []

    def hang(path: Path) -> HungFolder:
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            pytest.fail("needs root and /dev/fuse; deselect with -m 'not root'")
        made.append(HungFolder(path))
        return made[-1]

    yield hang
    for folder in made:
        folder.close()
