"""The configuration: every setting in one table, read from files and environment, each with where it came from.

Precedence: flag, `GPUSPOOL_CFG_*`, the user's file, /etc/gpuspool/config.toml, default. All faults of a file are
reported at once, with line and nearest valid name. `tomllib` is imported only when there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import quantities
from .errors import BadRequest, ConfigError
from .model import Project
from .values import dataclass, field
from .window import Window, parse_window

SYSTEM_FILE = "/etc/gpuspool/config.toml"


@dataclass(frozen=True, slots=True)
class JobClass:
    """A named bundle of rules. `rank` orders classes within a project; a higher one may preempt a lower one."""

    name: str
    preemptible: bool
    quota_bound: bool  # only within quota
    rank: int
    window: str = ""
    needs_window: bool = False
    backfills: bool = False  # may use what other projects' quota leaves idle


BUILT_IN_CLASSES = {
    "reserved": JobClass("reserved", preemptible=False, quota_bound=True, rank=40),
    "ondemand": JobClass("ondemand", preemptible=False, quota_bound=False, rank=30),
    "spot": JobClass("spot", preemptible=True, quota_bound=False, rank=20, backfills=True),
    "offpeak": JobClass("offpeak", True, False, rank=20, needs_window=True, backfills=True),
    "idle": JobClass("idle", preemptible=True, quota_bound=False, rank=10, backfills=True),
}
PRIORITIES = {"low": 25, "normal": 50, "high": 75, "urgent": 100}


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(what=what, value=value, why="it is no text", remedy='Write it in quotes: "…".')
    return value


def _folder(value: Any, what: str) -> str:
    path = os.path.expanduser(os.path.expandvars(_string(value, what)))
    if path and not os.path.isabs(path):
        raise BadRequest(
            what=what, value=value, why="it is no absolute path", remedy="Begin it with / or ~/."
        )
    return path


def _whole(low: int, high: int) -> Callable[[Any, str], int]:
    def read(value: Any, what: str) -> int:
        try:
            number = int(value) if not isinstance(value, bool) else None
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or not low <= number <= high or number != float(value):
            raise BadRequest(
                what=what,
                value=value,
                why="it is not in range",
                remedy=f"Write a whole number from {low} to {high}.",
            )
        return number

    return read


def _seconds(low: int, high: int, bare: str = "s") -> Callable[[Any, str], int]:
    def read(value: Any, what: str) -> int:
        seconds = quantities.duration(str(value), what=what, bare=bare, zero=low == 0)
        if not low <= seconds <= high:
            span = f"{quantities.show_duration(low)} to {quantities.show_duration(high)}"
            raise BadRequest(what=what, value=value, why="it is not in range", remedy=f"Write {span}.")
        return seconds

    return read


def _mebibytes(value: Any, what: str) -> int:
    return 0 if value in (0, "0", "") else quantities.memory(str(value), what=what)


def _priority(value: Any, what: str) -> str:
    """One of the names of PRIORITIES or a number from 0 to 1000, as the text that `--priority` takes."""
    word = str(value).lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if word in PRIORITIES or (word.isascii() and word.isdigit() and len(word) <= 4 and int(word) <= 1000):
        return word
    raise BadRequest(
        what=what,
        value=value,
        why="it is no priority",
        remedy=f"Write one of {', '.join(PRIORITIES)}, or a number from 0 to 1000.",
    )


def _one_of(*names: str) -> Callable[[Any, str], str]:
    def read(value: Any, what: str) -> str:
        if value not in names:
            raise BadRequest(
                what=what, value=value, why="it is not known", remedy=f"Choose one of {', '.join(names)}."
            )
        return str(value)

    return read


def _boolean(value: Any, what: str) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    word = str(value).lower()
    if word not in words:
        raise BadRequest(
            what=what, value=value, why="it is neither yes nor no", remedy="Write true or false."
        )
    return words[word]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: where it stands in a file, how it is read, its default and what it is for."""

    section: str
    key: str
    read: Callable[[Any, str], Any]
    default: Any
    doc: str

    @property
    def name(self) -> str:
        """`section.key`, as `config show` prints it."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """Its environment variable; settings of [spool] go without their section."""
        parts = (self.key,) if self.section == "spool" else (self.section, self.key)
        return "GPUSPOOL_CFG_" + "_".join(parts).upper()


SETTINGS = (
    Setting("spool", "state_dir", _folder, "", "holds spool.db; default $XDG_STATE_HOME/gpuspool"),
    Setting(
        "spool",
        "run_dir",
        _folder,
        "",
        "holds jobs/<id>/ with logs and checkpoints; default scratch or the state",
    ),
    Setting(
        "spool",
        "free_space_mib",
        _mebibytes,
        -1,
        "submission is refused below this; default 5G or 2 %, the less",
    ),
    Setting("defaults", "class", _string, "ondemand", "class of a job that names none"),
    Setting("defaults", "project", _string, "default", "project of a job that names none"),
    Setting("defaults", "priority", _priority, "normal", "low, normal, high, urgent or a number"),
    Setting("defaults", "walltime", _seconds(0, 315360000, "m"), 0, "0: none"),
    Setting("defaults", "grace", _seconds(0, 300), 60, "from the stop signal to the end, 0 to 300 s"),
    Setting("defaults", "min_runtime", _seconds(0, 315360000, "m"), 0, "not preempted before"),
    Setting("defaults", "backoff_limit", _whole(0, 100), 3, "failures that are forgiven"),
    Setting("defaults", "max_attempts", _whole(1, 1000000), 100, "attempts of any kind"),
    Setting("local", "cpus", _whole(0, 100000), 0, "slots of this machine; 0: as detected"),
    Setting("local", "memory", _mebibytes, 0, "memory of this machine; 0: as detected"),
    Setting("local", "gpus", _whole(-1, 1024), -1, "use at most the first n GPUs; -1: all"),
    Setting(
        "local", "cgroup", _one_of("auto", "off"), "auto", "contain attempts in a cgroup where one can be had"
    ),
    Setting(
        "supervisor", "heartbeat", _seconds(1, 3600), 10, "heartbeat, sampling and looking for checkpoints"
    ),
    Setting("supervisor", "term_to_kill", _seconds(1, 300), 10, "from SIGTERM to SIGKILL"),
    Setting(
        "supervisor", "launch_patience", _seconds(1, 3600), 30, "an attempt without a claim is given up after"
    ),
    Setting(
        "daemon", "idle", _seconds(1, 315360000), 300, "an on-demand daemon ends when the spool was empty for"
    ),
    Setting("daemon", "auto", _boolean, True, "commands that change something leave a daemon behind"),
    Setting(
        "policy",
        "drain_after",
        _seconds(0, 315360000),
        3600,
        "a blocked head of the queue is waited for after",
    ),
    Setting("policy", "min_slice", _seconds(0, 315360000), 900, "least time left of a window to start in it"),
)
_BY_NAME = {(setting.section, setting.key): setting for setting in SETTINGS}
_TABLES = {"windows": ("zone", "open", "holidays"), "projects": ("quota", "limit", "weight", "parent")}
_CLASS_KEYS = ("like", "window", "preemptible", "rank")


@dataclass(slots=True)
class Config:
    """The settings in force: `config["defaults.grace"]`, and where each came from in `origins`."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    classes: dict[str, JobClass] = field(default_factory=dict)
    projects: dict[str, Project] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)  # setting → "file:line", or its variable

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def job_class(self, name: str) -> JobClass:
        """The class called `name`. Raises BadRequest, with the line to write where its window is missing."""
        found = self.classes.get(name)
        if found is None:
            raise BadRequest(
                what="the class",
                value=name,
                why="there is no such class",
                remedy=f"Choose one of {', '.join(self.classes)}.",
            )
        if found.needs_window and not found.window:
            where = user_file()
            raise BadRequest(
                what="the class",
                value=name,
                why="no window is configured for it",
                remedy=f'Add to {where}:\n  [windows.nights]\n  zone = "{local_zone()}"\n'
                f'  open = ["mon-fri 20:00-07:00", "sat,sun 00:00-24:00"]\n  [classes.{name}]\n  window = "nights"',
            )
        return found


