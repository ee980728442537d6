"""Whatever is wrong with an input: no traceback, no hang, no large memory, nothing left behind."""

import json
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from paramsym.checkpoints import configuration
from paramsym.cli import app
from tests.archives import edited, entries, write
from tests.checkpoints.malformed import SMALL, Seeds, cases, safetensors, split
from tests.folders import write_llama
from tests.models import Small

pytestmark = pytest.mark.filterwarnings("ignore")
SECONDS, BYTES = 10, 1 << 30  # of one case
WEIGHTS_TABLE = "data/weights/model_weights_config.json"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    folder = tmp_path_factory.mktemp("seeds")
    return Seeds(folder, write_llama(folder / "llama"))


def listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def run(folder: Path, *arguments: object) -> Result:
    """One command, whose time, memory, output and leavings are looked at."""
    before, start = listing(folder), time.monotonic()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    shown = f"{arguments}\n{result.output[-3000:]}\n{result.exception!r}"
    assert time.monotonic() - start < SECONDS, shown
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown * 1024 < BYTES, shown
    assert result.exception is None or isinstance(result.exception, SystemExit), shown
    assert result.exit_code in (0, 2), shown
    assert "Traceback" not in result.output, shown
    if result.exit_code == 2:
        assert explained(result), shown
        assert listing(folder) == before, shown
    return result


def explained(result: Result) -> bool:
    """The four parts; or, where a model was traced or an option parsed, one clear line."""
    parts = [line.strip().split("  ")[0] for line in result.stderr.splitlines()]
    four = [p for p in parts if p in ("came", "expected", "instead")]
    if four == ["came", "expected", "instead"] and result.stderr.startswith("Error in "):
        return True
    return result.stderr.startswith(("Error: ", "error: ", "Usage: "))


def refuse(folder: Path, *arguments: object, says: str = "") -> str:
    result = run(folder, *arguments)
    assert result.exit_code == 2, result.output
    flat = " ".join(result.stderr.split())
    assert says in flat, flat
    return flat


def test_valid_files_are_read(seeds: Seeds, tmp_path: Path):
    """The control of all that follows."""
    for arguments in (
        [SMALL, "--weights", seeds.weights], [SMALL, "--weights", seeds.archive],
        [SMALL, "--weights", seeds.index], [seeds.program], [seeds.llama],
        [SMALL, "--inputs", "4x5"],
    ):  # fmt: skip
        assert run(tmp_path, "inspect", *arguments, "--no-verify").exit_code == 0, arguments


@pytest.mark.parametrize("count", [60, pytest.param(960, marks=pytest.mark.slow)])
def test_random_changes(seeds: Seeds, tmp_path: Path, count: int):
    codes: dict[int, int] = {}
    for case in cases(seeds, tmp_path, count, seed=20261121):
        code = run(tmp_path / case.name.split(":")[0], *case.arguments).exit_code
        codes[code] = codes.get(code, 0) + 1
    assert sum(codes.values()) == count and codes[2] > 5 * count // 8, codes


# -- the named cases: weights ------------------------------------------------------------------


def written(seeds: Seeds, folder: Path, **entries: object) -> Path:
    """The weights with entries of their header exchanged; None takes one out."""
    table, body = split(seeds.weights)
    for name, value in entries.items():
        name = name.replace("__", ".")
        table = {k: v for k, v in table.items() if k != name} | ({name: value} if value else {})
    path = folder / "w.safetensors"
    path.write_bytes(safetensors(json.dumps(table), body))
    return path


