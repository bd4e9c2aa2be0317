// Opens several files that belong together while another process may replace them. After all are
// open, replacements have no effect on the reader.
import { setTimeout as pause } from 'node:timers/promises';

import { DsError } from '../errors.js';
import { type CheckpointWorld, onAllRanks } from './world.js';

/** Files that were opened together. */
export interface OpenedFiles {
  /** Identifies the state of the files: all files of one save have the same id. */
  readonly id: string;
  /** Returns the id of the files that have these names now. */
  currentIds(): Promise<string>;
  close(): Promise<void>;
}

/**
 * Maximum number of attempts. About one in five fails while a writer replaces the files constantly.
 */
const ATTEMPTS = 50;
const MAX_PAUSE_MS = 20;

/**
 * Calls `open` on every rank until all ranks have opened the same state, and that state still has
 * the names. An attempt may find damaged or missing files only because they are being replaced. So
 * a failure counts if it occurs twice in succession with the same text. Throws on all ranks: the
 * error of `open`, or DS_CHECKPOINT if `location` differs between ranks or changed in every
 * attempt.
 */
export async function openStable<T extends OpenedFiles>(
  world: CheckpointWorld,
  location: string,
  open: () => Promise<T>,
): Promise<T> {
  const label = `opening ${location}`;
  let before = '';
  for (let attempt = 1; ; ++attempt) {
    const ownOutcome = await attemptAt(location, open);
    const all = await reportAll(world, label, ownOutcome);
    if ('opened' in ownOutcome && isSame(all)) return ownOutcome.opened;
    if ('opened' in ownOutcome) await ownOutcome.opened.close();
    const outcomesText = JSON.stringify(all);
    const isStable =
      outcomesText === before && !all.some((report) => 'moving' in report && report.moving);
    if (isStable || attempt === ATTEMPTS) {
      await onAllRanks(world, label, async () => {
        if ('error' in ownOutcome) throw ownOutcome.error;
        return null;
      });
      throw differentError(location);
    }
    before = outcomesText;
    await pause(Math.min(attempt, MAX_PAUSE_MS));
  }
}

/** The result of one attempt. `moving`: whether the files were replaced during it. */
type Outcome<T> = { opened: T } | { error: unknown; moving: boolean };

async function attemptAt<T extends OpenedFiles>(
  location: string,
  open: () => Promise<T>,
): Promise<Outcome<T>> {
  let opened: T | null = null;
  try {
    opened = await open();
    if ((await opened.currentIds()) === opened.id) return { opened };
    await opened.close();
    return { error: replacedError(location), moving: true };
  } catch (error) {
    await opened?.close();
    return { error, moving: false };
  }
}

/** An outcome as it is sent to other ranks. */
type Report = { id: string } | { error: string; moving: boolean };

/** Returns the outcomes of all ranks, by rank. */
async function reportAll<T extends OpenedFiles>(
  world: CheckpointWorld,
  label: string,
  ownOutcome: Outcome<T>,
): Promise<Report[]> {
  const reported: Report =
    'opened' in ownOutcome
      ? { id: ownOutcome.opened.id }
      : { error: String(ownOutcome.error), moving: ownOutcome.moving };
  try {
    return (await world.exchange(label, reported)) as Report[];
  } catch (error) {
    if ('error' in ownOutcome) throw ownOutcome.error;
    await ownOutcome.opened.close();
    throw error;
  }
}

function isSame(all: readonly Report[]): boolean {
  const ids = all.map((report) => ('id' in report ? report.id : null));
  return ids.every((id) => id !== null && id === ids[0]);
}

function replacedError(op: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'files that do not change while they are opened',
    got: `files that changed ${ATTEMPTS} times`,
    hint: 'Another process replaces them repeatedly. Load another tag, or load after it has ended.',
  });
}

function differentError(op: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'the same checkpoint as on rank 0',
    got: 'a different checkpoint under the same name',
    hint: 'Use a folder that all ranks share.',
  });
}
