"""Product names for PCI numbers, from the lists that systems carry.

libdrm installs `amdgpu.ids` (device, revision, name; with Mesa it is on every system that has the
driver), and most systems have `pci.ids`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["amd_name", "pci_name"]

_AMD_LISTS = ("usr/share/libdrm/amdgpu.ids",)
_PCI_LISTS = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")


def amd_name(device_id: int, revision: int, root: Path = Path("/")) -> str:
    """The product of an AMD device; "" if the list does not have it."""
    for line in _lines(_AMD_LISTS, root):
        device, _, rest = line.partition(",")
        number, _, name = rest.partition(",")
        if _is_hex(device, device_id) and _is_hex(number, revision):
            return name.strip()
    return ""


def pci_name(vendor_id: int, device_id: int, root: Path = Path("/")) -> str:
    """The product of any PCI device; "" if the list does not have it.

    Chips are listed with the products in brackets: ``Navi 48 [Radeon RX 9070/9070 XT]``.
    """
    is_vendor = False
    for line in _lines(_PCI_LISTS, root):
        if line.startswith(("#", "\t\t")) or not line.strip():
            continue
        number, _, name = line.strip().partition("  ")
        if not line.startswith("\t"):
            if is_vendor:
                break
            is_vendor = _is_hex(number, vendor_id)
        elif is_vendor and _is_hex(number, device_id):
            before, bracket, product = name.partition("[")
            return product.rstrip("] ") if bracket else before.strip()
    return ""


def _lines(names: tuple[str, ...], root: Path) -> list[str]:
    for name in names:
        try:
            return (root / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
    return []


def _is_hex(text: str, number: int) -> bool:
    try:
        return int(text.strip(), 16) == number
    except ValueError:
        return False
