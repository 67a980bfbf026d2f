"""Every field of every request at its largest, smallest and strangest, one at a time, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from postgres import PostgresServer
from servicers import House, Method, good_calls

from wire.errors import Refusal

EXTREMES: dict[int, list[object]] = {
    FieldDescriptor.TYPE_UINT64: [2**63, 2**64 - 1],
    FieldDescriptor.TYPE_UINT32: [2**31, 2**32 - 1],
    FieldDescriptor.TYPE_INT64: [-(2**63), 2**63 - 1],
    FieldDescriptor.TYPE_INT32: [-(2**31), 2**31 - 1],
    FieldDescriptor.TYPE_ENUM: [-1, 2**31 - 1],
    FieldDescriptor.TYPE_BOOL: [True],
    FieldDescriptor.TYPE_BYTES: [bytes(50_000)],
    FieldDescriptor.TYPE_STRING: [
        *("\0", "a\0b", "x" * 50_000, "\U0010ffff", "../../x", "north\n"),
        # Numbers in words: a version of a public set, beyond every column and in digits of other scripts.
        *(f"scans@{number}" for number in (2**31, 2**63, "9" * 5000, "-1", "\u0663", "\u00b2", "")),
    ],
}
Path = tuple[FieldDescriptor, ...]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def house(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[House]:
    url = postgres.fresh_url() if request.param == "postgres" else ""
    made = House(url)
    yield made
    made.close()


def places(message: Descriptor, deeper: int = 3) -> Iterator[Path]:
    """Every field that holds a value, however deep."""
    for field in message.fields:
        if field.message_type is None:
            yield (field,)
        elif deeper:
            yield from ((field, *rest) for rest in places(field.message_type, deeper - 1))


def is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def put(message: Message, path: Path, value: object) -> None:
    """Sets the value at the end of a path; of a map, an entry with this key or this value."""
    for position, field in enumerate(path[:-1]):
        inner = getattr(message, field.name)
        if is_map(field):
            part, *rest = path[position + 1 :]
            of_messages = field.message_type.fields_by_name["value"].message_type is not None
            key = value if part.name == "key" else "north"
            if of_messages:
                message = inner[key]
                if rest:
                    put(message, tuple(rest), value)
            else:
                inner[key] = 1 if part.name == "key" else value
            return
        message = inner.add() if field.is_repeated else inner
    if path[-1].is_repeated:
        getattr(message, path[-1].name).append(value)
    else:
        setattr(message, path[-1].name, value)


def changed(method: Method, good: list[bytes], path: Path, value: object) -> list[bytes]:
    """A good call whose first message has one extreme value."""
    message = method.request.FromString(good[0])
    put(message, path, value)
    return [message.SerializeToString(), *good[1:]]


def test_no_single_value_is_an_unexpected_error(house: House) -> None:
    good = good_calls(house)
    unexpected = []
    served = 0
    for method in house.methods:
        for call in ([b""], good.get(method.name, [b""])):
            for path in places(method.request.DESCRIPTOR):
                for value in EXTREMES.get(path[-1].type, []):
                    served += 1
                    try:
                        house.run(method, changed(method, call, path, value))
                    except Refusal:
                        continue
                    except Exception as error:
                        where = ".".join(field.name for field in path)
                        found = f"{method.name} {where}={value!r:.20}: {type(error).__name__}"
                        unexpected.append(found)
    assert not unexpected
    assert served > 200
