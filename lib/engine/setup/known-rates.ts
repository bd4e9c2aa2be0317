// What a user's runs have found of the processors of hosts, in a file: measured once for each.
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { makeFolderNow } from '../../runtime/make-folder.js';
import type { ProcessorRates } from '../../zero/home/processor-rates.js';

/** Hosts that the file remembers. */
const REMEMBERED = 32;

/** How the ranks of a run come to know what their processors can do. */
export interface RatesSource {
  /** Whether this is the first rank: what it knows counts on all, and it alone writes. */
  isFirst: boolean;
  /** What the first rank says; every rank calls it once. */
  agree: (own: boolean) => boolean;
  measure: () => ProcessorRates;
  /** What earlier runs of this user have found. */
  file: string;
}

/**
 * Those of an earlier run, else measured now by all ranks beside each other, and kept for later
 * runs. Null where the first rank knows them and this one does not.
 */
export function ratesOf(key: string, source: RatesSource): ProcessorRates | null {
  const { isFirst, agree, measure, file } = source;
  const known = readKnown(file);
  const found = known[key];
  const isKnown = isRates(found);
  if (agree(isKnown)) return isKnown ? found : null;
  const rates = measure();
  if (!isFirst) return rates;
  const entries = [...Object.entries(known), [key, rates] as const].slice(-REMEMBERED);
  keep(file, Object.fromEntries(entries));
  return rates;
}

/** Whatever the file holds that is no table counts as nothing: it is measured again. */
function readKnown(file: string): Record<string, unknown> {
  try {
    const found: unknown = JSON.parse(readFileSync(file, 'utf8'));
    return typeof found === 'object' && found ? { ...found } : {};
  } catch {
    return {};
  }
}

/** Where the folder cannot be written, each run measures for itself. */
function keep(file: string, rates: Record<string, unknown>): void {
  const written = `${file}.${process.pid}`;
  try {
    makeFolderNow(dirname(file));
    writeFileSync(written, `${JSON.stringify(rates, null, 2)}\n`);
    renameSync(written, file);
  } catch {
    rmSync(written, { force: true });
  }
}

function isRates(value: unknown): value is ProcessorRates {
  const { host, link } = (value ?? {}) as Partial<ProcessorRates>;
  return [host, link].every((rate) => Number.isFinite(rate) && (rate as number) > 0);
}
