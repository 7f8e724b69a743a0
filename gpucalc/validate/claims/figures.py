"""Claims about figures of devices, nodes and links, checked against the database."""

from __future__ import annotations

from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIGABIT
from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.database.records import Device, Link, Node
from gpucalc.validate.claims.statements import FALSE, MIXED, PARTLY, SPARSE, TRUE, Claim, Verdict, close, factor_said

CLOSE_LINK = 0.05  # raw and usable rates of a link differ by its encoding


def _tera(value: float) -> str:
    return f"{value / 1e15:,.4g} PFLOP/s" if value >= 1e16 else f"{value / 1e12:,.4g} TFLOP/s"


def _peaks(device: Device, precision: str) -> dict[str, float]:
    """Peaks that a person may mean by a precision: dense ones, of matrix units too, and sparse ones."""
    names = [n for n in (precision, f"{precision}_tensor") if n in device.peak]
    if not names:
        raise UsageError(
            f"{device.key} states no peak of {precision} ({device.file}); it states {', '.join(device.peak)}"
        )
    found = {f"{n} dense": device.peak[n] for n in names}
    return found | {f"{n} sparse": device.sparse_peak[n] for n in names if n in device.sparse_peak}


def _peak_verdict(claim: Claim, device: Device, db: Database, count: int, what: str) -> Verdict:
    precision, said = str(claim.fields["precision"]).casefold(), claim.fields["tflops"] * 1e12
    peaks = _peaks(device, precision)
    lines = [
        f"{name}: {count} × {_tera(value)} = {_tera(count * value)}" if count > 1 else f"{name}: {_tera(value)}"
        for name, value in peaks.items()
    ]
    source = f"{device.file}: {device.sources.get('peak', '')}"
    vector, matrix = (peaks.get(f"{p} dense") for p in (precision, f"{precision}_tensor"))
    for name, value in peaks.items():
        if close(said, count * value):
            if name == f"{precision}_tensor dense" and vector and matrix and not close(said, count * vector):
                because = (
                    f"{_tera(said)} is that of the matrix units; everything else runs at "
                    f"{_tera(count * vector)}, the vector peak"
                )
                return Verdict(claim, PARTLY, because, tuple(lines), source)
            if name.endswith("sparse"):
                dense = count * peaks[name.replace("sparse", "dense")]
                return Verdict(
                    claim,
                    SPARSE,
                    f"{_tera(said)} is the peak with 2:4 sparsity; dense, which training runs at, it is {_tera(dense)}",
                    tuple(lines),
                    source,
                )
            return Verdict(claim, TRUE, f"{_tera(said)} is the {name} peak of {what}", tuple(lines), source)
    nearby = min(peaks.values(), key=lambda v: abs(v * count - said))
    others = [
        f"{other.key} ({name})"
        for other in db.devices()
        if other.key != device.key and other.arch == device.arch and precision in other.peak
        for name, value in _peaks(other, precision).items()
        if close(said, count * value)
    ]
    because = f"the database has {', '.join(f'{_tera(count * v)} ({n})' for n, v in peaks.items())}; "
    because += factor_said(said / 1e12, count * nearby / 1e12)
    if others:
        because += f"; it is the figure of {', '.join(others[:3])}"
    return Verdict(claim, FALSE, because, tuple(lines), source)


def check_peak(claim: Claim, db: Database) -> Verdict:
    """Whether a peak is the dense, matrix-unit or sparse one of a device, of several, or of the node of that name."""
    node = named_node(claim, db)
    device, count = _counted(claim, db)
    if node is not None:
        return _of_node(claim, device, db, node, int(float(claim.fields.get("n_gpus") or 1)))
    return _peak_verdict(claim, device, db, count, f"{count:,} {device.key}" if count > 1 else device.key)


def _of_node(claim: Claim, device: Device, db: Database, node: Node, each: int) -> Verdict:
    """A peak of all devices of a node, or of its rack; of one tray where the figure is that of a tray."""
    found = _peak_verdict(claim, device, db, devices_of(node) * each, node.key)
    if found.verdict == FALSE and node.is_tray:
        tray = _peak_verdict(claim, device, db, node.gpus_per_node * each, f"a tray of {node.key}")
        return tray if tray.verdict != FALSE else found
    return found


