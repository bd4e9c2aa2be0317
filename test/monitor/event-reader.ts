// An independent reader of TensorBoard event files: TFRecord frames, checksums bit by bit, a
// generic protobuf decoder.

export interface ReadEvent {
  wallTime: number;
  step: number;
  version: string | null;
  /** The scalars of the event's summary. */
  values: { tag: string; value: number }[];
}

type Field = { number: number; value: bigint | Buffer };

/** The whole records at the start of `file`; stops, as TensorBoard does, at one that is cut. */
export function readEvents(file: Buffer): ReadEvent[] {
  const events: ReadEvent[] = [];
  for (let at = 0; at + 12 <= file.length; ) {
    const length = Number(file.readBigUInt64LE(at));
    verify(file.subarray(at, at + 8), file.readUInt32LE(at + 8));
    const end = at + 12 + length + 4;
    if (end > file.length) break;
    const data = file.subarray(at + 12, end - 4);
    verify(data, file.readUInt32LE(end - 4));
    events.push(event(data));
    at = end;
  }
  return events;
}

/**
 * Division of the message by the Castagnoli polynomial, one bit at a time, then TFRecord's mask.
 */
function verify(data: Buffer, masked: number): void {
  let crc = 0xffffffffn;
  for (const byte of data) {
    crc ^= BigInt(byte);
    for (let bit = 0; bit < 8; ++bit) crc = (crc >> 1n) ^ (crc & 1n ? 0x82f63b78n : 0n);
  }
  crc ^= 0xffffffffn;
  const rotated = ((crc >> 15n) | (crc << 17n)) & 0xffffffffn;
  const expected = Number((rotated + 0xa282ead8n) & 0xffffffffn);
  if (expected !== masked) throw new Error(`checksum ${masked}, expected ${expected}`);
}

function event(data: Buffer): ReadEvent {
  const fields = decode(data);
  const find = (number: number) => fields.find((field) => field.number === number)?.value;
  const summary = find(5) as Buffer | undefined;
  return {
    wallTime: (find(1) as Buffer).readDoubleLE(),
    step: Number(find(2) ?? 0n),
    version: (find(3) as Buffer | undefined)?.toString() ?? null,
    values: summary ? decode(summary).map(({ value }) => scalar(value as Buffer)) : [],
  };
}

function scalar(data: Buffer): { tag: string; value: number } {
  const [name, value] = decode(data).map((field) => field.value as Buffer) as [Buffer, Buffer];
  return { tag: name.toString(), value: value.readFloatLE() };
}

/** Fixed-width fields stay bytes. */
function decode(data: Buffer): Field[] {
  const fields: Field[] = [];
  let at = 0;
  const varint = (): bigint => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++] as number;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  const take = (count: number): Buffer => {
    at += count;
    return data.subarray(at - count, at);
  };
  while (at < data.length) {
    const tag = Number(varint());
    const number = tag >> 3;
    const wireType = tag & 7;
    if (wireType === 0) fields.push({ number, value: varint() });
    else if (wireType === 1) fields.push({ number, value: take(8) });
    else if (wireType === 2) fields.push({ number, value: take(Number(varint())) });
    else if (wireType === 5) fields.push({ number, value: take(4) });
    else throw new Error(`wire type ${wireType}`);
  }
  return fields;
}
