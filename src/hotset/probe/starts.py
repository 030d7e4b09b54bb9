"""What starts and answers on this machine have shown, kept in one JSON file.

Two kinds of records. Of a *start*: what one engine took of one device for buffers, by shape,
what its process held there beside them, and what the driver moved away. Of *answers*: measured over
predicted speed, the last few, for one model, engine, machine and setup. Both are small numbers;
nothing of what was asked or answered is kept. The file can be deleted at any time.

Several processes may write: each reads, changes and replaces the file under a lock beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from hotset.core.experience import Experience, Paces, pace_of
from hotset.probe.keeping import write_whole

__all__ = [
    "Answers",
    "Kept",
    "StartKey",
    "StartSeen",
    "experience_of",
    "keep_answer",
    "keep_spill",
    "keep_start",
    "load_kept",
]

_VERSION = 1
_MOST_RECORDS = 400
_MOST_SHAPES = 24
_KEPT_RATIOS = 15
_MOST_BYTES = 1 << 50
# Beyond it is no pace but damage: an engine that was stopped, a clock that was set.
_MOST_RATIO = 50.0
_LOCK_WAIT_S = 2.0
_LOCK_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class StartKey:
    """Whose memory it is. `engine` as `Engine.identity`, `model` as `core.plan.pace.model_key`."""

    engine: str
    model: str
    device: str


@dataclass(frozen=True, slots=True)
class StartSeen:
    """Bytes: for each shape what was estimated and what the engine took; None: never measured.

    `spilled_bytes` is what the driver moved off the device, of all starts that were planned with
    what was known by then.
    """

    compute: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    overhead_bytes: int | None = None
    spilled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """Measured over predicted, the latest last.

    Attributes:
        machine: as `core.plan.pace.machine_key`.
        setup: as `core.plan.pace.setup_of`.
    """

    engine: str
    model: str
    machine: str
    setup: str
    decode: tuple[float, ...] = ()
    prefill: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.engine, self.model, self.machine, self.setup)


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything in the file; records that were changed last come last."""

    starts: Mapping[StartKey, StartSeen] = field(default_factory=dict)
    answers: Mapping[tuple[str, str, str, str], Answers] = field(default_factory=dict)


class _OtherVersionError(ValueError):
    """Not damaged, but not ours to overwrite either."""


def load_kept(file: Path) -> tuple[Kept, str]:
    """What was kept, and "" or one line about a file that cannot be used."""
    try:
        return _read(file), ""
    except (FileNotFoundError, NotADirectoryError):
        return Kept(), ""
    except _OtherVersionError as error:
        return Kept(), f"{file}: {error}; left alone, and plans do without"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        return Kept(), f"{file}: no record of starts and answers ({reason}); ignored, begun anew"


def experience_of(kept: Kept, engine: str, model: str, machine: str) -> Experience:
    """The part that matters to a plan."""
    compute: dict[tuple[str, str], int] = {}
    factors: dict[str, float] = {}
    overhead: dict[str, int] = {}
    spilled: dict[str, int] = {}
    for key, seen in kept.starts.items():
        if key.engine != engine:
            continue
        if seen.overhead_bytes is not None:
            overhead[key.device] = max(seen.overhead_bytes, overhead.get(key.device, 0))
        if key.model == model:
            if seen.spilled_bytes:
                spilled[key.device] = seen.spilled_bytes
            compute |= {(key.device, shape): real for shape, (_, real) in seen.compute.items()}
            factors[key.device] = max(
                [1.0, *(real / planned for planned, real in seen.compute.values() if planned)]
            )
    here = [a for a in kept.answers.values() if (a.engine, a.machine) == (engine, machine)]
    own = {a.setup: _paces([a]) for a in here if a.model == model}
    setups = {a.setup for a in here}
    others = {setup: _paces([a for a in here if a.setup == setup]) for setup in setups}
    return Experience(compute, factors, overhead, own, others, spilled)


def _paces(found: list[Answers]) -> Paces:
    """Of one model its answers; of several the median of each."""
    if len(found) == 1:
        return Paces(pace_of(found[0].decode), pace_of(found[0].prefill))
    return Paces(
        pace_of([median(a.decode) for a in found if a.decode]),
        pace_of([median(a.prefill) for a in found if a.prefill]),
    )


def keep_start(
    file: Path,
    key: StartKey,
    compute: Mapping[str, tuple[int, int]],
    overhead_bytes: int | None = None,
) -> str:
    """Add what a start showed. Returns "" or the reason why it cannot be kept.

    Of two starts of one shape the larger one counts.
    """

    def change(kept: Kept) -> Kept:
        before = kept.starts.get(key, StartSeen())
        merged = dict(before.compute)
        for shape, (planned, real) in compute.items():
            # A later plan has planned what was seen; the estimate is the first one's.
            first, most = merged.pop(shape, (planned, real))
            merged[shape] = (first, max(real, most))
        seen = replace(
            before,
            compute=dict([*merged.items()][-_MOST_SHAPES:]),
            overhead_bytes=before.overhead_bytes if overhead_bytes is None else overhead_bytes,
        )
        return _with_start(kept, key, seen)

    return _change(file, change)