def named_node(claim: Claim, db: Database) -> Node | None:
    """The node that a claim means by gpu=: a node's name is a node; None where it names a device."""
    wanted = files.fold(str(claim.fields["gpu"]))
    key = next((key for key in db.files("nodes") if files.fold(key) == wanted), None)
    return db.node(key) if key is not None else None


def devices_of(node: Node) -> int:
    """Devices that the name of a node means: of a tray all those of its rack, which is what is sold under that name."""
    return node.domain if node.is_tray else node.gpus_per_node


def _counted(claim: Claim, db: Database) -> tuple[Device, int]:
    """The device that a claim is about, and how many of them."""
    node, each = named_node(claim, db), int(float(claim.fields.get("n_gpus") or 1))
    if node is not None:
        return db.device(node.accelerators[0]), devices_of(node) * each
    return db.device(str(claim.fields["gpu"])), each


def check_node_peak(claim: Claim, db: Database) -> Verdict:
    """The same of all devices of a node."""
    node = db.node(str(claim.fields["node"]))
    device = db.device(str(claim.fields.get("gpu") or node.accelerators[0]))
    return _of_node(claim, device, db, node, int(float(claim.fields.get("n_gpus") or 1)))


def _basis(said: float, each_way: float) -> str | None:
    """Which basis a link's figure is on."""
    if close(said, each_way, CLOSE_LINK):
        return "one direction"
    return "both directions" if close(said, 2 * each_way, CLOSE_LINK) else None


def _host_link(claim: Claim, device: Device, db: Database) -> Link:
    """The PCIe generation that a claim means: the one stated, else the device's own, else the one its figure is of."""
    if claim.fields.get("pcie"):
        return db.link(str(claim.fields["pcie"]))
    said, own = float(claim.fields["pcie_gb_s"]), db.link(str(device.pcie))
    others = [db.link(key) for key in ("pcie-4", "pcie-5", "pcie-6", "pcie-3")]
    return next((one for one in (own, *others) if _basis(said, one.bandwidth / 1e9)), own)


def check_links(claim: Claim, db: Database) -> Verdict:
    """Whether two link rates that are compared count the same directions, and their ratio on one basis."""
    device = db.device(str(claim.fields["gpu"]))
    pcie = _host_link(claim, device, db)
    link, host = device.link_bandwidth / 1e9, pcie.bandwidth / 1e9
    said_link, said_host = float(claim.fields["link_gb_s"]), float(claim.fields["pcie_gb_s"])
    bases = _basis(said_link, link), _basis(said_host, host)
    own = db.link(device.pcie).bandwidth / 1e9 if device.pcie else host
    lines = [
        f"{device.link} of {device.key}: {link:g} GB/s one direction, {2 * link:g} both",
        f"{pcie.key}: {host:.3g} GB/s one direction, {2 * host:.3g} both",
        f"on one basis: {link:g} / {host:.3g} = {link / host:.3g}",
        f"as said: {said_link:g} / {said_host:g} = {said_link / said_host:.3g}",
    ]
    if device.pcie and device.pcie != pcie.key:
        lines.append(f"{device.key} has {device.pcie}: {link:g} / {own:.3g} = {link / own:.3g}")
    wrong = [
        f"{name} {said:g} GB/s is neither {each:.3g} nor {2 * each:.3g}"
        for name, said, each, basis in (
            (device.link, said_link, link, bases[0]),
            (pcie.key, said_host, host, bases[1]),
        )
        if basis is None
    ]
    if wrong:
        return Verdict(claim, FALSE, "; ".join(wrong), tuple(lines), device.file)
    if bases[0] != bases[1]:
        because = (
            f"{said_link:g} GB/s counts {bases[0]}, {said_host:g} GB/s {bases[1]}; on one basis the ratio is "
            f"{link / host:.3g}, not {said_link / said_host:.3g}"
        )
        if device.pcie and device.pcie != pcie.key:
            because += f", and {link / own:.3g} against {device.pcie}, which {device.key} has"
        return Verdict(claim, MIXED, because, tuple(lines), device.file)
    return Verdict(claim, TRUE, f"both count {bases[0]}", tuple(lines), device.file)