def entry(seeds: Seeds, **parts: object) -> dict[str, object]:
    return {**split(seeds.weights)[0]["first.weight"], **parts}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"data_offsets": ["0", "140"]}, "the data_offsets ['0', '140']"),
        ({"data_offsets": [-140, 0]}, "the data_offsets [-140, 0]"),
        ({"data_offsets": [0, 10**23]}, "the data_offsets"),
        ({"data_offsets": [140, 0]}, "the data_offsets [140, 0]"),
        ({"data_offsets": [0]}, "the data_offsets [0]"),
        ({"data_offsets": [0, 140]}, "numbers that begin at byte"),  # overlapping
        ({"shape": [7, -5]}, "the shape [7, -5]"),
        ({"shape": [10**18, 10**18]}, "the shape [1000000000000000000, 10000"),
        ({"shape": ["7", 5]}, "the shape ['7', 5]"),
        ({"shape": [True, 35]}, "the shape [True, 35]"),
        ({"dtype": "F31"}, "the dtype 'F31'"),
        ({"dtype": 5}, "the dtype 5"),
        ({"dtype": "F64"}, "bytes for the shape [7, 5] of F64"),
    ],
)
def test_headers_that_lie(seeds: Seeds, tmp_path: Path, parts: dict, says: str):
    path = written(seeds, tmp_path, first__weight=entry(seeds, **parts))
    refuse(tmp_path, "inspect", SMALL, "--weights", path, "--no-verify", says=says)
    refuse(tmp_path, "relu-equal", path, path, says=says)


def test_headers_of_another_form(seeds: Seeds, tmp_path: Path):
    path = tmp_path / "w.safetensors"
    body = split(seeds.weights)[1]
    for text, says in (
        ("[" * 200_000, "its header cannot be read (RecursionError"),
        ('{"a":' * 200_000, "its header cannot be read (RecursionError"),
        ("[1, 2]", "a list instead of a table"),
        ("3", "a int instead of a table"),
        ('{"a": 1, "a": 2}', "a name stands in it twice"),
        ('{"a": "F32"}', "no table of dtype, shape and data_offsets"),
        ('{"__metadata__": {"a": 1}}', "metadata that is no table of texts"),
        ("9" * 5000, "its header cannot be read (ValueError"),
    ):
        path.write_bytes(safetensors(text, body))
        refuse(tmp_path, "inspect", SMALL, "--weights", path, says=says)
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    refuse(tmp_path, "inspect", SMALL, "--weights", path, says="its header should have")


@pytest.mark.parametrize(
    ("dtype", "says"),
    [
        (torch.int8, "'first.weight' holds whole numbers (int8)"),
        (torch.int64, "the model's tensor is float32"),
        (torch.bool, "holds whole numbers (bool)"),
        (torch.float8_e4m3fn, "has the dtype float8_e4m3fn"),
        (torch.complex64, "holds complex numbers (complex64)"),
    ],
)
def test_weights_of_another_kind(tmp_path: Path, dtype: torch.dtype, says: str):
    state = Small().state_dict()
    state["first.weight"] = state["first.weight"].to(dtype)
    for name, write_ in (("w.safetensors", save_file), ("w.pt", torch.save)):
        write_(state, tmp_path / name)
        for command in (["inspect"], ["transform", tmp_path / "out.safetensors"]):
            head, *rest = command
            refuse(tmp_path, head, SMALL, *rest, "--weights", tmp_path / name, says=says)


def test_mixed_halves_are_read_and_not_run(tmp_path: Path):
    state = {n: t.half() if "first" in n else t.bfloat16() if "last" in n else t
             for n, t in Small().state_dict().items()}  # fmt: skip
    save_file(state, tmp_path / "w.safetensors")
    given = ["--weights", tmp_path / "w.safetensors"]
    run(tmp_path, "inspect", SMALL, *given)
    says = "expected numbers of dtype bfloat16"
    refuse(tmp_path, "transform", SMALL, tmp_path / "out.safetensors", *given, says=says)


@pytest.mark.parametrize("kind", ["quantised", "meta", "sparse", "repeated", "nested"])
def test_archives_of_other_tensors(tmp_path: Path, kind: str):
    weight = Small().first.weight.detach()
    odd, says = {
        "quantised": (torch.quantize_per_tensor(weight, 0.1, 3, torch.qint8), "is quantised"),
        "meta": (weight.to("meta"), "on the meta device"),
        "sparse": (weight.to_sparse(), "is not contiguous"),
        "repeated": (torch.zeros(()).expand(10**6, 10**6), "is not contiguous"),
        "nested": (torch.nested.nested_tensor([weight, weight[:1]]), "is a nested tensor"),
    }[kind]
    torch.save({**Small().state_dict(), "first.weight": odd}, tmp_path / "w.pt")
    refuse(tmp_path, "inspect", SMALL, "--weights", tmp_path / "w.pt", says=says)


