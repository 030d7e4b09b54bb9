"""The pool: requests get engines, and engines get only as far as requests need them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from hotset.core.errors import ClientProblem, EngineProblem, FileProblem, MachineProblem
from hotset.gateway.engines import EnginePool
from hotset.gateway.health import Health
from hotset.gateway.ledger import Rules
from hotset.gateway.pool import Reach, ServedModel, State, Upstream, Waiting
from poolkit import FakeStarter, offers_of

RULES = Rules(max_wait_s=0.6, least_stay_s=0.1, first_pause_s=0.2, max_waiting=3)
TWO = (("a", 60), ("b", 60))
_LIMIT_S = 20.0
T = TypeVar("T")


def run(
    act: Callable[[EnginePool, FakeStarter], Awaitable[T]],
    starter: FakeStarter | None = None,
    models: tuple[tuple[str, int], ...] = TWO,
    **more: object,
) -> T:
    """Run a coroutine with a pool; afterwards no engine may be left."""
    starter = starter or FakeStarter()

    async def main() -> T:
        async with EnginePool(offers_of(models, **more), starter, rules=RULES) as pool:
            async with asyncio.timeout(_LIMIT_S):
                return await act(pool, starter)

    result = asyncio.run(main())
    assert starter.living == {}
    assert starter.most_bytes <= starter.room_bytes
    return result


async def use(pool: EnginePool, model_id: str, seconds: float = 0.0) -> Upstream:
    async with pool.hold(model_id) as upstream:
        await asyncio.sleep(seconds)
        return upstream


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def state(pool: EnginePool, model_id: str) -> State:
    return pool.resolve(model_id).state


def test_a_hold_gives_the_engines_address_and_key_and_ends_with_the_use() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        async with pool.hold("a-alias") as upstream:
            engine = starter.living["a"]
            assert (upstream.url, upstream.api_key) == (engine.url, engine.api_key)
            assert (upstream.model.id, upstream.model.state) == ("a", State.READY)
            assert upstream.model.context_tokens == engine.context_tokens
            assert pool.residence("a").num_busy == 1
        assert pool.residence("a").num_busy == 0

    run(act)


def test_requests_for_two_models_that_do_not_fit_together_are_all_served_whole() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        wanted = ["a", "b", "a", "b", "b", "a"]
        held = await asyncio.gather(*(use(pool, model_id, 0.05) for model_id in wanted))
        assert [upstream.model.id for upstream in held] == wanted
        assert starter.started == ["a", "b"]
        assert pool.residence("a").num_evictions == 1

    run(act)


def test_steady_use_of_one_model_lets_the_other_have_its_turn() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        async def keep_using() -> None:
            while True:
                await use(pool, "a", 0.02)

        users = [asyncio.create_task(keep_using()) for _ in range(3)]
        await until(lambda: "a" in starter.living)
        await use(pool, "b")
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        assert starter.started[:2] == ["a", "b"]

    run(act)


def test_a_client_that_leaves_while_it_waits_takes_its_demand_with_it() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        async with pool.hold("a"):
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: state(pool, "b") is State.QUEUED)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert state(pool, "b") is State.UNLOADED
        await asyncio.sleep(0.3)
        assert starter.started == ["a"]

    run(act)


def test_a_load_that_nobody_wants_is_called_off_for_a_wanted_one() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        starter.gate.clear()
        first = asyncio.create_task(use(pool, "a"))
        await until(lambda: starter.started)
        first.cancel()
        second = asyncio.create_task(use(pool, "b"))
        await until(lambda: starter.called_off)
        starter.gate.set()
        assert (await second).model.id == "b"
        assert starter.called_off == ["a"]

    run(act)


def test_the_end_of_the_pool_calls_off_what_is_starting() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> asyncio.Task[Upstream]:
        starter.gate.clear()
        waiting = asyncio.create_task(use(pool, "a"))
        await until(lambda: starter.started)
        return waiting

    starter = FakeStarter()
    waiting = run(act, starter)
    assert starter.called_off == ["a"]
    assert isinstance(waiting.exception(), MachineProblem)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [(FileProblem("a: damaged"), FileProblem), (ZeroDivisionError("oops"), EngineProblem)],
)
def test_a_failed_start_is_an_error_for_all_who_wait_and_can_be_tried_again(
    problem: Exception, expected: type[Exception]
) -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        starter.problems["a"] = problem
        results = await asyncio.gather(use(pool, "a"), use(pool, "a"), return_exceptions=True)
        assert [type(result) for result in results] == [expected, expected]
        assert state(pool, "a") is State.FAILED
        with pytest.raises(expected, match="not tried again"):
            await use(pool, "a")
        starter.problems.clear()
        await pool.load("a")
        assert state(pool, "a") is State.READY
        assert pool.residence("a").num_failures == 1
        assert starter.started == ["a", "a"]

    run(act)


def test_a_dead_engine_is_noticed_and_started_again_for_the_next_request() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        await use(pool, "a")
        starter.living["a"].die()
        await until(lambda: state(pool, "a") is not State.READY)
        assert (await use(pool, "a")).model.id == "a"
        assert starter.started == ["a", "a"]
        assert any("was killed" in line for _, line in pool.log_lines("a"))

    run(act)


def test_a_request_that_finds_its_engine_dead_has_it_replaced_at_once() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        await use(pool, "a")

        async def find_it_dead() -> None:
            async with pool.hold("a"):
                starter.living["a"].die()
                raise EngineProblem("connection refused")

        with pytest.raises(EngineProblem, match="connection refused"):
            await find_it_dead()
        await use(pool, "a")
        assert starter.started == ["a", "a"]

    run(act)


def test_a_wedged_engine_is_ended_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.gateway.engines.Health", lambda: Health(0.05, 0.2))

    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        await use(pool, "a")
        wedged = starter.living["a"]
        wedged.is_wedged = True
        await until(lambda: not wedged.is_alive())
        assert "has not answered for" in pool.resolve("a").why
        await use(pool, "a")
        assert starter.started == ["a", "a"]

    run(act)


def test_waiting_clients_are_told_their_place_and_how_far_the_load_is() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        starter.gate.clear()
        told: dict[int, list[Waiting]] = {0: [], 1: [], 2: []}

        async def wait(number: int, model_id: str) -> None:
            async with pool.hold(model_id, told[number].append):
                pass

        tasks = [asyncio.create_task(wait(n, m)) for n, m in enumerate(("a", "b", "b"))]
        await until(lambda: told[0] and told[0][-1].fraction == 0.5 and told[2])
        assert told[0][-1].position == 0
        assert [told[n][-1].position for n in (1, 2)] == [1, 2]
        starter.gate.set()
        await asyncio.gather(*tasks)
        assert all(news.reason for place in told.values() for news in place)

    run(act)


def test_beyond_the_queue_a_client_is_told_when_to_come_again() -> None:
    async def act(pool: EnginePool, _: FakeStarter) -> None:
        results = await asyncio.gather(
            *(use(pool, "a", 0.05) for _ in range(RULES.max_waiting + 1)), return_exceptions=True
        )
        (refused,) = [r for r in results if not isinstance(r, Upstream)]
        assert isinstance(refused, ClientProblem)
        assert (refused.http_status, refused.retry_after_s) == (429, RULES.retry_after_s)

    run(act)


def test_a_hold_goes_no_further_than_it_may() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        with pytest.raises(MachineProblem, match="is not ready"):
            async with pool.hold("a", reach=Reach.READY):
                pass
        async with pool.hold("a", reach=Reach.FREE):
            with pytest.raises(MachineProblem, match="is not ready"):
                async with pool.hold("b", reach=Reach.FREE):
                    pass
            async with pool.hold("a", reach=Reach.READY, is_light=True):
                pass
        assert starter.started == ["a"]

    run(act)


def test_unloading_waits_for_the_running_request_and_force_does_not() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        running = asyncio.create_task(use(pool, "a", 0.3))
        await until(lambda: pool.residence("a").num_busy)
        begun_s = time.monotonic()
        await pool.unload("a")
        assert running.done()
        assert time.monotonic() - begun_s >= 0.25
        assert state(pool, "a") is State.UNLOADED
        async with pool.hold("a"):
            await pool.unload("a", force=True)
            assert starter.living == {}

    run(act)


def test_a_closing_pool_lets_requests_finish_and_takes_no_more() -> None:
    async def act(pool: EnginePool, _: FakeStarter) -> None:
        running = asyncio.create_task(use(pool, "a", 0.2))
        await until(lambda: pool.num_busy)
        waiting = asyncio.create_task(use(pool, "b"))
        await until(lambda: state(pool, "b") is State.QUEUED)
        await pool.close()
        assert running.done()
        for refused in (waiting, asyncio.create_task(use(pool, "a"))):
            with pytest.raises(MachineProblem, match="being ended"):
                await refused

    run(act)


def test_who_is_in_a_hurry_has_engines_killed_that_end_too_slowly() -> None:
    starter = FakeStarter()

    async def end_slowly() -> None:
        async with EnginePool(offers_of(TWO), starter, rules=RULES) as pool:
            await use(pool, "a")
            await pool.close()
            starter.living["a"].is_slow_to_end = True
            asyncio.get_running_loop().call_later(0.1, pool.hurry)

    asyncio.run(end_slowly())
    (engine,) = starter.engines
    assert engine.grace_s > 0
    assert engine.is_killed


def test_watchers_see_each_state_once_until_they_end_it() -> None:
    async def act(pool: EnginePool, _: FakeStarter) -> None:
        seen: list[ServedModel] = []
        end = pool.watch(seen.append)
        await pool.load("a")
        await pool.unload("a")
        end()
        await pool.load("a")
        states = [model.state for model in seen]
        assert states == [State.LOADING, State.READY, State.DRAINING, State.UNLOADED]

    run(act)


def test_a_model_says_why_it_is_where_it_is() -> None:
    async def act(pool: EnginePool, _: FakeStarter) -> None:
        assert "nobody has asked for it yet" in pool.why("a")[0]
        async with pool.hold("a"):
            assert "1 request running" in pool.why("a")[1]
            (_state, plan) = pool.why("b")
            assert "it would wait until a model in use has had its time" in plan
            await asyncio.sleep(RULES.least_stay_s)
            assert "would replace a after 1 running request" in pool.why("b")[1]
        await use(pool, "b")
        assert "left to make room for b" in pool.why("a")[0]
        with pytest.raises(ClientProblem, match="no model 'c'"):
            pool.why("c")

    run(act)


def test_an_idle_model_leaves_after_its_time_and_says_when() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        await use(pool, "a")
        leaves_in_s = pool.residence("a").leaves_in_s
        assert leaves_in_s is not None
        assert 0 < leaves_in_s <= 0.3
        await until(lambda: not starter.living)
        assert "without a request" in pool.resolve("a").why

    run(act, ttl_s=0.3)


def test_the_next_model_is_read_ahead_while_the_present_one_finishes_and_no_longer() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        async with pool.hold("a"):
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: starter.ahead == ["b"])
            assert starter.claimed == {"RAM": 60}
            waiting.cancel()
            await until(lambda: starter.ahead == [])
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: starter.ahead == ["b"])
        await waiting
        assert starter.ahead == []
        assert any("read ahead" in line for _, line in pool.log_lines("b"))

    run(act)


def test_nothing_is_read_ahead_beside_a_model_that_reads_its_experts_itself() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> None:
        async with pool.hold("a"):
            starter.living["a"].look_ups = (3, 4)
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: state(pool, "b") is State.QUEUED)
            assert starter.ahead == []
        await waiting

    run(act)


def test_the_end_of_the_pool_ends_reading_ahead() -> None:
    async def act(pool: EnginePool, starter: FakeStarter) -> asyncio.Task[Upstream]:
        async with pool.hold("a"):
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: starter.ahead == ["b"])
            return waiting

    starter = FakeStarter()
    run(act, starter)
    assert starter.ahead == []
