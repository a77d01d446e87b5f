"""RDMA cards and the addresses in cuFile's settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.rdma_check import RdmaReading, judge_rdma, read_rdma
from ebbtide.diagnostics.host.mount import Mount
from tests.platform.diagnostics.machines import Tree, machine

NFS = Mount("/shared", "nfs", "10.0.9.1:/pool", {"proto": "rdma"})
TCP = Mount("/shared", "nfs", "10.0.9.1:/pool", {"proto": "tcp"})
WEKA = Mount("/shared", "wekafs", "backend/fs", {})


def judged(reading: RdmaReading, mount: Mount | None = NFS) -> dict[str, Finding]:
    return {finding.id: finding for finding in judge_rdma(reading, mount)}


def cards(tmp_path: Path, settings: str | None = None) -> RdmaReading:
    tree = Tree(tmp_path)
    tree.card("mlx5_0", interface="ib0", gid="0000:0000:0000:0000:0000:ffff:0a00:0907")
    tree.card("mlx5_1", interface="ib1", number=2)
    if settings is not None:
        tree.file("/etc/cufile.json", settings)
    return read_rdma(machine(tree, addresses={"ib1": ("10.0.10.7", "2001:db8::7"), "eth0": ("192.0.2.1",)}))


def test_addresses_come_from_interfaces_and_from_gids(tmp_path: Path) -> None:
    reading = cards(tmp_path)
    assert reading.addresses == ("10.0.9.7", "10.0.10.7", "2001:db8::7")
    assert reading.devices == ("mlx5_0", "mlx5_1")
    assert [port.number for port in reading.ports] == ["1", "2"]


@pytest.mark.parametrize("gid", ["", "garbage", "0000:0000:0000:0000:0000:ffff:0000:0000"])
def test_an_entry_of_the_gid_table_without_an_address_is_none(tmp_path: Path, gid: str) -> None:
    tree = Tree(tmp_path)
    tree.card("mlx5_0", interface="ib0", gid=gid)
    reading = read_rdma(machine(tree))
    assert reading.addresses == ()
    assert "without an IP address: mlx5_0/1" in judged(reading)["rdma.cards"].what


def test_a_port_without_a_link_lends_no_address(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.card("mlx5_0", interface="ib0", gid="0000:0000:0000:0000:0000:ffff:0a00:0907", state="1: DOWN")
    reading = read_rdma(machine(tree))
    assert reading.addresses == reading.devices == ()
    finding = judged(reading)["rdma.cards"]
    assert finding.verdict is Verdict.MISSING and finding.what.startswith("no RDMA link is up: mlx5_0/1 DOWN")


def test_cards_that_nobody_asks_for_are_in_order(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.card("mlx5_0", interface="ib0", state="1: DOWN")
    reading = read_rdma(machine(tree))
    assert judged(reading, TCP)["rdma.cards"].verdict is Verdict.OK
    assert judged(RdmaReading(), TCP)["rdma.cards"].verdict is Verdict.OK
    assert judged(RdmaReading(), NFS)["rdma.cards"].verdict is Verdict.MISSING
    assert judged(RdmaReading(), None)["rdma.cards"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("settings", "verdict", "word"),
    [
        ('{"properties": {"rdma_dev_addr_list": ["10.0.9.7", "10.0.10.7"]}}', Verdict.OK, "that this node has"),
        ('{"properties": {"rdma_dev_addr_list": ["mlx5_0"]}}', Verdict.OK, "that this node has"),
        (
            '{"properties": {"rdma_dev_addr_list": ["10.0.9.8"]}}',
            Verdict.LIMITED,
            "names 10.0.9.8; this node has 10.0.9.7",
        ),
        (
            '{"fs": {"nfs": {"mount_table": {"/shared": {"rdma_dev_addr_list": ["10.1.1.1"]}}}}}',
            Verdict.LIMITED,
            "fs.nfs.mount_table./shared.rdma_dev_addr_list names 10.1.1.1",
        ),
        ('{"properties": {"rdma_dev_addr_list": []}}', Verdict.LIMITED, "names no RDMA address; this node has"),
        (None, Verdict.LIMITED, "/etc/cufile.json does not exist; this node has"),
    ],
)
def test_listed_addresses_are_held_against_the_node_s(
    tmp_path: Path, settings: str | None, verdict: Verdict, word: str
) -> None:
    finding = judged(cards(tmp_path, settings))["rdma.addresses"]
    assert finding.verdict is verdict and word in finding.what
    if verdict is Verdict.LIMITED:
        assert "--write-cufile-json" in finding.remedy


def test_a_list_is_asked_for_where_cufile_needs_it_and_nowhere_else(tmp_path: Path) -> None:
    reading = cards(tmp_path)
    assert judged(reading, TCP)["rdma.addresses"].verdict is Verdict.OK
    assert judged(reading, WEKA)["rdma.addresses"].why == "for wekafs cuFile uses RDMA only with that list"


def test_settings_that_cannot_be_understood_are_told_with_their_place(tmp_path: Path) -> None:
    finding = judged(cards(tmp_path, '{\n "properties": {,}\n}'))["rdma.settings"]
    assert finding.verdict is Verdict.MISSING and "/etc/cufile.json:2:17: this is no JSON" in finding.what


def test_another_settings_file_may_be_in_force(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.file("/run/node.json", '{"properties": {"rdma_dev_addr_list": ["10.0.0.1"]}}')
    node = replace(machine(tree), environ={"CUFILE_ENV_PATH_JSON": "/run/node.json"})
    finding = judged(read_rdma(node))["rdma.addresses"]
    assert finding.what.startswith(
        "/run/node.json: properties.rdma_dev_addr_list names 10.0.0.1; this node has no RDMA"
    )
