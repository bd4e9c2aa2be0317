#!/usr/bin/env python3
"""Reads event files with TensorBoard's own reader and compares them with the CSV files of the same
run.

Train with "tensorboard" and "csv_monitor" both enabled, then:
    python3 scripts/check-tensorboard.py TENSORBOARD_FOLDER CSV_FOLDER
where a folder is <output_path>/<job_name>. Needs the tensorboard package. Checks that both hold the
same metrics with the same steps and values (as f32), and that a copy of the event file cut at every
byte of its last record still gives everything before that record.
"""
import csv
import struct
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def as_f32(value):
    """The bits of a value in single precision; every NaN counts as the same."""
    return "nan" if value != value else struct.pack("<f", value)


def read_events(folder):
    """{metric: [(step, bits)]}, with "/" and " " of the names replaced as in the names of CSV files."""
    reader = EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
    reader.Reload()
    found = {}
    for tag in reader.Tags()["scalars"]:
        found[tag] = [(e.step, as_f32(e.value)) for e in reader.Scalars(tag)]
    for tag in reader.Tags()["tensors"]:
        items = ((e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in reader.Tensors(tag))
        found[tag] = [(step, as_f32(float(value))) for step, value in items]
    return {tag.replace("/", "_").replace(" ", "_"): rows for tag, rows in found.items()}


def read_csv(folder):
    """The same of a folder of CSV files."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        found[path.stem] = [(int(step), as_f32(float(value))) for step, value in rows]
    return found


def last_record(data):
    """Where the last record of an event file begins."""
    start, at = 0, 0
    while at < len(data):
        start = at
        at += 8 + 4 + struct.unpack_from("<Q", data, at)[0] + 4
    return start


def count(found):
    return sum(len(rows) for rows in found.values())


def check_truncation(path):
    """Cuts copies of one event file; returns the number of cuts."""
    data = path.read_bytes()
    start = last_record(data)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(data)
        whole = count(read_events(folder))
        for length in range(start, len(data)):
            copy.write_bytes(data[:length])
            found = count(read_events(folder))
            assert found == whole - 1, f"cut at byte {length}: {found} of {whole - 1} events"
    return len(data) - start


def main(event_folder, csv_folder):
    events, rows = read_events(event_folder), read_csv(csv_folder)
    assert events, f"no scalars in {event_folder}"
    assert events.keys() == rows.keys(), f"{sorted(events)} != {sorted(rows)}"
    for name, values in events.items():
        assert values == rows[name], f"{name}: {values[:3]} ... != {rows[name][:3]} ..."
    cuts = sum(check_truncation(path) for path in sorted(event_folder.glob("events.out.tfevents.*")))
    print(f"{len(events)} metrics, {count(events)} events agree; {cuts} cuts are readable")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