def local_zone() -> str:
    """The name of this machine's time zone, UTC when it cannot be told."""
    if zone := os.environ.get("TZ"):
        return zone.lstrip(":")
    try:
        target = os.readlink("/etc/localtime")
    except OSError:
        return "UTC"
    return target.partition("zoneinfo/")[2] or "UTC"


def user_file(env: dict[str, str] | None = None) -> str:
    """Where the user's file stands, whether it exists or not."""
    env = dict(os.environ) if env is None else env
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return env.get("GPUSPOOL_CFG_FILE") or os.path.join(base, "gpuspool", "config.toml")


def load(
    env: dict[str, str] | None = None, flags: dict[str, Any] | None = None, *, system_file: str = SYSTEM_FILE
) -> Config:
    """The configuration in force. Raises ConfigError with every fault of every file and variable."""
    env = dict(os.environ) if env is None else env
    config = Config()
    faults: list[str] = []
    for setting in SETTINGS:
        config.values[setting.name] = setting.default
        config.origins[setting.name] = "default"
    config.classes = dict(BUILT_IN_CLASSES)
    for path in (system_file, user_file(env)):
        _read_file(path, config, faults)
    known = {setting.variable: setting for setting in SETTINGS}
    for variable, value in env.items():
        if not variable.startswith("GPUSPOOL_CFG_") or variable == "GPUSPOOL_CFG_FILE":
            continue
        if variable not in known:
            faults.append(f"{variable}: there is no such setting{_nearest(variable, list(known))}")
            continue
        _set(config, known[variable], value, variable, f"{variable}: ", faults)
    for name, value in (flags or {}).items():
        if value is not None:
            section, _, key = name.partition(".")
            _set(config, _BY_NAME[section, key], value, "flag", "", faults)
    if config.values["defaults.class"] not in config.classes:
        where = config.places.get("defaults.class", "")
        faults.append(
            f"{where + ': ' if where else ''}defaults.class: there is no class {config.values['defaults.class']!r}"
            f"{_nearest(config.values['defaults.class'], list(config.classes))}"
        )
    faults += _circles(config.projects)
    if faults:
        raise ConfigError(faults)
    return config


