"""The families table.

Every row was read off llama.cpp: `load_arch_hparams` in src/models/<architecture>.cpp, and
`llama_model::create_memory` in src/llama-model.cpp. Tensor names need no column: they are the
same for all families (see `hotset.core.roles`).
"""

from __future__ import annotations

from hotset.core.families.rules import (
    Attention,
    Family,
    Indexer,
    Recurrent,
    State,
    Where,
    Window,
)

__all__ = ["DRAFTING_ARCHITECTURES", "FAMILIES", "FIRST_DRAFTING_ARCHITECTURES", "family_named"]

DRAFTING_ARCHITECTURES = frozenset(
    {
        "bailingmoe3",
        "cohere2moe",
        "deepseek2",
        "deepseek32",
        "glm-dsa",
        "glm4moe",
        "hy_v3",
        "mimo2",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "qwen4exp",
        "step35",
    }
)
"""Those whose MTP head llama.cpp can draft with: a `graph_mtp` in src/models (b11434). Files of
other families may have the blocks, too; nothing uses them."""

FIRST_DRAFTING_ARCHITECTURES = frozenset({"qwen35", "qwen35moe"})
"""Of these, those that b10434 draws on, too, as dry starts of both have shown. For the others it is
not known since when."""

_DELTA_NET = Recurrent(Where.INTERVAL, State.GROUPED_SSM)
_DELTA_NET_ROLLBACK = Recurrent(Where.INTERVAL, State.GROUPED_SSM, can_roll_back=True)

_FULL_ATTENTION = (
    Family(
        ("llama",),
        oddities=("Mixtral files may hold one tensor per expert instead of one for all.",),
    ),
    Family(
        ("phi3", "phimoe"),
        oddities=("The engine keeps the whole context although the file names a window.",),
    ),
    Family(
        ("qwen2moe",),
        oddities=("The shared expert has a gate of its own (ffn_gate_inp_shexp).",),
    ),
    Family(
        ("glm4moe", "bailingmoe2", "ernie4_5-moe", "dots1", "hunyuan-moe", "hy_v3", "minimax-m2"),
        oddities=("The router adds a bias to choose experts, not to weigh them (exp_probs_b).",),
    ),
    Family(
        ("arctic",),
        oddities=("Each block has a dense FFN beside its experts.",),
    ),
    Family(
        ("grovemoe",),
        oddities=("Groups of experts share a small adjugate expert (ffn_*_chexps).",),
    ),
    Family(
        (
            "apertus",
            "arcee",
            "baichuan",
            "bailingmoe",
            "bitnet",
            "bloom",
            "chameleon",
            "chatglm",
            "codeshell",
            "cogvlm",
            "command-r",
            "dbrx",
            "deci",
            "deepseek",
            "deepseek2-ocr",
            "ernie4_5",
            "exaone",
            "falcon",
            "gemma",
            "glm4",
            "gpt2",
            "gptneox",
            "granite",
            "granitemoe",
            "grok",
            "hunyuan-dense",
            "hunyuan_vl",
            "internlm2",
            "jais",
            "jais2",
            "llama-embed",
            "maincoder",
            "minicpm",
            "minicpm3",
            "mistral3",
            "mpt",
            "nemotron",
            "olmo",
            "olmoe",
            "openelm",
            "orion",
            "paddleocr",
            "pangu-embedded",
            "phi2",
            "plamo",
            "plm",
            "qwen",
            "qwen2",
            "qwen2vl",
            "qwen3",
            "qwen3moe",
            "qwen3vl",
            "qwen3vlmoe",
            "refact",
            "seed_oss",
            "smollm3",
            "stablelm",
            "starcoder",
            "starcoder2",
            "talkie",
            "xverse",
        )
    ),
)

_WINDOWED = (
    Family(
        ("gpt-oss",),
        window=Window(period=2),
        oddities=("Experts have biases (ffn_*_exps.bias), which travel with them.",),
    ),
    Family(("gemma2",), window=Window(period=2, default_tokens=4096)),
    Family(("gemma3",), window=Window(period=6, default_tokens=0)),
    Family(
        ("gemma3n",),
        has_output_first=True,
        window=Window(period=5),
        kv_blocks=20,
        oddities=("Blocks from the 21st on use the KV of blocks 19 and 20.",),
    ),
    Family(
        ("gemma4",),
        has_output_first=True,
        window=Window(period=None),
        has_shared_kv_key=True,
        oddities=("Experts' gate and up may be one tensor; a dense FFN works beside them.",),
    ),
    Family(("llama4",), window=Window(period=4, default_tokens=8192, fixed_tokens=8192)),
    Family(("cohere2", "muse-glimmer", "exaone-moe"), window=Window(period=4)),
    Family(("cohere2moe",), window=Window(period=4, is_full_first=True)),
    Family(("exaone4",), window=Window(period=4, default_tokens=4096, only_with_blocks=64)),
    Family(("olmo2", "afmoe", "mellum"), window=Window(period=4, default_tokens=0)),
    Family(("plamo3",), window=Window(period=8, default_tokens=0)),
    Family(("laguna",), window=Window(period=4, default_tokens=0, is_full_first=True)),
    Family(
        ("smallthinker",),
        window=Window(period=4, default_tokens=0, fixed_tokens=4096, is_full_first=True),
    ),
    Family(
        ("granite_swa", "maple", "mimo2", "spark2_5", "step35"),
        window=Window(period=None),
    ),
)

