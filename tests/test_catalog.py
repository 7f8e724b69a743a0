import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpucalc.core.errors import DataError, UsageError
from gpucalc.database import files
from gpucalc.database.check import check
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import Database
from gpucalc.database.records import schema_table
from gpucalc.database.references import references

H100 = files.shipped() / "accelerators" / "h100-sxm-80gb.toml"


@pytest.fixture
def overlay(tmp_path):
    (tmp_path / "accelerators").mkdir()
    return tmp_path


def put(overlay, text, name="mine.toml", folder="accelerators"):
    (overlay / folder).mkdir(exist_ok=True)
    path = overlay / folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_shipped_database_has_no_problem():
    assert check() == []


def test_overlay_wins_and_the_rest_stays(overlay):
    put(overlay, H100.read_text().replace('"3.35 TB/s"', '"4 TB/s"'), "h100-sxm-80gb.toml")
    db = Database([overlay])
    assert db.device("h100").memory_bandwidth == 4e12
    assert db.device("a100").memory_bandwidth == Database().device("a100").memory_bandwidth
    assert check([overlay]) == []


def test_later_overlay_wins(overlay, tmp_path_factory):
    second = tmp_path_factory.mktemp("second")
    put(overlay, H100.read_text().replace('"3.35 TB/s"', '"4 TB/s"'), "h100-sxm-80gb.toml")
    put(second, H100.read_text().replace('"3.35 TB/s"', '"5 TB/s"'), "h100-sxm-80gb.toml")
    assert Database([overlay, second]).device("h100").memory_bandwidth == 5e12
    assert Database([second, overlay]).device("h100").memory_bandwidth == 4e12


def test_environment_names_overlays(overlay, monkeypatch):
    put(overlay, H100.read_text())
    monkeypatch.setenv("GPUCALC_DB", str(overlay))
    assert Database().device("mine").key == "mine"
    monkeypatch.setenv("GPUCALC_DB", str(overlay / "nowhere"))
    with pytest.raises(DataError, match="does not exist"):
        Database()


def test_a_new_device_with_its_own_node_and_alias(overlay):
    node = (files.shipped() / "nodes" / "dgx-h100.toml").read_text().replace("gpus_per_node = 8", "gpus_per_node = 4")
    put(overlay, node.replace("domain = 8", "domain = 4"), "quad.toml", "nodes")
    put(overlay, H100.read_text().replace('"dgx-h100"', '"quad"'))
    (overlay / "aliases.csv").write_text("spelling,key\nmy card,mine\n")
    assert check([overlay]) == []
    cluster = resolve_cluster(Database([overlay]), "MY_CARD", 8)
    assert (cluster.node.key, cluster.domain, cluster.n_nodes) == ("quad", 4, 2)
    assert cluster.network_bandwidth_per_gpu == 100e9  # eight ports for four devices


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('bandwidth = "3.35 TB/s"', "bandwidth = 3350", "memory.bandwidth: 3350 is a bare value; write a quantity"),
        ('bandwidth = "3.35 TB/s"', 'bandwidth = "3350"', "memory.bandwidth: '3350' has no unit"),
        ('bandwidth = "3.35 TB/s"', 'bandwidth = "80 GB"', "memory.bandwidth: '80 GB' is in B, expected B/s"),
        ('bandwidth = "3.35 TB/s"', 'bandwidth = "3.35 tb/s"', "memory.bandwidth: unknown unit 'tb/s'.*did you mean"),
        ('bandwidth = "3.35 TB/s"', 'bandwidth = "-1 TB/s"', "memory.bandwidth: .*must be positive"),
        ('bandwidth = "3.35 TB/s"', 'bandwidth = "1e999 TB/s"', "memory.bandwidth: .*not finite"),
        ('bandwidth = "3.35 TB/s"\n', "", "memory.bandwidth: missing"),
        ('bf16 = "989.4 TFLOP/s"', 'bf61 = "989.4 TFLOP/s"', "peak.dense: unknown precision 'bf61'"),
        ('bf16 = "989.4 TFLOP/s"', "bf16 = 989.4", "peak.dense: bf16: 989.4 is a bare value"),
        ('bf16 = "989.4 TFLOP/s"', 'bf16 = "989.4 GB"', "peak.dense: bf16: .*expected FLOP/s"),
        ("units = 132", "units = 132.5", "compute.units: must be a positive whole number"),
        ("units = 132", "units = true", "compute.units: must be a positive whole number"),
        ("units = 132", "unit = 132", "compute.unit: unknown key; did you mean units"),
        ("[power]", "[powr]", "powr: unknown key; did you mean power"),
        ('name = "H100-SXM5-80GB"', "name = 7", "name: must be a text"),
        ('usable_basis = "reported"', 'usable_basis = "guessed"', "usable_basis: 'guessed' is none of reported"),
        ('confidence = "high"', 'confidence = "sure"', "confidence: 'sure' is none of high, medium, low"),
        ('[host]\nkey = "pcie-5"', '[host]\nkey = ["pcie-5"]', "host.key: must be a text"),
    ],
)
def test_a_wrong_entry_is_a_sentence_with_file_and_key(overlay, before, after, message):
    text = H100.read_text()
    assert before in text
    put(overlay, text.replace(before, after))
    with pytest.raises(DataError, match=message) as caught:
        Database([overlay]).device("mine")
    assert f"{overlay.as_posix()}/accelerators/mine.toml: " in str(caught.value)
    assert list(caught.value.problems) == check([overlay])


