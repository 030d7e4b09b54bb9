"""`hotset run`: chat with a model in the terminal."""

from __future__ import annotations

import io
import json
import select
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotset.cli.options import Ctx, EngineName, Json, Kv, ModelName, Ram, Template, Threads, Trace
from hotset.core.errors import ClientProblem, ConfigProblem, EngineProblem

if TYPE_CHECKING:
    from hotset.cli.chat import Answer, Conversation
    from hotset.cli.experts import ExpertWatch
    from hotset.engine.running import Running

__all__ = ["answer_once", "run", "summary"]

_INTERRUPTED = 128 + signal.SIGINT
# llama.cpp keeps seeds in 32 bits and takes the largest as "a random one" (include/llama.h,
# LLAMA_DEFAULT_SEED); a larger one would be cut off without a word.
_MAX_SEED = 2**32 - 2
_MAX_TOKENS = 2**31 - 1
_SILENT_INPUT_S = 1.0


def run(
    model: ModelName,
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to ask. Without it: a conversation. Piped input is added."),
    ] = None,
    system: Annotated[str, typer.Option("--system", help="A system message.")] = "",
    ctx: Ctx = None,
    kv: Kv = None,
    temp: Annotated[
        float | None, typer.Option("--temp", help="Temperature; 0 is always the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sampling.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Longest answer, in tokens.")
    ] = None,
    threads: Threads = None,
    ram: Ram = None,
    engine: EngineName = "embedded",
    chat_template: Template = None,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Chat with MODEL in this terminal.

    Ctrl-C stops the answer first and the program second. In a conversation /clear starts anew and
    /bye (or Ctrl-D) leaves.
    """
    from hotset.cli.chat import Conversation
    from hotset.cli.experts import watched_store
    from hotset.cli.launching import launch, prepare
    from hotset.cli.plan_lines import describe_plan
    from hotset.cli.screen import LoadingLine, note
    from hotset.cli.settings import settings_of
    from hotset.cli.wishing import wishes_from

    options = _request_options(temp=temp, seed=seed, max_tokens=max_tokens)
    for what, text in (("PROMPT", prompt), ("--system", system)):
        _check_text(text or "", what)
    # The model first: whoever named a wrong one must not have to type a question for it.
    ready = prepare(model, wishes_from(ctx, kv, 1, threads, ram, is_serving=False), engine)
    question = _question(prompt)
    if question is None and as_json:
        raise ConfigProblem("--json needs a PROMPT or piped input; a conversation is for people")
    for line in describe_plan(ready):
        note(line)
    with watched_store(ready, trace) as (store, experts):
        settings = settings_of(ready, chat_template=chat_template, store=store)
        with LoadingLine() as loading:
            running = launch(ready, settings, loading.show, on_line=experts.hear)
        with running:
            experts.adopt()
            note(f"ready in {running.loaded.start_s:.1f} s")
            talk = Conversation(running, system, options, experts, is_shown=not as_json)
            if question is not None:
                answer_once(talk, question, running, experts, as_json=as_json)
            else:
                _converse(talk, running, experts)
        experts.check_trace()


def _request_options(
    *, temp: float | None, seed: int | None, max_tokens: int | None
) -> dict[str, Any]:
    if temp is not None and not 0 <= temp <= 10:
        raise ConfigProblem(f"--temp is {temp}; it must be between 0 and 10")
    for name, value, least, most in (
        ("--seed", seed, 0, _MAX_SEED),
        ("--max-tokens", max_tokens, 1, _MAX_TOKENS),
    ):
        if value is not None and not least <= value <= most:
            raise ConfigProblem(f"{name} is {value}; it must be between {least} and {most}")
    given = {"temperature": temp, "seed": seed, "max_tokens": max_tokens}
    return {name: value for name, value in given.items() if value is not None}


def _question(prompt: str | None) -> str | None:
    """PROMPT, piped input, or both with the prompt first; None when neither is there."""
    if sys.stdin.isatty():
        if prompt is not None and not prompt.strip():
            raise ConfigProblem("nothing to ask: PROMPT is empty; leave it out for a conversation")
        return prompt
    from hotset.cli.screen import note

    if not select.select([sys.stdin], [], [], _SILENT_INPUT_S)[0]:
        note("waiting for the end of the piped input, which belongs to the question")
    try:
        # Bytes: as text, Python may let broken UTF-8 through, depending on the locale.
        piped = sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigProblem(
            f"the piped input is no text in UTF-8 (byte {error.start}); convert it first"
        ) from error
    parts = [part for part in (prompt, piped) if part and part.strip()]
    if not parts:
        raise ConfigProblem("nothing to ask: give a PROMPT, or pipe a text")
    return "\n\n".join(parts)


def _check_text(text: str, what: str) -> None:
    """Refuse what came in as bytes that are no UTF-8: Python carries them as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigProblem(
            f"{what} is no text in UTF-8 (character {error.start}); convert it first"
        ) from error


