"""A llama-server that behaves as its model's file says; run as a program, standard library only.

Beside `m.gguf` lies `m.json`, read at each start: `load_s` (before it listens), `fails` (what it
says before it ends), `health_s` (how late it answers its health; negative: never), `stop_s` (how
long it takes to end), `strays` (starts a process in a session of its own). What happens is written
to `m.log`, a line each: what, pid, time.

A request says in its body what it wants: `events` and `pause_s` of a stream.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

_HEAD = "HTTP/1.1 {} X\r\nContent-Type: {}\r\n{}\r\nConnection: close\r\n\r\n"


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Engine:
    def __init__(self, stem: str) -> None:
        self._log = stem + ".log"
        self.alias = option("--alias")
        self.behaviour: dict[str, object] = {}
        if os.path.exists(stem + ".json"):
            with open(stem + ".json") as file:
                self.behaviour = json.load(file)

    def number(self, name: str) -> float:
        value = self.behaviour.get(name, 0)
        return float(value) if isinstance(value, int | float) else 0.0

    def note(self, what: str, pid: int = 0) -> None:
        with open(self._log, "a") as file:
            file.write(f"{what} {pid or os.getpid()} {time.monotonic()}\n")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            lengths = [line.split(":")[1] for line in head if line.lower().startswith("content-l")]
            body = await reader.readexactly(int(lengths[0]) if lengths else 0)
            await (
                self.post(json.loads(body), reader, writer)
                if method == "POST"
                else self.get(path, writer)
            )
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def get(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/health" and self.number("health_s"):
            await asyncio.sleep(self.number("health_s") if self.number("health_s") > 0 else 3600)
        if path != "/health":
            self.note(f"get:{path}")
        self.whole(writer, [] if path == "/slots" else {"status": "ok", "path": path})

    def whole(self, writer: asyncio.StreamWriter, content: object) -> None:
        data = json.dumps(content).encode()
        length = f"Content-Length: {len(data)}"
        writer.write(_HEAD.format(200, "application/json", length).encode() + data)

    async def post(
        self, order: dict[str, object], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.note("asked")
        gone = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(self.stream(order, writer))
        await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            self.note("answered")
        else:
            self.note("left")
            work.cancel()
        gone.cancel()

    async def stream(self, order: dict[str, object], writer: asyncio.StreamWriter) -> None:
        events, pause_s = order.get("events", 2), order.get("pause_s", 0)
        assert isinstance(events, int)
        assert isinstance(pause_s, int | float)
        writer.write(_HEAD.format(200, "text/event-stream", "X-Fake: yes").encode())
        for number in range(events):
            choice: dict[str, object] = {"finish_reason": None, "index": 0}
            choice["delta"] = {"content": f" {number}"}
            self.event(writer, {"choices": [choice], "model": self.alias})
            await writer.drain()
            await asyncio.sleep(pause_s)
        end = {"finish_reason": "stop", "index": 0, "delta": {}}
        self.event(writer, {"choices": [end], "model": self.alias})
        usage: dict[str, int] = {
            "prompt_tokens": 3,
            "completion_tokens": events,
            "total_tokens": 3 + events,
        }
        self.event(writer, {"choices": [], "model": self.alias, "usage": usage})
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    def event(self, writer: asyncio.StreamWriter, data: object) -> None:
        writer.write(b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")

    def stop(self) -> None:
        self.note("told to end")
        time.sleep(self.number("stop_s"))
        self.note("ended")
        os._exit(0)

    async def serve(self) -> None:
        self.note("started")
        if self.behaviour.get("strays"):
            stray = subprocess.Popen(["/bin/sleep", "300"], start_new_session=True)
            self.note("strayed", stray.pid)
        if fails := self.behaviour.get("fails"):
            sys.exit(f"error: {fails}")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        await asyncio.sleep(self.number("load_s"))
        server = await asyncio.start_server(self.answer, "127.0.0.1", int(option("--port")))
        self.note("listening")
        await server.serve_forever()


if __name__ == "__main__":
    asked: dict[str, str] = {"--help": "--fit --log-colors", "--version": "version: scripted"}
    if sys.argv[1] == "--model":
        asyncio.run(Engine(option("--model").removesuffix(".gguf")).serve())
    else:
        sys.stdout.write(asked.get(sys.argv[1], "Available devices:") + "\n")
