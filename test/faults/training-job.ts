// What a rank that trains and goes wrong is told, and what it writes down.
import { join } from 'node:path';

import type { DeviceKind } from '../../lib/runtime/device.js';

export interface Fault {
  kind: 'raises' | 'stops' | 'loops' | 'reorders' | 'skips' | 'dies saving';
  /** The rank that goes wrong. */
  rank: number;
  /** Global steps before the one in which it does. */
  step: number;
  /** Milliseconds after the save has gone to the background. */
  delay?: number;
}

/** The one argument, as JSON. */
export interface Training {
  device: DeviceKind;
  stage: 1 | 2 | 3;
  offload: boolean;
  accumulation: number;
  /** Of checkpoints and of what ranks write down. */
  folder: string;
  /** Sets what this run writes down apart. */
  name: string;
  /** Of this run; a resumed one trains as many beyond its checkpoint. */
  steps: number;
  resume: boolean;
  save: 'never' | 'synchronous' | 'asynchronous';
  fault: Fault | null;
}

export interface Outcome {
  /** Global steps before and after. */
  from?: number;
  to?: number;
  /** Of all weights. */
  hash?: string;
  error?: { code: string | null; message: string; stack: string };
  /**
   * How the last asynchronous save ended, when training has failed: a path, null for none, or an
   * error.
   */
  saving?: string | null;
}

/** Where the checkpoints of a training are. */
export const checkpointsOf = ({ folder }: Pick<Training, 'folder'>) => join(folder, 'checkpoints');

/** What is written down of a rank: its pid as "pid", its end as "end". */
export const noteOf = ({ folder, name }: Training, rank: number, what: 'pid' | 'end') =>
  join(folder, `${name}.${what}${rank}`);
