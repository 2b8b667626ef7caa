"""Which cloud a host belongs to, by its firmware."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.notice.cloud import recognise

AZURE = "7783-7084-3265-9085-8269-3286-77"


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "m5.large"}, "ec2"),
        ({"sys_vendor": "Xen", "product_name": "HVM domU", "bios_version": "4.11.amazon"}, "ec2"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gce"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "None"}, None),
        ({"sys_vendor": "Xen", "bios_version": "4.2"}, None),
        ({"sys_vendor": "LENOVO", "product_name": "T14"}, None),
        ({}, None),
    ],
)
def test_a_cloud_is_recognised(tmp_path: Path, files: dict[str, str], cloud: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert recognise(tmp_path) == cloud


def test_a_host_without_such_files_is_in_no_cloud(tmp_path: Path) -> None:
    assert recognise(tmp_path / "missing") is None
    (tmp_path / "sys_vendor").mkdir()
    (tmp_path / "product_name").write_bytes(b"\xff\xfe")
    assert recognise(tmp_path) is None