def test_an_index_that_lies(seeds: Seeds, tmp_path: Path):
    shards = tmp_path / "s"
    shutil.copytree(seeds.shards, shards)
    target = shards / seeds.index.name
    names = list(seeds.state)
    for value, says in (
        (5, "is no text"), (None, "is no text"), (["a"], "is no text"), ({}, "is no text"),
        ("..", "is a folder"), ("", "is a folder"), ("a" * 5000, "cannot be looked at"),
        ("a\0b", "files in other folders"), ("/etc/passwd", "files in other folders"),
    ):  # fmt: skip
        target.write_text(json.dumps({"weight_map": dict.fromkeys(names, value)}))
        refuse(tmp_path, "inspect", SMALL, "--weights", target, says=says)
    target.write_text('{"weight_map": ' + "[" * 200_000)
    refuse(tmp_path, "inspect", SMALL, "--weights", target, says="RecursionError")


# -- configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("architectures", [5], "'architectures' is [5]"),
        ("architectures", 5, "'architectures' is 5"),
        ("architectures", "LlamaForCausalLM", "'architectures' is"),
        ("architectures", ["__dict__"], "the architecture '__dict__'"),
        ("architectures", ["AutoModel"], "the architecture 'AutoModel'"),
        ("architectures", ["logging"], "the architecture 'logging'"),
        ("num_hidden_layers", 10**9, "'num_hidden_layers' is 1.000e+09"),
        ("num_hidden_layers", 15_000, "it asks for more than"),
        ("num_hidden_layers", -3, "unknown to the model"),
        ("hidden_size", 10**9, "it asks for"),
        ("hidden_size", 10**23, "'hidden_size' is 1.000e+23"),
        ("vocab_size", 10**12, "it asks for"),
        ("intermediate_size", 10**12, "it asks for"),
        ("hidden_size", 7, "config.json"),
        ("hidden_size", float("nan"), "'hidden_size' is no number"),
        ("hidden_size", "8", "config.json"),
        ("hidden_size", [[{}]], "config.json"),
        ("num_attention_heads", 0, "config.json"),
        ("num_labels", 10**9, "'num_labels' is 1.000e+09"),
        ("hidden_act", "eval", "config.json"),
        ("model_type", None, "it cannot be used"),
        ("model_type", "nonsense", "it cannot be used"),
        ("attn_implementation", "someone/kernel", "code from another place"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "instead"),
    ],
)
def test_configurations_that_fit_nothing(seeds: Seeds, tmp_path: Path, key, value, says):
    folder = tmp_path / "f"
    shutil.copytree(seeds.llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    refuse(tmp_path, "inspect", folder, says=says)


def test_configurations_without_weights_are_bounded(seeds: Seeds, tmp_path: Path, monkeypatch):
    """The structure alone may be large, but not without end."""
    monkeypatch.setattr(configuration, "_TENSORS", 1000)  # a tenth, for the time that it takes
    folder = tmp_path / "f"
    folder.mkdir()
    config = json.loads((seeds.llama / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 19_000}))
    says = "more than 1001 tensors"
    refuse(tmp_path, "inspect", folder, "--no-verify", says=says)
    big = {"hidden_size": 8192, "vocab_size": 10**6, "intermediate_size": 1 << 20}
    (folder / "config.json").write_text(json.dumps({**config, **big}))
    assert run(tmp_path, "inspect", folder, "--no-verify").exit_code == 0


