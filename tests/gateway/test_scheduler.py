"""The scheduler's rules, each as one short history in a world of made-up engines."""

from __future__ import annotations

import pytest

from hotset.core.errors import ClientProblem, EngineProblem, MachineProblem
from hotset.gateway.ledger import Model, Phase, Request, Rules, Start, Stop
from hotset.gateway.scheduler import Scheduler
from schedulerkit import World

RULES = Rules(max_wait_s=20.0, max_waiting=4)


def world_of(room_bytes: int = 100, **needs: int) -> World:
    return World([Model(id_, {"RAM": need}) for id_, need in needs.items()], room_bytes, RULES)


def phase(world: World, model_id: str) -> Phase:
    return world.scheduler.models[model_id].phase


def test_models_stay_side_by_side_as_long_as_their_bytes_fit() -> None:
    world = world_of(a=30, b=30, c=30)
    for model_id in ("a", "b", "c", "a", "b", "c"):
        world.ask(model_id)
        world.run(5)
    assert world.orders(Start) == ["a", "b", "c"]
    assert world.orders(Stop) == []


def test_a_load_serves_all_who_asked_for_it_meanwhile() -> None:
    world = world_of(a=30)
    numbers = [world.ask("a", use_s=0.5) for _ in range(4)]
    world.run(10)
    assert set(numbers) <= world.granted_s.keys()
    assert world.orders(Start) == ["a"]


def test_an_answer_is_finished_before_its_model_leaves() -> None:
    world = world_of(a=60, b=60)
    world.ask("a", use_s=50)
    world.run(3)
    b = world.ask("b")
    world.run(60)
    stopped_s = next(time_s for time_s, order in world.log if isinstance(order, Stop))
    assert stopped_s >= 52
    assert b in world.granted_s


@pytest.mark.parametrize("round_", range(50))
def test_two_cold_models_asked_for_shortly_after_each_other_are_both_served(round_: int) -> None:
    world = world_of(a=60, b=60)
    world.fates["a"].load_s = round_ * 0.07
    a = world.ask("a")
    world.run(0.1)
    b = world.ask("b")
    world.run(60)
    assert {a, b} == world.granted_s.keys()
    assert world.orders(Start) == ["a", "b"]


def test_the_idle_time_is_counted_from_the_end_of_the_last_use() -> None:
    world = world_of(a=30)
    world.scheduler.models["a"].ttl_s = 2
    world.ask("a", use_s=6)
    world.run(2 + 6 + 1)
    assert phase(world, "a") is Phase.READY
    world.run(3)
    assert phase(world, "a") is Phase.OUT
    assert "without a request" in world.scheduler.models["a"].why


def test_a_load_whose_client_left_stays_for_its_idle_time_not_for_a_moment() -> None:
    world = world_of(a=30)
    world.scheduler.models["a"].ttl_s = 4
    number = world.ask("a")
    world.run(1)
    world.leave(number)
    world.run(1 + 3)
    assert phase(world, "a") is Phase.READY
    world.run(3)
    assert phase(world, "a") is Phase.OUT


def test_a_request_that_comes_while_its_model_leaves_is_served_by_a_new_start() -> None:
    world = world_of(a=30)
    world.scheduler.models["a"].ttl_s = 2
    world.fates["a"].stop_s = 2
    world.ask("a", use_s=1)
    world.run(5.5)
    assert phase(world, "a") is Phase.STOPPING
    number = world.ask("a")
    world.run(10)
    assert number in world.granted_s
    assert world.orders(Start) == ["a", "a"]


def _keep_busy(world: World, model_id: str, seconds: float, num_clients: int) -> None:
    """Clients that each ask again as soon as they have been answered."""
    asked = [world.ask(model_id, use_s=1) for _ in range(num_clients)]
    end_s = world.now_s + seconds
    while world.now_s < end_s:
        world.run(0.25)
        for place, number in enumerate(asked):
            if number in world.left or number in world.refused:
                asked[place] = world.ask(model_id, use_s=1)


