"""What a stored public file holds: Arrow IPC for tables and text, NPY for arrays, both memory-mapped.

The bytes come from another machine, so nothing in them is believed before it was checked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import ValidationError

from wire.errors import PUBLIC_SET_INVALID, Refusal
from wire.runtime.arrays import NPY_MAGIC, all_finite, row_blocks
from wire.schema import ELEMENT_TYPES, Column, ColumnType, SetKind, SetSchema

ARROW_MAGIC = b"ARROW1\0\0"
CATEGORY_TYPE = pa.dictionary(pa.int32(), pa.string())
# Above this a column is free text or an identifier, and one-hot features would be mostly noise.
MAX_CATEGORIES = 1000
PROVENANCE = ("source", "licence")
"""What a table or text set may say of itself, in the metadata of its stored file, so that its digest covers it."""
LONGEST_PROVENANCE = 500
_FIX = "Publish the original file with `consilium public-set add`, which writes the stored form."


class MalformedSet(Exception):
    """Why bytes are not a stored public set; `inspect` turns it into PUBLIC_SET_INVALID."""


def inspect(path: Path) -> tuple[int, SetSchema]:
    """Rows and schema of a stored file, computed from the data; PUBLIC_SET_INVALID if anything is amiss."""
    try:
        if _magic(path) == NPY_MAGIC:
            array = open_array(path)
            return len(array), array_schema(array)
        table = open_table(path)
        return len(table), table_schema(table)
    except MalformedSet as error:
        raise Refusal(PUBLIC_SET_INVALID, path=path.name, why=error, fix=_FIX) from error
    except Exception as error:
        # What a reader raises on hostile bytes is not documented, and none of it may end the service.
        why = "it is not a stored table, text or array"
        raise Refusal(PUBLIC_SET_INVALID, path=path.name, why=why, fix=_FIX) from error


def open_table(path: Path) -> pa.RecordBatch:
    """The stored rows of a table or text set, memory-mapped and structurally valid."""
    if _magic(path) != ARROW_MAGIC[: len(NPY_MAGIC)]:
        raise MalformedSet("it is neither an Arrow file nor an NPY file")
    with pa.memory_map(str(path)) as mapped:
        reader = pa.ipc.open_file(mapped)
        if reader.num_record_batches != 1:
            raise MalformedSet("its rows are not in one batch")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        whole = mapped.read_buffer(mapped.size())
        for column in batch.columns:
            for buffer in filter(None, column.buffers()):
                if not 0 <= buffer.address - whole.address <= whole.size - buffer.size:
                    raise MalformedSet("it is compressed and cannot be memory-mapped")
    return batch


def provenance(path: Path) -> dict[str, str]:
    """Where a stored set says it comes from and under which licence; empty if it does not say, as arrays never do.

    Written by whoever published it and never checked by anyone.
    """
    if _magic(path) == NPY_MAGIC:
        return {}
    said = open_table(path).schema.metadata or {}
    return {
        key: said[key.encode()].decode(errors="replace")[:LONGEST_PROVENANCE]
        for key in PROVENANCE
        if key.encode() in said
    }


def open_array(path: Path) -> NDArray[np.generic]:
    """The stored array, memory-mapped read-only; never unpickles."""
    array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.memmap) or not array.flags.c_contiguous:
        raise MalformedSet("its array is not in C order")
    if array.offset + array.nbytes != path.stat().st_size:
        raise MalformedSet("it has bytes behind the array")
    return array


def table_schema(batch: pa.RecordBatch) -> SetSchema:
    """The schema these rows have; refuses what `public-set add` would not have written."""
    if not len(batch):
        raise MalformedSet("it has no rows")
    columns = tuple(
        _column(name, values)
        for name, values in zip(batch.schema.names, batch.columns, strict=True)
    )
    text = any(column.type is ColumnType.TEXT for column in columns)
    try:
        return SetSchema(kind=SetKind.TEXT if text else SetKind.TABLE, columns=columns)
    except ValidationError as error:
        raise MalformedSet("its columns contradict each other") from error


def array_schema(array: NDArray[np.generic]) -> SetSchema:
    """The schema of an array whose first axis is the row; refuses NaN, infinity and odd element types."""
    if array.ndim == 0 or not array.size:
        raise MalformedSet("it has no rows")
    if array.dtype.name not in ELEMENT_TYPES or array.dtype != array.dtype.newbyteorder("<"):
        raise MalformedSet("its elements are not little-endian numbers")
    if not all_finite(array):
        raise MalformedSet("it has NaN or infinite elements")
    return SetSchema(kind=SetKind.ARRAY, row_shape=array.shape[1:], element_type=array.dtype.name)


def write_table(batch: pa.RecordBatch, path: Path) -> None:
    """Writes the stored form of a table: one uncompressed batch; equal rows and metadata, equal bytes."""
    options = pa.ipc.IpcWriteOptions(compression=None, metadata_version=pa.MetadataVersion.V5)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema, options=options) as writer,
    ):
        writer.write_batch(batch)


def write_array(array: NDArray[np.generic], path: Path) -> None:
    """Writes the stored form of an array: NPY 1.0, C order, little-endian."""
    stored = array.dtype.newbyteorder("<")
    header = {
        "descr": np.lib.format.dtype_to_descr(stored),
        "fortran_order": False,
        "shape": array.shape,
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in row_blocks(array):
            file.write(np.ascontiguousarray(block, dtype=stored).tobytes())


def _column(name: str, values: pa.Array) -> Column:
    nullable = values.null_count > 0
    if values.null_count == len(values):
        raise MalformedSet(f"its column {name} is empty in every row")
    if values.type == pa.float64():
        if not pc.all(pc.is_finite(values)).as_py():
            raise MalformedSet(f"its column {name} has NaN or infinite numbers")
        return Column(name=name, type=ColumnType.NUMBER, nullable=nullable)
    if values.type == pa.large_string():
        return Column(name=name, type=ColumnType.TEXT, nullable=nullable)
    if values.type != CATEGORY_TYPE:
        raise MalformedSet(f"its column {name} is of a type that is not stored")
    categories = values.dictionary.to_pylist()
    used = pc.count_distinct(values.indices).as_py()
    if None in categories or categories != sorted(set(categories)) or used != len(categories):
        raise MalformedSet(f"the categories of its column {name} are not those of its rows, sorted")
    if len(categories) > MAX_CATEGORIES:
        raise MalformedSet(f"its column {name} has more than {MAX_CATEGORIES} categories")
    return Column(
        name=name, type=ColumnType.CATEGORY, categories=tuple(categories), nullable=nullable
    )


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(NPY_MAGIC))
