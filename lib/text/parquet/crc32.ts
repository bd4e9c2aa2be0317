// The checksum of Parquet's pages: CRC-32 of gzip. Node 20 does not export its own.
import { required } from '../../runtime/required.js';

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let i = 0; i < 8; ++i) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

export function crc32(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) crc = required(TABLE[(crc ^ byte) & 255]) ^ (crc >>> 8);
  return ~crc >>> 0;
}