def _figure(claim: Claim, said: float, found: float, unit: str, what: str, source: str) -> Verdict:
    lines = (f"{what}: {found:,.6g} {unit}", f"said: {said:,.6g} {unit}, {100 * (said / found - 1):+.1f} %")
    if close(said, found):
        return Verdict(claim, TRUE, f"{what} is {found:,.6g} {unit}", lines, source)
    return Verdict(claim, FALSE, f"{what} is {found:,.6g} {unit}; {factor_said(said, found)}", lines, source)


def check_one_link(claim: Claim, db: Database) -> Verdict:
    """Whether a rate is the one of the scale-up links or of the link to the host."""
    device = db.device(str(claim.fields["gpu"]))
    if claim.kind == "link":
        each, said, what = (
            device.link_bandwidth / 1e9,
            float(claim.fields["link_gb_s"]),
            f"{device.link} of {device.key}",
        )
    else:
        each, said = device.host_bandwidth / 1e9, float(claim.fields["pcie_gb_s"])
        what = f"{device.pcie} of {device.key}"
    if not each:
        raise UsageError(f"{device.key} states no such link ({device.file})")
    basis = _basis(said, each)
    lines = (f"{what}: {each:.4g} GB/s one direction, {2 * each:.4g} both",)
    if basis:
        return Verdict(claim, TRUE, f"{said:g} GB/s counts {basis}", lines, device.file)
    return Verdict(
        claim, FALSE, f"{what} is {each:.4g} GB/s one direction; {factor_said(said, each)}", lines, device.file
    )


def check_port(claim: Claim, db: Database) -> Verdict:
    """Whether a network port carries a rate."""
    link = db.link(str(claim.fields["fabric"]))
    rate = link.bandwidth / GIGABIT
    return _figure(
        claim, float(claim.fields["gbps"]), rate, "Gb/s", f"{link.key}, one direction", f"links/{link.key}.toml"
    )


def check_node_network(claim: Claim, db: Database) -> Verdict:
    """Whether the compute network ports of a node carry a rate together, or each of them does."""
    node, said = db.node(str(claim.fields["node"])), float(claim.fields["gbps"])
    port = node.nic_bandwidth / GIGABIT
    if not port or not node.nic_count:
        raise UsageError(f"{node.key} states no compute network ports (nodes/{node.key}.toml)")
    what = f"{node.nic_count} ports of {node.key}, one direction"
    if close(said, port) and node.nic_count > 1:
        lines = (f"{node.nic_count} × {port:g} Gb/s = {node.nic_count * port:g} Gb/s",)
        return Verdict(claim, PARTLY, f"{said:g} Gb/s is one of the {what}", lines, f"nodes/{node.key}.toml")
    return _figure(claim, said, node.nic_count * port, "Gb/s", what, f"nodes/{node.key}.toml")


def _several(count: int, key: str) -> str:
    return f"{count:,} {key}" if count > 1 else key


def check_memory(claim: Claim, db: Database) -> Verdict:
    """Whether a device has so much memory."""
    device, count = _counted(claim, db)
    found, what = count * device.memory_bytes / 1e9, f"memory of {_several(count, device.key)}"
    return _figure(claim, float(claim.fields["memory_gb"]), found, "GB", what, device.file)


def check_memory_bandwidth(claim: Claim, db: Database) -> Verdict:
    """Whether a device has such a memory bandwidth."""
    device, count = _counted(claim, db)
    rate, what = count * device.memory_bandwidth / 1e12, f"memory bandwidth of {_several(count, device.key)}"
    return _figure(claim, float(claim.fields["memory_tb_s"]), rate, "TB/s", what, device.file)


def check_tdp(claim: Claim, db: Database) -> Verdict:
    """Whether a device has such a power limit."""
    device, count = _counted(claim, db)
    if device.tdp_watts is None:
        raise UsageError(f"{device.key} states no power limit ({device.file})")
    found, what = count * device.tdp_watts, f"limit of {_several(count, device.key)}"
    return _figure(claim, float(claim.fields["tdp_w"]), found, "W", what, device.file)