def test_steady_traffic_on_one_model_starves_no_other_and_swaps_are_few() -> None:
    world = world_of(a=60, b=60)
    world.ask("a")
    world.run(3)
    b = world.ask("b")
    asked_s = world.now_s
    _keep_busy(world, "a", 100, num_clients=4)
    # Waiting its time, an answer of one second, an end, a load of two seconds.
    assert world.granted_s[b] - asked_s <= RULES.max_wait_s + 5
    assert world.orders(Start) == ["a", "b", "a"]


def test_two_models_with_steady_traffic_take_turns_of_the_waiting_time() -> None:
    world = world_of(a=60, b=60)
    asked = {model_id: world.ask(model_id, use_s=1) for model_id in ("a", "b")}
    for _ in range(4 * 200):
        world.run(0.25)
        for model_id, number in asked.items():
            if number in world.left:
                asked[model_id] = world.ask(model_id, use_s=1)
    served = dict.fromkeys(asked, 0)
    for number in world.granted_s:
        served[world.asked[number].model_id] += 1
    assert 200 / RULES.max_wait_s / 2 <= len(world.orders(Start)) <= 200 / RULES.max_wait_s + 2
    assert min(served.values()) > 0.7 * max(served.values())


def test_a_short_pause_between_two_requests_does_not_cost_a_model_its_place() -> None:
    world = world_of(a=60, b=60)
    world.fates["a"].load_s = 8
    world.ask("a", use_s=1)
    world.run(8.5)
    b = world.ask("b")
    for _ in range(10):  # a client that asks again a second after each answer
        world.run(1.5)
        assert phase(world, "a") is Phase.READY
        world.ask("a", use_s=0.5)
    world.run(10)
    assert b in world.granted_s
    assert world.orders(Start) == ["a", "b"]


def test_nothing_is_loaded_for_a_client_that_left_while_it_waited() -> None:
    world = world_of(a=60, b=60)
    world.ask("a", use_s=10)
    world.run(3)
    b = world.ask("b")
    world.run(2)
    world.leave(b)
    world.run(30)
    assert world.orders(Start) == ["a"]
    assert world.orders(Stop) == []


def test_a_model_closed_for_others_opens_again_when_they_leave() -> None:
    world = world_of(a=60, b=60)
    world.ask("a", use_s=60)
    world.run(3)
    b = world.ask("b")
    world.run(RULES.max_wait_s + 5)
    assert world.scheduler.models["a"].is_closed
    light = world.ask("a", is_light=True)
    world.run(1)
    assert light not in world.granted_s
    world.leave(b)
    world.run(1)
    assert light in world.granted_s
    assert world.orders(Stop) == []


def test_a_load_that_nobody_wants_any_more_makes_way_for_a_wanted_one() -> None:
    world = world_of(a=60, b=60)
    world.fates["a"].load_s = 60
    a = world.ask("a")
    world.run(1)
    b = world.ask("b")
    world.run(1)
    assert world.orders(Stop) == []
    world.leave(a)
    world.run(5)
    assert world.orders(Stop) == ["a"]
    assert b in world.granted_s


def test_a_load_that_nobody_wants_is_finished_where_nobody_needs_its_place() -> None:
    world = world_of(a=60, b=40)
    number = world.ask("a")
    world.run(1)
    world.leave(number)
    world.ask("b")
    world.run(5)
    assert (phase(world, "a"), phase(world, "b")) == (Phase.READY, Phase.READY)


def test_a_failed_start_is_told_to_all_who_wait_and_tried_again_after_a_pause() -> None:
    world = world_of(a=30)
    world.fates["a"].fails = True
    first = [world.ask("a"), world.ask("a")]
    world.run(2.5)
    assert {world.refused[number].message for number in first} == {"a: does not start"}
    soon = world.ask("a")
    assert "not tried again for" in world.refused[soon].message
    assert isinstance(world.refused[soon], EngineProblem)
    world.run(3)
    world.fates["a"].fails = False
    later = world.ask("a")
    world.run(5)
    assert later in world.granted_s
    assert world.scheduler.models["a"].problem is None


