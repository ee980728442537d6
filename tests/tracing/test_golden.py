"""How much freedom is found in every network of the zoo and of the table, and never less.

`golden.json` holds two orbit dimensions per network, at the generic parameters of the zoo: `before`
those of the first engine, with three separate searches, and `now` those of today. A change that
finds more raises `now`; nothing may go below `before`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paramsym import orbit_dimension
from tests.tracing import networks, zoo

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
TABLE = {f"table {row.name}": row for row in networks.TABLE}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_orbit_is_as_large_as_it_was(name: str) -> None:
    row = TABLE.get(name)
    model, _ = zoo.build(name) if row is None else networks.build(row)
    symmetry = zoo.derived(name) if row is None else networks.derived(row)
    assert not symmetry.unknown
    found = orbit_dimension(symmetry, model.double().state_dict())
    assert found >= GOLDEN[name]["before"]
    assert found == GOLDEN[name]["now"]


def test_every_network_has_a_floor() -> None:
    assert GOLDEN.keys() == {*zoo.ZOO, *TABLE}
    assert all(row["before"] <= row["now"] for row in GOLDEN.values())


@pytest.mark.parametrize("row", networks.TABLE, ids=lambda row: row.name)
def test_what_is_found_is_at_most_what_there_is(row: networks.Row) -> None:
    assert GOLDEN[f"table {row.name}"]["now"] == row.nullity - row.unexplained