def test_code_of_a_folder_is_not_asked_for(seeds: Seeds, tmp_path: Path):
    """transformers would ask on the terminal, for fifteen seconds, whether to run it."""
    folder = tmp_path / "f"
    shutil.copytree(seeds.llama, folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    refuse(tmp_path, "inspect", folder, says="Code that a folder brings along is never run")


# -- programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.clear(), "first.weight"),
        (lambda c: c["first.weight"]["tensor_meta"]["sizes"][0].update(as_int=10**12), "entry of"),
        (lambda c: c["first.weight"]["tensor_meta"]["sizes"][0].update(as_int=-1), "-1"),
        (lambda c: c["first.weight"]["tensor_meta"]["sizes"][0].update(as_int="7"), "'7'"),
        (lambda c: c["first.weight"]["tensor_meta"].update(dtype=99), "a ScalarType"),
        (lambda c: c["first.weight"]["tensor_meta"].update(storage_offset=None), "a table"),
        (lambda c: c["first.weight"].update(path_name="weight_99"), "which is not there"),
        (lambda c: c["first.weight"].update(path_name="../../models/model.json"), "a plain word"),
        (lambda c: c["first.weight"].update(tensor_meta=None), "pickled objects"),
        (lambda c: c.update({"first.weight": 5}), "5"),
    ],
)
def test_programs_with_broken_tables(seeds: Seeds, tmp_path: Path, change, says):
    bad = tmp_path / "bad.pt2"
    edited(seeds.program, bad, lambda table: change(table["config"]), WEIGHTS_TABLE)
    refuse(tmp_path, "inspect", bad, says=says)
    refuse(tmp_path, "relu-equal", bad, bad)


def test_programs_of_other_entries(seeds: Seeds, tmp_path: Path):
    bad, good = tmp_path / "bad.pt2", entries(seeds.program)
    for name, content, says in (
        ("models/model.json", b"[" * 200_000, "no JSON"),
        ("models/model.json", b"{}", "a field of ExportedProgram"),
        ("models/model.json", b"[]", "a table"),
        (WEIGHTS_TABLE, b"3", "a table"),
        ("models/more.json", b"{}", "a second program"),
        ("data/aotinductor/model/a.so", b"x", "compiled code"),
        ("archive_version", b"7", "archive version"),
    ):
        write(bad, {**good, name: content})
        refuse(tmp_path, "inspect", bad, says=says)
    for name in ("models/model.json", WEIGHTS_TABLE, "data/weights/weight_0", "archive_format"):
        write(bad, {k: v for k, v in good.items() if k != name})
        refuse(tmp_path, "inspect", bad)


@pytest.mark.parametrize(
    "name", ["u99999999999", "u 99999999999", "zuf9_999_999_999", "u٩٩٩٩٩٩٩٩٩"]
)
def test_programs_of_endless_symbols(seeds: Seeds, tmp_path: Path, name: str):
    """torch counts up to the number of the last symbol."""
    bad = tmp_path / "bad.pt2"
    span = {"min_val": 0, "max_val": None}
    edited(seeds.program, bad, lambda table: table["range_constraints"].update({name: span}))
    refuse(tmp_path, "inspect", bad, says="at most 1000000 symbols")


def test_archives_that_unpack_to_more(seeds: Seeds, tmp_path: Path):
    import zipfile

    for name, source in (("bad.pt2", seeds.program), ("bad.pt", seeds.archive)):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, data in entries(source).items():
                archive.writestr(f"bad/{key}", data)
            archive.writestr("bad/extra/zeros", bytes(1 << 20))
    says = "unpacks to"
    refuse(tmp_path, "inspect", tmp_path / "bad.pt2", says=says)
    inner = {
        **entries(seeds.program),
        "data/sample_inputs/model.pt": Path(tmp_path / "bad.pt").read_bytes(),
    }
    refuse(tmp_path, "inspect", write(tmp_path / "inner.pt2", inner), says=says)
    refuse(tmp_path, "inspect", SMALL, "--weights", tmp_path / "bad.pt", says=says)


