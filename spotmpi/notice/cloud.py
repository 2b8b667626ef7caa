"""Which cloud this host belongs to, by what its firmware says. Nobody is asked over the network."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DMI", "recognise"]

DMI = Path("/sys/class/dmi/id")

_AZURE = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of every VM of Azure; other machines of Microsoft's hypervisor have other tags."""


def recognise(folder: Path = DMI) -> str | None:
    """Return "ec2", "gce" or "azure", or None where it is none of them, or cannot be known."""
    if _read(folder / "sys_vendor") == "Amazon EC2":
        return "ec2"
    # Older EC2 instances (on Xen) have the vendor Xen, and a BIOS called 4.11.amazon.
    if _read(folder / "bios_version").endswith("amazon"):
        return "ec2"
    if _read(folder / "product_name") == "Google Compute Engine":
        return "gce"
    if _read(folder / "chassis_asset_tag") == _AZURE:
        return "azure"
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
