"""What people report of other gateways, replayed with real child processes.

The engines are programs that load slowly, hang, crash or stray as a case wants it. docs/gateway.md
lists the cases with where they come from.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from clikit import background
from enginekit import await_none_of
from gatewaykit import RawClient, await_true, events_of
from ggufkit import Gguf, Tensor, number, text
from hotset.gateway.health import Health
from hotset.gguf.reader import read_header
from hotset.gguf.synth.models import write_tiny
from scriptedkit import Scripted, ScriptedGateway, scripted_gateway

MODELS = ("a", "b", "failing", "hanging", "slow")


@pytest.fixture(name="world", scope="module")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scripted, ScriptedGateway]]:
    scripted = Scripted(tmp_path_factory.mktemp("models"), MODELS)
    with scripted_gateway(scripted) as gateway:
        yield scripted, gateway


@pytest.fixture(name="scripted")
def _scripted(world: tuple[Scripted, ScriptedGateway]) -> Scripted:
    """The models, all out, with empty logs."""
    scripted, gateway = world
    gateway.leave_all()
    scripted.forget()
    return scripted


@pytest.fixture(name="gateway")
def _gateway(world: tuple[Scripted, ScriptedGateway], scripted: Scripted) -> ScriptedGateway:
    del scripted
    return world[1]


def body_for(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **more}


def ask(gateway: ScriptedGateway, model: str, **more: Any) -> httpx.Response:
    return gateway.post("/v1/chat/completions", body_for(model, **more))


def test_an_answer_is_finished_whole_before_another_model_takes_its_place(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    ask(gateway, "a")
    client = RawClient(gateway, body_for("a", stream=True, events=20, pause_s=0.05))
    client.read_until(b'"content":" 3"')
    assert ask(gateway, "b").status_code == 200
    seen = client.read_to_end()
    assert seen.count(b'"content"') == 20
    assert b"data: [DONE]" in seen
    assert scripted.log("a")[-4:] == ["asked", "answered", "told to end", "ended"]
    assert scripted.at("a", "ended") < scripted.at("b", "started")


def test_two_cold_models_asked_for_shortly_after_each_other_are_both_served(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    for name in ("a", "b"):
        scripted.behave(name, load_s=0.15)
    with ThreadPoolExecutor(2) as clients:
        for _ in range(4):
            first = clients.submit(ask, gateway, "a")
            time.sleep(0.1)
            second = clients.submit(ask, gateway, "b")
            assert [first.result().status_code, second.result().status_code] == [200, 200]
            gateway.leave_all()
    assert scripted.log("a").count("answered") == scripted.log("a").count("started") == 4


def test_steady_use_of_one_model_lets_the_other_have_its_turn_and_swaps_are_few(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    is_over = threading.Event()
    statuses = []

    def use() -> None:
        while not is_over.is_set():
            statuses.append(ask(gateway, "a", events=2, pause_s=0.02).status_code)

    ask(gateway, "a")
    with ThreadPoolExecutor(3) as clients:
        users = [clients.submit(use) for _ in range(3)]
        try:
            assert await_true(lambda: len(statuses) > 3)
            assert ask(gateway, "b").status_code == 200
        finally:
            is_over.set()
        for user in users:
            user.result()
    assert set(statuses) == {200}
    assert scripted.log("b").count("started") == 1
    assert scripted.log("a").count("started") <= 2


def test_nothing_is_started_for_a_client_that_left_while_it_waited(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    ask(gateway, "a")
    with ThreadPoolExecutor(1) as clients:
        busy = clients.submit(ask, gateway, "a", events=10, pause_s=0.05)
        assert await_true(lambda: scripted.log("a").count("asked") == 2)
        waiting = RawClient(gateway, body_for("b"))
        gateway.await_state("b", "queued")
        waiting.leave()
        gateway.await_state("b", "unloaded")
        assert busy.result().status_code == 200
    assert ask(gateway, "a").status_code == 200
    assert scripted.log("b") == []


def test_a_load_that_nobody_wants_any_more_is_called_off_for_a_wanted_one(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    scripted.behave("a", load_s=8)
    leaving = RawClient(gateway, body_for("a"))
    assert await_true(lambda: scripted.log("a") == ["started"])
    leaving.leave()
    assert ask(gateway, "b").status_code == 200
    assert "listening" not in scripted.log("a")


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_ends_the_engines_work(
    scripted: Scripted, gateway: ScriptedGateway, is_stream: bool
) -> None:
    ask(gateway, "a")
    client = RawClient(gateway, body_for("a", stream=is_stream, events=400, pause_s=0.05))
    assert await_true(lambda: scripted.log("a").count("asked") == 2)
    client.leave()
    assert await_true(lambda: scripted.log("a")[-1] == "left")
    assert ask(gateway, "a").status_code == 200


def test_a_start_that_fails_is_told_at_once_and_tried_again_later(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    scripted.behave("failing", fails="the disk is on fire")
    with ThreadPoolExecutor(2) as clients:
        for refused in clients.map(lambda name: ask(gateway, name), ("failing", "failing")):
            assert refused.status_code == 502
            assert "the disk is on fire" in refused.json()["error"]["message"]
    assert "not tried again for" in ask(gateway, "failing").json()["error"]["message"]
    assert gateway.states()["failing"] == "failed"
    scripted.behave("failing")
    assert await_true(lambda: ask(gateway, "failing").status_code == 200)


def test_an_engine_that_takes_connections_and_never_answers_is_given_up(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    scripted.behave("hanging", health_s=-1)
    with ThreadPoolExecutor(1) as clients:
        hanging = clients.submit(ask, gateway, "hanging")
        gateway.await_state("hanging", "loading")
        assert gateway.get("/health").status_code == 200
        refused = hanging.result()
    assert refused.status_code == 502
    assert "made no progress" in refused.json()["error"]["message"]
    assert await_none_of(pids_of(scripted, "hanging"), 2.0) == []
    assert ask(gateway, "a").status_code == 200


def test_an_engine_that_is_slow_to_answer_its_health_is_served_all_the_same(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    scripted.behave("slow", health_s=0.7)
    assert ask(gateway, "slow").status_code == 200


def pids_of(scripted: Scripted, name: str) -> list[psutil.Process]:
    found = []
    for _, pid, _ in scripted.entries(name):
        if psutil.pid_exists(pid):
            found.append(psutil.Process(pid))
    return found


def test_what_an_engine_has_started_ends_with_it_in_whatever_session(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    scripted.behave("a", strays=True)
    ask(gateway, "a")
    assert "strayed" in scripted.log("a")
    processes = pids_of(scripted, "a")
    assert len(processes) >= 2
    gateway.post("/api/unload", {"model": "a"})
    assert await_none_of(processes, 2.0) == []
    why = gateway.get("/api/why?model=a").json()
    assert why["model"]["state"] == "unloaded"
    assert "unloaded by hand" in why["lines"][0]


def test_a_killed_gateway_leaves_nothing_of_an_engine_that_strays(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, ("a",))
    write_tiny("llama", tmp_path / "a.gguf")
    scripted.behave("a", strays=True)
    words = ("serve", tmp_path / "a.gguf", "--port", "0", "--engine", scripted.program)
    with background(*words, home=tmp_path) as server:
        server.await_note("/v1 (OpenAI)")
        assert len(pids_of(scripted, "a")) >= 2
        server.send(signal.SIGKILL)  # what it leaves behind is looked for at the end of the block


def test_pictures_reach_the_model_whose_projector_lies_beside_it_and_no_other(
    tmp_path: Path,
) -> None:
    scripted = Scripted(tmp_path, ())
    (seeing,) = write_tiny("gemma3", tmp_path / "seeing.gguf")
    write_tiny("llama", tmp_path / "blind.gguf")
    width = read_header(seeing).metadata["gemma3.embedding_length"]
    assert isinstance(width, int)
    keys = {
        "general.architecture": text("clip"),
        "clip.projector_type": text("gemma3"),
        "clip.vision.projection_dim": number("u32", width),
    }
    tensors = (Tensor("mm.input_projection.weight", (width, 32)),)
    Gguf(tuple(keys.items()), tensors).write(tmp_path / "mmproj-seeing.gguf")
    words = ("serve", tmp_path, "--port", "0", "--engine", scripted.program)
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    with background(*words, home=tmp_path) as server:
        address = server.await_note("/v1 (OpenAI)").split("/v1 ")[0]
        rows = httpx.get(f"{address}/v1/models").json()["data"]
        assert {row["id"]: row["capabilities"]["vision"] for row in rows} == {
            "seeing": True,
            "blind": False,
        }
        for name, status in (("seeing", 200), ("blind", 400)):
            body = {"model": name, "messages": [{"role": "user", "content": parts}]}
            answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == status, answer.text
        server.send(signal.SIGINT)
        assert server.end().code == 0
    assert answer.json()["error"]["code"] == "image_not_supported"
    assert scripted.log("seeing").count("asked") == 1
    assert scripted.log("blind") == []


def test_a_changed_configuration_restarts_the_changed_model_alone(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, ())
    for name in ("a", "b"):
        write_tiny("llama", tmp_path / f"{name}.gguf")
    config = tmp_path / "hotset.yaml"

    def describe(**contexts: int) -> None:
        models = "".join(f"  {n}: {{path: {n}.gguf, ctx: {c}}}\n" for n, c in contexts.items())
        config.write_text(f"engine: {scripted.program}\nmodels:\n{models}")

    describe(a=512, b=512)
    with background("serve", "--config", config, "--port", "0", home=tmp_path) as server:
        url = server.await_note("/v1 (OpenAI)").split("/v1 ")[0]

        def post(model: str, **more: Any) -> httpx.Response:
            body = body_for(model, **more)
            return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

        assert [post(name).status_code for name in ("a", "b")] == [200, 200]
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(post, "a", events=100, pause_s=0.05)
            describe(a=512, b=256)
            describe(a=512, b=1024)
            server.await_note("hotset.yaml is taken over; changed: b")
            assert post("b").status_code == 200
            assert running.result().json()["usage"]["completion_tokens"] == 100
        assert [scripted.log(name).count("started") for name in ("a", "b")] == [1, 2]
        rows = httpx.get(f"{url}/v1/models").json()["data"]
        assert {row["id"]: row["context_length"] for row in rows} == {"a": 512, "b": 1024}
        config.write_text("models: {a: {path: a.gguf, ctx_sise: 1}}")
        server.await_note("is not taken over, all stays as it is: hotset.yaml:1: unknown key")
        assert "did you mean" in httpx.get(f"{url}/api/config").json()["problem"]
        describe(a=512, c=512)
        server.await_note("is not taken over")
        describe(a=512)
        server.await_note("hotset.yaml is taken over; gone: b")
        assert post("b").status_code == 404
        assert await_true(lambda: scripted.log("b")[-1] == "ended")
        rows = httpx.get(f"{url}/v1/models").json()["data"]
        assert [row["id"] for row in rows] == ["a"]
        assert httpx.get(f"{url}/api/config").json()["problem"] == ""
        server.send(signal.SIGINT)
        assert server.end().code == 0
    assert scripted.log("a").count("started") == 1


def test_a_burst_waits_as_far_as_the_queue_goes_and_the_rest_is_told_when_to_come_again(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    scripted.behave("a", load_s=0.4)
    with ThreadPoolExecutor(10) as clients:
        burst = list(clients.map(lambda _: ask(gateway, "a"), range(10)))
        listed = [gateway.get(path).status_code for path in ("/v1/models", "/health", "/running")]
    assert listed == [200, 200, 200]
    refused = [answer for answer in burst if answer.status_code != 200]
    assert 0 < len(refused) <= 7
    for answer in refused:
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
    assert scripted.log("a").count("started") == 1


def test_reading_starts_nothing(scripted: Scripted, gateway: ScriptedGateway) -> None:
    for path in ("/metrics", "/props", "/v1/models", "/running", "/slots", "/logs", "/api/why"):
        gateway.get(path)
        assert gateway.get(f"{path}?model=a").status_code in (200, 409)
    for path in ("/upstream/a/props", "/v1/models/a"):
        gateway.get(path)
    assert gateway.get("/props").json()["role"] == "router"
    assert scripted.log("a") == []
    ask(gateway, "a")
    assert gateway.get("/props?model=a").json()["path"] == "/props?model=a"


def test_an_engine_that_dies_within_a_stream_ends_it_with_an_error_and_is_replaced(
    scripted: Scripted, gateway: ScriptedGateway
) -> None:
    ask(gateway, "a")
    client = RawClient(gateway, body_for("a", stream=True, events=400, pause_s=0.05))
    client.read_until(b'"content":" 2"')
    (pid,) = {pid for what, pid, _ in scripted.entries("a") if what == "listening"}
    os.kill(pid, signal.SIGKILL)
    seen = client.read_to_end()
    last = events_of(seen.partition(b"\r\n\r\n")[2].decode())[-1][1]
    assert last["error"]["code"] == "engine_failed"
    assert b"[DONE]" not in seen
    assert ask(gateway, "a").status_code == 200
    assert scripted.log("a").count("listening") == 2


def test_a_wedged_engine_is_ended_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.gateway.engines.Health", lambda: Health(0.1, 0.5))
    scripted = Scripted(tmp_path, ("a",))
    with scripted_gateway(scripted) as gateway:
        ask(gateway, "a")
        (pid,) = {pid for what, pid, _ in scripted.entries("a") if what == "listening"}
        os.kill(pid, signal.SIGSTOP)
        assert await_true(lambda: not psutil.pid_exists(pid))
        assert ask(gateway, "a").status_code == 200


def test_the_idle_time_begins_with_the_end_of_the_last_answer(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, ("a", "b"), num_places=2)
    with scripted_gateway(scripted, ttl_s=0.6) as gateway:
        scripted.behave("b", load_s=0.3)
        leaving = RawClient(gateway, body_for("b"))
        assert await_true(lambda: scripted.log("b") == ["started"])
        leaving.leave()
        assert ask(gateway, "a", events=20, pause_s=0.06).status_code == 200
        for name, begin in (("a", "answered"), ("b", "listening")):
            assert await_true(lambda name=name: scripted.log(name)[-1] == "ended")  # type: ignore[misc]  # a loop variable
            assert scripted.at(name, "told to end") - scripted.at(name, begin) >= 0.6


def test_a_request_at_the_moment_of_the_idle_end_is_served(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, ("a", "b"), num_places=2)
    with scripted_gateway(scripted, ttl_s=0.3) as gateway:
        scripted.behave("a", stop_s=0.4)
        for late_s in (-0.05, 0.0, 0.05, 0.2):
            assert ask(gateway, "a").status_code == 200
            time.sleep(0.3 + late_s)
            assert ask(gateway, "b").status_code == 200
        assert ask(gateway, "a").status_code == 200
    assert scripted.log("a").count("started") > 1
