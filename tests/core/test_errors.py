"""The tree of failures: one line each, one exit code and one HTTP status per kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core import errors
from hotset.core.errors import (
    ClientProblem,
    ConfigProblem,
    EngineProblem,
    FileProblem,
    HotsetError,
    MachineProblem,
)

KINDS = (FileProblem, MachineProblem, ConfigProblem, EngineProblem, ClientProblem)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_caught_as_a_hotset_error(kind: type[HotsetError]) -> None:
    with pytest.raises(HotsetError):
        raise kind("model.gguf: is a directory")


def test_kinds_differ_in_name_and_status_and_exit_code() -> None:
    for attribute in ("kind", "exit_code", "http_status"):
        assert len({getattr(kind, attribute) for kind in KINDS}) == len(KINDS)


def test_exit_codes_leave_2_to_5_for_what_a_user_can_mend_and_never_say_success() -> None:
    assert {kind.exit_code for kind in KINDS} == {1, 2, 3, 4, 5}


@given(st.text())
def test_a_message_is_always_one_line_that_a_terminal_only_shows(text: str) -> None:
    message = HotsetError(text).message

    assert len(message.splitlines()) <= 1
    assert message.isprintable()
    assert str(HotsetError(text)) == message
    assert HotsetError(message).message == message


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_a_message_keeps_every_word_that_can_be_shown(text: str) -> None:
    assert HotsetError(text).message.split() == text.split()


@pytest.mark.parametrize("status", [400, 404, 413, 429, 499])
def test_a_client_problem_carries_its_own_status(status: int) -> None:
    assert ClientProblem("no such model", status).http_status == status


@pytest.mark.parametrize("status", [200, 399, 500])
def test_a_client_problem_cannot_blame_the_server(status: int) -> None:
    with pytest.raises(ValueError, match=str(status)):
        ClientProblem("no such model", status)


def test_every_kind_is_exported() -> None:
    assert sorted([*(kind.__name__ for kind in KINDS), "HotsetError"]) == errors.__all__
