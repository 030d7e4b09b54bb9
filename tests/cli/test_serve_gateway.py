"""`hotset serve FOLDER`: models swapped as they are asked for, with real engines, and the commands
that look at it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import httpx
import openai
import psutil
import pytest

from clikit import COMMAND, Ended, assert_refused, environment, hotset
from enginekit import smollm2
from hotset.gguf.synth.models import write_tiny
from servekit import ask, serving

# Either model's plan fits into it, both together do not.
TIGHT = ("--ram", "400MiB", "--ctx", "2048")
SMOL, MOE = "smollm2-135m-instruct", "tiny-moe"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(smollm2(), folder)
    write_tiny("qwen3moe", folder / "Tiny-MoE-Q4_0.gguf")
    write_tiny("nomic-bert", folder / "embed.gguf")
    (folder / "page.gguf").write_text("<html>")
    return folder


def told(command: str, *words: str, url: str, home: Path) -> Ended:
    """A command that looks at a gateway; meanwhile that may start and end processes of its own."""
    done = subprocess.run(
        [*COMMAND, command, *words, "--url", url],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def states(url: str, home: Path) -> dict[str, str]:
    shown = json.loads(told("ps", "--json", url=url, home=home).out)
    return {model["id"]: model["state"] for model in shown["models"]}


def test_a_folder_is_listed_and_its_models_take_turns_where_only_one_fits(
    tmp_path: Path, folder: Path
) -> None:
    with serving(folder, *TIGHT, home=tmp_path) as (server, url):
        assert "ignored: page.gguf (a web page" in server.seen
        ids = [m["id"] for m in httpx.get(f"{url}/v1/models").json()["data"]]
        assert sorted(ids) == ["embed", "smollm2-135m-instruct.q4_1", "tiny-moe-q4_0"]
        wanted = [SMOL, MOE] * 3
        with ThreadPoolExecutor(len(wanted)) as clients:
            assert list(clients.map(lambda model: ask(url, model), wanted)) == wanted
        with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
            message = client.messages.create(
                model=SMOL, messages=[{"role": "user", "content": "hello"}], max_tokens=3
            )
        assert message.usage.output_tokens == 3
        assert states(url, tmp_path) == {
            "embed": "unloaded",
            "smollm2-135m-instruct.q4_1": "ready",
            "tiny-moe-q4_0": "unloaded",
        }
        why = told("why", MOE, url=url, home=tmp_path).out.splitlines()
        assert why[0].startswith("not loaded: left to make room for smollm2-135m-instruct.q4_1")
        assert "asked for now, it would replace smollm2-135m-instruct.q4_1" in why[1]
        server.send(signal.SIGINT)
        ended = server.end()
    assert ended.code == 0
    assert "Traceback" not in ended.err


def test_models_are_loaded_and_unloaded_by_hand_and_their_logs_shown(
    tmp_path: Path, folder: Path
) -> None:
    with serving(folder, "--ctx", "2048", home=tmp_path) as (_, url):
        assert told("load", "embed", url=url, home=tmp_path).out.startswith("embed: ready")
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            assert len(client.embeddings.create(model="embed", input=["a", "b"]).data) == 2
        assert "load_tensors" in told("logs", "embed", url=url, home=tmp_path).out
        table = told("ps", url=url, home=tmp_path).out.splitlines()
        assert re.match(r"embed +ready .* 0 of 1 .*in 29m5\ds idle", table[1])
        assert told("unload", "embed", url=url, home=tmp_path).out.startswith("embed: unloaded")
        assert_refused(told("load", "embd", url=url, home=tmp_path), 1, "did you mean embed")


def test_models_go_by_what_they_were_called_and_no_lost_console_stops_the_gateway(
    tmp_path: Path, folder: Path
) -> None:
    with serving("smollm2", folder / "embed.gguf", "--ctx", "512", home=tmp_path) as (server, url):
        assert server.process.stderr is not None
        server.process.stderr.close()  # each load and each end would be a line there
        assert ask(url, "smollm2") == "smollm2"
        assert told("load", "embed", url=url, home=tmp_path).code == 0
        assert told("unload", "smollm2", url=url, home=tmp_path).code == 0
        assert states(url, tmp_path) == {
            "embed": "ready",
            "smollm2-135m-instruct.q4_1": "unloaded",
        }
        server.send(signal.SIGINT)
        assert server.end().code == 0


def test_a_model_alone_goes_by_what_it_was_called(tmp_path: Path) -> None:
    with serving("smollm2", "--ctx", "512", home=tmp_path) as (_, url):
        for name in ("smollm2", SMOL, "smollm2-135m-instruct.q4_1"):
            assert "loaded for" in told("why", name, url=url, home=tmp_path).out
        assert_refused(told("unload", "another", url=url, home=tmp_path), 1, "did you mean")


def test_an_answer_is_finished_before_its_model_makes_room_and_the_next_is_read_meanwhile(
    tmp_path: Path, folder: Path
) -> None:
    with serving(folder, *TIGHT, home=tmp_path) as (_, url):
        ask(url, MOE)
        begun = threading.Event()
        reasons: list[str] = []

        def stream() -> None:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
                for chunk in client.completions.create(
                    model=MOE, prompt="hello", max_tokens=400, stream=True
                ):
                    begun.set()
                    reasons.extend(filter(None, (c.finish_reason for c in chunk.choices)))

        reader = threading.Thread(target=stream)
        reader.start()
        assert begun.wait(60)
        ask(url, SMOL)
        reader.join()
        log = httpx.get(f"{url}/api/logs?model={SMOL}").text
    assert reasons == ["length"]
    assert re.search(r"93\.\d MiB of the file read ahead", log)


def test_a_model_that_does_not_fit_is_one_clear_error_and_the_others_are_served(
    tmp_path: Path, folder: Path
) -> None:
    with serving(folder, "--ram", "250MiB", "--ctx", "8192", home=tmp_path) as (server, url):
        assert "does not fit now" in server.seen
        with pytest.raises(openai.InternalServerError, match="are available") as caught:
            ask(url, SMOL)
        assert caught.value.status_code == 503
        assert "not tried again for" in told("why", SMOL, url=url, home=tmp_path).out
        told("load", "embed", url=url, home=tmp_path)
        assert states(url, tmp_path)["embed"] == "ready"


def test_a_killed_engine_is_replaced_and_a_killed_gateway_leaves_nothing(
    tmp_path: Path, folder: Path
) -> None:
    with serving(folder, "--ctx", "2048", home=tmp_path) as (server, url):
        ask(url, MOE)
        rows = httpx.get(f"{url}/api/models").json()["models"]
        (pid,) = [row["pid"] for row in rows if row["pid"]]
        psutil.Process(pid).kill()
        server.await_note("was killed by signal 9")
        ask(url, MOE)
        server.send(signal.SIGKILL)


def test_the_first_ctrl_c_refuses_new_requests_and_finishes_the_running_one(
    tmp_path: Path, folder: Path
) -> None:
    with serving(folder, "--ctx", "8192", home=tmp_path) as (server, url):
        ask(url, MOE)
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(ask, url, MOE, 1500)
            while not any(r["num_busy"] for r in httpx.get(f"{url}/api/models").json()["models"]):
                pass
            server.send(signal.SIGINT)
            server.await_note("finishing 1 answer; Ctrl-C again ends at once")
            with pytest.raises(openai.InternalServerError, match="being ended"):
                ask(url, MOE)
            assert running.result() == MOE
        assert server.end().code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(tmp_path: Path, folder: Path, number: signal.Signals) -> None:
    with serving(folder, "--ctx", "60000", home=tmp_path) as (server, url):
        ask(url, MOE)
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(ask, url, MOE, 59_000)
            while not any(r["num_busy"] for r in httpx.get(f"{url}/api/models").json()["models"]):
                pass
            server.send(number)
            server.await_note("ends at once")
            assert httpx.get(f"{url}/ready").status_code == 503
            server.send(number)
            ended = server.end()
            with pytest.raises((openai.APIError, AssertionError)):
                running.result()
    assert ended.code == (0 if number is signal.SIGINT else 128 + number)
    assert "Traceback" not in ended.err


def test_a_configuration_file_names_the_models_and_asks_for_its_keys(
    tmp_path: Path, folder: Path
) -> None:
    config = tmp_path / "hotset.yaml"
    config.write_text(
        f"""