def test_source_is_required_for_each_group(overlay):
    put(overlay, "\n".join(line for line in H100.read_text().splitlines() if not line.startswith("source")))
    problems = check([overlay])
    assert [p.split(": ")[1] for p in problems] == [
        f"{group}.source" for group in ("peak", "memory", "compute", "power", "link", "host")
    ]


def test_check_lists_all_problems_of_all_files_at_once(overlay):
    put(overlay, 'name = "x"\nvendr = "y"')
    put(
        overlay, H100.read_text().replace('"dgx-h100"', '"dgx-h1000"').replace('"900 GB/s"', '"450 GB/s"'), "other.toml"
    )
    put(overlay, 'name = "n"', "n.toml", "nodes")
    (overlay / "acelerators").mkdir()
    put(overlay, "", "notes.txt")
    (overlay / "aliases.csv").write_text("spelling,key\nfoo,nothing\n")
    text = "\n".join(check([overlay]))
    for expected in (
        "acelerators: unknown entry of a database folder; did you mean accelerators?",
        "accelerators/notes.txt: not a .toml file",
        "mine.toml: vendr: unknown key; did you mean vendor?",
        "mine.toml: peak.dense: missing",
        "other.toml: default_node: unknown node 'dgx-h1000'; did you mean dgx-h100",
        "other.toml: link.bidirectional: is not twice",
        "n.toml: fabric: missing",
        "names the accelerator 'nothing'",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"\x00\x01\x02binary", "a binary file"),
        ('name = "Gerät"'.encode("latin-1"), "not UTF-8 text"),
        (b"name = ", "not valid TOML"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
        (b"a" * (files.MAX_FILE_BYTES + 1), "larger than 1 MiB"),
        (b"peak = 7\n", "peak: must be a table"),
    ],
)
def test_malformed_files(overlay, content, message):
    put(overlay, content)
    with pytest.raises(DataError, match=message):
        Database([overlay]).device("mine")
    assert any(message in problem for problem in check([overlay]))


def test_bom_and_crlf_are_accepted(overlay):
    put(overlay, b"\xef\xbb\xbf" + H100.read_bytes().replace(b"\n", b"\r\n"))
    assert Database([overlay]).device("mine").peak == Database().device("h100").peak


