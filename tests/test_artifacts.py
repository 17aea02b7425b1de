"""A saved thing comes back bit for bit, or not at all."""

import dataclasses
import hashlib
import json
import os
import pickle
import struct
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jaxtyping import Array, Bool, Float, Int

from stepdown.artifacts import (
    MANIFEST,
    ArtifactError,
    arrays_from_bytes,
    arrays_to_bytes,
    check_folder,
    load_config,
    load_module,
    provenance,
    require_free,
    save_module,
    write_folder,
)


@dataclasses.dataclass(frozen=True)
class ScaleConfig:
    low: float = -1.0
    limits: tuple[int, ...] = (2, 9)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    width: int = 3
    scale: ScaleConfig = ScaleConfig()
    source: Path = Path("cohort")


class Model(eqx.Module):
    """One leaf of each kind that a module of ours holds."""

    network: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    counts: Int[Array, " 4"]
    mask: Bool[Array, "2 2"]
    threshold: Float[Array, ""]
    table: np.ndarray
    name: str = eqx.field(static=True, default="model")


def make_model(config: ModelConfig, *, key) -> Model:
    return Model(
        network=eqx.nn.Linear(2, config.width, key=key),
        dropout=eqx.nn.Dropout(0.25),
        counts=jnp.arange(4),
        mask=jnp.eye(2, dtype=bool),
        threshold=jnp.float32(config.scale.low),
        table=np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    )


CONFIG = ModelConfig()


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model"
    save_module(path, make_model(CONFIG, key=jr.key(3)), config=CONFIG, kind="model", seed=3)
    return path


def like(config=CONFIG) -> Model:
    """The shapes of a model; nothing is computed."""
    return eqx.filter_eval_shape(make_model, config, key=jr.key(0))


def files_below(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*")}


def test_a_saved_module_loads_bit_for_bit(saved):
    model = make_model(CONFIG, key=jr.key(3))
    loaded = load_module(saved, make_model(CONFIG, key=jr.key(4)), kind="model")
    assert eqx.tree_equal(loaded, model, typematch=True)
    x = jnp.array([0.5, -2.0])
    np.testing.assert_array_equal(loaded.network(x), model.network(x))


def test_shapes_alone_suffice_to_load(saved):
    loaded = load_module(saved, like(), kind="model")
    model = make_model(CONFIG, key=jr.key(3))
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded, model))


def test_numbers_come_from_the_folder_not_from_the_pattern(tmp_path):
    model = eqx.nn.inference_mode(make_model(CONFIG, key=jr.key(3)))
    save_module(tmp_path / "m", model, config=CONFIG, kind="model")
    assert load_module(tmp_path / "m", like(), kind="model").dropout.inference is True


def test_a_config_comes_back_equal(saved):
    assert load_config(saved, ModelConfig, kind="model") == CONFIG


def test_a_foreign_config_is_refused(saved):
    with pytest.raises(ArtifactError, match="expected the fields"):
        load_config(saved, ScaleConfig, kind="model")


def test_the_same_content_gives_the_same_data_bytes(saved, tmp_path):
    again = tmp_path / "again"
    save_module(again, make_model(CONFIG, key=jr.key(3)), config=CONFIG, kind="model", seed=3)
    data = files_below(saved) - {MANIFEST}
    assert data == {"arrays.safetensors", "numbers.json", "config.json"}
    for name in data:
        assert (again / name).read_bytes() == (saved / name).read_bytes()


@given(
    st.dictionaries(
        st.text("abc./0", min_size=1),
        hnp.arrays(
            hnp.boolean_dtypes()
            | hnp.integer_dtypes(endianness="<")
            | hnp.unsigned_integer_dtypes(endianness="<")
            | hnp.floating_dtypes(endianness="<"),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
        ),
        max_size=4,
    )
)
def test_arrays_survive_bytes_in_any_order(arrays):
    data = arrays_to_bytes(arrays)
    assert data == arrays_to_bytes(dict(reversed(arrays.items())))
    back = arrays_from_bytes(data)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (back[name].shape, back[name].dtype) == (array.shape, array.dtype)
        assert back[name].tobytes() == array.tobytes()  # NaN payloads and signs of zero included


