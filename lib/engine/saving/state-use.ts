// Prevents changes to an engine's state during an asynchronous save, export or load.
import { DsError } from '../../errors.js';

interface Use {
  op: string;
  /** True for a load, which replaces the state. */
  changes: boolean;
}

export class StateUse {
  private readonly uses = new Set<Use>();

  /** Runs `body`, which reads the state. Throws DS_AUTOGRAD during a load. */
  async reading<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    this.requireLoaded(op);
    return this.using({ op, changes: false }, body);
  }

  /** Runs `body`, which replaces the state. Throws DS_AUTOGRAD during a save or load. */
  async changing<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    this.requireIdle(op);
    return this.using({ op, changes: true }, body);
  }

  /** Throws DS_AUTOGRAD during a save or load, because `op` would change the state. */
  requireIdle(op: string): void {
    for (const use of this.uses) throw notAwaited(op, use);
  }

  /** Throws DS_AUTOGRAD during a load, because `op` would read a mixture of old and new state. */
  requireLoaded(op: string): void {
    for (const use of this.uses) if (use.changes) throw notAwaited(op, use);
  }

  private async using<Result>(use: Use, body: () => Promise<Result>): Promise<Result> {
    this.uses.add(use);
    try {
      return await body();
    } finally {
      this.uses.delete(use);
    }
  }
}

function notAwaited(op: string, { op: under, changes }: Use): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: `a call after the end of ${under}()`,
    got: `a call while ${under}() ${changes ? 'replaces' : 'writes'} the engine state`,
    hint:
      under === 'saveCheckpoint'
        ? 'Await saveCheckpoint(). With { asynchronous: true }, training continues during the write.'
        : `Await ${under}().`,
  });
}