api_keys: [{{env: KEY_OF_BOB}}]
default: little
models:
  little: {{path: {folder}/Tiny-MoE-Q4_0.gguf, ctx: 1k, aliases: [best], ttl: 1h}}
  other: {{path: {folder}/embed.gguf, pin: true}}
"""
    )
    with serving("--config", config, home=tmp_path, KEY_OF_BOB="bobs-key") as (_, url):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        path = f"{url}/v1/chat/completions"
        assert httpx.post(path, json=body).status_code == 401
        keyed = {"Authorization": "Bearer bobs-key"}
        for name in ({}, {"model": "best"}):
            answer = httpx.post(path, json=body | name, headers=keyed, timeout=60)
            assert answer.status_code == 200, answer.text
        rows = httpx.get(f"{url}/api/models", headers=keyed).json()["models"]
        assert {row["id"]: row["context_tokens"] for row in rows}["little"] == 1024


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((), 4, "nothing to serve"),
        (("{folder}", "--trace", "t"), 4, "--trace is for one model"),
        (("{folder}", "--ttl", "soon"), 4, "--ttl: 'soon' is no time"),
        (("{folder}", "--host", "0.0.0.0"), 4, "give an API"),
        (("{folder}/embed.gguf", "--ttl", "1h"), 4, "--ttl is for several models"),
        (("--config", "none.yaml"), 4, "none.yaml: cannot be read"),
        (("{empty}",), 2, "no model to serve here"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, folder: Path, words: tuple[str, ...], code: int, reason: str
) -> None:
    (tmp_path / "empty").mkdir()
    filled = [word.format(folder=folder, empty=tmp_path / "empty") for word in words]
    assert_refused(hotset("serve", *filled, home=tmp_path), code, reason)


@pytest.mark.parametrize("words", [("ps",), ("load", "m"), ("why", "m"), ("logs", "m")])
def test_without_a_gateway_its_commands_say_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = hotset(*words, "--url", "http://127.0.0.1:9", home=tmp_path)
    assert_refused(refused, 3, "no gateway answers at http://127.0.0.1:9", "--url")
