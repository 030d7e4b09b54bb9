"""Keys, hosts and origins: who may ask."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gatewaykit import gateway, model
from hotset.core.errors import ConfigProblem
from hotset.core.settings import Secret
from hotset.gateway.pool import State
from hotset.gateway.settings import GatewaySettings, validate_gateway_settings

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
OTHER = model("other", state=State.UNLOADED)

KEYS = (Secret("first-key"), Secret("second-key"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
        {"x-api-key": "wrong", "Authorization": "Bearer first-key"},
        {"Authorization": "Basic dXNlcjpmaXJzdC1rZXk="},
    ],
)
def test_any_of_the_keys_opens(headers: dict[str, str]) -> None:
    with gateway(api_keys=KEYS) as running:
        assert running.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer first"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "first-key"},
        {"Authorization": "Basic !!"},
        {"x-api-key": ""},
    ],
)
def test_without_a_right_key_nothing_opens_but_health(headers: dict[str, str]) -> None:
    with gateway(api_keys=KEYS) as running:
        for path in ("/v1/models", "/api/events", "/metrics", "/nothing", "/upstream/small/x"):
            answer = running.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert running.post("/v1/messages", HELLO, headers=headers).json()["type"] == "error"
        assert running.get("/health", headers=headers).status_code == 200
        assert not running.pool.holds


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9", "192.168.1.5:9", "my.box"])
def test_hosts_that_are_this_machines_are_served(host: str) -> None:
    with gateway(allowed_hosts=("my.box",)) as running:
        assert running.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:9292", "127.0.0.1.nip.io"]
)
def test_a_foreign_name_is_refused_before_a_model_is_touched(host: str) -> None:
    with gateway() as running:
        answer = running.post("/v1/chat/completions", HELLO, headers={"Host": host})
        assert answer.status_code == 403
        assert host.partition(":")[0] in answer.json()["error"]["message"]
        assert not running.pool.holds


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_foreign_page_is_refused_and_gets_no_cors_header(headers: dict[str, str]) -> None:
    with gateway() as running:
        for answer in (
            running.post("/v1/chat/completions", HELLO, headers=headers),
            running.get("/unload", headers=headers),
            httpx.options(running.url + "/v1/models", headers=headers, trust_env=False),
        ):
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
        assert not running.pool.holds
        assert not running.pool.unloads


def test_the_gateways_own_page_and_configured_ones_are_served() -> None:
    page = "https://chat.example"
    with gateway(allowed_origins=(page,)) as running:
        own = running.get("/v1/models", headers={"Origin": running.url})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        for answer in (
            running.post("/v1/chat/completions", HELLO, headers={"Origin": page}),
            running.chat(model="nothing"),
        ):
            assert answer.status_code in (200, 404)
        stream = running.post(
            "/v1/chat/completions", {**HELLO, "stream": True}, headers={"Origin": page}
        )
        assert stream.headers["access-control-allow-origin"] == page
        asked = {
            "Origin": page,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, x-api-key, bad\tname",
        }
        answer = httpx.options(running.url + "/v1/messages", headers=asked, trust_env=False)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == page
        assert answer.headers["access-control-allow-headers"] == "authorization, x-api-key"


@pytest.mark.parametrize(
    "changes",
    [
        {"listen_host": "0.0.0.0"},
        {"listen_host": "my.box"},
        {"listen_host": " "},
        {"listen_port": 70_000},
        {"api_keys": (Secret(""),)},
        {"api_keys": (Secret("two words"),)},
        {"allowed_origins": ("chat.example",)},
        {"keep_alive_s": 0},
        {"max_body_bytes": 1},
    ],
)
def test_unsafe_or_senseless_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigProblem):
        validate_gateway_settings(GatewaySettings(**changes))


def test_other_machines_may_be_served_with_a_key() -> None:
    validate_gateway_settings(GatewaySettings(listen_host="0.0.0.0", api_keys=KEYS))
