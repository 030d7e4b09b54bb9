"""Random histories of a gateway: whatever happens, nothing is lost, starved or over budget.

The world (`schedulerkit`) checks each order; here it is driven, and what is left is looked at.
`--hypothesis-profile=long` tries 10,000.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import MachineProblem
from hotset.gateway.ledger import Model, Phase, Rules
from schedulerkit import Fate, World

RULES = Rules(max_wait_s=8.0, max_waiting=6, first_pause_s=1.0, longest_pause_s=4.0)
LONGEST_S = 4.0  # a load, a use, a stop
ROOM = {"RAM": 100, "CUDA0": 100}
# One turn of one model, at worst: it waits for its place, the other finishes, ends, its memory is
# awaited, it is loaded, and serves six requests one after the other.
TURN_S = RULES.max_wait_s + 4 * LONGEST_S + RULES.return_wait_s + 6 * LONGEST_S


@dataclass(frozen=True)
class Event:
    """Something that happens `after_s` after the event before."""

    after_s: float
    kind: str
    model: int
    seconds: float


def _seconds(most: float) -> st.SearchStrategy[float]:
    return st.integers(0, int(most * 10)).map(lambda tenths: tenths / 10)


_FATES = st.builds(
    Fate,
    _seconds(LONGEST_S),
    _seconds(LONGEST_S),
    _seconds(2),
    st.integers(0, 5).map(lambda n: not n),
)
_KINDS = ["ask"] * 8 + ["light", "leave", "leave", "crash", "unload", "force", "fate", "forgive"]
_EVENTS = st.builds(
    Event, _seconds(3), st.sampled_from(_KINDS), st.integers(0, 9), _seconds(LONGEST_S)
)
_MODELS = st.tuples(
    st.tuples(st.integers(1, 130), st.integers(0, 130)),
    st.integers(1, 3),
    st.one_of(st.none(), _seconds(6)),
    st.integers(0, 5).map(lambda n: not n),
)


_Shape = tuple[tuple[int, int], int, float | None, bool]


def _world(shapes: list[_Shape], fates: list[Fate]) -> World:
    models = [
        Model(f"m{i}", _need(*need), slots=slots, ttl_s=ttl_s, is_pinned=is_pinned)
        for i, (need, slots, ttl_s, is_pinned) in enumerate(shapes)
    ]
    world = World(models, ROOM, RULES)
    for i, model in enumerate(models):
        world.fates[model.id] = fates[i % len(fates)]
    return world


def _need(ram: int, card: int) -> dict[str, int]:
    """Without the card where a model takes nothing of it, as a plan has it."""
    return {"RAM": ram} | ({"CUDA0": card} if card else {})


def _happen(world: World, event: Event, fates: list[Fate]) -> None:
    model_id = f"m{event.model % len(world.scheduler.models)}"
    match event.kind:
        case "ask" | "light":
            world.ask(model_id, use_s=event.seconds, is_light=event.kind == "light")
        case "leave":
            if world.asked:
                world.leave(event.model * 7 % len(world.asked))
        case "crash":
            world.crash(model_id)
        case "unload" | "force":
            is_forced = event.kind == "force"
            if is_forced and model_id in world.engines:
                world.engines[model_id].users.clear()
            world.scheduler.unload(model_id, world.now_s, is_forced=is_forced)
            world.step()
        case "fate":
            world.fates[model_id] = fates[event.model % len(fates)]
        case "forgive":
            world.scheduler.forgive(model_id)


def _assert_nobody_waits_too_long(world: World) -> None:
    bound_s = TURN_S * len(world.scheduler.models)
    late = [r for r in world.waiting if world.now_s - r.asked_s > bound_s]
    assert late == [], world.log


@given(
    st.lists(_MODELS, min_size=1, max_size=4),
    st.lists(_FATES, min_size=1, max_size=4),
    st.lists(_EVENTS, max_size=60),
)
def test_every_request_is_served_or_refused_and_no_order_breaks_a_rule(
    shapes: list[_Shape], fates: list[Fate], events: list[Event]
) -> None:
    world = _world(shapes, fates)
    for event in events:
        world.run(event.after_s)
        _happen(world, event, fates)
        _assert_nobody_waits_too_long(world)
    world.run(TURN_S * len(shapes))
    assert world.waiting == [], world.log
    decided = world.granted_s.keys() | world.refused.keys() | world.left
    assert decided == world.asked.keys()
    assert all(model.phase is not Phase.STOPPING for model in world.scheduler.models.values())


@given(st.lists(_EVENTS, max_size=30), st.lists(_FATES, min_size=1, max_size=4))
def test_a_closing_gateway_refuses_who_waits_and_starts_nothing(
    events: list[Event], fates: list[Fate]
) -> None:
    world = _world([((60, 0), 1, None, False), ((70, 9), 2, None, False)], fates)
    for event in events:
        world.run(event.after_s)
        _happen(world, event, fates)
    world.scheduler.close()
    world.step()
    assert world.waiting == []
    num_orders = len(world.log)
    number = world.ask("m0")
    world.run(20)
    assert isinstance(world.refused[number], MachineProblem)
    assert "Start" not in {type(order).__name__ for _, order in world.log[num_orders:]}
