// One run of a Trainer: loads a checkpoint if it resumes, runs the loop, and ends.

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

/** How a run starts. */
export interface RunStart {
  resume: boolean | string;
  /** Whether the data also continue at the position of the checkpoint. */
  resumeData: boolean;
}

/** Yields the events of a run. Returns the last event, or null if the caller left the iteration. */
export async function* runSession<Batch>(
  session: Session<Batch>,
  data: BatchSource<Batch>,
  start: RunStart,
  isLeft: () => boolean,
): AsyncGenerator<TrainerEvent, EndEvent | null> {
  const { engine, state, book, length } = session;
  const resumedFrom = await resumeSession(session, start);
  await requireSaveFolder(session);
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
  { resume, resumeData }: RunStart,
): Promise<string | null> {
  const { engine, world, settings, state, book, counts } = session;
  const { save } = settings;
  const path = resume === false ? null : await findCheckpoint(world, save?.dir ?? null, resume);
  if (path === null) {
    if (save) await requireNoLaterCheckpoints(world, save.dir, state.step);
    return null;
  }
  // Tokens of a previous run on this Trainer are counted now: later they would add to the
  // checkpoint's.
  book.countTokens(counts.tokens());
  state.loadJson(await readCheckpoint(engine, path, resumeData), path);
  state.checkpoint = path;
  const { best } = state;
  if (best?.checkpoint) best.checkpoint = await findBest(world, path, best.checkpoint);
  correctLength(session);
  return path;
}

/**
 * Corrects the length of a resumed run. Updates before the checkpoint may have had another size,
 * because of other ranks, batches or accumulation. The run still ends after its epochs, and the
 * learning rate is the one that belongs to the current epoch.
 */
function correctLength<Batch>({ engine, settings, state, length }: Session<Batch>): void {
  const { updatesPerEpoch, epochUpdates } = length;
  const isByEpochs = updatesPerEpoch !== null && epochUpdates !== null;
  const here = isByEpochs ? Math.floor(state.epoch * updatesPerEpoch + 1e-6) : state.step;
  const before = state.step - here;
  if (epochUpdates !== null) length.maxSteps = epochUpdates + before;
  if (!followsLength(settings)) return;
  const { progress } = engine.parts;
  progress.scheduleStart = Math.min(before, progress.appliedSteps);
}

/** Rejects on all ranks with DS_IO if a checkpoint could not be written to `save.dir`. */
async function requireSaveFolder<Batch>({
  world,
  settings: { save },
}: Session<Batch>): Promise<void> {
  if (!save) return;
  await onAllRanks(world, 'opening save.dir', async () => {
    if (world.rank === 0) await requireWritable(save.dir);
    return null;
  });
}

/**
 * Returns the end event. With `save.best.load`, loads the weights of the best checkpoint first,
 * unless a signal stopped the run.
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
