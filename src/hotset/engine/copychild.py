"""Times copies between RAM and devices with an engine's own library; a program of its own.

Standard library only, and run with `python -I -S FILE LIBRARY DEVICE...`: a foreign library may do
anything when it is loaded, so it gets a process to itself. Prints one JSON object: by device's name
`{"to": bytes_s, "from": bytes_s, "is_pinned": bool}`, or `{"problem": text}`.

The functions are those of ggml's public headers (ggml.h, ggml-alloc.h, ggml-backend.h), and only
such as have kept their signatures since the interface of loadable backends began.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable

_COPY_BYTES = 64 << 20
_LEAST_BYTES = 8 << 20
# Of the device's free memory; what is tried must not push anything out.
_FREE_SHARE = 16
_EACH_S = 0.15
_TYPE_F32 = 0
_F32_BYTES = 4
_CONTEXT_BYTES = 4096

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool))


_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "ggml_backend_reg_count": (_SIZE, ()),
    "ggml_backend_load_all_from_path": (None, (ctypes.c_char_p,)),
    "ggml_backend_dev_by_name": (_POINTER, (ctypes.c_char_p,)),
    "ggml_backend_dev_memory": (None, (_POINTER, _POINTER, _POINTER)),
    "ggml_backend_dev_buffer_type": (_POINTER, (_POINTER,)),
    "ggml_backend_dev_host_buffer_type": (_POINTER, (_POINTER,)),
    "ggml_backend_buft_alloc_buffer": (_POINTER, (_POINTER, _SIZE)),
    "ggml_backend_buffer_get_base": (_POINTER, (_POINTER,)),
    "ggml_backend_buffer_free": (None, (_POINTER,)),
    "ggml_init": (_POINTER, (_InitParams,)),
    "ggml_free": (None, (_POINTER,)),
    "ggml_new_tensor_1d": (_POINTER, (_POINTER, ctypes.c_int, ctypes.c_int64)),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_POINTER, (_POINTER, _POINTER)),
    "ggml_backend_tensor_set": (None, (_POINTER, _POINTER, _SIZE, _SIZE)),
    "ggml_backend_tensor_get": (None, (_POINTER, _POINTER, _SIZE, _SIZE)),
}


def _opened(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if not library.ggml_backend_reg_count():
        library.ggml_backend_load_all_from_path(os.fsencode(os.path.dirname(path)))
    return library


def _measured(ggml: ctypes.CDLL, name: str) -> dict[str, object]:
    device = ggml.ggml_backend_dev_by_name(name.encode())
    if not device:
        return {"problem": "its library has no such device"}
    free, total = _SIZE(), _SIZE()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    n_bytes = min(_COPY_BYTES, free.value // _FREE_SHARE) // _LEAST_BYTES * _LEAST_BYTES
    if not n_bytes:
        return {"problem": "too little of its memory is free"}
    context = ggml.ggml_init(_InitParams(_CONTEXT_BYTES, None, True))
    tensor = ggml.ggml_new_tensor_1d(context, _TYPE_F32, n_bytes // _F32_BYTES)
    there = ggml.ggml_backend_alloc_ctx_tensors_from_buft(
        context, ggml.ggml_backend_dev_buffer_type(device)
    )
    pinned = ggml.ggml_backend_dev_host_buffer_type(device)
    here = ggml.ggml_backend_buft_alloc_buffer(pinned, n_bytes) if pinned else None
    plain = None if here else ctypes.create_string_buffer(n_bytes)
    address = ggml.ggml_backend_buffer_get_base(here) if here else ctypes.addressof(plain or free)
    try:
        if not there:
            return {"problem": "it gave no memory to copy to"}
        ctypes.memset(address, 1, n_bytes)  # pages that nobody has touched are not there yet
        return {
            "to": _rate(n_bytes, lambda: ggml.ggml_backend_tensor_set(tensor, address, 0, n_bytes)),
            "from": _rate(
                n_bytes, lambda: ggml.ggml_backend_tensor_get(tensor, address, 0, n_bytes)
            ),
            "is_pinned": bool(here),
        }
    finally:
        for buffer in (here, there):
            if buffer:
                ggml.ggml_backend_buffer_free(buffer)
        ggml.ggml_free(context)


def _rate(n_bytes: int, copy: Callable[[], object]) -> int:
    """Bytes per second of the best of several copies; the first one only makes everything ready."""
    copy()
    best, end = float("inf"), time.perf_counter() + _EACH_S
    while time.perf_counter() < end:
        begin = time.perf_counter()
        copy()
        best = min(best, time.perf_counter() - begin)
    return int(n_bytes / best)


def main(path: str, names: list[str]) -> None:
    ggml = _opened(path)
    found = {name: _measured(ggml, name) for name in names}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # drivers may take their time, or fail, when they are unloaded


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
