"""What the gateway answers itself: lists, loading, figures, events, logs."""

from __future__ import annotations

import threading

import httpx
import pytest

from gatewaykit import PATIENCE_S, await_true, events_of, gateway, model
from hotset.core.errors import MachineProblem
from hotset.gateway.pool import State

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
OTHER = model("other", state=State.UNLOADED)

READING = [
    "/v1/models",
    "/models",
    "/v1/models/other",
    "/health",
    "/v1/health",
    "/ready",
    "/running",
    "/props",
    "/metrics",
    "/logs",
    "/api/models",
    "/api/why?model=other",
    "/api/logs?model=other",
    "/api/activity",
    "/api/version",
]


@pytest.mark.parametrize("path", READING)
def test_reading_answers_without_touching_a_model(path: str) -> None:
    with gateway(model(), OTHER) as running:
        assert running.get(path).status_code == 200
        assert not running.pool.holds
        assert not running.pool.loads


def test_the_list_has_the_fields_of_all_who_read_it() -> None:
    with gateway(model(aliases=("nick",), n_bytes=7, created_s=1)) as running:
        answer = running.get("/v1/models").json()
        (row,) = answer["data"]
        assert answer["object"] == "list"
        assert (row["id"], row["object"], row["owned_by"]) == ("small", "model", "hotset")
        assert (row["type"], row["created_at"]) == ("model", "1970-01-01T00:00:01+00:00")
        assert row["status"]["value"] == "loaded"
        assert row["meta"]["llamaswap"]["aliases"] == ["nick"]
        assert row["context_length"] == 512
        assert running.get("/v1/models/nick").json() == row


def test_loading_and_unloading_by_all_three_interfaces() -> None:
    with gateway(model(), OTHER) as running:
        pool = running.pool
        answer = running.post("/api/load", {"model": "other"})
        assert answer.json()["model"]["state"] == "ready"
        assert running.post("/api/unload", {"model": "other", "force": True}).status_code == 200
        assert pool.unloads == [("other", True)]
        assert running.post("/models/load", {"model": "other"}).json() == {"success": True}
        assert await_true(lambda: pool.loads == ["other", "other"])
        assert running.post("/models/unload", {"model": "other"}).json() == {"success": True}
        assert await_true(lambda: len(pool.unloads) == 2)
        assert running.post("/models/unload", {"model": "other"}).status_code == 400
        assert running.post("/api/models/load/other").text == "OK"
        assert running.post("/api/models/unload/other").text == "OK"
        assert running.get("/unload").text == "OK"
        assert pool.resolve("small").state is State.UNLOADED
        assert running.post("/api/load", {"model": "small", "wait": False}).status_code == 202
        assert await_true(lambda: pool.loads[-1] == "small")
        assert running.post("/api/models/unload").json() == {"msg": "ok"}
        assert running.post("/api/unload", {}).json()["models"][0]["state"] == "unloaded"
        assert running.post("/api/load", {"model": "small", "wait": "no"}).status_code == 400


def test_a_load_that_fails_says_why() -> None:
    with gateway(model(), OTHER) as running:
        running.pool.problem = MachineProblem("other needs 9 GiB; 3 GiB are free")
        answer = running.post("/api/load", {"model": "other"})
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "other needs 9 GiB; 3 GiB are free"
        assert answer.json()["error"]["code"] == "no_room"


def test_ready_is_no_while_every_model_has_failed() -> None:
    with gateway(model(state=State.FAILED)) as running:
        assert running.get("/ready").status_code == 503
        assert running.get("/health").status_code == 200


def test_a_gateway_that_ends_is_not_ready() -> None:
    with gateway() as running:
        assert running.get("/ready").status_code == 200
        running.pool.is_closing = True
        assert running.get("/ready").status_code == 503
        assert running.get("/health").status_code == 200


def test_figures_count_requests_and_tokens_by_model() -> None:
    with gateway() as running:
        running.chat()
        running.chat(stream=True)
        running.chat(model="nothing")
        text = running.get("/metrics").text
        assert 'hotset_requests_total{endpoint="chat",model="small",status="200"} 2.0' in text
        assert 'hotset_completion_tokens_total{model="small"} 4.0' in text
        assert 'hotset_cached_tokens_total{model="small"} 6.0' in text
        assert 'hotset_refused_requests_total{status="404"} 1.0' in text
        assert 'hotset_model_state{model="small",state="ready"} 1.0' in text
        assert "nothing" not in text


def test_events_begin_with_all_models_and_tell_of_changes_and_requests() -> None:
    with gateway(model(), OTHER) as running:
        seen: list[str] = []
        routers: list[str] = []

        def watch(path: str, texts: list[str]) -> None:
            with httpx.stream(
                "GET", running.url + path, timeout=PATIENCE_S, trust_env=False
            ) as answer:
                texts.append("")
                texts.extend(answer.iter_text())

        watcher = threading.Thread(target=watch, args=("/api/events", seen))
        watcher.start()
        router = threading.Thread(target=watch, args=("/models/sse", routers))
        router.start()
        assert await_true(lambda: "event: models" in "".join(seen) and routers)
        running.chat()
        running.post("/api/load", {"model": "other"})
        assert await_true(lambda: "event: model\n" in "".join(seen))
        running.loop_call(running.server.end_now)
        for thread in (watcher, router):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        told = {"model": "other", "event": "status_change", "data": {"status": "loaded"}}
        assert [data for _, data in events_of("".join(routers))] == [told]
        events = dict(events_of("".join(seen)))
        assert [m["id"] for m in events["models"]["models"]] == ["other", "small"]
        assert events["request"]["request"]["model"] == "small"
        assert events["model"]["model"]["state"] == "ready"
        assert {e["version"] for e in events.values()} == {1}


def test_logs_are_followed_until_the_client_leaves() -> None:
    with gateway() as running:
        running.pool.lines = [(1, "loading"), (2, "ready")]
        assert running.get("/api/logs?model=small").text == "loading\nready\n"
        with httpx.stream(
            "GET",
            running.url + "/api/logs?model=small&follow=1",
            timeout=PATIENCE_S,
            trust_env=False,
        ) as answer:
            lines = answer.iter_lines()
            assert [next(lines), next(lines)] == ["loading", "ready"]
            running.pool.lines = [(2, "ready"), (3, "slot 0 is busy")]
            assert next(lines) == "slot 0 is busy"