def keep_spill(file: Path, key: StartKey, n_bytes: int) -> str:
    """Add what a driver moved off the device. Returns "" or the reason why it cannot be kept.

    It adds up: what was known before was planned with, and did not suffice.
    """

    def change(kept: Kept) -> Kept:
        before = kept.starts.get(key, StartSeen())
        most = min(before.spilled_bytes + n_bytes, _MOST_BYTES)
        return _with_start(kept, key, replace(before, spilled_bytes=most))

    return _change(file, change)


def _with_start(kept: Kept, key: StartKey, seen: StartSeen) -> Kept:
    others = {k: v for k, v in kept.starts.items() if k != key}
    return replace(kept, starts=others | {key: seen})


def keep_answer(
    file: Path, about: Answers, *, decode: float | None = None, prefill: float | None = None
) -> str:
    """Add an answer's ratios, where they are given and sane. Returns "" or why that cannot be.

    Args:
        about: whose they are; its own ratios are not looked at.
    """

    def added(before: tuple[float, ...], ratio: float | None) -> tuple[float, ...]:
        if ratio is None or not 1 / _MOST_RATIO <= ratio <= _MOST_RATIO:
            return before
        return (*before, round(ratio, 4))[-_KEPT_RATIOS:]

    def change(kept: Kept) -> Kept:
        before = kept.answers.get(about.key, about)
        now = replace(
            about,
            decode=added(before.decode, decode),
            prefill=added(before.prefill, prefill),
        )
        others = {k: v for k, v in kept.answers.items() if k != about.key}
        return replace(kept, answers=others | {about.key: now})

    return _change(file, change)


def _change(file: Path, change: Callable[[Kept], Kept]) -> str:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            kept, complaint = load_kept(file)
            if complaint.endswith("plans do without"):
                return complaint
            _write(file, change(kept))
    except OSError as error:
        return f"{file} cannot be written ({error.strerror or error})"
    return ""


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Within the block nobody else changes the file. Raises OSError if the lock is not to be had:
    on a file system without locks, or while another process is stopped in the middle."""
    lock = os.open(file.with_name(f".{file.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_LOOK_S)
        yield
    finally:
        os.close(lock)


def _write(file: Path, kept: Kept) -> None:
    starts = [
        asdict(key)
        | {
            "compute": dict(seen.compute),
            "overhead_bytes": seen.overhead_bytes,
            "spilled_bytes": seen.spilled_bytes,
        }
        for key, seen in kept.starts.items()
    ]
    data = {
        "version": _VERSION,
        "starts": starts[-_MOST_RECORDS:],
        "answers": [asdict(answers) for answers in kept.answers.values()][-_MOST_RECORDS:],
    }
    write_whole(file, json.dumps(data, indent=1) + "\n")


def _read(file: Path) -> Kept:
    data = json.loads(file.read_text(encoding="utf-8"))
    version = data["version"]
    if version != _VERSION:
        raise _OtherVersionError(f"made by another hotset (version {version!r}, not {_VERSION})")
    answers = [_answers(record) for record in data["answers"]]
    return Kept(
        dict(_start(record) for record in data["starts"]), {each.key: each for each in answers}
    )


def _start(record: dict[str, Any]) -> tuple[StartKey, StartSeen]:
    key = StartKey(*(_text(record[name]) for name in ("engine", "model", "device")))
    overhead = record["overhead_bytes"]
    compute = {
        _text(shape): (_size(planned), _size(real))
        for shape, (planned, real) in record["compute"].items()
    }
    spilled = _size(record.get("spilled_bytes", 0))  # records of earlier versions lack it
    return key, StartSeen(compute, None if overhead is None else _size(overhead), spilled)


def _answers(record: dict[str, Any]) -> Answers:
    return Answers(
        engine=_text(record["engine"]),
        model=_text(record["model"]),
        machine=_text(record["machine"]),
        setup=_text(record["setup"]),
        decode=tuple(_ratio(value) for value in record["decode"]),
        prefill=tuple(_ratio(value) for value in record["prefill"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text is {value!r}")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"a size is {value!r}")
    return value


def _ratio(value: object) -> float:
    if not isinstance(value, float | int) or not 1 / _MOST_RATIO <= value <= _MOST_RATIO:
        raise ValueError(f"a ratio is {value!r}")
    return float(value)