def test_the_pause_after_failed_starts_grows_and_a_user_can_end_it() -> None:
    world = world_of(a=30)
    world.fates["a"].fails = True
    pauses = []
    for _ in range(7):
        world.ask("a")
        world.run(3)
        model = world.scheduler.models["a"]
        pauses.append(model.retry_s - (world.now_s - 1))
        world.scheduler.forgive("a")
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[1] < pauses[2] <= RULES.longest_pause_s == pauses[-1]


def test_a_crashed_engine_is_started_again_for_those_who_wait() -> None:
    world = world_of(a=30)
    world.ask("a", use_s=100)
    world.run(3)
    waiting = world.ask("a")
    world.crash("a")
    world.run(5)
    assert waiting in world.granted_s


def test_an_engine_that_crashes_again_without_having_served_is_left_alone_for_a_while() -> None:
    world = world_of(a=30)
    world.ask("a", use_s=100)
    world.run(3)
    waiting = world.ask("a", use_s=100)
    world.crash("a")
    world.run(3)
    assert waiting in world.granted_s
    third = world.ask("a")
    world.crash("a")
    assert world.refused[third].message == "a: crashed"


def test_the_queue_has_a_bound_and_says_when_to_come_again() -> None:
    world = world_of(a=30)
    numbers = [world.ask("a", use_s=9) for _ in range(RULES.max_waiting + 1)]
    problem = world.refused[numbers[-1]]
    assert isinstance(problem, ClientProblem)
    assert (problem.http_status, problem.retry_after_s) == (429, RULES.retry_after_s)
    assert len(world.refused) == 1


def test_requests_use_as_many_slots_as_there_are_and_light_ones_use_none() -> None:
    world = world_of(a=30)
    world.scheduler.models["a"].slots = 2
    heavy = [world.ask("a", use_s=5) for _ in range(3)]
    light = world.ask("a", use_s=5, is_light=True)
    world.run(3)
    assert world.granted_s.keys() == {*heavy[:2], light}


def test_a_pinned_model_never_leaves_and_the_others_share_the_rest() -> None:
    world = world_of(a=60, b=60)
    world.scheduler.models["a"].is_pinned = True
    world.ask("a")
    world.run(5)
    b = world.ask("b")
    world.run(60)
    start = [order for _, order in world.log if isinstance(order, Start)][-1]
    assert (start.model_id, start.bytes_by_device) == ("b", {"RAM": 40})
    assert b in world.granted_s
    assert world.orders(Stop) == []


def test_a_model_for_which_pinned_ones_leave_nothing_is_refused_at_once() -> None:
    world = world_of(a=100, b=10)
    world.scheduler.models["a"].is_pinned = True
    world.ask("a")
    world.run(5)
    b = world.ask("b")
    assert isinstance(world.refused[b], MachineProblem)
    assert "needs 10 B of RAM, which a leave none of" in world.refused[b].message


def test_the_least_valuable_idle_model_leaves_and_only_as_many_as_needed() -> None:
    world = world_of(a=30, b=30, c=30, d=30)
    world.fates["b"].load_s = 20
    for model_id in ("a", "b", "c"):
        world.ask(model_id)
        world.run(30)
    world.ask("a")
    world.run(10)
    world.ask("d")
    world.run(10)
    assert world.orders(Stop) == ["c"]  # b took long to load, a was just used


def test_one_large_model_leaves_rather_than_a_small_one_that_would_not_do() -> None:
    world = world_of(small=10, large=80, other=70)
    for model_id in ("small", "large"):
        world.ask(model_id)
        world.run(10)
    world.ask("other")
    world.run(10)
    assert world.orders(Stop) == ["large"]


