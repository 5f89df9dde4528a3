"""The one family of errors. An error's docstring is its message; only `cli` turns one into an exit code."""

from __future__ import annotations

import string


class GpuspoolError(Exception):
    """Something went wrong in gpuspool."""

    def __init__(self, message: str = "", **values: object) -> None:
        self.values = values
        if not message:
            doc = " ".join((type(self).__doc__ or "").split())
            message = string.Formatter().vformat(doc, (), values) if values else doc
        super().__init__(message)


class BadRequest(GpuspoolError):
    """{what} {value!r} is not usable: {why}. {remedy}"""


class NeverRunnable(GpuspoolError):
    """This job can never run: {why}. {remedy}"""


class NoSuchJob(GpuspoolError):
    """There is no job {job}. 'spool queue --all' lists the jobs of this spool."""


class NoSuchProject(GpuspoolError):
    """There is no project {project!r}; known are {known}. 'spool project set {project} --quota N' makes one."""


class IllegalTransition(GpuspoolError):
    """Job {job} cannot go from {source} to {target}. From {source} it can go to {allowed}."""


class StaleClaim(GpuspoolError):
    """Job {job} changed while it was being looked at (wanted version {wanted}); look again and repeat."""


class StoreUnavailable(GpuspoolError):
    """The spool at {path} cannot be used: {why}. {remedy}"""


class StoreGone(StoreUnavailable):
    """The database {path} was removed or replaced while it was in use; nothing was written. A program that still works on the old one must look again: repeat the command, or start the daemon again."""


class NewerDatabase(StoreUnavailable):
    """The database {path} has schema {found}, this program knows up to {known}: it was written by a newer gpuspool. Upgrade gpuspool here, or set GPUSPOOL_CFG_STATE_DIR to another folder."""


class NotOwner(StoreUnavailable):
    """The spool at {path} is owned by {owner} now; nothing was written. Repeat the command there, or wait until that owner has been silent for 60 s."""


class UnsafeFolder(StoreUnavailable):
    """{path} is not safe to keep jobs and environments in: {why}. {remedy}"""


class DiskFull(StoreUnavailable):
    """No room left in {path}: {why}. Free some space there, or set {setting} to a folder on another disk."""


class ConfigError(GpuspoolError):
    """{count} problem(s) in the configuration:\n{faults}"""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__(f"{len(faults)} problem(s) in the configuration:\n" + "\n".join(faults))
