"""What blocks that stay in RAM take of a card that computes them.

For a large batch the engine computes blocks in RAM on the card, too. It copies each matrix there
for its one product, and a block's KV cache for its attention (ggml_backend_sched_split_graph in
ggml/src/ggml-backend.cpp: a matrix from elsewhere begins a new split, and the inputs of a split
are made when it begins). Copies of so many sizes leave gaps that the next ones do not fit into, and
no sum of sizes says how large the buffer gets. So the graph is replayed here, tensor by tensor, on
the engine's allocator (`core/heap.py`).

What is where in a graph is read from llama.cpp: build_attn and build_moe_ffn in
src/llama-graph.cpp, and from src/models the latent attention of deepseek2.cpp and the delta net of
qwen35moe.cpp. A result takes the place of an operand that nothing else needs, unless that is a
view of another tensor (ggml_gallocr_allocate_node).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from hotset.core.heap import NOTHING, Heap, Held
from hotset.core.modelspec import Matrix

__all__ = ["Card", "Known", "ReplayBlock", "can_replay"]

_F32_BYTES = 4
_POSITION_BYTES = 4  # int32 for each token

Matrices = Mapping[str, Matrix]
# Gaps of the heap, place of the residual, what has arrived; with a block's identity as a key, and
# with the most bytes on the way as what becomes of it.
_State = tuple[tuple[Held, ...], Held, frozenset[str], int]
Known = dict[_State, _State]


@dataclass(frozen=True, slots=True)
class ReplayBlock:
    """One block of a batch.

    Attributes:
        matrices: its own, by short name.
        is_in_ram: whether it is copied to the card, piece by piece.
        k_elements: of a token in its K cache.
        k_bytes, v_bytes: what its attention reads of the caches.
        scores_bytes: of all heads for all cells, where attention holds them: without flash
            attention.
        state_r_bytes, state_s_bytes: of all sequences.
        mask_name, mask_bytes: the attention mask that it needs.
    """

    matrices: Matrices
    is_in_ram: bool
    k_elements: int = 0
    k_bytes: int = 0
    v_bytes: int = 0
    scores_bytes: int = 0
    state_r_bytes: int = 0
    state_s_bytes: int = 0
    mask_name: str = ""
    mask_bytes: int = 0


def can_replay(matrices: Matrices) -> bool:
    """Whether it is known in which order a block with these matrices is computed."""
    have = matrices.keys()
    mixers = (
        {"attn_k_b", "attn_v_b", "attn_kv_a_mqa", "attn_output"},
        {"attn_qkv", "attn_gate", "ssm_conv1d", "ssm_out"},
        {"attn_q", "attn_k", "attn_v", "attn_output"},
    )
    is_routed = {"ffn_gate_inp", "ffn_down_exps"} <= have
    is_dense = {"ffn_up", "ffn_down"} <= have
    return any(need <= have for need in mixers) and is_routed != is_dense


class Card:
    """A card that computes blocks one after the other.

    Args:
        n_tokens: of the batch.
        n_embd: width of the residual stream.
        n_used: experts that a token uses.
        k_rotation, v_rotation: sides of the square matrices that turn heads before they are stored
            as blocks of a quantized type; 0 for none.
        known: what blocks have done to a card that was made alike, by state and block; added to.
            It knows blocks by their identity: they must be kept as long as it is.
    """

    def __init__(
        self,
        n_tokens: int,
        n_embd: int,
        n_used: int,
        *,
        k_rotation: int = 0,
        v_rotation: int = 0,
        known: Known | None = None,
    ) -> None:
        self._heap = Heap()
        self._n_tokens = n_tokens
        self._n_used = n_used
        self._row_bytes = n_tokens * n_embd * _F32_BYTES
        self._is_k_turned, self._is_v_turned = bool(k_rotation), bool(v_rotation)
        # Inputs come from RAM when they are first needed, and stay.
        self._inputs = {
            "positions": n_tokens * _POSITION_BYTES,
            "k_rotation": k_rotation**2 * _F32_BYTES,
            "v_rotation": v_rotation**2 * _F32_BYTES,
        }
        self._residual = self._heap.take(self._row_bytes)  # the embeddings
        self._arrived: frozenset[str] = frozenset()  # inputs, and masks
        self._known: Known = {} if known is None else known

    @property
    def peak_bytes(self) -> int:
        return self._heap.peak_bytes

    def run(self, block: ReplayBlock) -> None:
        """Compute one block: attention or what stands for it, then its feed-forward part.

        Models repeat their blocks, and soon a heap repeats itself: what a block does to a card in
        one state is found out once.
        """
        heap = self._heap
        peak, heap.peak_bytes = heap.peak_bytes, 0
        key = heap.gaps, self._residual, self._arrived, id(block)
        if key in self._known:
            heap.gaps, self._residual, self._arrived, heap.peak_bytes = self._known[key]
        else:
            self._run(block)
            self._known[key] = heap.gaps, self._residual, self._arrived, heap.peak_bytes
        heap.peak_bytes = max(peak, heap.peak_bytes)

    def _run(self, block: ReplayBlock) -> None:
        heap, have = self._heap, block.matrices
        norm = heap.take(self._row_bytes)
        if "attn_v_b" in have:
            out = self._latent(block, norm)
        elif "ssm_conv1d" in have:
            out = self._delta_net(block, norm)
        else:
            out = self._attention(block, norm)
        # The sum with the residual takes the place of what has come out; of the residual where
        # that is a view.
        kept, gone = (self._residual, out) if "ssm_conv1d" in have else (out, self._residual)
        heap.drop(gone)
        norm = heap.take(self._row_bytes)
        is_routed = "ffn_down_exps" in have
        out = self._routed(block, norm) if is_routed else self._dense(block, norm)
        heap.drop(kept)
        self._residual = out

    def output(self, n_bytes: int) -> None:
        """The logits, of what is normed."""
        norm = self._heap.take(self._row_bytes)
        self._heap.drop(self._residual)
        self._heap.take(n_bytes)
        self._heap.drop(norm)

    def _rows(self, n_elements: int) -> Held:
        return self._heap.take(self._n_tokens * n_elements * _F32_BYTES)

    def _copy(self, block: ReplayBlock, name: str) -> Held:
        return self._heap.take(block.matrices[name].n_bytes) if block.is_in_ram else NOTHING

    def _arrive(self, *names: str) -> None:
        for name in names:
            if name not in self._arrived:
                self._arrived |= {name}
                self._heap.take(self._inputs[name])

    def _product(
        self, block: ReplayBlock, name: str, *inputs: str, n_elements: int | None = None
    ) -> Held:
        """Of a matrix, with inputs that the split needs, too."""
        if n_elements is None:
            n_elements = prod(block.matrices[name].dims[1:])
        copy = self._copy(block, name)
        self._arrive(*inputs)
        out = self._rows(n_elements)
        self._heap.drop(copy)
        return out

    def _of_experts(self, block: ReplayBlock, name: str) -> Held:
        """A product for all experts in use."""
        return self._product(block, name, n_elements=self._n_used * block.matrices[name].dims[1])

    def _renewed(self, held: Held, *, is_on: bool = True) -> Held:
        """A result that cannot take the place of its operand."""
        if not is_on:
            return held
        out = self._heap.take(held[1])
        self._heap.drop(held)
        return out

    def _caches(self, block: ReplayBlock) -> tuple[Held, Held]:
        k = self._heap.take(block.k_bytes if block.is_in_ram else 0)
        v = self._heap.take(block.v_bytes if block.is_in_ram else 0)
        if block.mask_name not in self._arrived:
            self._arrived |= {block.mask_name}
            self._heap.take(block.mask_bytes)
        return k, v

    def _attention(self, block: ReplayBlock, norm: Held) -> Held:
        heap, have = self._heap, block.matrices
        n_mixed = have["attn_output"].dims[0]
        inputs = ("positions", "k_rotation")
        q = self._product(block, "attn_q", *(() if "attn_q_norm" in have else inputs))
        gate = NOTHING
        if have["attn_q"].dims[1] == 2 * n_mixed:  # every head's queries, and a gate beside them
            q, gate = self._rows(n_mixed), q
            self._normed(block, "attn_q_norm", *inputs)
        else:
            q = self._turned(block, "attn_q_norm", q, *inputs)
        q = self._renewed(q, is_on=self._is_k_turned)
        v = self._product(block, "attn_v", "v_rotation")
        v = self._renewed(v, is_on=self._is_v_turned)
        k = self._product(block, "attn_k")
        heap.drop(norm)
        k = self._turned(block, "attn_k_norm", k)
        k = self._renewed(k, is_on=self._is_k_turned)
        heap.drop(k, v)
        out = self._renewed(self._mixed(block, q, n_mixed), is_on=self._is_v_turned)
        if gate[1]:
            used = self._rows(n_mixed)
            heap.drop(gate, out)
            out = used
        result = self._product(block, "attn_output")
        heap.drop(out)
        return result

    def _turned(self, block: ReplayBlock, norm: str, held: Held, *inputs: str) -> Held:
        """Normed, each head or all of them, and rotated by position."""
        matrix = block.matrices.get(norm)
        is_by_head = matrix is not None and matrix.dims[0] * self._n_tokens * _F32_BYTES < held[1]
        if is_by_head:
            held = self._renewed(held)
        self._normed(block, norm, *inputs)
        return held if is_by_head else self._renewed(held)

    def _normed(self, block: ReplayBlock, norm: str, *inputs: str) -> None:
        if norm in block.matrices:
            copy = self._copy(block, norm)
            self._arrive(*inputs)
            self._heap.drop(copy)

    def _mixed(self, block: ReplayBlock, q: Held, n_elements: int) -> Held:
        """What comes out of attention over the caches."""
        heap = self._heap
        k, v = self._caches(block)
        if not block.scores_bytes:
            out = self._rows(n_elements)
            heap.drop(q, k, v)
            return out
        scores = heap.take(block.scores_bytes)
        heap.drop(k, q)
        out = self._rows(n_elements)
        heap.drop(v, scores)
        return self._renewed(out)

    def _latent(self, block: ReplayBlock, norm: Held) -> Held:
        """Attention over a compressed cache: the caches' copies are K and a view of K."""
        heap, have = self._heap, block.matrices
        n_latent, _, n_heads = have["attn_v_b"].dims
        n_rotated = block.k_elements - n_latent
        low = self._product(block, "attn_q_a") if "attn_q_a" in have else NOTHING
        q = self._product(block, "attn_q_b" if low[1] else "attn_q")
        heap.drop(low)
        absorbed = self._product(block, "attn_k_b", "positions")
        rotated = self._rows(n_rotated * n_heads)
        heap.drop(q)
        q = self._rows(block.k_elements * n_heads)
        heap.drop(absorbed, rotated)
        joint = self._product(block, "attn_kv_a_mqa")
        heap.drop(norm)
        normed, rotated = self._rows(n_latent), self._rows(n_rotated)
        heap.drop(joint)
        k = self._rows(block.k_elements)
        heap.drop(normed, rotated)
        heap.drop(k)
        out = self._mixed(block, q, n_latent * n_heads)
        values = self._product(block, "attn_v_b")
        heap.drop(out)
        values = self._renewed(values)
        result = self._product(block, "attn_output")
        heap.drop(values)
        return result

    def _delta_net(self, block: ReplayBlock, norm: Held) -> Held:
        heap, have = self._heap, block.matrices
        n_wide, n_values = have["attn_qkv"].dims[1], have["ssm_out"].dims[0]
        matrix, state = self._copy(block, "attn_qkv"), heap.take(block.state_r_bytes)
        mixed = self._rows(n_wide)
        heap.drop(matrix)
        joined = heap.take(mixed[1] + block.state_r_bytes)
        heap.drop(state, mixed)
        mixed = self._product(block, "ssm_conv1d")
        heap.drop(joined)
        q, k = self._rows((n_wide - n_values) // 2), self._rows((n_wide - n_values) // 2)
        state = heap.take(block.state_s_bytes)
        out = heap.take(self._n_tokens * n_values * _F32_BYTES + block.state_s_bytes)
        heap.drop(q, k, mixed, state)
        normed = self._rows(n_values)
        heap.drop(out)
        gate = self._product(block, "attn_gate")
        heap.drop(norm)
        heap.drop(self._renewed(gate))
        result = self._product(block, "ssm_out")
        heap.drop(normed)
        return result

    def _dense(self, block: ReplayBlock, norm: Held, suffix: str = "") -> Held:
        heap, have = self._heap, block.matrices
        gated = f"ffn_gate{suffix}" in have
        gate = self._product(block, f"ffn_gate{suffix}") if gated else NOTHING
        up = self._product(block, f"ffn_up{suffix}")
        heap.drop(norm)
        inner = self._rows(have[f"ffn_down{suffix}"].dims[0])
        heap.drop(gate, up)
        out = self._product(block, f"ffn_down{suffix}")
        heap.drop(inner)
        return out

    def _routed(self, block: ReplayBlock, norm: Held) -> Held:
        heap, have = self._heap, block.matrices
        is_shared = "ffn_up_shexp" in have
        shares = self._product(block, "ffn_gate_inp")
        order = heap.take(shares[1])
        weights = self._rows(self._n_used)
        heap.drop(shares)
        names = [n for n in ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps") if n in have]
        inward = [self._of_experts(block, name) for name in names]
        if not is_shared:
            heap.drop(norm)
        inner = self._rows(self._n_used * have["ffn_down_exps"].dims[0])
        heap.drop(*inward)
        each = self._of_experts(block, "ffn_down_exps")
        heap.drop(inner, order, weights)
        out = heap.take(self._row_bytes)
        heap.drop(each)
        if is_shared:
            heap.drop(self._dense(block, norm, "_shexp"))
        return out