def test_an_unload_by_hand_waits_for_answers_and_with_force_does_not() -> None:
    world = world_of(a=30)
    world.ask("a", use_s=10)
    world.run(3)
    world.scheduler.unload("a", world.now_s)
    world.run(5)
    assert world.orders(Stop) == []
    world.run(8)
    assert phase(world, "a") is Phase.OUT
    world.ask("a", use_s=10)
    world.run(4)
    waiting = world.ask("a")
    world.engines["a"].users.clear()
    world.scheduler.unload("a", world.now_s, is_forced=True)
    world.step()
    assert phase(world, "a") is Phase.STOPPING
    assert "unloaded by hand" in world.refused[waiting].message


def test_a_start_waits_until_the_memory_of_the_one_that_left_is_back() -> None:
    world = world_of(a=60, b=60)
    world.fates["a"].memory_s = 3
    world.ask("a")
    world.run(10)
    world.ask("b")
    times = {type(order).__name__: t for t, order in world.log}
    world.run(10)
    started_s = [t for t, order in world.log if isinstance(order, Start)][-1]
    assert started_s - times["Stop"] >= 3


def test_memory_that_never_comes_back_is_awaited_only_so_long() -> None:
    world = world_of(a=60, b=30)
    world.fates["a"].memory_s = 1000
    world.ask("a", use_s=1)
    world.run(5)
    world.scheduler.unload("a", world.now_s)
    world.run(2)
    assert phase(world, "a") is Phase.RETURNING
    world.run(RULES.return_wait_s)
    assert phase(world, "a") is Phase.OUT
    b = world.ask("b")
    world.run(5)
    assert b in world.granted_s


def test_devices_are_counted_each_for_itself() -> None:
    card = Model("card", {"RAM": 10, "GPU": 80})
    ram = Model("ram", {"RAM": 80})
    other = Model("other", {"RAM": 10, "GPU": 40})
    scheduler = Scheduler([card, ram, other], RULES)
    scheduler.measured({"RAM": 100, "GPU": 100})
    for number, model in enumerate((card, ram)):
        scheduler.ask(Request(number, model.id, 0.0))
    started = {order.model_id for order in scheduler.step(0.0)}
    assert started == {"card", "ram"}
    for model in (card, ram):
        scheduler.started(model.id, 1.0)
    scheduler.step(1.0)
    for number in (0, 1):
        scheduler.leave(number, 2.0)
    scheduler.ask(Request(2, "other", 90.0))
    assert scheduler.step(90.0) == [Stop("card", "left to make room for other", is_eviction=True)]


def test_a_model_for_a_device_that_is_not_there_is_refused() -> None:
    scheduler = Scheduler([Model("a", {"GPU": 10})], RULES)
    scheduler.measured({"RAM": 100})
    scheduler.ask(Request(0, "a", 0.0))
    (order,) = scheduler.step(0.0)
    assert "needs 10 B of GPU" in str(getattr(order, "problem", ""))


@pytest.mark.parametrize("what", ["an answer that takes long", "a load that takes long"])
def test_a_small_model_does_not_take_the_place_of_a_large_one_that_has_waited_enough(
    what: str,
) -> None:
    world = world_of(a=60, large=100, small=30)
    if "load" in what:
        world.fates["a"].load_s = 40
    world.ask("a", use_s=1 if "load" in what else 40)
    world.run(3)
    large = world.ask("large")
    world.run(RULES.max_wait_s + 1)
    small = world.ask("small")
    world.run(60)
    assert world.orders(Start) == ["a", "large", "small"]
    assert world.granted_s[large] < world.granted_s[small]


def test_the_next_in_is_who_is_awaited_longest_and_not_in_memory() -> None:
    world = world_of(a=60, b=60, c=60)
    assert world.scheduler.next_in() is None
    world.ask("a", use_s=10)
    world.run(3)
    assert world.scheduler.next_in() is None
    c, _ = world.ask("c"), world.ask("b")
    assert world.scheduler.next_in() is world.scheduler.models["c"]
    world.leave(c)
    assert world.scheduler.next_in() is world.scheduler.models["b"]
    world.run(30)
    assert world.scheduler.next_in() is None
