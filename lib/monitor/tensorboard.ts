// Writes the metrics of a run to an event file of TensorBoard, without TensorFlow or Python.
import { hostname } from 'node:os';
import { join } from 'node:path';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { AppendFile, makeFolder } from './append-file.js';
import { type LogFolder, resolveLogFolder } from './csv.js';
import { type Monitor, type MonitorEvent, requireEvents } from './monitor.js';

/** Number of opened files: it distinguishes files that a process opens in the same second. */
let opened = 0;

/**
 * Writes events for TensorBoard. Writes
 * `<outputPath>/<jobName>/events.out.tfevents.<seconds>.<host>.<process>.<number>`.
 *
 * Each write() is one append, so a crash cuts at most the last record. Throws DS_ARGUMENT unless
 * `outputPath` is a string, DS_IO if a file cannot be written.
 */
export class TensorBoardMonitor implements Monitor {
  private readonly file: AppendFile;

  /** Creates the folder `outputPath`/`jobName` and the file. */
  constructor(at: LogFolder) {
    const folder = resolveLogFolder('TensorBoardMonitor', at);
    const start = nowInSeconds();
    const run = `${Math.floor(start)}.${hostname()}.${process.pid}.${opened++}`;
    makeFolder(folder);
    this.file = new AppendFile(join(folder, `events.out.tfevents.${run}`), { fresh: true });
    try {
      this.file.append(encodeRecord(encodeVersionEvent(start)));
    } catch (error) {
      this.file.close();
      throw error;
    }
  }

  /** Path of the event file. */
  get path(): string {
    return this.file.path;
  }

  /**
   * Appends one scalar per event.
   *
   * Throws DS_IO, and DS_ARGUMENT if an event is invalid or its step is not an integer >= 0.
   */
  write(events: readonly MonitorEvent[]): void {
    const now = nowInSeconds();
    const checked = requireEvents('TensorBoardMonitor.write', events);
    this.file.append(
      Buffer.concat(checked.map((event) => encodeRecord(encodeScalarEvent(event, now)))),
    );
  }

  flush(): Promise<void> {
    return this.file.sync();
  }

  close(): void {
    this.file.close();
  }
}

function nowInSeconds(): number {
  return Date.now() / 1000;
}

// Encodes TensorBoard events: the protobuf messages Event and Summary, in TFRecord frames.
// Sources: tensorflow/core/util/event.proto, framework/summary.proto, lib/io/record_writer.h.

/** Protobuf wire types. */
const VARINT = 0;
const DOUBLE = 1;
const BYTES = 2;
const FLOAT = 5;

/**
 * Returns a record: u64 length, masked CRC of the length, data, masked CRC of the data, all
 * little-endian. Readers ignore an incomplete last record.
 */
function encodeRecord(data: Uint8Array): Buffer {
  const head = Buffer.alloc(12);
  head.writeBigUInt64LE(BigInt(data.length));
  head.writeUInt32LE(maskedCrc32c(head.subarray(0, 8)), 8);
  const foot = Buffer.alloc(4);
  foot.writeUInt32LE(maskedCrc32c(data));
  return Buffer.concat([head, data, foot]);
}

/** Returns the first event of a file: Event { wall_time = 1, file_version = 3 }, in seconds. */
function encodeVersionEvent(wallTime: number): Buffer {
  const version = Buffer.from('brain.Event:2');
  return Buffer.concat([encodeDouble(1, wallTime), encodeBytes(3, version)]);
}

/**
 * Returns Event { wall_time = 1, step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } }
 * }.
 *
 * TensorBoard stores values as f32. Throws DS_ARGUMENT if the step is not an integer >= 0.
 */
function encodeScalarEvent({ name, value, step }: MonitorEvent, wallTime: number): Buffer {
  if (!Number.isSafeInteger(step) || step < 0) {
    const op = `TensorBoardMonitor step of ${formatValue(name)}`;
    throw valueError(
      op,
      'an integer >= 0',
      step,
      'Pass a count of samples or steps. The value may be any number.',
    );
  }
  const summaryValue = Buffer.concat([encodeBytes(1, Buffer.from(name)), encodeFloat(2, value)]);
  const number = Buffer.concat([encodeTag(2, VARINT), encodeVarint(step)]);
  return Buffer.concat([
    encodeDouble(1, wallTime),
    number,
    encodeBytes(5, encodeBytes(1, summaryValue)),
  ]);
}

function encodeTag(field: number, wireType: number): Buffer {
  return encodeVarint(field * 8 + wireType);
}

/** Returns the protobuf encoding of `value`, a non-negative safe integer. */
function encodeVarint(value: number): Buffer {
  const out: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) out.push((rest % 128) + 128);
  out.push(rest);
  return Buffer.from(out);
}

function encodeBytes(field: number, content: Uint8Array): Buffer {
  return Buffer.concat([encodeTag(field, BYTES), encodeVarint(content.length), content]);
}

function encodeDouble(field: number, value: number): Buffer {
  const out = Buffer.alloc(8);
  out.writeDoubleLE(value);
  return Buffer.concat([encodeTag(field, DOUBLE), out]);
}

function encodeFloat(field: number, value: number): Buffer {
  const out = Buffer.alloc(4);
  out.writeFloatLE(value);
  return Buffer.concat([encodeTag(field, FLOAT), out]);
}

/** The polynomial of CRC-32C, 0x1edc6f41, with reversed bits. */
const POLYNOMIAL = 0x82f63b78;

const crcTable = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
  return crc;
});

/** Returns CRC-32C (Castagnoli) as an unsigned 32-bit integer. Source: RFC 3720, appendix B.4. */
export function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = required(crcTable[(crc ^ byte) & 0xff]) ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** Returns the checksum of TFRecord: rotated and shifted, since the data may contain checksums. */
function maskedCrc32c(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}