@pytest.mark.parametrize(
    "array",
    [
        jr.key(0),
        jnp.zeros(2, jnp.bfloat16),
        jnp.zeros(2, jnp.int4),
        np.array(["a"]),
        np.zeros(2, ">f4"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_that_would_not_come_back_is_refused(array):
    with pytest.raises(ArtifactError, match="x: expected bool, int, float16, float32 or float64"):
        arrays_to_bytes({"x": array})


def test_every_flipped_bit_is_found(saved):
    for name in sorted(files_below(saved)):
        good = (saved / name).read_bytes()
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 1 << place % 8
            (saved / name).write_bytes(bad)
            with pytest.raises(ArtifactError):
                check_folder(saved, "model")
        (saved / name).write_bytes(good)
    assert check_folder(saved, "model")["about"]["seed"] == 3


def test_every_truncation_is_found(saved):
    for name in sorted(files_below(saved)):
        good = (saved / name).read_bytes()
        for length in range(0, len(good), 7):
            (saved / name).write_bytes(good[:length])
            with pytest.raises(ArtifactError):
                check_folder(saved, "model")
        (saved / name).write_bytes(good)


def test_files_that_do_not_belong_are_named(saved):
    (saved / "notes").mkdir()
    (saved / "notes/own.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(ArtifactError, match=r"got notes/own\.pkl; remove it"):
        load_module(saved, like(), kind="model")


def test_a_missing_file_is_named(saved):
    (saved / "config.json").unlink()
    with pytest.raises(ArtifactError, match=r"expected config\.json, which is missing"):
        check_folder(saved, "model")


def test_files_of_two_folders_cannot_be_mixed(saved, tmp_path):
    other = tmp_path / "other"
    save_module(other, make_model(CONFIG, key=jr.key(4)), config=CONFIG, kind="model", seed=3)
    (other / "arrays.safetensors").replace(saved / "arrays.safetensors")
    with pytest.raises(ArtifactError, match="damaged or was changed"):
        load_module(saved, like(), kind="model")


def test_a_link_is_refused_even_to_the_right_bytes(saved, tmp_path):
    (saved / "config.json").rename(tmp_path / "elsewhere")
    (saved / "config.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="got a link"):
        check_folder(saved, "model")


def test_another_kind_of_thing_is_refused(saved):
    with pytest.raises(ArtifactError, match="expected a saved cohort, got a saved model"):
        check_folder(saved, "cohort")


def test_a_folder_without_manifest_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="found none"):
        check_folder(tmp_path, "model")


def test_another_shape_is_refused(saved):
    with pytest.raises(
        ArtifactError, match=r"network.weight: expected float32\[4, 2\], got float32\[3, 2\]"
    ):
        load_module(saved, like(dataclasses.replace(CONFIG, width=4)), kind="model")


def test_another_dtype_is_refused(saved):
    half = eqx.tree_at(lambda model: model.threshold, like(), jnp.float16(0))
    with pytest.raises(ArtifactError, match=r"threshold: expected float16\[\], got float32\[\]"):
        load_module(saved, half, kind="model")


def test_another_structure_is_refused(saved):
    with pytest.raises(ArtifactError, match="only in"):
        load_module(saved, eqx.nn.Linear(2, 3, key=jr.key(0)), kind="model")


def test_numbers_that_are_not_finite_are_refused_unless_wanted(tmp_path):
    model = make_model(dataclasses.replace(CONFIG, scale=ScaleConfig(0.0)), key=jr.key(3))
    model = eqx.tree_at(lambda m: m.threshold, model, jnp.float32(np.nan))
    save_module(tmp_path / "m", model, config=CONFIG, kind="model")
    with pytest.raises(ArtifactError, match="NaN or infinity in threshold"):
        load_module(tmp_path / "m", like(), kind="model")
    assert np.isnan(load_module(tmp_path / "m", like(), kind="model", finite=False).threshold)


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../x", "a/./x", "a//x", "./x", "a/", "", ".", "a\\x", MANIFEST]
)
def test_names_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(ArtifactError, match="inside the folder"):
        write_folder(tmp_path / "out", {name: b"x"}, kind="k", about={})
    assert files_below(tmp_path) == set()


def test_a_forged_manifest_cannot_point_outside(tmp_path):
    def seal(body: dict) -> str:  # a forger knows the format
        return json.dumps(body, indent=2, sort_keys=True) + "\n"

    (tmp_path / "secret").write_bytes(b"x")
    write_folder(tmp_path / "out", {"x": b"x"}, kind="k", about={})
    body = json.loads((tmp_path / "out" / MANIFEST).read_bytes())
    body.pop("sha256")
    body["files"]["../secret"] = body["files"]["x"]
    digest = hashlib.sha256(seal(body).encode()).hexdigest()
    (tmp_path / "out" / MANIFEST).write_text(seal(body | {"sha256": digest}))
    with pytest.raises(ArtifactError, match=r"inside the folder, got '\.\./secret'"):
        check_folder(tmp_path / "out", "k")


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, '{"format": 1}', "\xff"])
def test_a_manifest_that_is_none_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(ArtifactError):
        check_folder(tmp_path, "k")


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    with pytest.raises(ArtifactError, match="expected safetensors"):
        arrays_from_bytes(pickle.dumps(Trap()))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("length", [2**63, 2**40, 10**8 + 1, 3])
def test_a_false_header_length_is_refused(length):
    data = arrays_to_bytes({"x": np.zeros(3)})
    with pytest.raises(ArtifactError, match="expected safetensors"):
        arrays_from_bytes(struct.pack("<Q", length) + data[8:])


def test_existing_output_is_refused_and_untouched(tmp_path):
    out = tmp_path / "out"
    write_folder(out, {"a.txt": b"first"}, kind="k", about={})
    with pytest.raises(FileExistsError, match="choose another one or remove it"):
        write_folder(out, {"a.txt": b"second"}, kind="k", about={})
    assert (out / "a.txt").read_bytes() == b"first"
    assert files_below(tmp_path) == {"out", "out/a.txt", f"out/{MANIFEST}"}


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", {"deep/a.txt": b"x"}, kind="k", about={})
    assert list(check_folder(tmp_path / "out", "k")["files"]) == ["deep/a.txt"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()]
)
def test_a_failing_writer_leaves_nothing(tmp_path, failure):
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise failure

    with pytest.raises(type(failure)):
        write_folder(tmp_path / "new/out", {"a": b"x", "b": fail}, kind="k", about={})
    assert files_below(tmp_path) == set()


def test_a_writer_must_write_its_file_and_no_other(tmp_path):
    def stray(path: Path) -> None:
        path.with_name("other").write_bytes(b"x")

    with pytest.raises(ArtifactError, match=r"expected the files \['a'\], got \['other'\]"):
        write_folder(tmp_path / "out", {"a": stray}, kind="k", about={})
    assert files_below(tmp_path) == set()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(OSError, match="choose another folder"):
        require_free(tmp_path / "file/out")
    require_free(tmp_path / "new/out")
    assert files_below(tmp_path) == {"file"}


def test_the_manifest_tells_where_a_thing_comes_from():
    about = provenance(config=CONFIG, seed=7, command="stepdown simulate")
    assert about["config"]["scale"] == {"low": -1.0, "limits": [2, 9]}
    assert (about["seed"], about["command"]) == (7, "stepdown simulate")
    assert about["versions"]["jax"] == jax.__version__
    assert about["device"] == jax.devices()[0].device_kind
