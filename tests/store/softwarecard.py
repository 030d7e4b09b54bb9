"""A graphics card made of software: Mesa's llvmpipe, where its Vulkan driver is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotset.engine.llama_server import LlamaServerEngine

# Where the Vulkan loader looks for drivers on Linux.
_DRIVER_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")


def environment_with_software_card(engine: LlamaServerEngine) -> dict[str, str]:
    """The environment in which llvmpipe is the engine's first and only card; skips without one.

    ggml leaves software devices out unless they are chosen by number.
    """
    named = os.environ.get("VK_DRIVER_FILES")
    drivers = (
        [Path(name) for name in named.split(os.pathsep)]
        if named
        else [file for folder in _DRIVER_FOLDERS for file in Path(folder).glob("lvp_icd*.json")]
    )
    for driver in drivers:
        environment = {
            **os.environ,
            "VK_DRIVER_FILES": str(driver),
            "GGML_VK_VISIBLE_DEVICES": "0",
        }
        devices = engine.describe(environment).devices
        if any("llvmpipe" in device.description for device in devices):
            return environment
    pytest.skip(
        "no software driver for Vulkan: install mesa-vulkan-drivers, or name the file of one"
        " (lvp_icd*.json) in VK_DRIVER_FILES"
    )
