"""The embedded engine's own functions, called directly: ggml and llama.cpp in xllamacpp.

Handles are addresses. Structures that go by value are declared here, from include/llama.h and
ggml/include/ggml.h of llama.cpp b11434, and checked by the default values that the engine fills
in: an engine that has moved a field is named as such, and not called on a guess.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_int64, c_size_t, c_void_p
from importlib import import_module
from typing import Any

DEVICE_CPU = 0  # enum ggml_backend_dev_type
TYPE_F32 = 0  # enum ggml_type
TYPE_I32 = 26

# Behind every structure that goes by value: room for fields that a newer engine may add at the end.
SPARE_BYTES = 256


class InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("spare", c_int8 * SPARE_BYTES),
    )


class ContextParams(ctypes.Structure):
    """llama_context_params, as far as the tests set it or know what it should hold."""

    _fields_ = (
        ("n_ctx", c_int32),
        ("n_batch", c_int32),
        ("n_ubatch", c_int32),
        ("n_seq_max", c_int32),
        ("n_rs_seq", c_int32),
        ("n_outputs_max", c_int32),
        ("n_outputs_max_per_seq", c_int32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("kinds", c_int * 5),
        ("rope", c_float * 2),
        ("yarn", c_float * 4),
        ("spare", c_int8 * SPARE_BYTES),
    )


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", ctypes.POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", ctypes.POINTER(c_int32)),
        ("n_seq_id", ctypes.POINTER(c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(c_int32))),
        ("logits", ctypes.POINTER(c_int8)),
    )


# Result and arguments of each function.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_graph_overhead": (c_size_t, []),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_new_tensor_3d": (c_void_p, [c_void_p, c_int, *[c_int64] * 3]),
    "ggml_view_2d": (c_void_p, [c_void_p, c_void_p, *[c_int64] * 2, c_size_t, c_size_t]),
    "ggml_view_3d": (c_void_p, [c_void_p, c_void_p, *[c_int64] * 3, *[c_size_t] * 3]),
    "ggml_add_id": (c_void_p, [*[c_void_p] * 4]),
    "ggml_swiglu_split": (c_void_p, [*[c_void_p] * 3]),
    "ggml_swiglu_oai": (c_void_p, [*[c_void_p] * 3, c_float, c_float]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_mul_mat_id": (c_void_p, [*[c_void_p] * 4]),
    "ggml_set_name": (c_void_p, [c_void_p, c_char_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_backend_dev_by_type": (c_void_p, [c_int]),
    "ggml_backend_dev_by_name": (c_void_p, [c_char_p]),
    "ggml_backend_dev_init": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_dev_supports_op": (c_bool, [c_void_p, c_void_p]),
    "ggml_backend_dev_backend_reg": (c_void_p, [c_void_p]),
    "ggml_backend_dev_buffer_from_host_ptr": (c_void_p, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_cpu_buffer_from_ptr": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_tensor_alloc": (c_int, [*[c_void_p] * 3]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_free": (None, [c_void_p]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_context_default_params": (ContextParams, []),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_n_ctx": (c_int32, [c_void_p]),
    "llama_n_batch": (c_int32, [c_void_p]),
    "llama_n_ubatch": (c_int32, [c_void_p]),
    "llama_n_seq_max": (c_int32, [c_void_p]),
    "llama_n_threads": (c_int32, [c_void_p]),
    "llama_n_threads_batch": (c_int32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits_ith": (c_void_p, [c_void_p, c_int32]),
}


def engine_calls() -> ctypes.CDLL:
    """The engine's library, with the signatures of the functions above."""
    extension = import_module("xllamacpp.xllamacpp")
    library = ctypes.CDLL(extension.__file__, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def model_params(engine: ctypes.CDLL) -> ModelParams:
    """The engine's defaults, once they are what the declared fields should hold."""
    params: ModelParams = engine.llama_model_default_params()
    found = (
        *(params.n_gpu_layers, params.split_mode, params.load_mode, params.lazy_mode),
        *(params.devices, params.kv_overrides),
        *(params.vocab_only, params.check_tensors, params.use_extra_bufts),
    )
    expected = (-1, 1, -1, 1, None, None, False, False, True)
    assert found == expected, f"llama_model_params has another layout: {found}"
    return params


def context_params(engine: ctypes.CDLL) -> ContextParams:
    """The engine's defaults, once they are what the declared fields should hold."""
    params: ContextParams = engine.llama_context_default_params()
    found = (
        *(params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max),
        *(params.n_outputs_max_per_seq, params.n_threads, params.n_threads_batch),
        *(list(params.kinds), list(params.rope), list(params.yarn)),
    )
    expected = (512, 2048, 512, 1, 1, 4, 4, [0, -1, -1, -1, -1], [0.0, 0.0], [-1.0] * 4)
    assert found == expected, f"llama_context_params has another layout: {found}"
    return params
