"""Times of answers from the engine's log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotset.engine.answers import AnswerLog, AnswerTimes


def lines(slot: int, task: int, *, end: int = 158) -> list[str]:
    """What xllamacpp 2026.10 and llama-server b10434 print of one answer."""
    head = f"0.02.1.0 I slot print_timing: id  {slot} | task {task} |"
    ended = f"stop processing: n_tokens = {end}, truncated = 0"
    return [
        f"0.01.1.0 I slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0",
        f"{head} prompt eval time =     400.00 ms /    38 tokens (   10.5 ms per token, 95 ...)",
        f"{head}        eval time =    2400.00 ms /   120 tokens (   20.0 ms per token, 50 ...)",
        f"{head}       total time =    2800.00 ms /   158 tokens",
        f"0.02.1.0 I slot      release: id  {slot} | task {task} | {ended}",
    ]


def heard(given_lines: list[str]) -> list[AnswerTimes]:
    log = AnswerLog()
    return [times for line in given_lines if (times := log.hear(line))]


def test_an_answer_is_told_with_the_line_that_ends_it() -> None:
    (times,) = heard(["noise", *lines(0, 7)])
    assert times == AnswerTimes(38, 0.4, 120, 2.4, 158)
    assert times.depth_tokens == 98


def test_answers_one_after_the_other_are_each_told() -> None:
    assert len(heard([*lines(0, 1), *lines(0, 2), *lines(1, 3)])) == 3


@given(st.data())
def test_answers_beside_each_other_tell_nothing_of_the_speed(data: st.DataObject) -> None:
    first, second = lines(0, 1), lines(1, 2)
    at = data.draw(st.integers(1, len(first) - 1))
    mixed = [*first[:at], *second[:1], *first[at:], *second[1:]]
    assert heard(mixed) == []
    assert len(heard([*mixed, *lines(0, 3)])) == 1


def test_the_middle_of_an_answer_alone_is_nothing() -> None:
    for start in range(1, 5):
        assert heard(lines(0, 1)[start:]) == []
    assert heard(["", "id", "id 0 | task 1 | stop processing: n_tokens = 5"]) == []