def _circles(projects: dict[str, Project]) -> list[str]:
    """Projects that are their own ancestors; parents that the files do not name may stand in the database."""
    faults = []
    for name in projects:
        seen, at = [name], projects[name].parent
        while at in projects and at not in seen:
            seen.append(at)
            at = projects[at].parent
        if at == name:
            faults.append(f"projects.{name}: its parents make a circle: {' → '.join([*seen, name])}")
    return faults


def signature(env: dict[str, str] | None = None) -> tuple[object, ...]:
    """Changes when a configuration file does: path, time and size of each."""
    found: list[object] = []
    for path in (SYSTEM_FILE, user_file(env)):
        try:
            info = os.stat(path)
            found.append((path, info.st_mtime_ns, info.st_size, info.st_ino))
        except OSError:
            found.append((path,))
    return tuple(found)


def _set(config: Config, setting: Setting, value: Any, origin: str, prefix: str, faults: list[str]) -> None:
    try:
        config.values[setting.name] = setting.read(value, setting.name)
        config.origins[setting.name] = origin
        config.places[setting.name] = prefix.removesuffix(": ")
    except BadRequest as error:
        faults.append(f"{prefix}{error}")


def _read_file(path: str, config: Config, faults: list[str]) -> None:
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        faults.append(f"{path}: cannot be read: {error.strerror}")
        return
    import tomllib

    config.files.append(path)
    try:
        text = raw.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        faults.append(f"{path}: it is not UTF-8 text (byte {error.start})")
        return
    except tomllib.TOMLDecodeError as error:
        faults.append(f"{path}: {error}")
        return
    except RecursionError:
        faults.append(f"{path}: it is nested too deeply")
        return
    _Reader(path, text, config, faults).read(document)