# -- factories, inputs, options ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("scripted", "a TorchScript module"), ("traced", "a TorchScript module"),
        ("quantised", "is quantised"), ("eight_bits", "float8_e4m3fn"), ("lazy", "no size yet"),
        ("zero_width", "positive width"), ("nothing", "returned a NoneType"),
        ("forty_two", "returned a int"), ("leaves", "SystemExit: 3"),
        ("endless", "RecursionError"), ("returns_none", "no floating tensor"),
        ("returns_integers", "no floating tensor"), ("returns_an_integer", "no floating tensor"),
        ("raises", "no such key"), ("exits", "sys.exit(5)"), ("recurs", "RecursionError"),
    ],
)  # fmt: skip
def test_factories_of_no_model(tmp_path: Path, name: str, says: str):
    source, given = f"tests.checkpoints.factories:{name}", ["--inputs", "4x5"]
    refuse(tmp_path, "inspect", source, *given, says=says)
    refuse(tmp_path, "transform", source, tmp_path / "out.safetensors", *given, says=says)


def test_example_inputs_of_no_model(tmp_path: Path):
    for name, says in (("bad_property", "not today"), ("odd_inputs", "must be Tensor, not str")):
        refuse(tmp_path, "inspect", f"tests.checkpoints.factories:{name}", says=says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4x5:int64<0", "the bound in"), ("4x5:int64<" + "9" * 20, "the bound in"),
        ("4x5:uint8<300", "from 1 to 256"), ("4x5:float32<3", "for whole numbers only"),
        ("0x5", "has no entries"), ("99999999999x4", "more than 268435456 numbers"),
        ("9" * 30, "larger than any memory"), ("1" + "x1" * 40, "larger than any memory"),
        ("²x5", "cannot be read"), ("x=4x5,x=4x5", "twice"), ("9" * 5000, "larger than any"),
        ("8x5:bool", "numbers of dtype float32"), ("8x5:int64", "numbers of dtype float32"),
        ("8x5:complex64", "numbers of dtype float32"), ("8x4", "5 on the last axis"),
        ("y=8x5", "what forward(x) takes"), ("5", ""), ("8x5,8x5", "what forward(x) takes"),
    ],
)  # fmt: skip
def test_inputs_that_no_model_takes(tmp_path: Path, text: str, says: str):
    refuse(tmp_path, "inspect", SMALL, f"--inputs={text}", says=says)
    refuse(tmp_path, "transform", SMALL, tmp_path / "o.safetensors", f"--inputs={text}", says=says)


def test_tokens_that_the_model_does_not_know(seeds: Seeds, tmp_path: Path):
    given = ["--inputs", "input_ids=2x7:int64<1000"]
    refuse(
        tmp_path, "transform", seeds.llama, tmp_path / "out", *given, says="whole numbers below 11"
    )
    refuse(tmp_path, "inspect", seeds.llama, *given, says="Give --inputs 2x7:int64<11")


@pytest.mark.parametrize(
    "arguments",
    [
        ["transform", SMALL, "OUT", "--seed", str(10**23)],
        ["transform", SMALL, "OUT", "--seed", "1.5"],
        ["transform", SMALL, "OUT", "--strength", "inf"],
        ["transform", SMALL, "OUT", "--strength", "nan"],
        ["transform", SMALL, "OUT", "--strength", "-1"],
        ["equivariant", "--augment", "-3"],
        ["equivariant", "--augment", "inf"],
        ["equivariant", "--augment", "nan"],
        ["equivariant", "--seed", str(10**23)],
        ["equivariant", "--seed", "-1"],
    ],
)
def test_options_out_of_range(tmp_path: Path, arguments: list[str]):
    out = str(tmp_path / "out.safetensors")
    refuse(tmp_path, *(out if a == "OUT" else a for a in arguments), says="Invalid value")


def test_sources_that_are_no_names(tmp_path: Path):
    for source in (
        "a" * 5000,
        "a\0b",
        "~nobody-here/x",
        "",
        "a:b:c",
        ":",
        "os:",
        ":os",
        "os:path.",
    ):
        refuse(tmp_path, "inspect", source)