def test_a_folder_in_place_of_a_file(overlay):
    (overlay / "accelerators" / "mine.toml").mkdir()
    with pytest.raises(DataError, match="not a regular file"):
        Database([overlay]).device("mine")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(overlay):
    os.mkfifo(overlay / "accelerators" / "mine.toml")
    with pytest.raises(DataError, match="not a regular file"):
        Database([overlay]).device("mine")


def test_links_out_of_the_folder_are_not_followed(overlay, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.toml"
    secret.write_text('password = "hunter2"')
    (overlay / "accelerators" / "mine.toml").symlink_to(secret)
    (overlay / "aliases.csv").symlink_to(secret)
    problems = check([overlay])
    assert sum("leads out of its folder" in p for p in problems) == 2
    assert "hunter2" not in "\n".join(problems)
    with pytest.raises(DataError, match="leads out of its folder"):
        Database([overlay]).device("mine")


def test_a_loop_of_links(overlay):
    (overlay / "accelerators" / "mine.toml").symlink_to(overlay / "accelerators" / "mine.toml")
    with pytest.raises(DataError):
        Database([overlay]).device("mine")


def test_keys_in_a_users_file_do_not_become_paths(overlay):
    put(overlay, H100.read_text().replace('"dgx-h100"', '"../accelerators/mine"'))
    with pytest.raises(UsageError, match=r"unknown node '\.\./accelerators/mine'"):
        resolve_cluster(Database([overlay]), "mine", 8)


def test_a_file_or_nothing_in_place_of_the_folder(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        Database([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is a file, not a folder"):
        check([tmp_path / "file"])
    with pytest.raises(DataError, match="not an empty text"):
        Database([""])
    with pytest.raises(DataError, match="hardware database"):
        Database(["a\0b"])


@pytest.mark.parametrize("content", ["name,key\na,b\n", "spelling,key\na\n", "spelling,key\na,b,c\n", ""])
def test_malformed_aliases(overlay, content):
    (overlay / "aliases.csv").write_text(content)
    assert len(check([overlay])) == 1
    with pytest.raises(DataError, match=r"aliases\.csv"):
        Database([overlay]).device("no such card")


def test_references_are_complete_and_overlay(overlay):
    shipped = references(Database())
    needed = [
        "rajbhandari2020",
        "shoeybi2019",
        "korthikanti2022",
        "qi2024",
        "thakur2005",
        "patarasuk2009",
        "williams2009",
        "gpucalc-counting",
    ]
    assert set(needed) <= set(shipped)
    for reference in shipped.values():
        assert reference.authors
        assert reference.title
        assert reference.locator
        assert 1900 < reference.year < 2030
    (overlay / "references.toml").write_text('[mine]\nauthors = "A"\ntitle = "B"\nyear = 2024\nlocator = "C"\n')
    assert str(references(Database([overlay]))["mine"]) == "A (2024). B. C"
    (overlay / "references.toml").write_text('[mine]\nauthors = "A"\ntitel = "B"\nyear = "2024"\nlocator = "C"\n')
    with pytest.raises(
        DataError, match=r"mine.title: missing; .*mine.titel: unknown key; .*mine.year: must be a finite number"
    ):
        references(Database([overlay]))


def test_readme_table_is_the_schema():
    readme = (files.shipped() / "README.md").read_text(encoding="utf-8")
    assert readme.endswith(schema_table())


def test_a_whole_copy_is_a_valid_database(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(files.shipped(), copy)
    assert check([copy]) == []


def test_the_database_is_found_in_the_layout_of_a_wheel(tmp_path):
    package = Path(files.__file__).parent.parent
    installed = tmp_path / "site" / "gpucalc"
    installed.mkdir(parents=True)
    shutil.copy(package / "__init__.py", installed / "__init__.py")
    for name in ("core", "database"):
        shutil.copytree(package / name, installed / name)
    shutil.copytree(files.shipped(), installed / "hardware_db")
    code = "from gpucalc.database import check, files; print(files.shipped()); print(check.check())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str((installed / "hardware_db").resolve()), "[]"], done.stderr
