"""The rows of a sweep as a Parquet file, typed by their columns, in bounded memory."""

from __future__ import annotations

from pathlib import Path

from gpucalc.core.columns import COLUMNS
from gpucalc.core.errors import UsageError

BLOCK = 16 << 20  # bytes of text that become one row group


def require_pyarrow() -> None:
    """Raise UsageError when pyarrow is not installed."""
    try:
        import pyarrow.csv  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: F401
    except ImportError:
        raise UsageError("a .parquet output needs pyarrow: pip install 'gpucalc[parquet]', or write .csv") from None


def convert(rows: Path, parquet: Path) -> None:
    """Write the CSV file `rows` as Parquet; an empty cell is a null, yes and no are booleans."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    kinds = {"int": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}
    with rows.open(encoding="utf-8") as stream:
        header = stream.readline().rstrip("\n").split(",")
    types = {name: kinds.get(COLUMNS[name].kind, pa.string()) if name in COLUMNS else pa.string() for name in header}
    types |= dict.fromkeys(("cell", "rank"), pa.int64())
    reader = pacsv.open_csv(
        rows,
        read_options=pacsv.ReadOptions(block_size=BLOCK),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, true_values=["yes"], false_values=["no"]
        ),
    )
    with reader, pq.ParquetWriter(parquet, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
