"""The data of devices: whole, plausible, and open to files of one's own."""

import json
from pathlib import Path

import pytest
from cli_tools import run

from archdsl.diagnostics import ArchError
from archdsl.estimates.hardware import Device, device, devices


@pytest.mark.parametrize("name", devices())
def test_a_device_is_plausible(name: str) -> None:
    d = device(name)
    assert d.source.startswith("https://")
    assert d.year is not None
    assert 2017 <= d.year <= 2030
    assert 8 <= d.memory_gib <= 512
    assert 1e11 < d.bandwidth < 2e13
    assert all(1e12 < peak < 2e16 for peak in d.peak.values())
    # Fewer bits are never slower.
    order = [d.peak[t] for t in ("float64", "float32", "tfloat32", "float16", "float8", "float4") if t in d.peak]
    assert order == sorted(order)
    assert d.peak.get("bfloat16", d.peak["float16"]) == d.peak["float16"]
    assert d.interconnect is not None
    assert 16e9 <= d.interconnect.bandwidth < d.bandwidth
    if d.network is not None:
        assert 6e9 <= d.network.bandwidth < d.interconnect.bandwidth / 2
        assert d.network.source.startswith("https://")
    assert d.tdp_watts is not None
    assert 50 <= d.tdp_watts <= 1500
    # A dense peak: no matrix unit of these years makes more than 3 TFLOP/s of bfloat16 a watt.
    assert d.peak["float16"] / d.tdp_watts < 3e12


def test_ridges() -> None:
    assert device("a100_sxm_80gb").ridge("bfloat16") == pytest.approx(153, rel=0.01)
    assert device("h100_sxm").ridge("bfloat16") == pytest.approx(295, rel=0.01)
    assert device("h200_sxm").ridge("bfloat16") == pytest.approx(206, rel=0.01)
    assert device("t4").ridge("bfloat16") is None


def test_the_first_word_will_do_where_it_says_which() -> None:
    assert device("H200") == device("h200_sxm")
    assert device("RTX 4090") == device("rtx-4090") == device("rtx_4090")
    with pytest.raises(ArchError, match="several devices `H100`") as caught:
        device("H100")
    assert caught.value.diagnostics[0].help == "choose one: h100_pcie, h100_sxm"


def test_command_lists_them_all() -> None:
    status, out = run("hardware")
    assert status == 0
    assert all(f"{name} " in out and d.name in out for name, d in devices().items())
    found = json.loads(run("hardware", "h100_sxm", "--json")[1])
    assert Device.model_validate(found["devices"]["h100_sxm"]) == device("h100_sxm")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = {
        "name": "Own",
        "vendor": "me",
        "memory_gib": 12,
        "bandwidth": 5e11,
        "peak": {"float16": 2e13},
        "source": "measured",
    }
    path = tmp_path / "own.json"
    path.write_text(json.dumps(own))
    assert device(path).peak == {"float16": 2e13}
    status, out = run("hardware", "l4", path)
    assert (status, len(out.splitlines())) == (0, 4)
    for change, said in (
        ({"bandwith": 1}, "`bandwith`"),
        ({"bandwidth": -1}, "`bandwidth`"),
        ({"peak": {}}, "`peak`"),
        ({"peak": {"float17": 1e12}}, "`peak.float17"),
    ):
        path.write_text(json.dumps({**own, **change}))
        with pytest.raises(ArchError) as raised:
            device(path)
        assert said in raised.value.diagnostics[0].message
        assert run("hardware", path)[0] == 2
    path.write_text("{")
    assert "E0507" in run("hardware", path)[1]


def test_what_there_is_not() -> None:
    status, out = run("hardware", "h100_sx")
    assert (status, "E0507" in out, "did you mean `h100_sxm`" in out) == (2, True, True)
    assert run("hardware", "nowhere.json")[0] == 2
