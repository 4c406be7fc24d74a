import dataclasses

from hearthfs.connector.neighbours import MAX_TOLD, explain
from hearthfs.tests.unit.connector.test_identity import IDENTITY, OTHER

MINE = IDENTITY.manifest()


def other(**fields: object) -> bytes:
    return dataclasses.replace(IDENTITY, **fields).manifest()  # type: ignore[arg-type]


def test_another_hash_seed_is_told_with_the_remedy() -> None:
    """R062."""
    (line,) = explain(MINE, [other(hash_seed="7"), MINE])
    assert line == 'hash_seed "7" (here ""): start all engines with the same PYTHONHASHSEED, or all without'


def test_other_weights_another_dtype_another_tensor_parallel_size() -> None:
    lines = explain(
        MINE, [other(weights="new"), other(dtype="float16/float16"), other(tensor_parallel=2, world_size=2)]
    )
    assert [line.split(" ")[0] for line in lines] == ["dtype", "weights", "tensor_parallel"]


def test_other_models_and_strangers_are_none_of_ours() -> None:
    stranger = other(**{key: value for key, value in OTHER.items() if key not in ("model", "weights")})
    assert explain(MINE, [other(model="org/Other", hash_seed="7"), stranger, b"{", b"[]", b""]) == []


def test_not_more_than_can_be_read() -> None:
    assert len(explain(MINE, [other(hash_seed=str(n)) for n in range(50)])) == MAX_TOLD
