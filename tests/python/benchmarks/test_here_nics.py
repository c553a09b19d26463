"""Benchmarks on a launcher's ranks: what NICs have counted."""

from pathlib import Path

import pytest

from isthmus.benchmarks.here.nics import find_counter

IB, NIC = "0000:01:00.0", "0000:02:00.0"


class CountedMachine:
    """Made-up trees like /sys and /proc, with NICs that have counted something."""

    def __init__(self, folder: Path) -> None:
        self.roots = (folder / "sys", folder / "proc")
        self._sys = self.roots[0]

    def interface(
        self, name: str, on: str | None = None, kind: int = 1, state: str = "up", **attributes: object
    ) -> None:
        """An interface of a PCI function, or a virtual one."""
        parent = self._sys / "devices/virtual" if on is None else self._sys / "devices/pci0000:00" / on
        folder = parent / "net" / name
        for attribute, value in {"type": kind, "operstate": state, **attributes}.items():
            self.write(folder / attribute, value)
        self._link(self._sys / "class/net" / name, folder)

    def verbs(
        self, name: str, on: str | None, layer: str = "InfiniBand", state: str = "4: ACTIVE", ports: int = 1
    ) -> None:
        """A verbs device of a PCI function, or one made by software."""
        parent = self._sys / "devices/virtual" if on is None else self._sys / "devices/pci0000:00" / on
        folder = parent / "infiniband" / name
        for port in range(1, ports + 1):
            self.write(folder / f"ports/{port}/link_layer", layer)
            self.write(folder / f"ports/{port}/state", state)
        self._link(self._sys / "class/infiniband" / name, folder)

    def write(self, path: Path, value: object) -> None:
        """Write one attribute."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def net_dev(self, **sent):
        head = "Inter-|   Receive  |  Transmit\n face |bytes packets ...|bytes packets ...\n"
        lines = [f"{name:>6}: 7 1 0 0 0 0 0 0 {num_bytes} 1 0 0 0 0 0 0" for name, num_bytes in sent.items()]
        self.write(self.roots[1] / "self/net/dev", head + "\n".join(lines))

    def count(self, device, sent, port=1, counter="counters/port_xmit_data"):
        self.write(self._sys / f"class/infiniband/{device}/ports/{port}" / counter, sent)


def test_an_adapter_counts_and_what_stands_on_it_does_not_again(tmp_path):
    machine = CountedMachine(tmp_path)
    machine.interface("eth0", on=NIC)
    for virtual in ("lo", "bond0", "docker0", "veth12"):
        machine.interface(virtual)
    machine.net_dev(lo=9, eth0=2**40, bond0=2**40, docker0=5, veth12=5)
    read = find_counter(*machine.roots)
    assert read() == 2**40
    machine.net_dev(lo=9)
    with pytest.raises(KeyError, match="eth0"):
        read()


def test_in_a_namespace_of_virtual_interfaces_those_that_stand_on_no_other_count(tmp_path):
    machine = CountedMachine(tmp_path)
    for virtual in ("lo", "veth0", "veth1"):
        machine.interface(virtual)
    machine.interface("bond0", lower_veth0="", lower_veth1="")
    machine.net_dev(lo=9, veth0=10, veth1=20, bond0=30)
    assert find_counter(*machine.roots)() == 30


def test_interfaces_that_sys_does_not_show_count_all(tmp_path):
    """/sys of another namespace says nothing about this one's eth0."""
    machine = CountedMachine(tmp_path)
    machine.interface("eth0", on=NIC)
    machine.net_dev(lo=9, eth0=2, tap0=4)
    assert find_counter(*machine.roots)() == 2 + 4


def test_ports_of_infiniband_count_in_words_of_four_bytes_and_their_interfaces_not_again(tmp_path):
    machine = CountedMachine(tmp_path)
    machine.verbs("mlx5_0", on=IB)
    machine.count("mlx5_0", sent=2**40)
    machine.interface("ib0", on=IB, kind=32)
    machine.interface("eth0", on=NIC)
    machine.net_dev(lo=9, ib0=4 * 2**40, eth0=2)
    assert find_counter(*machine.roots)() == 4 * 2**40 + 2


def test_roce_counts_beside_its_interface_and_efa_in_bytes(tmp_path):
    machine = CountedMachine(tmp_path)
    machine.verbs("mlx5_0", on=NIC, layer="Ethernet")
    machine.count("mlx5_0", sent=2)
    machine.verbs("rdmap1s0", on=IB, layer="Unspecified")
    machine.count("rdmap1s0", sent=200, counter="hw_counters/tx_bytes")
    machine.interface("eth0", on=NIC)
    machine.net_dev(eth0=2000)
    assert find_counter(*machine.roots)() == 2208


def test_nothing_is_counted_where_a_port_has_no_counter_and_ports_that_are_down_do_not_matter(tmp_path):
    machine = CountedMachine(tmp_path)
    machine.verbs("mlx5_0", on=IB, ports=2)
    machine.count("mlx5_0", sent=3)
    machine.count("mlx5_0", sent="no number", port=2)
    machine.verbs("mlx5_1", on=NIC, state="1: DOWN")
    machine.verbs("rxe0", on=None)
    machine.interface("eth0", on=NIC)
    machine.net_dev(eth0=2)
    assert find_counter(*machine.roots) is None
    machine.count("mlx5_0", sent=5, port=2)
    assert find_counter(*machine.roots)() == 2 + 4 * (3 + 5)


def test_a_machine_without_a_nic_is_not_counted(tmp_path):
    machine = CountedMachine(tmp_path)
    machine.net_dev(lo=9)
    assert find_counter(*machine.roots) is None
