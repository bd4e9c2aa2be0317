// Parses and formats sizes in bytes, such as "5GB" and "2GiB".
import { required } from '../runtime/required.js';

const UNITS: Record<string, number> = {
  '': 1,
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KIB: 2 ** 10,
  MIB: 2 ** 20,
  GIB: 2 ** 30,
  TIB: 2 ** 40,
};

/**
 * Parses a size: "5GB" is 5e9, "2GiB" 2 ** 31, "1.5 MB" 1.5e6. Returns null for other texts and for
 * sizes below 1.
 */
export function parseBytes(text: string): number | null {
  const match = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text.trim());
  const unit = UNITS[match?.[2]?.toUpperCase() ?? '-'];
  const bytes = Math.floor(Number(match?.[1]) * (unit ?? Number.NaN));
  return bytes > 0 && Number.isSafeInteger(bytes) ? bytes : null;
}

/** Formats a size with one decimal: "1.5 GB". */
export function formatBytes(bytes: number): string {
  const unit = ['TB', 'GB', 'MB', 'KB'].find((name) => bytes >= required(UNITS[name])) ?? 'B';
  const value = bytes / required(UNITS[unit]);
  return `${unit === 'B' ? value : value.toFixed(1)} ${unit}`;
}