def answer_once(
    talk: Conversation,
    question: str,
    running: Running,
    experts: ExpertWatch,
    *,
    as_json: bool,
) -> None:
    """One question, one answer. Raises typer.Exit with 130 if it was interrupted."""
    from hotset.cli.screen import note

    answer = talk.ask(question)
    said = _after_answer(running)
    if as_json:
        print(json.dumps(_as_json(answer, running), ensure_ascii=False))
    else:
        note(summary(answer, running, experts))
    if said:
        note(said)
    if answer.finish_reason == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _after_answer(running: Running) -> str:
    """What there is to tell of the engine now that it has computed something; "" for nothing."""
    said = running.after_answer()
    if said:
        running.remarks = (*running.remarks, said)
    return said


def _converse(talk: Conversation, running: Running, experts: ExpertWatch) -> None:
    """The conversation of a person at a terminal, until /bye, Ctrl-D or Ctrl-C at the prompt."""
    import readline  # noqa: F401 - gives `input` its line editing and history

    from hotset.cli.screen import note

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    note("Ctrl-C stops an answer, at the prompt it leaves · /clear starts anew · /bye leaves")
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text == "/bye":
            return
        if text == "/clear":
            talk.clear()
            note("starting anew")
        elif text.startswith("/"):
            note(f"unknown command {text.split()[0]}; there are /clear and /bye")
        elif text:
            try:
                _check_text(text, "this line")
                note(summary(talk.ask(text), running, experts))
                if said := _after_answer(running):
                    note(said)
            except (ClientProblem, ConfigProblem, EngineProblem) as problem:
                if not running.is_alive():
                    raise
                note(problem.message)


def summary(answer: Answer, running: Running, experts: ExpertWatch) -> str:
    """`[142 tokens · 9.8 tok/s · ...]`"""
    from hotset.core.units import format_bytes

    parts = [] if answer.finish_reason == "stop" else [_ENDINGS.get(answer.finish_reason, "")]
    if answer.timings:
        timings = answer.timings
        parts += [
            f"{timings.answer_tokens} tokens",
            f"{timings.answer_per_s:.1f} tok/s",
            f"prompt {timings.prompt_tokens} tokens at {timings.prompt_per_s:.0f} tok/s",
        ]
    parts.append(experts.line())
    parts.append(f"{format_bytes(running.resident_bytes())} in use")
    return f"[{' · '.join(part for part in parts if part)}]"


_ENDINGS = {
    "interrupted": "stopped",
    "length": "cut off: --max-tokens or the context is used up",
}


def _as_json(answer: Answer, running: Running) -> dict[str, Any]:
    from hotset.cli.proving import account_facts

    timings = answer.timings
    return {
        "model": running.settings.alias,
        "answer": answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": timings.prompt_tokens + timings.cached_tokens if timings else None,
        "answer_tokens": timings.answer_tokens if timings else None,
        "prompt_tokens_per_s": timings.prompt_per_s if timings else None,
        "answer_tokens_per_s": timings.answer_per_s if timings else None,
        "context_tokens": running.settings.context_tokens,
        "kv_type": running.settings.kv_type_k,
        "ready_s": running.loaded.start_s,
        "resident_bytes": running.resident_bytes(),
        "memory": account_facts(running.accounts),
        "remarks": list(running.remarks),
    }
