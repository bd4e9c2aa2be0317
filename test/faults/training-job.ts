// The options of a training rank with a fault, and the outcome that it writes.
import { join } from 'node:path';

import type { DeviceKind } from '../../lib/runtime/device.js';

export interface Fault {
  kind: 'raises' | 'stops' | 'loops' | 'reorders' | 'skips' | 'dies saving';
  /** The rank with the fault. */
  rank: number;
  /** Global steps before the one with the fault. */
  step: number;
  /** In milliseconds, after the start of the background save. */
  delay?: number;
}

/** The one argument, as JSON. */
export interface Training {
  device: DeviceKind;
  stage: 1 | 2 | 3;
  offload: boolean;
  accumulation: number;
  /** Folder of checkpoints and outcomes. */
  folder: string;
  /** Prefix of this run's files. */
  name: string;
  /** Number of steps; a resumed run trains as many after its checkpoint. */
  steps: number;
  resume: boolean;
  save: 'never' | 'synchronous' | 'asynchronous';
  fault: Fault | null;
}

export interface Outcome {
  /** Global steps before and after. */
  from?: number;
  to?: number;
  /** Hash of all weights. */
  hash?: string;
  error?: { code: string | null; message: string; stack: string };
  /**
   * Result of the last asynchronous save after training has failed: a path, null without a save, or
   * an error.
   */
  saving?: string | null;
}

/** Folder of a training's checkpoints. */
export const checkpointsOf = ({ folder }: Pick<Training, 'folder'>) => join(folder, 'checkpoints');

/** Path of a rank's file: its pid as "pid", its outcome as "end". */
export const noteOf = ({ folder, name }: Training, rank: number, kind: 'pid' | 'end') =>
  join(folder, `${name}.${kind}${rank}`);