class _Reader:
    """One file on its way into a Config; collects faults instead of stopping at the first."""

    def __init__(self, path: str, text: str, config: Config, faults: list[str]) -> None:
        self.path, self.lines, self.config, self.faults = path, text.splitlines(), config, faults

    def read(self, document: dict[str, Any]) -> None:
        sections = list(dict.fromkeys([s.section for s in SETTINGS] + list(_TABLES) + ["classes"]))
        for section, content in document.items():
            if section not in sections:
                self.fault(section, "", f"there is no section [{section}]{_nearest(section, sections)}")
            elif not isinstance(content, dict):
                self.fault(section, "", f"{section} is a section: write [{section}]")
            elif section in _TABLES or section == "classes":
                for name, entry in content.items():
                    self.table(section, name, entry)
            else:
                for key, value in content.items():
                    self.setting(section, key, value)
        # Classes name windows, which may stand below them in the file.
        for name, entry in (
            document.get("classes", {}).items() if isinstance(document.get("classes"), dict) else ()
        ):
            if isinstance(entry, dict):
                self.job_class(name, entry)

    def setting(self, section: str, key: str, value: Any) -> None:
        setting = _BY_NAME.get((section, key))
        if setting is None:
            keys = [s.key for s in SETTINGS if s.section == section]
            self.fault(section, key, f"there is no setting {key!r} in [{section}]{_nearest(key, keys)}")
            return
        _set(self.config, setting, value, self.path, f"{self.where(section, key)}: ", self.faults)

    def table(self, section: str, name: str, entry: Any) -> None:
        keys = _CLASS_KEYS if section == "classes" else _TABLES[section]
        head = f"{section}.{name}"
        if not isinstance(entry, dict):
            self.fault(section, name, f"write [{head}] and below it {', '.join(keys)}")
            return
        unknown = [key for key in entry if key not in keys]
        for key in unknown:
            self.fault(head, key, f"there is no setting {key!r} in [{head}]{_nearest(key, list(keys))}")
        if unknown:
            return
        try:
            if section == "windows":
                self.window(name, entry)
            elif section == "projects":
                self.project(name, entry)
        except BadRequest as error:
            self.fault(head, next(iter(entry), ""), str(error))

    def window(self, name: str, entry: dict[str, Any]) -> None:
        spans, holidays = entry.get("open", []), entry.get("holidays", [])
        if not _texts(spans) or not _texts(holidays):
            raise BadRequest(
                what=f"window {name!r}",
                value=spans,
                why="it is no list of texts",
                remedy='Write open = ["daily 20:00-07:00"].',
            )
        zone = _string(entry.get("zone", local_zone()), f"the zone of window {name!r}")
        self.config.windows[name] = parse_window(name, zone, spans, holidays)

    def project(self, name: str, entry: dict[str, Any]) -> None:
        numbers: dict[str, float | None] = {}
        for key in ("quota", "limit", "weight"):
            numbers[key] = project_number(key, entry[key]) if key in entry else None
        parent = _string(entry.get("parent", ""), f"the parent of project {name!r}")
        weight = numbers["weight"]
        self.config.projects[name] = Project(
            name, numbers["quota"], numbers["limit"], 1.0 if weight is None else weight, parent
        )

    def job_class(self, name: str, entry: dict[str, Any]) -> None:
        head = f"classes.{name}"
        like = str(entry.get("like", name))
        base = self.config.classes.get(like)
        if base is None:
            choices = list(self.config.classes)
            if "like" in entry:
                self.fault(head, "like", f"there is no class {like!r}{_nearest(like, choices)}")
            else:
                self.fault(head, "", f"a class of your own needs like = one of {', '.join(choices)}")
            return
        window = entry.get("window", base.window)
        if not isinstance(window, str) or (window and window not in self.config.windows):
            near = _nearest(str(window), list(self.config.windows))
            self.fault(head, "window", f"there is no window {window!r}{near}")
            return
        try:
            self.config.classes[name] = JobClass(
                name,
                _boolean(entry.get("preemptible", base.preemptible), f"{head}.preemptible"),
                base.quota_bound,
                _whole(0, 1000)(entry.get("rank", base.rank), f"{head}.rank"),
                window,
                base.needs_window or bool(window),
                base.backfills,
            )
        except BadRequest as error:
            self.fault(head, next(iter(entry), ""), str(error))

    def where(self, section: str, key: str) -> str:
        """`path:line`, found by reading the text again: tomllib keeps no positions."""
        inside = False
        for number, line in enumerate(self.lines, 1):
            bare = line.strip().replace(" ", "").replace('"', "")
            if bare.startswith("["):
                inside = bare.startswith(f"[{section}]")
                if (inside and not key) or bare.startswith(f"[{section}.{key}]"):
                    return f"{self.path}:{number}"
            elif (inside and key and bare.startswith(f"{key}=")) or bare.startswith(
                (f"{section}.{key}=", f"{section}=")
            ):
                return f"{self.path}:{number}"
        return self.path

    def fault(self, section: str, key: str, text: str) -> None:
        self.faults.append(f"{self.where(section, key)}: {text}")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def project_number(key: str, value: Any) -> float:
    """A project's quota, limit or weight. Raises BadRequest for what is no number of zero or more."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e9:
        raise BadRequest(
            what=key, value=value, why="it is no number of 0 or more", remedy=f"Write {key} = 4, say."
        )
    return number


def _nearest(word: str, choices: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    if close:
        # Of equally near ones the one that begins alike: 'opne' is 'open', not 'zone'.
        alike = [(difflib.SequenceMatcher(None, name, word).ratio(), name[:1] == word[:1]) for name in close]
        return f"; did you mean {close[alike.index(max(alike))]!r}?"
    return f"; known are {', '.join(sorted(choices))}" if choices else ""
