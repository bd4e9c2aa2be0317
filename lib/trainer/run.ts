// A run from begin to end: the checkpoint that it resumes, the loop, and the final weights.

import { onAllRanks } from '../checkpoint/index.js';
import { requireWritable } from '../checkpoint/make-folder.js';
import { required } from '../runtime/required.js';
import {
  findBest,
  findCheckpoint,
  readCheckpoint,
  requireNoLaterCheckpoints,
} from './checkpoint-folder.js';
import { followsLength } from './configuration.js';
import type { BatchSource } from './data-source.js';
import type { EndEvent, EndReason, TrainerEvent } from './events.js';
import { runTrainingLoop } from './loop.js';
import type { Session } from './session.js';

/** Start of a run. */
export interface Beginning {
  resume: boolean | string;
  /** Whether the data continue at their position. */
  resumeData: boolean;
}

/** Events of a run; returns the last one, or null if the caller left the iteration. */
export async function* runOf<Batch>(
  session: Session<Batch>,
  data: BatchSource<Batch>,
  beginning: Beginning,
  isLeft: () => boolean,
): AsyncGenerator<TrainerEvent, EndEvent | null> {
  const { engine, state, book, length } = session;
  const resumedFrom = await resumeSession(session, beginning);
  await saveFolder(session);
  engine.train();
  book.begin(resumedFrom !== null);
  const { maxSteps } = length;
  yield { type: 'begin', step: state.step, epoch: state.epoch, maxSteps, resumedFrom };
  const reason = isLeft() ? null : yield* runTrainingLoop(session, data, isLeft);
  if (reason === null) return null;
  const end = await endRun(session, reason);
  yield end;
  return end;
}

async function resumeSession<Batch>(
  session: Session<Batch>,
  { resume, resumeData }: Beginning,
): Promise<string | null> {
  const { engine, world, settings, state, book, counts } = session;
  const { save } = settings;
  const path = resume === false ? null : await findCheckpoint(world, save?.dir ?? null, resume);
  if (path === null) {
    if (save) await requireNoLaterCheckpoints(world, save.dir, state.step);
    return null;
  }
  book.countTokens(counts.tokens()); // Counts of an abandoned run come before the checkpoint's.
  state.loadJson(await readCheckpoint(engine, path, resumeData), path);
  state.checkpoint = path;
  const { best } = state;
  if (best?.checkpoint) best.checkpoint = await findBest(world, path, best.checkpoint);
  realign(session);
  return path;
}

/**
 * Updates before the checkpoint may have been of another size: by ranks, batches or accumulation.
 * The run ends after its epochs all the same, and the learning rate is that of its place in them.
 */
function realign<Batch>({ engine, settings, state, length }: Session<Batch>): void {
  const { updatesPerEpoch, epochUpdates } = length;
  const isByEpochs = updatesPerEpoch !== null && epochUpdates !== null;
  const here = isByEpochs ? Math.floor(state.epoch * updatesPerEpoch + 1e-6) : state.step;
  const before = state.step - here;
  if (epochUpdates !== null) length.maxSteps = epochUpdates + before;
  if (!followsLength(settings)) return;
  const { progress } = engine.parts;
  progress.scheduleStart = Math.min(before, progress.appliedSteps);
}

/** Rejects on all ranks with DS_IO where no checkpoint could be written. */
async function saveFolder<Batch>({ world, settings: { save } }: Session<Batch>): Promise<void> {
  if (!save) return;
  await onAllRanks(world, 'opening save.dir', async () => {
    if (world.rank === 0) await requireWritable(save.dir);
    return null;
  });
}

/**
 * Returns the end event. A complete run first loads the weights of its best checkpoint, with
 * `save.best.load`. A stopped run keeps its last weights.
 */
async function endRun<Batch>(
  { engine, settings, state }: Session<Batch>,
  reason: EndReason,
): Promise<EndEvent> {
  const { step, epoch, best, checkpoint } = state;
  const isElsewhere = best?.checkpoint != null && best.step !== step;
  if (reason !== 'stopped' && settings.save?.best?.load && isElsewhere) {
    await engine.loadCheckpoint(required(best.checkpoint), { loadModuleOnly: true });
  }
  engine.synchronize();
  return { type: 'end', step, epoch, reason, checkpoint, best: best && { ...best } };
}