_LATENT = (
    Family(("deepseek2", "mistral4"), attention=Attention.LATENT),
    Family(("deepseek32",), attention=Attention.LATENT, indexer=Indexer.EVERY),
    Family(("glm-dsa",), attention=Attention.LATENT, indexer=Indexer.BY_TYPE),
    Family(("minimax-m3",), indexer=Indexer.AFTER_DENSE),
)

_RECURRENT = (
    Family(
        ("qwen3next",),
        recurrent=_DELTA_NET,
        oddities=("attn_q holds the query and its gate: twice the width.",),
    ),
    Family(
        ("qwen35", "qwen35moe"),
        recurrent=_DELTA_NET_ROLLBACK,
        oddities=("attn_q holds the query and its gate: twice the width.",),
    ),
    Family(
        ("qwen4exp",),
        recurrent=_DELTA_NET_ROLLBACK,
        indexer=Indexer.POOLED,
        has_conv_history=True,
        oddities=("The n-gram table (per_layer_token_embd) may outweigh the rest of the file.",),
    ),
    Family(("minimax-01",), recurrent=Recurrent(Where.INTERVAL, State.LIGHTNING, interval=8)),
    Family(("granitehybrid", "plamo2"), recurrent=Recurrent(Where.NO_KV_HEADS, State.GROUPED_SSM)),
    Family(("jamba",), recurrent=Recurrent(Where.NO_KV_HEADS, State.SSM)),
    Family(
        ("lfm2",),
        window=Window(period=0, default_tokens=0),
        recurrent=Recurrent(Where.NO_KV_HEADS, State.SHORT_CONVOLUTION, can_roll_back=True),
    ),
    Family(
        ("lfm2moe",),
        recurrent=Recurrent(Where.NO_KV_HEADS, State.SHORT_CONVOLUTION, can_roll_back=True),
    ),
    Family(
        ("kimi-linear",),
        attention=Attention.LATENT,
        recurrent=Recurrent(Where.NO_KV_HEADS, State.DELTA_HEADS),
    ),
    Family(
        ("kimi-k3", "bailingmoe3"),
        attention=Attention.LATENT,
        recurrent=Recurrent(Where.NO_KV_HEADS, State.DELTA_HEADS, can_roll_back=True),
    ),
    Family(
        ("nemotron_h", "nemotron_h_moe"),
        recurrent=Recurrent(Where.NO_KV_HEADS_NOR_FFN, State.GROUPED_SSM, can_roll_back=True),
        oddities=("A block is attention, or recurrent, or an FFN: only one of them.",),
    ),
    Family(("falcon-h1",), recurrent=Recurrent(Where.BESIDE_ATTENTION, State.GROUPED_SSM)),
    Family(("mamba",), recurrent=Recurrent(Where.EVERY, State.SSM)),
    Family(("mamba2",), recurrent=Recurrent(Where.EVERY, State.GROUPED_SSM)),
    Family(
        ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
        recurrent=Recurrent(Where.EVERY, State.WKV),
    ),
)

_UNCACHED = (
    Family(
        (
            "bert",
            "clef",
            "dream",
            "eurobert",
            "gemma-embedding",
            "jina-bert-v2",
            "jina-bert-v3",
            "llada",
            "llada-moe",
            "modern-bert",
            "neo-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "rnd1",
            "wavtokenizer-dec",
        ),
        attention=Attention.UNCACHED,
    ),
)

FAMILIES: tuple[Family, ...] = (
    *_FULL_ATTENTION,
    *_WINDOWED,
    *_LATENT,
    *_RECURRENT,
    *_UNCACHED,
)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def family_named(architecture: str) -> Family | None:
    """The row for a value of ``general.architecture``; None for one the table does not know."""
    return _BY_ARCHITECTURE.get(architecture)
