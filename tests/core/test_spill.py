"""What counts as moved off a card, and what does not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hotset.core.spill import CardMemory, Held, Spill, spill_of
from hotset.core.units import GIB, MIB

TOOK, PINNED, DESKTOP = 12 * GIB, 500 * MIB, 1 * GIB
BEFORE = CardMemory(used_bytes=DESKTOP, free_bytes=15 * GIB, hosted_bytes=50 * MIB)
DRIVER = 200 * MIB  # what it takes for a process beside the process's buffers


def seen(
    moved_bytes: int = 0,
    others_bytes: int = 0,
    *,
    evicted_bytes: int = 0,
    pinned_bytes: int = PINNED,
    before: CardMemory = BEFORE,
    is_told: bool = True,
) -> Spill | None:
    """A start of TOOK bytes, `moved_bytes` of which lie in RAM; others have grown meanwhile."""
    own = TOOK + DRIVER - moved_bytes
    hosted = pinned_bytes + moved_bytes
    used = before.used_bytes + own + others_bytes
    behind = None if before.hosted_bytes is None else before.hosted_bytes + hosted
    return spill_of(
        "Vulkan0",
        allocated_bytes=TOOK,
        pinned_bytes=PINNED,
        before=before,
        after=CardMemory(used, 16 * GIB - used, behind),
        held=Held(own, hosted, evicted_bytes) if is_told else None,
    )


def test_a_model_that_is_where_it_belongs_is_no_spill_whatever_it_copies_through_ram() -> None:
    assert seen() is None
    assert seen(pinned_bytes=PINNED + 2 * GIB) is None
    assert seen(is_told=False) is None


def test_what_is_missing_on_the_card_and_too_much_behind_it_has_been_moved() -> None:
    spill = seen(2 * GIB)
    assert spill == Spill("Vulkan0", 2 * GIB - DRIVER, 2 * GIB - DRIVER)
    # The driver's own count is exact where there is one.
    exact = seen(2 * GIB, evicted_bytes=2 * GIB)
    assert exact is not None
    assert exact.n_bytes == 2 * GIB


def test_memory_that_is_only_missing_on_the_card_may_never_have_been_touched() -> None:
    held = Held(own_bytes=TOOK - 2 * GIB, hosted_bytes=PINNED)
    after = CardMemory(11 * GIB, 5 * GIB, 50 * MIB + PINNED)
    for told in (held, None):
        found = spill_of(
            "Vulkan0", allocated_bytes=TOOK, pinned_bytes=PINNED, before=BEFORE, after=after,
            held=told,
        )  # fmt: skip
        assert found is None


def test_where_only_the_whole_card_is_told_its_change_since_the_start_counts() -> None:
    assert seen(2 * GIB, is_told=False) == seen(2 * GIB)


def test_a_program_that_came_later_is_the_cause_of_as_much_as_it_took() -> None:
    for others, lasting in ((500 * MIB, 1200 * MIB), (3 * GIB, 0)):
        spill = seen(1900 * MIB, others)
        assert spill is not None
        assert (spill.n_bytes, spill.lasting_bytes) == (1700 * MIB, lasting)


def test_of_a_driver_that_hides_ram_only_a_full_card_that_holds_too_little_is_believed() -> None:
    silent = replace(BEFORE, hosted_bytes=None)
    full = replace(silent, used_bytes=5 * GIB)
    spill = seen(2 * GIB, before=full, is_told=False)
    assert spill is not None
    assert spill.is_inferred
    assert spill.n_bytes == 2 * GIB - DRIVER
    assert seen(2 * GIB, before=silent, is_told=False) is None  # 4 GiB of the card are free
    assert seen(0, before=full, is_told=False) is None


@given(st.integers(0, 12 * GIB), st.integers(0, 4 * GIB), st.booleans())
def test_no_spill_is_ever_said_to_be_larger_than_it_is(
    moved: int, others: int, is_told: bool
) -> None:
    spill = seen(moved, others, is_told=is_told)
    assert spill is None or 0 <= spill.lasting_bytes <= spill.n_bytes <= moved
    assert spill is not None or moved < 2 * GIB or not is_told
