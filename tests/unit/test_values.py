"""Our light dataclasses behave as the standard library's, function by function."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from gpuspool.spool import values


@values.dataclass(frozen=True, slots=True)
class Ours:
    """A frozen one."""

    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


@values.dataclass(slots=True)
class OursOpen:
    """One that can be changed."""

    a: int
    b: list[int] = values.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """The same by the standard library."""

    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class TheirsOpen:
    """The same by the standard library."""

    a: int
    b: list[int] = dataclasses.field(default_factory=list)


PAIRS = [(Ours, Theirs), (OursOpen, TheirsOpen)]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_same_values_comparisons_and_texts(ours: Any, theirs: Any) -> None:
    for make in (lambda kind: kind(1), lambda kind: kind(a=2), lambda kind: kind(3, [4])):
        one, other = make(ours), make(theirs)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert repr(one) == repr(other).replace("Theirs", "Ours")
        assert one == make(ours) and one != ours(99)
        assert one != other and one.__eq__(other) is NotImplemented
        assert not hasattr(one, "__dict__")


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_same_refusals(ours: Any, theirs: Any) -> None:
    for wrong in ((), (1, 2, 3, 4)):
        for kind in (ours, theirs):
            with pytest.raises(TypeError, match="argument"):
                kind(*wrong)
    for kind in (ours, theirs):
        with pytest.raises(TypeError, match="unexpected keyword"):
            kind(1, nothing=2)


def test_factories_are_called_for_each_value() -> None:
    one, other = OursOpen(1), OursOpen(1)
    one.b.append(1)
    assert other.b == []


def test_frozen_ones_are_frozen_and_hashable() -> None:
    value = Ours(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.a
    assert len({Ours(1), Ours(1), Ours(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(OursOpen(1))


@pytest.mark.parametrize("value", [Ours(1, "x", (1, 2)), OursOpen(1, [2])])
def test_copies_and_replacements(value: Any) -> None:
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value
    changed = dataclasses.replace(value, a=7)
    assert (changed.a, changed.b) == (7, value.b)
    assert [item.name for item in dataclasses.fields(value)][:2] == ["a", "b"]


def test_methods_of_the_class_win() -> None:
    @values.dataclass(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return f"<{self.a}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 5

    assert repr(Own(1)) == "<1>"
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 5


def test_post_init_runs() -> None:
    @values.dataclass(slots=True)
    class Counted:
        a: int

        def __post_init__(self) -> None:
            self.a += 1

    assert Counted(1).a == 2
    assert Counted(1).a == 2
