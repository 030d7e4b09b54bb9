"""Routing patterns of synthetic models, from the routers and embeddings in the files."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.core.errors import ConfigProblem
from hotset.gguf.synth import FAMILIES, Locality, Mix, write_tiny
from hotset.gguf.synth.__main__ import main
from hotset.gguf.synth.locality import with_locality
from synthkit import Floats, read_gguf, values_of

N_LAYERS, N_EXPERTS, N_USED = 3, 64, 4
Routes = np.ndarray[Any, np.dtype[np.int64]]
SIZES = {"n_layers": N_LAYERS, "n_experts": N_EXPERTS, "n_used": N_USED, "n_vocab": 2000}


def write(folder: Path, locality: Locality | None, **options: Any) -> Path:
    (path,) = write_tiny("qwen3moe", folder / f"{locality}.gguf", locality=locality, **options)
    return path


def matrix(path: Path, name: str) -> Floats:
    tensor = next(t for t in read_gguf(path).tensors if t.name == name)
    flat = values_of(tensor.tensor_type.name, tensor.data.tobytes())
    return flat.reshape(-1, int(tensor.shape[0]))


def routes(path: Path, tokens: Floats) -> list[Routes]:
    """Per layer the experts of each token, as if nothing were added to the embeddings."""
    return [
        np.argsort(tokens @ -matrix(path, f"blk.{i}.ffn_gate_inp.weight").T)[:, :N_USED]
        for i in range(N_LAYERS)
    ]


def hit_rate(layers: list[Routes], share: float) -> float:
    """Of an LRU cache for that share of all experts, from the second half of the tokens on."""
    capacity = int(share * N_LAYERS * N_EXPERTS)
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = []
    for token in zip(*layers, strict=True):
        for layer, experts in enumerate(token):
            for key in ((layer, int(expert)) for expert in experts):
                hits.append(key in cache)
                cache[key] = None
                cache.move_to_end(key)
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return float(np.mean(hits[len(hits) // 2 :]))


@pytest.mark.parametrize(
    ("locality", "least", "most"),
    [(Locality.UNIFORM, 0.34, 0.46), (Locality.MEDIUM, 0.69, 0.81), (Locality.STRONG, 0.85, 0.95)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_each_locality_has_its_hit_rate(
    tmp_path: Path, locality: Locality, least: float, most: float, seed: int
) -> None:
    path = write(tmp_path, locality, seed=seed, **SIZES)
    tokens = matrix(path, "token_embd.weight")[300:1500]
    assert least < hit_rate(routes(path, tokens), 0.4) < most


def test_every_layer_has_hot_experts_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, Locality.STRONG, **SIZES)
    layers = routes(path, matrix(path, "token_embd.weight"))
    hot = [set(np.argsort(-np.bincount(ids.ravel(), minlength=N_EXPERTS))[:16]) for ids in layers]
    for i in range(N_LAYERS):
        for j in range(i):
            # 16 of 64 drawn twice share 4 on average.
            assert len(hot[i] & hot[j]) < 10


def test_a_pattern_in_the_routing_leaves_the_experts_as_they_are(tmp_path: Path) -> None:
    plain, uniform, strong = (
        {t.name: t.data.tobytes() for t in read_gguf(write(tmp_path, locality)).tensors}
        for locality in (None, Locality.UNIFORM, Locality.STRONG)
    )
    differing = {name for name, data in plain.items() if strong[name] != data}
    routers = {name for name in plain if name.endswith("ffn_gate_inp.weight")}
    assert differing == {"token_embd.weight", *routers}
    assert {name for name, data in plain.items() if uniform[name] != data} == {"token_embd.weight"}


def test_the_command_writes_the_file_that_the_function_writes(tmp_path: Path) -> None:
    wanted = write(tmp_path, Locality.MEDIUM)
    out = tmp_path / "b.gguf"
    assert main(["tiny", "qwen3moe", str(out), "--locality", "medium"]) == 0
    assert out.read_bytes() == wanted.read_bytes()


@pytest.mark.parametrize(
    ("family", "reason"), [("llama", "has no routers"), ("gemma4-moe", "is its output matrix too")]
)
def test_a_model_that_cannot_have_a_pattern_is_refused(
    tmp_path: Path, family: str, reason: str
) -> None:
    with pytest.raises(ConfigProblem, match=f"locality 'strong': .*{reason}"):
        write_tiny(family, tmp_path / "m.gguf", locality=Locality.STRONG)
    assert list(tmp_path.iterdir()) == []


def test_leaning_embeddings_have_their_type_whatever_the_mix_says() -> None:
    recipe = FAMILIES["qwen3moe"]
    plan = recipe.plan(recipe.tiny, Mix(embedding="Q6_K"))
    types = {
        locality: next(
            t.type.name for t in with_locality(plan, locality).tensors if "token_embd" in t.name
        )
        for locality in Locality
    }
    assert types == {"uniform": "Q6_K", "medium": "Q8_0", "strong": "Q8_0"}
