"""The engine's own account, summed by class and by device."""

from __future__ import annotations

from hotset.core.loaded import Buffer, BufferKind, Loaded

LOADED = Loaded(
    build="test",
    slots=1,
    context_tokens=4096,
    buffers=(
        Buffer("CPU_Mapped", BufferKind.MODEL, 100),
        Buffer("CUDA0", BufferKind.MODEL, 30),
        Buffer("CUDA0", BufferKind.KV, 7),
    ),
    caches=(),
    start_s=0.5,
)


def test_buffers_are_summed_by_class_over_devices_and_by_device_over_classes() -> None:
    assert LOADED.bytes_of(BufferKind.MODEL) == 130
    assert LOADED.bytes_of(BufferKind.COMPUTE) == 0
    assert LOADED.bytes_on("CUDA0") == 37
    assert LOADED.bytes_on("CUDA1") == 0


def test_devices_come_once_each_in_the_order_of_first_use() -> None:
    assert LOADED.devices == ("CPU_Mapped", "CUDA0")
